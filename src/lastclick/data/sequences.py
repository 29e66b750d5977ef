"""Ragged sequences and batches: every computation runs over real tokens, never over padding.

A set of sequences is stored like a sparse matrix in CSR form: all items in one array, oldest
first, and ``offsets`` that say where each sequence begins. Linear layers, normalisations,
embeddings and losses work on that flat ``(n_tokens, …)`` layout directly. Only attention needs a
rectangular layout, and there a batch is cut into buckets of similar length, so that the
rectangles hold little else than real tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
import polars as pl
import torch
from torch import Tensor

PADDING_ID = 0

# Real tokens of one forward pass without gradients: large enough to keep the processor busy, small
# enough that the widest intermediate (the feed-forward part) stays at a few MB.
TOKENS_PER_BATCH = 8192

# Widths of the rectangles that attention works on; a sequence goes to the narrowest that holds it.
# Doubling them leaves few rectangles, each of which costs a dozen calls, and little padding, which
# costs their work. Beyond the last one the widths grow in steps of 128.
_BUCKET_WIDTHS = np.array([4, 8, 16, 32, 64, 128])


@dataclass(frozen=True)
class Sequences:
    """Item sequences of ``n_sequences`` users, oldest item first.

    ``user_ids (n_sequences,)`` int32, ``items (n_interactions,)`` int32 in 1..n_items,
    ``offsets (n_sequences + 1,)`` int64: sequence ``s`` is ``items[offsets[s]:offsets[s + 1]]``.
    """

    user_ids: np.ndarray
    items: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_frame(cls, frame: pl.DataFrame, key: str = "user_id") -> Sequences:
        """Read sequences from a frame whose rows of one ``key`` are adjacent and in time order."""
        keys = frame[key].to_numpy()
        starts = (
            np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1]))) if len(keys) else []
        )
        offsets = np.append(np.asarray(starts, dtype=np.int64), len(keys))
        user_ids = frame["user_id"].to_numpy()[offsets[:-1]].astype(np.int32)
        return cls(user_ids, frame["item_id"].to_numpy().astype(np.int32), offsets)

    @classmethod
    def from_evaluation(cls, frame: pl.DataFrame) -> Sequences:
        """Read an evaluation table: a sequence per user and target, which is its last item."""
        # The two numbers make one key.
        key = pl.col("user_id").cast(pl.Int64) * 2**31 + pl.col("target_index")
        return cls.from_frame(frame.with_columns(sequence=key), key="sequence")

    @classmethod
    def from_lists(cls, sequences: Sequence[Sequence[int]], user_ids: Sequence[int] | None = None):
        """Build sequences from plain lists of item ids (for tests and small examples)."""
        lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
        items = np.array([item for sequence in sequences for item in sequence], dtype=np.int32)
        ids = np.arange(1, len(sequences) + 1) if user_ids is None else np.asarray(user_ids)
        return cls(ids.astype(np.int32), items, np.concatenate(([0], np.cumsum(lengths))))

    def __len__(self) -> int:
        return len(self.user_ids)

    @property
    def lengths(self) -> np.ndarray:
        """Number of items of each sequence, ``(n_sequences,)`` int64."""
        return np.diff(self.offsets)

    def take(self, indices: np.ndarray) -> Sequences:
        """The sequences at ``indices``, in that order."""
        # Of these alone: a batch must not cost time in proportion to all users.
        starts = self.offsets[indices]
        lengths = self.offsets[indices + 1] - starts
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        token = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Sequences(self.user_ids[indices], self.items[token], offsets)

    def window(self, *, drop_last: int | np.ndarray = 0, keep: int | None = None) -> Sequences:
        """Without the ``drop_last`` newest items, and of the rest only the ``keep`` newest.

        ``drop_last`` is one number, or one per sequence ``(n_sequences,)``.
        A sequence shorter than ``drop_last`` becomes empty; the number of sequences never changes.
        """
        lengths = np.maximum(self.lengths - drop_last, 0)
        kept = lengths if keep is None else np.minimum(lengths, keep)
        offsets = np.concatenate(([0], np.cumsum(kept)))
        starts = self.offsets[:-1] + lengths - kept
        token = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], kept)
        return Sequences(self.user_ids, self.items[token], offsets)

    def before(self, tokens: np.ndarray) -> Sequences:
        """What precedes each of ``tokens (n,)``, places in ``items``, in its sequence.

        These are n sequences; that of a first token is empty.
        """
        sequence = self.sequence_of(tokens)
        return self.take(sequence).window(drop_last=self.offsets[1:][sequence] - tokens)

    def sequence_of(self, tokens: np.ndarray) -> np.ndarray:
        """The number of the sequence of each of ``tokens (n,)``, places in ``items``."""
        return np.searchsorted(self.offsets[1:], tokens, side="right")

    def recent_item(self, offset: int) -> np.ndarray:
        """The item ``offset`` places before the newest, ``(n_sequences,)``; 0: there is none."""
        exists = self.lengths > offset
        index = np.where(exists, self.offsets[1:] - 1 - offset, 0)
        if len(self.items) == 0:
            return np.zeros(len(self), dtype=np.int32)
        return np.where(exists, self.items[index], PADDING_ID).astype(np.int32)


def concatenate(parts: Sequence[Sequences]) -> Sequences:
    """The sequences of all ``parts``, in order; at least one part."""
    lengths = np.concatenate([part.lengths for part in parts])
    return Sequences(
        np.concatenate([part.user_ids for part in parts]),
        np.concatenate([part.items for part in parts]),
        np.concatenate(([0], np.cumsum(lengths))),
    )


@dataclass(frozen=True)
class Batch:
    """A ragged batch on a device, with the index arrays that the models need.

    Shapes: ``items``, ``positions`` and ``sequence`` are ``(n_tokens,)``: the item, its place in
    its sequence (0 is the oldest kept item) and the number of its sequence. ``lengths`` and
    ``last`` are ``(n_sequences,)``: real length and the token at the final position L.
    ``padded_index (n_padded,)`` gathers tokens into the buckets' rectangles, laid end to end;
    places without a token repeat token 0 and must be masked or, under a causal mask, ignored.
    ``padded_inverse (n_tokens,)`` leads back; ``padded_width (n_tokens,)`` is the width of a
    token's rectangle. ``buckets`` holds each rectangle's (n_sequences, width), in order;
    ``bucket_order (n_sequences,)`` is the number of the sequence in each row of the rectangles.
    """

    items: Tensor
    positions: Tensor
    sequence: Tensor
    lengths: Tensor
    last: Tensor
    padded_index: Tensor
    padded_inverse: Tensor
    padded_width: Tensor
    bucket_order: Tensor
    buckets: tuple[tuple[int, int], ...]

    @property
    def n_sequences(self) -> int:
        return self.lengths.shape[0]

    @property
    def n_tokens(self) -> int:
        return self.items.shape[0]

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on ``device``."""
        return _moved(self, device)

    def head_slots(self, n_heads: int) -> tuple[Tensor, Tensor]:
        """Where the heads of tokens go when each rectangle is (n_sequences, n_heads, width).

        Returns what ``padded_index`` and ``padded_inverse`` are for one head: the row of
        ``(n_tokens * n_heads,)`` in each slot, and the slot of each row, token by token.
        """
        return _head_slots(
            self.padded_inverse, self.positions, self.padded_width, len(self.padded_index), n_heads
        )

    def final_queries(self) -> Queries:
        """The last token of every sequence."""
        slots = torch.empty_like(self.bucket_order)
        slots[self.bucket_order] = torch.arange(self.n_sequences, device=slots.device)
        return Queries(
            tokens=self.last,
            slots=slots,
            places=torch.zeros_like(slots),
            slot_width=torch.ones_like(slots),
            buckets=tuple((count, 1) for count, _ in self.buckets),
        )

    def append(self, item: int) -> Batch:
        """The batch with ``item`` as one more, newest item of every sequence."""
        lengths = self.lengths.cpu().numpy()
        ends = np.cumsum(lengths)
        items = np.insert(self.items.cpu().numpy(), ends, item)
        offsets = np.concatenate(([0], ends + np.arange(1, len(ends) + 1)))
        longer = Sequences(np.zeros(len(ends), dtype=np.int32), items.astype(np.int32), offsets)
        return Batch.of(longer).to(self.items.device)

    @classmethod
    def of(cls, sequences: Sequences) -> Batch:
        """The batch of all ``sequences``; raises ValueError when one of them is empty."""
        lengths = sequences.lengths
        if len(lengths) == 0 or lengths.min() == 0:
            raise ValueError("a batch needs at least one sequence, and every sequence an item")
        offsets = sequences.offsets
        n_tokens = int(offsets[-1])
        sequence = np.repeat(np.arange(len(lengths)), lengths)
        positions = np.arange(n_tokens) - np.repeat(offsets[:-1], lengths)

        widths = _bucket_widths(lengths)
        order = np.argsort(widths, kind="stable")
        starts = np.empty(len(lengths), dtype=np.int64)
        starts[order] = np.concatenate(([0], np.cumsum(widths[order])[:-1]))
        padded_inverse = starts[sequence] + positions
        padded_index = np.zeros(int(widths.sum()), dtype=np.int64)
        padded_index[padded_inverse] = np.arange(n_tokens)
        bucket_widths, counts = np.unique(widths, return_counts=True)

        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array.astype(np.int64))

        return cls(
            items=tensor(sequences.items),
            positions=tensor(positions),
            sequence=tensor(sequence),
            lengths=tensor(lengths),
            last=tensor(offsets[1:] - 1),
            padded_index=tensor(padded_index),
            padded_inverse=tensor(padded_inverse),
            padded_width=tensor(widths[sequence]),
            bucket_order=tensor(order),
            buckets=tuple(zip(counts.tolist(), bucket_widths.tolist(), strict=True)),
        )


@dataclass(frozen=True)
class Queries:
    """The tokens of a batch at which a model's outputs are wanted, where not at all of them.

    They have rectangles of their own, one beside each of the batch's, whose rows are the same
    sequences; ``buckets`` holds their (n_sequences, width). Shapes are ``(n_queries,)``: ``tokens``
    are the queries' numbers in the batch, ascending; ``slots`` their places in the rectangles, laid
    end to end; ``places`` how many queries of the same sequence come before each; ``slot_width``
    the width of its rectangle.
    """

    tokens: Tensor
    slots: Tensor
    places: Tensor
    slot_width: Tensor
    buckets: tuple[tuple[int, int], ...]

    @property
    def n_slots(self) -> int:
        return sum(count * width for count, width in self.buckets)

    def to(self, device: torch.device | str) -> Queries:
        """The same queries on ``device``."""
        return _moved(self, device)

    def head_slots(self, n_heads: int) -> tuple[Tensor, Tensor]:
        """As ``Batch.head_slots``, of the queries among themselves."""
        return _head_slots(self.slots, self.places, self.slot_width, self.n_slots, n_heads)

    @classmethod
    def of(cls, batch: Batch, tokens: Tensor) -> Queries:
        """The given ``tokens`` of ``batch``, both on the CPU.

        Raises ValueError unless there is a token, and they ascend.
        """
        if len(tokens) == 0 or (tokens[1:] <= tokens[:-1]).any():
            raise ValueError("queries need at least one token, and tokens in ascending order")
        sequence = batch.sequence[tokens]
        counts = torch.bincount(sequence, minlength=batch.n_sequences)
        of_row = counts[batch.bucket_order]
        n_rows = [count for count, _ in batch.buckets]
        widths = [max(1, int(of_bucket.max())) for of_bucket in of_row.split(n_rows)]
        row_width = torch.tensor(widths).repeat_interleave(torch.tensor(n_rows))
        start, width = torch.empty_like(counts), torch.empty_like(counts)
        start[batch.bucket_order] = row_width.cumsum(0) - row_width
        width[batch.bucket_order] = row_width
        places = torch.arange(len(tokens)) - (counts.cumsum(0) - counts)[sequence]
        return cls(
            tokens=tokens,
            slots=start[sequence] + places,
            places=places,
            slot_width=width[sequence],
            buckets=tuple(zip(n_rows, widths, strict=True)),
        )


Ragged = TypeVar("Ragged", Batch, Queries)


def _moved(ragged: Ragged, device: torch.device | str) -> Ragged:
    moved = {
        field.name: value.to(device, non_blocking=True)
        for field in fields(ragged)
        if isinstance(value := getattr(ragged, field.name), Tensor)
    }
    return replace(ragged, **moved)


def _head_slots(
    slots: Tensor, places: Tensor, widths: Tensor, n_slots: int, n_heads: int
) -> tuple[Tensor, Tensor]:
    first = slots - places  # the slot of the first in the row
    head = torch.arange(n_heads, device=first.device)
    head_slots = ((first * n_heads + places)[:, None] + head * widths[:, None]).flatten()
    rows = head_slots.new_zeros(n_slots * n_heads)
    rows[head_slots] = torch.arange(len(head_slots), device=first.device)
    return rows, head_slots


def _bucket_widths(lengths: np.ndarray) -> np.ndarray:
    longest = _BUCKET_WIDTHS[-1]
    narrow = _BUCKET_WIDTHS[np.searchsorted(_BUCKET_WIDTHS, np.minimum(lengths, longest))]
    return np.where(lengths <= longest, narrow, -(-lengths // 128) * 128)


def like_lengths(
    sequences: Sequences, tokens_per_batch: int = TOKENS_PER_BATCH
) -> Iterator[np.ndarray]:
    """Indices of sequences of like length, at most ``tokens_per_batch`` tokens (or one sequence).

    Together they name every sequence that is not empty, once.
    """
    lengths = sequences.lengths
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]
    start = 0
    while start < len(order):
        tokens = np.cumsum(lengths[order[start : start + tokens_per_batch]])
        size = max(1, int(np.searchsorted(tokens, tokens_per_batch, side="right")))
        yield order[start : start + size]
        start += size
