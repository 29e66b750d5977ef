"""Exact ranks over the whole catalogue, by counting instead of sorting.

The rank of an item is ``1 + items scoring higher + equal-scoring items with a smaller id``, the
place that the item takes in the list sorted by descending score, then by ascending id. With this
rule a model that scores every item alike is not rewarded with rank 1.

Scores are dot products, ``states @ item_vectors.T``. They exist for one chunk of rows at
a time, never for users x items. Each wanted item is compared with the others inside one and the
same score block: a dot product computed separately may differ in its last bit, which would
make or break ties.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

REMOVED_RANK = 2**31 - 1
"""The filtered rank of a target that filter-seen removed from its own ranking.

It is larger than any K, so the target counts as a miss at every K; its reciprocal counts as 0
(``lastclick.metrics``). The largest int32 is used instead of ``n_items + 1``, which would be a hit
wherever K exceeds the catalogue.
"""

# Items per block of the comparison (see `_count_ahead`): only a wanted item's own block is looked
# at twice, so smaller blocks cost less, but below 64 the inner loops become too short.
_BLOCK = 64
# Largest score block, in elements, and most rows in it. On a CPU 512 rows are enough to reach the
# speed of the bare product; an accelerator wants more work per launch.
_SCORE_ELEMENTS = 2**26
_CPU_ROWS, _ACCELERATOR_ROWS = 512, 8192
# Elements of the comparison's result held at a time: on a CPU it has to stay in the second-level
# cache until it is counted, on an accelerator it only bounds memory.
_CPU_COMPARED, _ACCELERATOR_COMPARED = 2**19, 2**26


class NonFiniteScoresError(ValueError):
    """The scores of a row are, or would be, NaN or infinite.

    Attributes:
        row: index into ``states`` of the first such row, for the caller to name the user
            (0 if the item vectors are at fault, because then every row is affected).
        item: the first item whose vector is not finite, or None if ``states`` is at fault.
    """

    def __init__(self, message: str, row: int, item: int | None = None):
        super().__init__(message)
        self.row = row
        self.item = item


@dataclass(frozen=True)
class SeenItems:
    """The input items of each row, in compressed rows, each item once per row.

    Row r has seen ``items[offsets[r]:offsets[r + 1]]``. Build it with `from_sequences`, once for
    all the conditions under which the same rows are scored. It takes a user's whole input, not
    only the most recent items that a model reads.

    Attributes:
        items: (m,) int64, ids in 1..n_items, ascending within a row.
        offsets: (n + 1,) int64.
    """

    items: Tensor
    offsets: Tensor

    @classmethod
    def from_sequences(cls, items: Tensor, offsets: Tensor) -> "SeenItems":
        """Drop repeats and padding (0) from rows given as ``items (m,), offsets (n + 1,)``."""
        n_rows = len(offsets) - 1
        rows = torch.arange(n_rows, device=items.device).repeat_interleave(offsets.diff())
        real = items > 0
        stride = int(items.max()) + 1 if len(items) else 1
        unique = torch.unique(rows[real] * stride + items[real])
        counts = torch.bincount(unique // stride, minlength=n_rows)
        start = torch.zeros(1, dtype=torch.int64, device=items.device)
        return cls(items=unique % stride, offsets=torch.cat([start, counts.cumsum(0)]))

    def of_rows(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """The pairs (row less ``start``, item) of rows ``start..stop - 1``, each (m',) int64."""
        offsets = self.offsets[start : stop + 1]
        rows = torch.arange(stop - start, device=self.items.device)
        return rows.repeat_interleave(offsets.diff()), self.items[offsets[0] : offsets[-1]]


@dataclass(frozen=True)
class Ranks:
    """Ranks from 1, over all items of the catalogue.

    Attributes:
        unfiltered: (n, k) int32, the rank of each wanted item among all items; 0 where no item
            was wanted.
        filtered: (n,) int32, the rank of the first wanted item, the target, after every seen item
            has been removed; `REMOVED_RANK` if the target is one of them, 0 if there is no target.
            Without seen items it equals ``unfiltered[:, 0]``.
    """

    unfiltered: Tensor
    filtered: Tensor


@torch.no_grad()
def ranks_of(
    states: Tensor,
    item_vectors: Tensor,
    wanted: Tensor,
    seen: SeenItems | None = None,
    *,
    chunk_rows: int | None = None,
) -> Ranks:
    """Rank the wanted items of each row in the whole catalogue.

    Args:
        states: (n, hidden) floats, one query per row.
        item_vectors: (n_items + 1, hidden), row 0 is padding and is never ranked.
        wanted: (n, k) int64, item ids; column 0 is the target; 0 means "no such item".
        seen: the items that filter-seen removes from the target's ranking.
        chunk_rows: rows scored at a time; chosen from the catalogue's size if None.

    Raises:
        NonFiniteScoresError: a score is NaN or overflows.
        ValueError: a wanted id lies outside the catalogue, or the shapes do not fit.
    """
    n_rows, n_wanted = wanted.shape
    _check_shapes(states, item_vectors, n_rows, seen)
    if wanted.numel() and not 0 <= int(wanted.min()) <= int(wanted.max()) < len(item_vectors):
        raise ValueError(f"wanted items must be ids from 0 to {len(item_vectors) - 1}")
    unfiltered = torch.empty(n_rows, n_wanted, dtype=torch.int32, device=states.device)
    removed = torch.zeros(n_rows, dtype=torch.int32, device=states.device)
    gone = torch.zeros(n_rows, dtype=torch.bool, device=states.device)
    scratch = _scratch_for(states, len(item_vectors), n_wanted)
    for start, stop, scores in _score_blocks(states, item_vectors, chunk_rows):
        chunk = wanted[start:stop]
        unfiltered[start:stop] = 1 + _count_ahead(scores, chunk, scratch)
        if seen is not None:
            rows, items = seen.of_rows(start, stop)
            target = chunk[rows, 0]
            score, target_score = scores[rows, items], scores[rows, target]
            ahead = (score > target_score) | ((score == target_score) & (items < target))
            removed[start:stop].index_add_(0, rows, ahead.int())
            gone[start + rows[items == target]] = True
    unfiltered.masked_fill_(wanted == 0, 0)
    filtered = (unfiltered[:, 0] - removed).masked_fill_(gone, REMOVED_RANK)
    return Ranks(unfiltered, filtered.masked_fill_(wanted[:, 0] == 0, 0))


@torch.no_grad()
def top_k(
    states: Tensor,
    item_vectors: Tensor,
    k: int,
    seen: SeenItems | None = None,
    *,
    chunk_rows: int | None = None,
) -> Tensor:
    """The k best items of each row, best first, the smaller id first among equal scores.

    Arguments and errors are those of `ranks_of`.

    Returns:
        (n, k) int64; 0 in the last places where fewer than k items are left to rank.
    """
    _check_shapes(states, item_vectors, len(states), seen)
    lists = torch.zeros(len(states), k, dtype=torch.int64, device=states.device)
    kept = min(k, len(item_vectors) - 1)
    for start, stop, scores in _score_blocks(states, item_vectors, chunk_rows):
        if seen is not None:
            scores[seen.of_rows(start, stop)] = -torch.inf
        values, items = _best(scores, kept)
        lists[start:stop, :kept] = items.masked_fill(values == -torch.inf, 0)
    return lists


def _best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest scores of each row and their columns, the smaller column first among equals."""
    values, columns = scores.topk(k)
    # torch.topk leaves open which of several equal scores it takes at the border of the list, and
    # in which order it gives equal ones; a stable sort of the columns puts the second right.
    columns = columns.sort(dim=1).values
    values, order = scores.gather(1, columns).sort(dim=1, descending=True, stable=True)
    columns = columns.gather(1, order)
    tied = ((scores >= values[:, -1:]).sum(dim=1) > k).nonzero().squeeze(1)
    if len(tied):
        all_values, all_columns = scores[tied].sort(dim=1, descending=True, stable=True)
        values[tied], columns[tied] = all_values[:, :k], all_columns[:, :k]
    return values, columns


def _count_ahead(scores: Tensor, wanted: Tensor, scratch: Tensor) -> Tensor:
    """How many columns rank ahead of each wanted one.

    One pass per wanted column settles "higher, or equal with a smaller id" for all columns but a
    few: in blocks of columns before the wanted one's block, `ahead` means >= its score; in blocks
    after, it means >= the next larger float. Only the own block is compared column by column.

    Args:
        scores: (rows, n_blocks * _BLOCK), -inf in columns that are not to be ranked.
        wanted: (rows, k) columns.
        scratch: from `_scratch_for`.

    Returns:
        (rows, k) int64.
    """
    n_rows = len(wanted)
    blocks = scores.view(n_rows, -1, _BLOCK)
    n_blocks = blocks.shape[1]
    own_block, own_column = wanted // _BLOCK, wanted % _BLOCK
    at_least = scores.gather(1, wanted).unsqueeze(2)  # (rows, k, 1)
    above = _next_larger(at_least)

    arange = torch.arange(max(n_blocks, _BLOCK, n_rows), device=scores.device)
    own_scores = blocks[arange[:n_rows, None], own_block]  # (rows, k, _BLOCK)
    own_limits = torch.where(arange[:_BLOCK] < own_column.unsqueeze(2), at_least, above)
    count = (own_scores >= own_limits).sum(dim=2)

    limits = torch.where(arange[:n_blocks] < own_block.unsqueeze(2), at_least, above)
    limits.scatter_(2, own_block.unsqueeze(2), torch.inf)  # scores are finite: counts nothing
    return count + _count_at_least(blocks, limits, scratch)


def _count_at_least(blocks: Tensor, limits: Tensor, scratch: Tensor) -> Tensor:
    """Count the columns whose score reaches its block's limit.

    The comparison writes floats, not bools, because torch vectorises both that comparison and the
    sum of floats, which is exact up to 2**24 columns (`_score_blocks` refuses more). All wanted
    columns are compared while the scores are in cache.

    Args:
        blocks: (rows, n_blocks, _BLOCK) scores.
        limits: (rows, k, n_blocks).
        scratch: from `_scratch_for`.

    Returns:
        (rows, k) int64.
    """
    n_rows, n_wanted, n_blocks = limits.shape
    reached = scratch.view(-1, n_wanted, n_blocks, _BLOCK)
    step = len(reached)
    count = blocks.new_empty(n_rows, n_wanted)
    for start in range(0, n_rows, step):
        rows = slice(start, min(start + step, n_rows))
        part = reached[: rows.stop - start]
        torch.ge(blocks[rows, None], limits[rows, :, :, None], out=part)
        torch.sum(part.view(*part.shape[:2], -1), dim=2, out=count[rows])
    return count.long()


def _scratch_for(states: Tensor, n_columns: int, n_wanted: int) -> Tensor:
    """Room for the comparisons of as many rows as fit the cache, (elements,), allocated once."""
    elements = _CPU_COMPARED if states.device.type == "cpu" else _ACCELERATOR_COMPARED
    per_row = n_wanted * _padded(n_columns)
    return states.new_empty(min(len(states), max(1, elements // per_row)) * per_row)


def _padded(n_columns: int) -> int:
    """``n_columns`` rounded up to whole blocks."""
    return -(-n_columns // _BLOCK) * _BLOCK


def _next_larger(values: Tensor) -> Tensor:
    """The smallest float larger than each value, under the processor's own notion of "larger".

    Where subnormal numbers are flushed to zero, the float after 0 does not compare as larger than
    0; the smallest normal number does, and nothing lies between them.
    """
    larger = values.nextafter(values.new_tensor(torch.inf))
    return torch.where(larger > values, larger, torch.finfo(values.dtype).tiny)


def _score_blocks(
    states: Tensor, item_vectors: Tensor, chunk_rows: int | None
) -> Iterator[tuple[int, int, Tensor]]:
    """Yield ``start, stop`` and the scores of these rows, (stop - start, n_blocks * _BLOCK).

    All yielded scores share one buffer. Column i holds the scores of item i; column 0 (padding)
    and the columns after the last item hold -inf.
    """
    n_columns = len(item_vectors)
    if n_columns > 2**24:
        raise ValueError(f"a catalogue of {n_columns - 1} items is too large: at most {2**24 - 1}")
    _require_finite(states, item_vectors)
    width = _padded(n_columns)
    if chunk_rows is None:
        most = _CPU_ROWS if states.device.type == "cpu" else _ACCELERATOR_ROWS
        chunk_rows = min(most, max(1, _SCORE_ELEMENTS // width))
    buffer = states.new_full((min(chunk_rows, len(states)), width), -torch.inf)
    for start in range(0, len(states), chunk_rows):
        stop = min(start + chunk_rows, len(states))
        scores = buffer[: stop - start]
        torch.mm(states[start:stop], item_vectors.T, out=scores[:, :n_columns])
        scores[:, 0] = -torch.inf
        yield start, stop, scores


def _require_finite(states: Tensor, item_vectors: Tensor) -> None:
    """Raise if a score could be NaN or infinite, without looking at the scores.

    No partial sum of a dot product exceeds hidden * largest |state| * largest |item value|, so
    finite operands whose bound is finite can only give finite scores.
    """
    item_peaks = _peaks(item_vectors[1:])
    bad_items = ~item_peaks.isfinite()
    if bad_items.any():
        item = 1 + int(bad_items.nonzero()[0])
        raise NonFiniteScoresError(f"the vector of item {item} is not finite", row=0, item=item)
    bound = _peaks(states).double() * states.shape[1] * item_peaks.max().double()
    bad_rows = ~(bound <= torch.finfo(states.dtype).max)
    if bad_rows.any():
        row = int(bad_rows.nonzero()[0])
        raise NonFiniteScoresError(f"the scores of row {row} are not finite", row=row)


def _peaks(vectors: Tensor) -> Tensor:
    """The largest absolute value of each row, (n, hidden) -> (n,); NaN where a row holds one."""
    low, high = vectors.aminmax(dim=1)
    return torch.maximum(high, -low)


def _check_shapes(
    states: Tensor, item_vectors: Tensor, n_rows: int, seen: SeenItems | None
) -> None:
    if len(states) != n_rows or states.shape[1] != item_vectors.shape[1]:
        raise ValueError(
            f"states {tuple(states.shape)} do not fit {n_rows} rows of wanted items "
            f"and item vectors {tuple(item_vectors.shape)}"
        )
    if seen is not None and len(seen.offsets) != n_rows + 1:
        raise ValueError(f"seen items of {len(seen.offsets) - 1} rows for {n_rows} states")
    if len(item_vectors) < 2:
        raise ValueError("the catalogue is empty")
