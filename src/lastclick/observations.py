"""What every reported number is made of, and how its interval is found.

Each number of the study is a ratio of two sums over users: a hit rate sums hits over ones,
recovery sums recovered misses over recoverable ones, a mixing ratio sums ratios over positions.
A diagnostic therefore only says, for each metric and user, a numerator and a weight (an
*observation*); value, bootstrap interval and paired differences follow in one place, the same way
for all. A paired difference is a metric of its own whose numerator is the user's difference.

A metric is named by a path, such as ``all/alpha=0.1/HR@10``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from lastclick.bootstrap import ratio_intervals
from lastclick.errors import UserError
from lastclick.tables import OBSERVATIONS


def observe(
    rows: pl.DataFrame, metrics: Mapping[str, pl.Expr | tuple[pl.Expr, pl.Expr]]
) -> pl.DataFrame:
    """Observations of ``metrics`` over ``rows``, one row or more per user.

    Each metric is an expression for the numerator, with weight 1 for every row, or a pair
    (numerator, weight). Several rows of one user (several targets) are added up: users, not rows,
    are what the bootstrap draws. Rows where the numerator is null carry no weight; users without
    any weight are left out of that metric.
    """
    columns = []
    for name, definition in metrics.items():
        numerator, weight = (
            definition if isinstance(definition, tuple) else (definition, pl.lit(1.0))
        )
        numerator = numerator.cast(pl.Float64)
        columns += [
            numerator.fill_null(0.0).alias(f"numerator {name}"),
            pl.when(numerator.is_not_null()).then(weight.cast(pl.Float64)).otherwise(0.0)
            .alias(f"weight {name}"),
        ]  # fmt: skip
    per_user = (
        rows.select("user_id", *columns)
        .group_by("user_id", maintain_order=True)
        .sum()
        .sort("user_id")
    )
    parts = [
        per_user.select(
            pl.lit(name).alias("metric"),
            "user_id",
            pl.col(f"numerator {name}").alias("numerator"),
            pl.col(f"weight {name}").alias("weight"),
        ).filter(pl.col("weight") > 0)
        for name in metrics
    ]
    return pl.concat(parts).cast(OBSERVATIONS)  # type: ignore[arg-type]


def under(prefix: str, observations: pl.DataFrame) -> pl.DataFrame:
    """The same observations with ``prefix/`` before every metric."""
    return observations.with_columns(pl.format("{}/{}", pl.lit(prefix), "metric").alias("metric"))


def summarise(
    per_seed: Sequence[pl.DataFrame], *, draws: int, seed: int, confidence: float
) -> dict[str, dict[str, Any]]:
    """Value and bootstrap interval of every metric, in order of first appearance.

    ``per_seed``: the observations of the same users under each training seed. The value is the
    mean over seeds of ``sum(numerator) / sum(weight)``; users are drawn with replacement, the same
    users for all metrics and seeds, so the interval is over users with the trained models as they
    are. ``spread`` is the sample standard deviation over seeds (absent for one seed).

    Returns path -> {value, low, high, n_users, by_seed, spread?}, where ``n_users`` counts those
    with weight (under the seed that has the fewest); a metric in which, under some seed, no user
    has weight is left out rather than reported as NaN.
    """
    if not per_seed or all(frame.is_empty() for frame in per_seed):
        raise UserError("there is nobody to evaluate: the evaluation partition holds no users")
    names = pl.concat(per_seed)["metric"].unique(maintain_order=True).to_list()
    users = pl.concat(per_seed)["user_id"].unique().sort()
    sums = [_dense(frame, names, users) for frame in per_seed]
    summary: dict[str, dict[str, Any]] = {}
    intervals = ratio_intervals(
        np.stack([numerator for numerator, _ in sums]),
        np.stack([weight for _, weight in sums]),
        draws=draws, seed=seed, confidence=confidence,
    )  # fmt: skip
    for column, (name, interval) in enumerate(zip(names, intervals, strict=True)):
        if interval is None:
            continue
        by_seed = [float(n[:, column].sum() / w[:, column].sum()) for n, w in sums]
        entry = {
            "value": interval.value,
            "low": interval.low,
            "high": interval.high,
            "n_users": min(int((weight[:, column] > 0).sum()) for _, weight in sums),
            "by_seed": by_seed,
        }
        if len(by_seed) > 1:
            entry["spread"] = float(np.std(by_seed, ddof=1))
        summary[name] = entry
    return summary


def _dense(
    frame: pl.DataFrame, names: list[str], users: pl.Series
) -> tuple[np.ndarray, np.ndarray]:
    """Numerators and weights as ``(n_users, n_metrics)`` arrays; 0 where a user has no weight."""
    column = {name: index for index, name in enumerate(names)}
    columns = frame["metric"].replace_strict(column, return_dtype=pl.Int64).to_numpy()
    rows = np.searchsorted(users.to_numpy(), frame["user_id"].to_numpy())
    numerator = np.zeros((len(users), len(names)))
    weight = np.zeros_like(numerator)
    numerator[rows, columns] = frame["numerator"].to_numpy()
    weight[rows, columns] = frame["weight"].to_numpy()
    return numerator, weight
