from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastclick.data.sequences import Batch, Queries, Sequences, concatenate, like_lengths

LISTS = st.lists(st.lists(st.integers(1, 37), max_size=11), min_size=1, max_size=7)
FILLED_LISTS = st.lists(
    st.lists(st.integers(1, 37), min_size=1, max_size=151), min_size=1, max_size=7
)


def as_lists(sequences: Sequences) -> list[list[int]]:
    return [
        sequences.items[start:end].tolist()
        for start, end in zip(sequences.offsets[:-1], sequences.offsets[1:], strict=True)
    ]


def test_a_frame_becomes_sequences_in_the_order_of_its_rows():
    frame = pl.DataFrame(
        {"user_id": [7, 7, 7, 3, 3, 11], "item_id": [5, 2, 5, 1, 9, 4]},
        schema={"user_id": pl.Int32, "item_id": pl.Int32},
    )
    sequences = Sequences.from_frame(frame)
    assert sequences.user_ids.tolist() == [7, 3, 11]
    assert as_lists(sequences) == [[5, 2, 5], [1, 9], [4]]
    assert sequences.items.dtype == sequences.user_ids.dtype == np.int32
    assert sequences.offsets.dtype == np.int64
    assert len(Sequences.from_frame(frame.clear())) == 0


@given(parts=st.lists(LISTS, min_size=1, max_size=3))
def test_concatenated_sequences_keep_their_order(parts):
    whole = concatenate([Sequences.from_lists(lists) for lists in parts])
    assert as_lists(whole) == [items for lists in parts for items in lists]
    assert whole.user_ids.tolist() == [1 + user for lists in parts for user in range(len(lists))]


@given(lists=LISTS, data=st.data())
def test_what_precedes_tokens_in_their_sequences(lists, data):
    sequences = Sequences.from_lists(lists)
    places = [(user, place) for user, items in enumerate(lists) for place in range(len(items))]
    tokens = data.draw(st.lists(st.sampled_from(range(len(places))), max_size=9)) if places else []
    found = sequences.before(np.array(tokens, dtype=np.int64))
    expected = [places[token] for token in tokens]
    assert as_lists(found) == [lists[user][:place] for user, place in expected]
    assert found.user_ids.tolist() == [user + 1 for user, _ in expected]


def test_another_key_may_split_a_user_into_several_sequences():
    frame = pl.DataFrame({"user_id": [7, 7, 7], "item_id": [5, 2, 3], "part": [1, 1, 2]})
    sequences = Sequences.from_frame(frame, key="part")
    assert sequences.user_ids.tolist() == [7, 7]
    assert as_lists(sequences) == [[5, 2], [3]]


@given(lists=LISTS, data=st.data())
def test_take_window_and_recent_item_do_what_list_slices_do(lists, data):
    sequences = Sequences.from_lists(lists)
    assert as_lists(sequences) == lists
    assert sequences.lengths.tolist() == [len(items) for items in lists]

    indices = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=9))
    taken = sequences.take(np.array(indices, dtype=np.int64))
    assert as_lists(taken) == [lists[index] for index in indices]
    assert taken.user_ids.tolist() == [index + 1 for index in indices]

    drop_last, keep = data.draw(st.integers(0, 13)), data.draw(st.none() | st.integers(0, 13))
    shortened = [items[: max(len(items) - drop_last, 0)] for items in lists]
    expected = [
        items[len(items) - min(len(items), 99 if keep is None else keep) :] for items in shortened
    ]
    assert as_lists(sequences.window(drop_last=drop_last, keep=keep)) == expected

    drops = data.draw(st.lists(st.integers(0, 13), min_size=len(lists), max_size=len(lists)))
    expected = [items[: max(len(items) - n, 0)] for items, n in zip(lists, drops, strict=True)]
    assert as_lists(sequences.window(drop_last=np.array(drops))) == expected

    offset = data.draw(st.integers(0, 13))
    expected = [items[-1 - offset] if len(items) > offset else 0 for items in lists]
    assert sequences.recent_item(offset).tolist() == expected


@settings(max_examples=50)
@given(lists=FILLED_LISTS)
def test_a_batch_describes_every_token_and_its_place_in_the_rectangles(lists):
    batch = Batch.of(Sequences.from_lists(lists))
    assert batch.n_sequences == len(lists)
    assert batch.n_tokens == sum(map(len, lists))
    assert batch.items.tolist() == [item for items in lists for item in items]
    assert batch.positions.tolist() == [place for items in lists for place in range(len(items))]
    assert batch.sequence.tolist() == [n for n, items in enumerate(lists) for _ in items]
    assert batch.lengths.tolist() == [len(items) for items in lists]
    # C10: the last real place, wherever the rectangle ends.
    assert batch.items[batch.last].tolist() == [items[-1] for items in lists]

    # Laid out in rectangles, each sequence fills one row from the left.
    padded = batch.items[batch.padded_index]
    assert torch.equal(padded[batch.padded_inverse], batch.items)
    filled = torch.zeros(len(padded), dtype=torch.bool)
    filled[batch.padded_inverse] = True
    rows = []
    start = 0
    for count, width in batch.buckets:
        end = start + count * width
        for row, real in zip(
            padded[start:end].view(count, width), filled[start:end].view(count, width), strict=True
        ):
            n = int(real.sum())
            assert real.tolist() == [True] * n + [False] * (width - n)
            rows.append(row[:n].tolist())
            assert n <= width < max(2 * n + 3, n + 128)
        start = end
    assert start == len(padded)
    assert rows == [lists[number] for number in batch.bucket_order.tolist()]
    assert sorted(batch.bucket_order.tolist()) == list(range(len(lists)))


@settings(max_examples=50)
@given(lists=FILLED_LISTS, n_heads=st.sampled_from([1, 2, 3]))
def test_head_slots_lay_heads_out_before_places(lists, n_heads):
    batch = Batch.of(Sequences.from_lists(lists))
    rows, slots = batch.head_slots(n_heads)
    assert torch.equal(rows[slots], torch.arange(batch.n_tokens * n_heads))
    start = 0
    order = batch.bucket_order.tolist()
    for count, width in batch.buckets:
        size = count * n_heads * width
        rectangle = rows[start : start + size].view(count, n_heads, width)
        for row in rectangle:
            items = lists[order.pop(0)]
            for head in range(n_heads):
                of_head = row[head, : len(items)]
                assert (of_head % n_heads == head).all()
                assert batch.items[of_head // n_heads].tolist() == items
        start += size
    assert start == len(rows)


@settings(max_examples=50)
@given(lists=FILLED_LISTS, n_heads=st.sampled_from([1, 2, 3]), data=st.data())
def test_queries_lie_in_rectangles_of_their_own_beside_their_sequences(lists, n_heads, data):
    batch = Batch.of(Sequences.from_lists(lists))
    chosen = data.draw(st.sets(st.integers(0, batch.n_tokens - 1), min_size=1))
    queries = Queries.of(batch, torch.tensor(sorted(chosen)))
    assert queries.tokens.tolist() == sorted(chosen)
    rows, slots = queries.head_slots(n_heads)
    assert torch.equal(rows[slots], torch.arange(len(chosen) * n_heads))
    start = 0
    order = batch.bucket_order.tolist()
    for (count, width), (n_sequences, _) in zip(queries.buckets, batch.buckets, strict=True):
        assert count == n_sequences
        size = count * n_heads * width
        longest = 1
        for row in rows[start : start + size].view(count, n_heads, width):
            number = order.pop(0)
            own = [token for token in sorted(chosen) if batch.sequence[token] == number]
            longest = max(longest, len(own))
            for head in range(n_heads):
                of_head = row[head, : len(own)]
                assert (of_head % n_heads == head).all()
                assert queries.tokens[of_head // n_heads].tolist() == own
        assert width == longest
        start += size
    assert start == len(rows) == queries.n_slots * n_heads


def test_no_queries_and_queries_out_of_order_are_refused():
    batch = Batch.of(Sequences.from_lists([[1, 2, 3], [4, 5]]))
    for tokens in ([], [3, 1], [2, 2]):
        with pytest.raises(ValueError, match="ascending order"):
            Queries.of(batch, torch.tensor(tokens, dtype=torch.int64))


@given(lists=FILLED_LISTS)
def test_the_final_queries_are_the_last_tokens(lists):
    batch = Batch.of(Sequences.from_lists(lists))
    final, expected = batch.final_queries(), Queries.of(batch, batch.last)
    assert final.buckets == expected.buckets
    for name in ("tokens", "slots", "places", "slot_width"):
        assert torch.equal(getattr(final, name), getattr(expected, name)), name


def test_a_batch_of_nobody_or_of_an_empty_sequence_is_refused():
    for lists in ([], [[1, 2], []]):
        with pytest.raises(ValueError, match="at least one sequence"):
            Batch.of(Sequences.from_lists(lists))


@given(
    lists=st.lists(st.lists(st.integers(1, 37), min_size=1, max_size=11), min_size=1, max_size=7)
)
def test_append_puts_one_more_item_at_the_end_of_each_sequence(lists):
    longer = Batch.of(Sequences.from_lists(lists)).append(99)
    expected = Batch.of(Sequences.from_lists([[*items, 99] for items in lists]))
    assert longer.buckets == expected.buckets
    assert torch.equal(longer.items, expected.items)
    assert torch.equal(longer.padded_index, expected.padded_index)


@given(lists=LISTS, tokens=st.integers(1, 23))
def test_like_lengths_names_every_filled_sequence_once_within_the_budget(lists, tokens):
    sequences = Sequences.from_lists(lists)
    parts = list(like_lengths(sequences, tokens))
    named = [index for part in parts for index in part.tolist()]
    assert sorted(named) == [n for n, items in enumerate(lists) if items]
    assert [len(lists[index]) for index in named] == sorted(len(items) for items in lists if items)
    for part in parts:
        assert len(part) == 1 or sum(len(lists[index]) for index in part) <= tokens


def test_a_batch_moves_to_a_device_whole():
    batch = Batch.of(Sequences.from_lists([[1, 2, 3], [4]])).to("meta")
    tensors = [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 9
    assert all(tensor.is_meta for tensor in tensors)
