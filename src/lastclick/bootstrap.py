"""Bootstrap intervals over users.

Users are drawn with replacement, as many as there are, and a statistic is computed anew from each
draw; its interval is the percentile interval of the draws (Efron & Tibshirani, "An Introduction
to the Bootstrap", 1993, chapter 13). Every statistic here is a ratio of two sums over users: a
mean has the weight 1 for every user, the share of a subset has the subset's membership. All
metrics and training seeds share the same draws, so a difference taken user by user and given as a
metric of its own is a paired comparison.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lastclick.errors import UserError

# How often each user was drawn is held for this many (draw, user) pairs at a time: all 2,000 draws
# of 281,000 users would take 4.5 GB.
_CHUNK_ELEMENTS = 2**23


@dataclass(frozen=True)
class Interval:
    """A value and its bootstrap interval."""

    value: float
    low: float
    high: float


def ratio_intervals(
    numerator: np.ndarray, weight: np.ndarray, *, draws: int, seed: int, confidence: float
) -> list[Interval | None]:
    """Intervals of ``mean over training seeds of sum(numerator) / sum(weight)``, one per metric.

    The spread between training seeds is not part of the interval: it says how much hangs on which
    users were evaluated, with the trained models as they are. A draw that holds nobody of the
    weighted subset defines no ratio and is left out, so that the interval of a small subset is
    that of the draws in which the subset occurs.

    Args:
        numerator: (n_seeds, n_users, n_metrics), sums of each user, 0 where the weight is 0.
        weight: of the same shape, not negative.
        draws: number of bootstrap draws.
        seed: of the draws; the same seed gives the same draws on any number of threads.
        confidence: probability between the two ends, such as 0.95.

    Returns:
        one interval per metric; None for a metric whose weight is 0 for all users of some
        training seed.

    Raises:
        UserError: there are no users, or so few draws that a metric is defined in none of them.
    """
    n_seeds, n_users, n_metrics = numerator.shape
    if n_users == 0:
        raise UserError("there is nobody to evaluate: no user is left to average over")
    # Most weights are the same column of ones, so distinct columns are summed once.
    columns, places = _distinct_columns((*numerator, *weight))
    upper, lower = places.reshape(2, n_seeds, n_metrics)
    totals, drawn = columns.sum(axis=1), _drawn_sums(columns, draws, seed)
    tail = (1 - confidence) / 2
    intervals: list[Interval | None] = []
    for above, below in zip(upper.T, lower.T, strict=True):
        if (totals[below] <= 0).any():
            intervals.append(None)
            continue
        defined = drawn[(drawn[:, below] > 0).all(axis=1)]
        if len(defined) == 0:
            raise UserError(
                f"none of the {draws} bootstrap draws holds anybody of a small group of users: "
                "raise evaluation.bootstrap_draws"
            )
        ratios = (defined[:, above] / defined[:, below]).mean(axis=1)
        value = (totals[above] / totals[below]).mean()
        low, high = np.quantile(ratios, (tail, 1 - tail))
        intervals.append(Interval(float(value), float(low), float(high)))
    return intervals


def _drawn_sums(columns: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """Sums over the users of each draw, ``columns (n_columns, n_users)`` -> (draws, n_columns)."""
    n_columns, n_users = columns.shape
    rng = np.random.default_rng(seed)
    sums = np.empty((draws, n_columns))
    counts = np.empty((min(draws, max(1, _CHUNK_ELEMENTS // n_users)), n_users))
    for start in range(0, draws, len(counts)):
        part = counts[: draws - start]
        for count in part:
            count[:] = np.bincount(rng.integers(0, n_users, n_users, np.int32), minlength=n_users)
        np.matmul(part, columns.T, out=sums[start : start + len(part)])
    return sums


def _distinct_columns(tables: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The distinct columns of all ``tables (n_users, n_metrics)``, and the place of each column.

    Returns:
        columns (n_distinct, n_users); places (n_tables * n_metrics,), indices into ``columns``.
    """
    places: list[int] = []
    found: dict[bytes, int] = {}
    for table in tables:
        for column in table.T:
            places.append(found.setdefault(column.astype(np.float64).tobytes(), len(found)))
    columns = np.stack([np.frombuffer(content) for content in found])
    return columns, np.array(places)
