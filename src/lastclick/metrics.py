"""Accuracy and last-item metrics of one target per sequence, from its rank.

Each function turns a column of ranks (1-based over the whole catalogue) into one value per row; a
reported metric is their mean over users, not over batches. A null rank (no such position) gives
null.
"""

from __future__ import annotations

import polars as pl


def hit(rank: str, k: int) -> pl.Expr:
    """Whether the item stands in the top ``k``: the mean is HR@k; of the last input item, HRLI@k."""
    return pl.col(rank) <= k


def ndcg_gain(rank: str, k: int) -> pl.Expr:
    """1 / log2(1 + rank) within the top ``k``, else 0: the mean is NDCG@k for a single target."""
    ranks = pl.col(rank).cast(pl.Float64)
    return pl.when(ranks <= k).then(1 / (ranks + 1).log(2)).when(ranks.is_not_null()).then(0.0)


def reciprocal_rank(rank: str, k: int | None = None) -> pl.Expr:
    """1 / rank, and 0 beyond the top ``k`` where one is given: the mean is MRR or MRR@k."""
    ranks = pl.col(rank).cast(pl.Float64)
    if k is None:
        return 1 / ranks
    return pl.when(ranks <= k).then(1 / ranks).when(ranks.is_not_null()).then(0.0)
