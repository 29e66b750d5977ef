"""Ranks against a direct reading of their definition, on scores that are exact in float32."""


import torch
from hypothesis import given
from hypothesis import strategies as st

from lastclick.ranking import REMOVED_RANK, SeenItems, ranks_of, top_k


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


# Few distinct integers in few dimensions: exact dot products, and ties in nearly every row.
small_integers = st.integers(-2, 2).map(float)


@st.composite
def problems(draw):
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


@given(problems(), st.integers(1, 150))
def test_top_k_is_the_head_of_the_sorted_catalogue(problem, k):
    states, item_vectors, _, seen, chunk_rows = problem
    lists = top_k(states, item_vectors, k, seen_items(*seen), chunk_rows=chunk_rows)
    for row, row_scores in enumerate((states @ item_vectors.T).tolist()):
        expected = ordered_items(row_scores, removed=seen[row])[:k]
        assert lists[row].tolist() == expected + [0] * (k - len(expected))
