"""Accuracy when the order of the input is destroyed (*residual dominance*, Figure 1).

Chronological input, the same with everything before the last item permuted (partial), and all
permuted (full). Partial close to chronological, and full far below, means that the last item's
place carries what order the model uses.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from lastclick.metrics import hit_rate, mrr, ndcg
from lastclick.observations import observe, under

ORDERS = ("chronological", "partial", "full")


def shuffle_observations(scores: pl.DataFrame, ks: Sequence[int]) -> pl.DataFrame:
    """Observations of HR@K, NDCG@K and MRR under each order, and of the paired differences.

    ``scores``: rows of the table SHUFFLES. For partial and full, a user's value is the mean over
    the seeds of the permutation. MRR@K, which is printed as an accuracy and under no shuffle, is
    that of the chronological order alone.
    """
    measures = {
        **{f"HR@{k}": hit_rate("target_rank", k) for k in ks},
        **{f"NDCG@{k}": ndcg("target_rank", k) for k in ks},
        "MRR": mrr("target_rank"),
    }
    # One row per evaluated sequence and order, averaged over permutations.
    per_sequence = {
        order: scores.filter(pl.col("order") == order)
        .group_by("user_id", "target_index", maintain_order=True)
        .agg(measure.cast(pl.Float64).mean().alias(name) for name, measure in measures.items())
        for order in ORDERS
    }
    parts = [
        under(order, observe(rows, {name: pl.col(name) for name in measures}))
        for order, rows in per_sequence.items()
    ]
    for order in ORDERS[1:]:
        paired = per_sequence[order].join(
            per_sequence["chronological"], on=["user_id", "target_index"], suffix="_chronological",
            how="inner", validate="1:1", maintain_order="left",
        )  # fmt: skip
        differences = {name: pl.col(name) - pl.col(f"{name}_chronological") for name in measures}
        parts.append(under(f"{order}_minus_chronological", observe(paired, differences)))
    cut_off = {f"MRR@{k}": mrr("target_rank", k) for k in ks}
    chronological = scores.filter(pl.col("order") == "chronological")
    parts.append(under("chronological", observe(chronological, cut_off)))
    return pl.concat(parts)


def accuracy_by_order_seed(scores: pl.DataFrame) -> dict[str, dict[str, dict[str, float]]]:
    """HR@10 and NDCG@10 of each single permutation: order -> seed -> metric -> value."""
    rows = (
        scores.filter(pl.col("order_seed").is_not_null())
        .group_by("order", "order_seed")
        .agg(
            hit_rate("target_rank", 10).cast(pl.Float64).mean().alias("HR@10"),
            ndcg("target_rank", 10).mean().alias("NDCG@10"),
        )
        .sort("order", "order_seed")
    )
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows.iter_rows(named=True):
        values = {name: row[name] for name in ("HR@10", "NDCG@10")}
        found.setdefault(row["order"], {})[str(row["order_seed"])] = values
    return found
