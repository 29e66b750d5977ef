"""How often the model recommends the items it has just read: HRLI@K and HRL2I@K.

*Residual dominance*, Figure 2. Nothing is filtered: a seen item may be recommended. A diagnostic
of last-item reliance, not an accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from lastclick.metrics import hit_rate
from lastclick.observations import observe


def last_item_observations(scores: pl.DataFrame, ks: Sequence[int]) -> pl.DataFrame:
    """Observations of HRLI@K, HRL2I@K and their paired difference, for the chronological input.

    ``scores``: rows of the table SHUFFLES. HRLI counts all sequences; HRL2I and the difference
    count those that have a second-last item.
    """
    rows = scores.filter(pl.col("order") == "chronological")
    metrics: dict[str, pl.Expr] = {}
    for k in ks:
        last, second_last = hit_rate("last_item_rank", k), hit_rate("second_last_item_rank", k)
        metrics[f"HRLI@{k}"] = last
        metrics[f"HRL2I@{k}"] = second_last
        metrics[f"HRLI@{k}_minus_HRL2I@{k}"] = last.cast(pl.Float64) - second_last.cast(pl.Float64)
    return observe(rows, metrics)
