"""Accuracy and last-item metrics of one wanted item per sequence, from its rank.

Each function turns a column of ranks (1-based over the whole catalogue, `lastclick.ranking`) into
one value per row; a reported metric is the mean of these values over users, never of means over
batches. A null rank, of a position that does not exist, gives null, and such a row is no part of
the mean: HRL2I is a share of the sequences that have a second-last item.
"""

from __future__ import annotations

import polars as pl

# lastclick.ranking.REMOVED_RANK, the rank of a target that filter-seen removed. Not imported: with
# that module comes torch, which no query over rank columns needs.
_REMOVED_RANK = 2**31 - 1


def hit_rate(rank: str, k: int) -> pl.Expr:
    """HR@k of one row: is the item in the top ``k``? Of the last input item it is HRLI@k."""
    return pl.col(rank) <= k


def ndcg(rank: str, k: int) -> pl.Expr:
    """NDCG@k of one row with a single target: 1 / log2(1 + rank) in the top ``k``, else 0.

    The ideal list has the target first and gains 1, so no further division is needed (Järvelin &
    Kekäläinen, "Cumulated gain-based evaluation of IR techniques", 2002).
    """
    return _within(rank, k, 1 / (pl.col(rank).cast(pl.Float64) + 1).log(2))


def mrr(rank: str, k: int | None = None) -> pl.Expr:
    """MRR@k of one row, or MRR without ``k``: 1 / rank, and 0 beyond the top ``k``.

    A target that filter-seen removed stands in no list and counts 0.
    """
    last = _REMOVED_RANK - 1 if k is None else k
    return _within(rank, last, 1 / pl.col(rank).cast(pl.Float64))


def _within(rank: str, k: int, gain: pl.Expr) -> pl.Expr:
    """``gain`` where the rank is at most ``k``, 0 beyond, null where there is no rank."""
    return pl.when(pl.col(rank) <= k).then(gain).when(pl.col(rank).is_not_null()).then(0.0)
