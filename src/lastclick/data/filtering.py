"""From raw rows to sequences: order, consecutive repeats, k-core, dense ids.

The protocol is that of *time to split*, which *residual dominance* follows: consecutive repeats
are dropped first, then users and items with fewer than ``k_core`` interactions and the repeats
that their removal creates, until nothing changes.
"""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import polars as pl

from lastclick.data.encoding import encode
from lastclick.data.hashing import seeded_hash
from lastclick.data.parts import parts_of
from lastclick.data.progress import steps
from lastclick.errors import UserError

SECONDS_PER_DAY = 86_400
#: Rows sorted at a time: they and their working copies stay in the processor's cache.
BLOCK_ROWS = 2**18
_STEPS = ("reading", "ordering", "filtering", "numbering")


@dataclass(frozen=True)
class FilterReport:
    """What went in, what filtering did, and what came out.

    ``n_repeats_dropped`` counts the consecutive repeats of the raw sequences (not those that the
    k-core creates later); ``n_rounds`` the rounds of the k-core that removed something.
    ``average_length`` is interactions a user, ``density`` the share of filled cells in the matrix
    of users and items, ``days`` the whole days from the first interaction to the last.
    ``tie_share`` is the share of neighbouring interactions of one user with equal timestamps, at
    the resolution of the source: their order is the source's, not time's.
    """

    n_rows_read: int
    n_repeats_dropped: int
    n_rounds: int
    n_users: int
    n_items: int
    n_interactions: int
    average_length: float
    density: float
    days: int
    tie_share: float


@dataclass(frozen=True)
class Preprocessed:
    """``interactions`` (user_id, item_id Int32 from 1, timestamp Int64) in order of user, time and
    source; ``ids`` (kind "user" or "item", id Int32, raw_id String); and the report."""

    interactions: pl.DataFrame
    ids: pl.DataFrame
    report: FilterReport


def preprocess(
    raw: pl.LazyFrame | pl.DataFrame,
    *,
    k_core: int,
    ties: str = "source",
    ties_seed: int = 0,
    ticks_per_second: int = 1,
    progress: str | None = None,
) -> Preprocessed:
    """Turn raw interactions into dense, filtered sequences.

    ``raw``: ``user_id, item_id`` String or integer, ``timestamp`` Int64 (ticks since 1970, UTC), in
    source order. Rows are ordered by ticks; the result's timestamps are whole seconds.
    ``k_core`` of 0 or 1 switches the core off; consecutive repeats are always dropped. ``ties``
    and ``ties_seed`` as in ``sort_by_user_and_time``.

    Users and items are numbered from 1 (0 is padding) in id order (``encoding.encode``).
    ``progress`` names the work in its progress bar; None shows none.

    Raises UserError when there are no rows, when one has a gap, or when none survives.
    """
    with steps(progress, _STEPS) as begin_step:
        begin_step()
        # One name for all stages of the work, so that what is done with is freed.
        rows, raw_users, raw_items = encode(raw)
        n_rows_read = rows.height
        if n_rows_read == 0:
            raise UserError("there are no interactions: the source has no row that could be read")
        begin_step()
        rows = sort_by_user_and_time(rows, ties=ties, seed=ties_seed)
        begin_step()
        rows = drop_consecutive_repeats(rows)
        n_repeats_dropped = n_rows_read - rows.height
        rows, n_rounds = keep_core(rows, k_core)
        if rows.is_empty():
            raise UserError(
                f"none of {len(raw_users):,} users and {len(raw_items):,} items is left after "
                f"filtering: no group of them has {k_core} interactions each (of {n_rows_read:,} "
                "rows); lower preprocess.k_core (0 switches it off)"
            )
        begin_step()
        users, user_ids = _renumber(rows["user_id"], raw_users, "user")
        items, item_ids = _renumber(rows["item_id"], raw_items, "item")
        interactions = pl.DataFrame([users, items, rows["timestamp"]])
    report = FilterReport(
        n_rows_read=n_rows_read,
        n_repeats_dropped=n_repeats_dropped,
        n_rounds=n_rounds,
        **_size(interactions, ticks_per_second),
    )
    if ticks_per_second > 1:
        interactions = interactions.with_columns(pl.col("timestamp") // ticks_per_second)
    return Preprocessed(interactions, pl.concat([user_ids, item_ids]), report)


def compare_with_expected(
    report: FilterReport, *, users: int, items: int, interactions: int
) -> list[str]:
    """One phrase for each of the three counts that is not as expected."""
    return [
        f"{found:,} {name} instead of {expected:,} ({found - expected:+,})"
        for name, found, expected in (
            ("users", report.n_users, users),
            ("items", report.n_items, items),
            ("interactions", report.n_interactions, interactions),
        )
        if found != expected
    ]


def sort_by_user_and_time(
    interactions: pl.DataFrame, *, ties: str = "source", seed: int = 0
) -> pl.DataFrame:
    """Order by user, then time; ``interactions`` are in source order and integer-coded.

    ``ties`` says what happens to rows of one user with one timestamp: "source" keeps their source
    order (the sort is stable; any other fixed rule, by item id say, would leak a pattern into the
    targets), "shuffled" orders them by a hash of ``seed`` and the source position.
    """
    if ties not in ("source", "shuffled"):
        raise ValueError(f"ties must be 'source' or 'shuffled', not {ties!r}")
    columns = {column.name: column.to_numpy() for column in interactions.iter_columns()}
    if ties == "shuffled":
        columns["position"] = np.arange(interactions.height, dtype=np.uint32)
    with ThreadPoolExecutor(pl.thread_pool_size()) as pool:
        # Block by block of users, so that what is sorted stays in the processor's cache: the cost
        # of a row does not grow with their number.
        columns, blocks = _in_blocks_of_users(columns, pool)

        def sort(block: slice) -> None:
            keys = [columns["user_id"][block], columns["timestamp"][block]]
            if ties == "shuffled":
                keys.append(seeded_hash(columns["position"][block], seed))
            order = _stable_order(*keys)
            for values in columns.values():
                values[block] = values[block][order]

        list(pool.map(sort, blocks))
    return pl.DataFrame(columns).select(interactions.columns)


def _in_blocks_of_users(
    columns: dict[str, np.ndarray], pool: Executor
) -> tuple[dict[str, np.ndarray], list[slice]]:
    """Bring rows of neighbouring users together, about ``BLOCK_ROWS`` a block, otherwise unmoved.

    Returns the new columns and the rows of each block.
    """
    users = columns["user_id"]
    block_of_user = _blocks(users)
    n_blocks = int(block_of_user[-1]) + 1
    parts = list(parts_of(len(users)))

    def count(part: slice) -> np.ndarray:
        return np.bincount(block_of_user[users[part]], minlength=n_blocks)

    sizes = np.stack(list(pool.map(count, parts)))
    # A block's rows come part after part.
    ends = np.cumsum(sizes.sum(axis=0)).tolist()
    first = [0, *ends[:-1]]
    starts = first + np.cumsum(sizes, axis=0) - sizes
    moved = {name: np.empty_like(values) for name, values in columns.items()}

    def move(part: slice, starts: np.ndarray, sizes: np.ndarray) -> None:
        order = _stable_order(block_of_user[users[part]])
        place = np.arange(len(order)) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
        for name, values in columns.items():
            moved[name][place] = values[part][order]

    list(pool.map(move, parts, starts, sizes))
    return moved, list(map(slice, first, ends))


def _blocks(users: np.ndarray) -> np.ndarray:
    """The block of each user from 0 to the largest, chosen by a sample of the rows."""
    n_blocks = -(-len(users) // BLOCK_ROWS)
    sample = np.sort(users[:: max(len(users) // (100 * n_blocks), 1)])
    starts = np.unique(sample[len(sample) * np.arange(1, n_blocks) // n_blocks])
    starts = starts[starts > users.min()]  # no block is empty
    return np.searchsorted(starts, np.arange(users.max() + 1), side="right").astype(np.uint32)


def _stable_order(*keys: np.ndarray) -> np.ndarray:
    """Row numbers in the order of integer ``keys (n,)``, the first key first; ties stay in order.

    All keys and the row number are packed into one word a row, where they fit. No two words are
    equal, so that any sort is stable, and one of plain integers is ten times faster than others.
    """
    n_rows = len(keys[0])
    lowest = [key.min() for key in keys]
    widths = [
        (int(key.max()) - int(low)).bit_length() for key, low in zip(keys, lowest, strict=True)
    ]
    row_width = (n_rows - 1).bit_length()
    if sum(widths) + row_width > 64:
        if len(keys) == 1:
            return np.argsort(keys[0], kind="stable")
        order = _stable_order(keys[-1])
        return order[_stable_order(*(key[order] for key in keys[:-1]))]
    word = np.uint32 if sum(widths) + row_width <= 32 else np.uint64
    words = np.zeros(n_rows, dtype=word)
    for key, low, width in zip(keys, lowest, widths, strict=True):
        words <<= word(width)
        words |= (key - low).astype(word)
    words <<= word(row_width)
    words |= np.arange(n_rows, dtype=word)
    words.sort()
    return (words & word(2**row_width - 1)).astype(np.intp)


def drop_consecutive_repeats(interactions: pl.DataFrame) -> pl.DataFrame:
    """Of neighbouring rows with one user and one item keep the first: i, i, j becomes i, j."""
    users, items = (interactions[column].to_numpy() for column in ("user_id", "item_id"))
    return interactions.filter(pl.Series(_is_new(users, items)))


def keep_core(interactions: pl.DataFrame, k_core: int) -> tuple[pl.DataFrame, int]:
    """Keep the largest part in which every user and every item has ``k_core`` interactions.

    ``interactions`` are in order of user and time, without consecutive repeats, with small
    non-negative integers for ids. Each round drops users and items with fewer than ``k_core``, then
    the consecutive repeats that this has created; rounds go on until one removes nothing. Removing
    a user or an item never makes another's count grow, so the result does not depend on the order
    of removals, and counts only ever have to be lowered by what was removed.

    Returns the rows kept and the number of rounds that removed something.
    """
    users, items = (interactions[column].to_numpy() for column in ("user_id", "item_id"))
    user_counts, item_counts = _count(users), _count(items)
    stays = np.ones(len(users), dtype=bool)
    n_rounds = 0
    while _core_round(users, items, stays, user_counts, item_counts, k_core):
        n_rounds += 1
    return interactions.filter(pl.Series(stays)), n_rounds


def _core_round(
    users: np.ndarray,
    items: np.ndarray,
    stays: np.ndarray,
    user_counts: np.ndarray,
    item_counts: np.ndarray,
    k_core: int,
) -> bool:
    """Remove rare users and items, then consecutive repeats; return whether anything was removed.

    ``stays`` is the mask of the rows that are left. It and the counts, by user and by item, change.
    """
    is_frequent_user, is_frequent_item = user_counts >= k_core, item_counts >= k_core
    n_removed = 0
    last = np.empty(0, dtype=np.intp)  # the row that is left before the part, if there is one
    for part in parts_of(len(users)):
        is_frequent = is_frequent_user[users[part]] & is_frequent_item[items[part]]
        rare = part.start + np.flatnonzero(stays[part] & ~is_frequent)
        stays[part] &= is_frequent
        left = np.concatenate((last, part.start + np.flatnonzero(stays[part])))
        # Only a row that has got another row before it can have become a repeat.
        after = np.append(np.searchsorted(left, rare), len(last))
        after = np.unique(after[(after > 0) & (after < len(left))])
        row, before = left[after], left[after - 1]
        repeats = row[(users[row] == users[before]) & (items[row] == items[before])]
        stays[repeats] = False
        for removed in (rare, repeats):
            np.subtract.at(user_counts, users[removed], 1)
            np.subtract.at(item_counts, items[removed], 1)
            n_removed += len(removed)
        last = left[-1:]
    return n_removed > 0


def _is_new(users: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Mask of the rows that do not repeat the row before."""
    is_new = np.ones(len(users), dtype=bool)
    is_new[1:] = (users[1:] != users[:-1]) | (items[1:] != items[:-1])
    return is_new


def _count(codes: np.ndarray) -> np.ndarray:
    """How often each code from 0 to the largest occurs."""
    counts = np.zeros(codes.max(initial=0) + 1, dtype=np.int64)
    for part in parts_of(len(codes)):
        np.add.at(counts, codes[part], 1)
    return counts


def _renumber(codes: pl.Series, raw_ids: pl.Series, kind: str) -> tuple[pl.Series, pl.DataFrame]:
    """Number the codes that occur from 1, in order; return the new column and its id table."""
    occurs = np.zeros(len(raw_ids), dtype=bool)
    occurs[codes.to_numpy()] = True
    dense = np.cumsum(occurs, dtype=np.int32)
    ids = pl.DataFrame({"raw_id": raw_ids.filter(pl.Series(occurs))}).select(
        kind=pl.lit(kind), id=pl.int_range(1, pl.len() + 1, dtype=pl.Int32), raw_id="raw_id"
    )
    return pl.Series(dense).gather(codes).alias(codes.name), ids


def _size(interactions: pl.DataFrame, ticks_per_second: int) -> dict[str, int | float]:
    n_users, n_items = interactions["user_id"].max(), interactions["item_id"].max()
    n_interactions = interactions.height
    user, time = pl.col("user_id"), pl.col("timestamp")
    n_ties, first, last = interactions.select(
        n_ties=((user == user.shift()) & (time == time.shift())).sum(),
        first=time.min(),
        last=time.max(),
    ).row(0)
    n_neighbours = n_interactions - n_users
    return {
        "n_users": n_users,
        "n_items": n_items,
        "n_interactions": n_interactions,
        "average_length": n_interactions / n_users,
        "density": n_interactions / (n_users * n_items),
        "days": (last - first) // (SECONDS_PER_DAY * ticks_per_second),
        "tie_share": n_ties / n_neighbours if n_neighbours else 0.0,
    }
