"""From raw rows to sequences: order, consecutive repeats, k-core, dense ids.

The protocol is that of *time to split*, which *residual dominance* follows: consecutive repeats
are dropped first, then users and items with fewer than ``k_core`` interactions and the repeats
that their removal creates, until nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from lastclick.data.encoding import encode
from lastclick.data.hashing import seeded_hash
from lastclick.data.parts import parts_of
from lastclick.errors import UserError

SECONDS_PER_DAY = 86_400
#: Rows sorted at a time: enough to keep all threads busy, so few that working copies hardly count.
BLOCK_ROWS = 2**24


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
) -> Preprocessed:
    """Turn raw interactions into dense, filtered sequences.

    ``raw``: ``user_id, item_id`` String or integer, ``timestamp`` Int64 (ticks since 1970, UTC), in
    source order. Rows are ordered by ticks; the result's timestamps are whole seconds.
    ``k_core`` of 0 or 1 switches the core off; consecutive repeats are always dropped. ``ties``
    and ``ties_seed`` as in ``sort_by_user_and_time``.

    Users and items are numbered from 1 (0 is padding) in id order (``encoding.encode``).

    Raises UserError when there are no rows, when one has a gap, or when none survives.
    """
    # One name for all stages of the work, so that what is done with is freed.
    rows, raw_users, raw_items = encode(raw)
    n_rows_read = rows.height
    if n_rows_read == 0:
        raise UserError("there are no interactions: the source has no row that could be read")
    rows = sort_by_user_and_time(rows, ties=ties, seed=ties_seed)
    rows = drop_consecutive_repeats(rows)
    n_repeats_dropped = n_rows_read - rows.height
    rows, n_rounds = keep_core(rows, k_core)
    if rows.is_empty():
        raise UserError(
            f"none of {len(raw_users):,} users and {len(raw_items):,} items is left after "
            f"filtering: no group of them has {k_core} interactions each (of {n_rows_read:,} "
            "rows); lower preprocess.k_core (0 switches it off)"
        )
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
    if ties == "shuffled":
        interactions = interactions.with_row_index("position")
    # Block by block of users: sorting needs several times the memory of what it sorts.
    user = pl.col("user_id")
    blocks = []
    for first, last in _blocks_of_users(interactions["user_id"].to_numpy()):
        block = interactions.filter(user.is_between(first, last))
        if ties == "shuffled":
            shuffled = pl.Series(seeded_hash(block["position"].to_numpy(), seed))
            block = block.drop("position").select(pl.all().sort_by(shuffled))
        blocks.append(_stably_sorted(block))
    return pl.concat(blocks, rechunk=False)


def _blocks_of_users(users: np.ndarray) -> Iterator[tuple[int, int]]:
    """First and last user of blocks of about ``BLOCK_ROWS`` rows that together hold all rows."""
    n_blocks = -(-len(users) // BLOCK_ROWS)
    sample = np.sort(users[:: max(len(users) // (100 * n_blocks), 1)])
    starts = np.unique(sample[len(sample) * np.arange(1, n_blocks) // n_blocks])
    first = np.concatenate(([0], starts[starts > 0])).tolist()
    last = [start - 1 for start in first[1:]]
    return zip(first, [*last, int(users.max())], strict=True)


def _stably_sorted(interactions: pl.DataFrame) -> pl.DataFrame:
    first, last = interactions["timestamp"].min(), interactions["timestamp"].max()
    span = last - first + 1
    if (interactions["user_id"].max() + 1) * span >= 2**63:
        return interactions.sort("user_id", "timestamp", maintain_order=True)
    # One 8-byte key sorts several times faster than two columns.
    key = pl.col("user_id").cast(pl.Int64) * span + (pl.col("timestamp") - first)
    return interactions.sort(key, maintain_order=True)


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
    # Copies, since what is left moves to their front.
    users = interactions["user_id"].to_numpy().copy()
    items = interactions["item_id"].to_numpy().copy()
    user_counts, item_counts = _count(users), _count(items)
    is_kept = np.ones(len(users), dtype=bool)
    n_left, n_rounds = len(users), 0
    while True:
        stays = _core_round(users[:n_left], items[:n_left], user_counts, item_counts, k_core)
        if stays.all():
            return interactions.filter(pl.Series(is_kept)), n_rounds
        is_kept[is_kept] = stays
        n_left = np.count_nonzero(stays)
        n_rounds += 1


def _core_round(
    users: np.ndarray,
    items: np.ndarray,
    user_counts: np.ndarray,
    item_counts: np.ndarray,
    k_core: int,
) -> np.ndarray:
    """Remove rare users and items, and then consecutive repeats; return the mask of what stays.

    Changes its arguments: ``users`` and ``items`` begin with what stays, and the counts, by user
    and by item, are lowered by what goes.
    """
    is_frequent_user, is_frequent_item = user_counts >= k_core, item_counts >= k_core
    stays = np.empty(len(users), dtype=bool)
    n_left = 0
    for part in parts_of(len(users)):
        part_users, part_items, part_stays = users[part], items[part], stays[part]
        part_stays[:] = is_frequent_user[part_users] & is_frequent_item[part_items]
        left_users, left_items = part_users[part_stays], part_items[part_stays]
        is_new = _is_new(left_users, left_items)
        if n_left and len(is_new):
            before = users[n_left - 1], items[n_left - 1]
            is_new[0] = before != (left_users[0], left_items[0])
        part_stays[part_stays] = is_new
        np.subtract.at(user_counts, part_users[~part_stays], 1)
        np.subtract.at(item_counts, part_items[~part_stays], 1)
        end = n_left + np.count_nonzero(is_new)
        users[n_left:end], items[n_left:end] = left_users[is_new], left_items[is_new]
        n_left = end
    return stays


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
