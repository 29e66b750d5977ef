"""How many recoverable misses a smaller residual turns into hits (Figure 5).

*Residual dominance*: the base set is fixed at alpha = 1, a miss at L and a hit at one or more of
L-1, L-2, L-3. Recovery(alpha) is the share of the base set that hits at L under alpha; zero at
alpha = 1 by definition. Conditional on the base set, not an accuracy.
"""

from __future__ import annotations

import polars as pl

from lastclick.diagnostics.conditions import TRAINED, by_condition, condition_path
from lastclick.diagnostics.non_final import K, hits_by_offset, recoverable
from lastclick.metrics import hit_rate
from lastclick.observations import observe, under


def with_base_set(scores: pl.DataFrame) -> pl.DataFrame:
    """The rows at L of one partition with ``hit`` and ``recoverable``, for every scale."""
    base = recoverable(hits_by_offset(scores)).select("user_id", "target_index", "recoverable")
    at_last = scores.filter(pl.col("offset") == 0)
    return at_last.with_columns(hit_rate("target_rank", K).alias("hit")).join(
        base, on=["user_id", "target_index"], how="left", validate="m:1", maintain_order="left"
    )


def recover_observations(scores: pl.DataFrame) -> pl.DataFrame:
    """Observations of the base set's share and of recovery at every scale, on test.

    Metrics: ``base_share`` of all test sequences; ``<condition>/recovery`` of the base set, the
    condition as in ``condition_path``.
    """
    rows = with_base_set(scores.filter(pl.col("partition") == "test"))
    recovery = {"recovery": (pl.col("hit") & pl.col("recoverable"), pl.col("recoverable"))}
    return pl.concat(
        [
            observe(rows.filter(TRAINED), {"base_share": pl.col("recoverable")}),
            *(
                under(condition_path(layers, alpha), observe(part, recovery))
                for (layers, alpha), part in by_condition(rows)
            ),
        ]
    )


def base_set_size(scores: pl.DataFrame) -> dict[str, int]:
    """Sizes behind the recovery curve, on test: recoverable sequences, and all."""
    base = recoverable(hits_by_offset(scores.filter(pl.col("partition") == "test")))
    return {"base_set": int(base["recoverable"].sum()), "n_sequences": base.height}
