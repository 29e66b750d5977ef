"""Ranks against a direct reading of their definition, on scores that are exact in float32."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastclick import ranking
from lastclick.ranking import REMOVED_RANK, NonFiniteScoresError, SeenItems, ranks_of, top_k


def ordered_items(scores, removed=()):
    """Items 1.. of one row of scores (column 0 = padding), best first, smaller id first in ties."""
    items = [item for item in range(1, len(scores)) if item not in removed]
    return sorted(items, key=lambda item: (-scores[item], item))


def one_hot_catalogue(*rows):
    """States and item vectors whose scores are exactly ``rows`` (each row: items 1..)."""
    scores = torch.tensor(rows)
    return torch.eye(len(rows)), torch.cat([torch.zeros(1, len(rows)), scores.T])


def seen_items(*rows):
    lengths = torch.tensor([0, *map(len, rows)])
    items = torch.tensor([item for row in rows for item in row], dtype=torch.int64)
    return SeenItems.from_sequences(items, lengths.cumsum(0))


@st.composite
def problems(draw):
    """Few distinct integers in few dimensions: exact dot products, and ties in nearly every row."""
    n_rows, hidden = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    n_items = draw(st.integers(1, 140))  # up to three blocks of columns
    seed = draw(st.integers(0, 2**32 - 1))
    generator = torch.Generator().manual_seed(seed)
    states = torch.randint(-2, 3, (n_rows, hidden), generator=generator).float()
    item_vectors = torch.randint(-2, 3, (n_items + 1, hidden), generator=generator).float()
    wanted = torch.randint(0, n_items + 1, (n_rows, 2), generator=generator)
    seen = [
        draw(st.lists(st.integers(1, n_items), max_size=7), label="seen") for _ in range(n_rows)
    ]
    chunk_rows = draw(st.sampled_from([None, 1, 2]))
    return states, item_vectors, wanted, seen, chunk_rows


@settings(max_examples=50)
@given(problems())
def test_ranks_are_places_in_the_sorted_catalogue(problem):
    states, item_vectors, wanted, seen, chunk_rows = problem
    ranks = ranks_of(states, item_vectors, wanted, seen_items(*seen), chunk_rows=chunk_rows)
    scores = (states @ item_vectors.T).tolist()
    for row, row_scores in enumerate(scores):
        everything = [None, *ordered_items(row_scores)]
        for column in range(2):
            item = int(wanted[row, column])
            expected = everything.index(item) if item else 0
            assert ranks.unfiltered[row, column] == expected
        target = int(wanted[row, 0])
        rest = [None, *ordered_items(row_scores, removed=seen[row])]
        if target == 0:
            assert ranks.filtered[row] == 0
        elif target in seen[row]:
            assert ranks.filtered[row] == REMOVED_RANK
        else:
            assert ranks.filtered[row] == rest.index(target)


@settings(max_examples=50)
@given(problems(), st.integers(1, 150))
def test_top_k_is_the_head_of_the_sorted_catalogue(problem, k):
    states, item_vectors, _, seen, chunk_rows = problem
    lists = top_k(states, item_vectors, k, seen_items(*seen), chunk_rows=chunk_rows)
    for row, row_scores in enumerate((states @ item_vectors.T).tolist()):
        expected = ordered_items(row_scores, removed=seen[row])[:k]
        assert lists[row].tolist() == expected + [0] * (k - len(expected))


def test_equal_scores_rank_by_id():
    # C13: target 4 of five items.
    states, item_vectors = one_hot_catalogue([0.5, 0.9, 0.5, 0.5, 0.1], [0.7] * 5)
    ranks = ranks_of(states, item_vectors, torch.tensor([[4], [4]]))
    assert ranks.unfiltered.tolist() == [[4], [4]]
    assert top_k(states, item_vectors, 3).tolist() == [[2, 1, 3], [1, 2, 3]]


@pytest.mark.parametrize("n_items", [1, 2, 61, 62, 63, 64, 65, 127, 128, 1009])
def test_collapsed_model_ranks_every_item_at_its_id(n_items):
    rng = torch.Generator().manual_seed(17)
    states = torch.randn(13, 67, generator=rng)
    item_vectors = torch.randn(67, generator=rng).expand(n_items + 1, 67)
    wanted = torch.randint(1, n_items + 1, (13, 3), generator=rng)
    assert torch.equal(ranks_of(states, item_vectors, wanted).unfiltered, wanted.int())


@pytest.mark.parametrize("flushed", [False, True])
def test_zero_scores_tie_even_where_subnormal_numbers_are_flushed(flushed):
    states, item_vectors = torch.zeros(2, 3), torch.ones(200, 3)
    try:
        torch.set_flush_denormal(flushed)
        ranks = ranks_of(states, item_vectors, torch.tensor([[150], [3]]))
    finally:
        torch.set_flush_denormal(False)
    assert ranks.unfiltered.tolist() == [[150], [3]]


def test_subnormal_differences_still_rank():
    smallest = 2.0**-149
    states, item_vectors = one_hot_catalogue([0.0] * 70 + [smallest, 2 * smallest])
    ranks = ranks_of(states, item_vectors, torch.tensor([[1, 71, 72]]))
    assert ranks.unfiltered.tolist() == [[3, 2, 1]]


def test_padding_is_never_ranked():
    # C09: whatever stands in row 0.
    states, item_vectors = one_hot_catalogue([1.0, 2.0, 3.0])
    for padding in (1000.0, float("nan")):
        item_vectors[0] = padding
        ranks = ranks_of(states, item_vectors, torch.tensor([[3, 1, 0]]))
        assert ranks.unfiltered.tolist() == [[1, 3, 0]]
        assert top_k(states, item_vectors, 5).tolist() == [[3, 2, 1, 0, 0]]


def test_repeated_input_items_are_removed_once():
    states, item_vectors = one_hot_catalogue([0.9, 0.8, 0.7, 0.6])
    seen = seen_items([1, 1, 4, 2, 1, 0, 0])
    assert seen.items.tolist() == [1, 2, 4]
    ranks = ranks_of(states, item_vectors, torch.tensor([[3, 1]]), seen)
    assert (ranks.unfiltered.tolist(), ranks.filtered.tolist()) == ([[3, 1]], [1])


def test_a_seen_target_is_removed_too():
    states, item_vectors = one_hot_catalogue([0.9, 0.8], [0.9, 0.8])
    ranks = ranks_of(states, item_vectors, torch.tensor([[1], [1]]), seen_items([1, 2], []))
    assert ranks.filtered.tolist() == [REMOVED_RANK, 1]
    assert ranks.unfiltered.tolist() == [[1], [1]]


def test_model_parameters_can_be_ranked_as_they_are():
    states, item_vectors = one_hot_catalogue([0.1, 0.2])
    item_vectors.requires_grad_()
    assert ranks_of(states, item_vectors, torch.tensor([[1]])).filtered.tolist() == [2]


def test_nobody_to_rank_gives_empty_ranks():
    none = torch.zeros(0, 2, dtype=torch.int64)
    ranks = ranks_of(torch.zeros(0, 3), torch.zeros(8, 3), none, seen_items())
    assert ranks.unfiltered.shape == (0, 2)
    assert ranks.filtered.shape == (0,)
    assert top_k(torch.zeros(0, 3), torch.zeros(8, 3), 5).shape == (0, 5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e38])
@pytest.mark.parametrize("rank", [lambda *given: ranks_of(*given, torch.ones(7, 1).long()),
                                  lambda *given: top_k(*given, 3)])  # fmt: skip
def test_scores_that_are_not_finite_name_the_row(rank, bad):
    # C13; 1e38 * 5 + 1e38 * 5 overflows, though every value is finite.
    states, item_vectors = torch.ones(7, 2), torch.full((12, 2), 5.0)
    states[4] = bad
    with pytest.raises(NonFiniteScoresError, match="row 4") as error:
        rank(states, item_vectors)
    assert (error.value.row, error.value.item) == (4, None)


def test_vectors_that_are_not_finite_name_the_item():
    states, item_vectors, wanted = torch.ones(7, 2), torch.ones(12, 2), torch.ones(7, 1).long()
    item_vectors[5, 0] = float("inf")
    with pytest.raises(NonFiniteScoresError, match="item 5") as error:
        ranks_of(states, item_vectors, wanted)
    assert (error.value.row, error.value.item) == (0, 5)
    item_vectors[3, 1] = float("nan")
    with pytest.raises(NonFiniteScoresError, match="item 3"):
        ranks_of(states, item_vectors, wanted)


@pytest.mark.parametrize("wanted", [[[12]], [[-1]]])
def test_items_outside_the_catalogue_are_refused(wanted):
    with pytest.raises(ValueError, match="from 0 to 11"):
        ranks_of(torch.ones(1, 2), torch.ones(12, 2), torch.tensor(wanted))


def test_tables_that_do_not_fit_are_refused():
    wanted = torch.ones(3, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="do not fit"):
        ranks_of(torch.ones(2, 5), torch.ones(12, 5), wanted)
    with pytest.raises(ValueError, match="do not fit"):
        ranks_of(torch.ones(3, 5), torch.ones(12, 7), wanted)
    with pytest.raises(ValueError, match="of 2 rows for 3 states"):
        ranks_of(torch.ones(3, 5), torch.ones(12, 5), wanted, seen_items([1], [2]))
    with pytest.raises(ValueError, match="empty"):
        top_k(torch.ones(3, 5), torch.ones(1, 5), 2)


GROWTH_OF_PEAK_MEMORY = """
import resource, sys, torch
from lastclick.ranking import ranks_of
n_users, n_items, chunk_rows = map(int, sys.argv[1:])
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def rank(n_users, n_items):
    states, item_vectors = torch.randn(n_users, 7), torch.randn(n_items + 1, 7)
    ranks_of(states, item_vectors, torch.ones(n_users, 3).long(), chunk_rows=chunk_rows)
rank(3, 1000)
before = peak()
rank(n_users, n_items)
print(peak() - before)
"""


@pytest.mark.parametrize(
    ("n_users", "n_items"),
    [(1_103, 50_021), pytest.param(10_000, 300_000, marks=pytest.mark.slow)],
)
def test_scores_exist_for_one_chunk_of_users_only(n_users, n_items):
    # C14: near 256 x items x 4 bytes; the rest is the vectors and the comparison of a few rows.
    command = [sys.executable, "-c", GROWTH_OF_PEAK_MEMORY, str(n_users), str(n_items), "256"]
    environment = {**os.environ, "PYTHONPATH": str(Path(ranking.__file__).parents[1])}
    ran = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    growth = int(ran.stdout)
    block = 256 * n_items * 4
    assert growth < 1.5 * block
    assert growth < 0.25 * n_users * n_items * 4


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_ranks_and_lists_are_the_same_on_an_accelerator():
    # Integers: dot products are exact, whatever the order of their sums.
    rng = torch.Generator().manual_seed(17)
    states = torch.randint(-2, 3, (997, 5), generator=rng).float()
    item_vectors = torch.randint(-2, 3, (1013, 5), generator=rng).float()
    wanted = torch.randint(0, 1013, (997, 3), generator=rng)
    seen = SeenItems.from_sequences(
        torch.randint(0, 1013, (997 * 7,), generator=rng), torch.arange(998) * 7
    )
    here = ranks_of(states, item_vectors, wanted, seen)
    states, item_vectors, wanted = states.cuda(), item_vectors.cuda(), wanted.cuda()
    seen_there = SeenItems(seen.items.cuda(), seen.offsets.cuda())
    there = ranks_of(states, item_vectors, wanted, seen_there)
    assert torch.equal(there.unfiltered.cpu(), here.unfiltered)
    assert torch.equal(there.filtered.cpu(), here.filtered)
    lists = top_k(states, item_vectors, 11, seen_there)
    assert torch.equal(lists.cpu(), top_k(states.cpu(), item_vectors.cpu(), 11, seen))
