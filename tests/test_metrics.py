"""Metrics of single ranks, worked out by hand."""

import math

import polars as pl
import pytest
import torch

from lastclick import metrics, ranking
from lastclick.metrics import hit_rate, mrr, ndcg

# First; in the middle; at the border of the top 10 and just outside; removed by filter-seen; none.
RANKS = pl.DataFrame(
    {"rank": [1, 3, 10, 11, ranking.REMOVED_RANK, None]}, schema={"rank": pl.Int32}
)


def values(expression):
    return RANKS.select(expression.cast(pl.Float64).alias("value"))["value"].to_list()


def test_hit_rate_is_a_rank_of_at_most_k():
    assert values(hit_rate("rank", 1)) == [1, 0, 0, 0, 0, None]
    assert values(hit_rate("rank", 10)) == [1, 1, 1, 0, 0, None]


def test_ndcg_discounts_by_log_two_of_one_plus_rank():
    assert values(ndcg("rank", 10)) == pytest.approx([1, 1 / 2, 1 / math.log2(11), 0, 0, None])


def test_mrr_with_and_without_cut_off():
    assert values(mrr("rank")) == pytest.approx([1, 1 / 3, 1 / 10, 1 / 11, 0, None])
    assert values(mrr("rank", 3)) == pytest.approx([1, 1 / 3, 0, 0, 0, None])


def test_a_removed_target_is_a_miss_at_any_k_and_in_any_catalogue():
    catalogue = 2**24  # more items than can be ranked
    assert values(hit_rate("rank", catalogue))[4] == 0
    assert values(ndcg("rank", catalogue))[4] == 0
    assert metrics._REMOVED_RANK == ranking.REMOVED_RANK


def test_a_missing_position_is_no_part_of_the_mean():
    assert RANKS.select(hit_rate("rank", 10).mean()).item() == 3 / 5


def test_means_are_over_users_not_over_batches():
    # C14: hits 1, 1, 1, 0, 0 in batches of two are 0.6; the mean of batch means would be 0.5.
    states = torch.tensor([[1.0], [1.0], [1.0], [-1.0], [-1.0]])
    item_vectors = torch.tensor([[0.0], [2.0], [1.0]])
    target = torch.ones(5, 1, dtype=torch.int64)
    ranks = ranking.ranks_of(states, item_vectors, target, chunk_rows=2)
    frame = pl.DataFrame({"rank": ranks.filtered.numpy()})
    assert frame.select(hit_rate("rank", 1).mean()).item() == pytest.approx(0.6)


def test_cold_target_outside_the_top_counts_as_a_miss():
    # C08: four users whose targets rank 1, 1, 3 and, never seen in training, last.
    frame = pl.DataFrame({"rank": [1, 1, 3, 4]})
    assert frame.select(hit_rate("rank", 1).mean()).item() == 0.5
