"""What becomes of mixing, last-item reliance and accuracy as the residual is scaled.

*Residual dominance*, Figure 4: h_i = alpha x_i + Attn(x)_i in every layer and position at
prediction time, weights untouched; beyond the paper, in one layer at a time.
"""

from __future__ import annotations

import polars as pl

from lastclick.diagnostics.conditions import TRAINED, by_condition, condition_path
from lastclick.metrics import hit_rate, ndcg
from lastclick.observations import observe, under


def scale_observations(scores: pl.DataFrame) -> pl.DataFrame:
    """Observations at every scale of the test partition, and paired differences to alpha = 1.

    ``scores``: rows of the table SCALES. Mixing ratios are those of level attn_res_ln, averaged
    over positions and layers; their weight is the number of positions.
    """
    rows = scores.filter((pl.col("partition") == "test") & (pl.col("offset") == 0))
    measures = {
        "HR@10": hit_rate("target_rank", 10),
        "NDCG@10": ndcg("target_rank", 10),
        "HRLI@1": hit_rate("last_item_rank", 1),
        "HRLI@10": hit_rate("last_item_rank", 10),
        "HRL2I@1": hit_rate("second_last_item_rank", 1),
    }
    mixing = {
        f"mixing_ratio/{definition}": (
            pl.col(f"mixing_ratio_{definition}") * pl.col("n_positions"),
            pl.col("n_positions"),
        )
        for definition in ("norm_of_sum", "sum_of_norms")
    }
    trained = rows.filter(TRAINED).select(
        "user_id",
        "target_index",
        *(measure.cast(pl.Float64).alias(f"{name}_trained") for name, measure in measures.items()),
    )
    paired = rows.join(
        trained, on=["user_id", "target_index"], how="left", validate="m:1", maintain_order="left"
    )
    differences = {
        f"{name}_minus_alpha_1": measure.cast(pl.Float64) - pl.col(f"{name}_trained")
        for name, measure in measures.items()
    }
    return pl.concat(
        under(condition_path(layers, alpha), observe(part, {**measures, **mixing, **differences}))
        for (layers, alpha), part in by_condition(paired)
    )
