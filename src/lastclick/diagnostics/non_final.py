"""Hits that earlier positions would have made where the final one misses (Table 4).

*Residual dominance*: the share of *all* test sequences that miss at L but whose output at L-1 (or
L-2, or L-3, each row on its own) ranks the final target in the top 10. The rows overlap and must
not be added up. A sequence too short to have the position counts as no hit there.
"""

from __future__ import annotations

import polars as pl

from lastclick.diagnostics.conditions import NON_FINAL_OFFSETS, TRAINED
from lastclick.metrics import hit_rate
from lastclick.observations import observe

K = 10

_SEQUENCE = ["user_id", "target_index"]


def hits_by_offset(scores: pl.DataFrame) -> pl.DataFrame:
    """One row per sequence with ``hit_0 … hit_3``: does the output at L-k hit the final target?

    ``scores``: rows of SCALES of one partition; the trained model's (alpha = 1) are used. Hits at
    positions that do not exist are false. Sorted by user and target.
    """
    return (
        scores.filter(TRAINED)
        .group_by(_SEQUENCE)
        .agg(
            (hit_rate("target_rank", K).fill_null(False) & (pl.col("offset") == offset))
            .any()
            .alias(f"hit_{offset}")
            for offset in (0, *NON_FINAL_OFFSETS)
        )
        .sort(_SEQUENCE)
    )


def recoverable(hits: pl.DataFrame) -> pl.DataFrame:
    """``hits`` with the column ``recoverable``: a miss at L, a hit at one of L-1, L-2, L-3."""
    earlier = pl.any_horizontal(f"hit_{offset}" for offset in NON_FINAL_OFFSETS)
    return hits.with_columns((~pl.col("hit_0") & earlier).alias("recoverable"))


def non_final_observations(scores: pl.DataFrame) -> pl.DataFrame:
    """Observations of ``HR@10/L`` and, for each k, ``HR@10/L-k_miss_L``, on test."""
    hits = hits_by_offset(scores.filter(pl.col("partition") == "test"))
    metrics = {f"HR@{K}/L": pl.col("hit_0")}
    for offset in NON_FINAL_OFFSETS:
        metrics[f"HR@{K}/L-{offset}_miss_L"] = ~pl.col("hit_0") & pl.col(f"hit_{offset}")
    return observe(hits, metrics)
