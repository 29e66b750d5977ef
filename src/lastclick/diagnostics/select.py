"""Alpha chosen on validation, judged once on test (Figure 6).

*Residual dominance*: alpha* maximises recovery on validation among the alphas that keep HR@10 on
validation at (1 - epsilon) of the trained model's or more. The oracle does the same on test, which
nobody could have done in time: a yardstick, not a result. It is no upper bound of recovery either,
since an alpha that keeps HR@10 on validation may lose more than epsilon of it on test.

``choose`` sees the rows of one partition and nothing else; the caller gives it validation rows and
hands out the test rows only afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import polars as pl

from lastclick.diagnostics.recover import with_base_set
from lastclick.observations import observe, under


@dataclass(frozen=True)
class Curve:
    """Hits, HR@10 and recovery at each alpha (all layers scaled) on one partition.

    ``recovery`` is None when the partition has no recoverable miss.
    """

    alphas: tuple[float, ...]
    hits: tuple[int, ...]
    hit_rate: tuple[float, ...]
    recovery: tuple[float | None, ...]


def curve(rows: pl.DataFrame) -> Curve:
    """The curve of one partition's rows of SCALES."""
    per_alpha = (
        with_base_set(rows.filter(pl.col("layers") == "all"))
        .group_by("alpha")
        .agg(
            pl.col("hit").sum().alias("hits"),
            pl.col("hit").mean().alias("hit_rate"),
            (pl.col("hit") & pl.col("recoverable")).sum().alias("recovered"),
            pl.col("recoverable").sum().alias("base"),
        )
        .sort("alpha")
    )
    recovery = per_alpha.select(
        pl.when(pl.col("base") > 0).then(pl.col("recovered") / pl.col("base"))
    ).to_series()
    return Curve(
        *(tuple(per_alpha[column]) for column in ("alpha", "hits", "hit_rate")),
        recovery=tuple(recovery.to_list()),
    )


def choose(rows: pl.DataFrame, epsilons: Sequence[float]) -> dict[float, float]:
    """alpha* for every epsilon, from one partition's rows of SCALES.

    The limit is exact: with 30 hits and an epsilon of 0.1, 27 are enough. Among equals the alpha
    nearest to the trained model's 1 is taken; where nothing can be recovered that is 1 itself.
    """
    found = curve(rows)
    trained = found.hits[found.alphas.index(1.0)]
    chosen = {}
    for epsilon in epsilons:
        allowed = [
            (recovery or 0.0, -abs(alpha - 1), alpha)
            for alpha, hits, recovery in zip(found.alphas, found.hits, found.recovery, strict=True)
            if hits >= (1 - Fraction(str(epsilon))) * trained
        ]
        chosen[epsilon] = max(allowed)[-1]
    return chosen


def select_observations(
    test: pl.DataFrame, chosen: Mapping[float, float], oracle: Mapping[float, float]
) -> pl.DataFrame:
    """Test change of HR@10 against alpha = 1, and test recovery, of each epsilon's choices.

    ``test``: rows of SCALES of the test partition; ``chosen`` and ``oracle``: epsilon -> alpha.
    Metrics: ``epsilon=<epsilon>/{delta_HR@10, recovery, oracle_delta_HR@10, oracle_recovery}``.
    """
    rows = with_base_set(test.filter(pl.col("layers") == "all"))
    trained = rows.filter(pl.col("alpha") == 1).select(
        "user_id", "target_index", pl.col("hit").alias("hit_trained")
    )
    parts = []
    for epsilon in chosen:
        for prefix, alpha in (("", chosen[epsilon]), ("oracle_", oracle[epsilon])):
            part = rows.filter(pl.col("alpha") == alpha).join(
                trained, on=["user_id", "target_index"], how="left", validate="1:1",
                maintain_order="left",
            )  # fmt: skip
            difference = pl.col("hit").cast(pl.Float64) - pl.col("hit_trained").cast(pl.Float64)
            metrics = {
                f"{prefix}delta_HR@10": difference,
                f"{prefix}recovery": (pl.col("hit") & pl.col("recoverable"), pl.col("recoverable")),
            }
            parts.append(under(f"epsilon={epsilon:g}", observe(part, metrics)))
    return pl.concat(parts)
