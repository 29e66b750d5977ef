"""From raw rows to sequences: order, consecutive repeats, k-core, dense ids.

The protocol is that of *time to split*, which *residual dominance* follows: consecutive repeats
are dropped first, then users and items with fewer than ``k_core`` interactions and the repeats
that their removal creates, until nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from lastclick.data.encoding import encode
from lastclick.data.hashing import seeded_hash
from lastclick.errors import UserError

SECONDS_PER_DAY = 86_400


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
    encoded = encode(raw)
    n_rows_read = encoded.interactions.height
    if n_rows_read == 0:
        raise UserError("there are no interactions: the source has no row that could be read")
    ordered = sort_by_user_and_time(encoded.interactions, ties=ties, seed=ties_seed)
    distinct = drop_consecutive_repeats(ordered)
    kept, n_rounds = keep_core(distinct, k_core)
    if kept.is_empty():
        raise UserError(
            f"none of {len(encoded.raw_users):,} users and {len(encoded.raw_items):,} items is "
            f"left after filtering: no group of them has {k_core} interactions each (of "
            f"{n_rows_read:,} rows); lower preprocess.k_core (0 switches it off)"
        )
    users, user_ids = _renumber(kept["user_id"], encoded.raw_users, "user")
    items, item_ids = _renumber(kept["item_id"], encoded.raw_items, "item")
    interactions = pl.DataFrame([users, items, kept["timestamp"]])
    report = FilterReport(
        n_rows_read=n_rows_read,
        n_repeats_dropped=n_rows_read - distinct.height,
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
        position = seeded_hash(np.arange(interactions.height), seed)
        interactions = interactions.select(pl.all().sort_by(pl.Series(position)))
    first, last = interactions["timestamp"].min(), interactions["timestamp"].max()
    span = last - first + 1
    if (interactions["user_id"].max() + 1) * span >= 2**63:
        return interactions.sort("user_id", "timestamp", maintain_order=True)
    # One 8-byte key sorts several times faster than two columns.
    key = pl.col("user_id").cast(pl.Int64) * span + (pl.col("timestamp") - first)
    return interactions.sort(key, maintain_order=True)


def drop_consecutive_repeats(interactions: pl.DataFrame) -> pl.DataFrame:
    """Of neighbouring rows with one user and one item keep the first: i, i, j becomes i, j."""
    columns = pl.col("user_id", "item_id")
    is_new = pl.any_horizontal(columns != columns.shift()).fill_null(True)
    return interactions.filter(is_new)


def keep_core(interactions: pl.DataFrame, k_core: int) -> tuple[pl.DataFrame, int]:
    """Keep the largest part in which every user and every item has ``k_core`` interactions.

    ``interactions`` are in order of user and time, without consecutive repeats, with small
    non-negative integers for ids. Each round drops users with fewer than ``k_core``, then items,
    then the consecutive repeats that this has created; rounds go on until one removes nothing.
    Removing a user or an item never makes another's count grow, so the result does not depend on
    the order of removals.

    Returns the rows kept and the number of rounds that removed something.
    """
    n_rounds = 0
    while True:
        n_before = interactions.height
        for column in ("user_id", "item_id"):
            interactions = _drop_rare(interactions, column, k_core)
        if interactions.height == n_before:
            return interactions, n_rounds
        interactions = drop_consecutive_repeats(interactions)
        n_rounds += 1


def _drop_rare(interactions: pl.DataFrame, column: str, minimum: int) -> pl.DataFrame:
    ids = interactions[column].to_numpy()
    counts = np.bincount(ids)
    is_rare = (counts > 0) & (counts < minimum)
    return interactions.filter(~is_rare[ids]) if is_rare.any() else interactions


def _renumber(codes: pl.Series, raw_ids: pl.Series, kind: str) -> tuple[pl.Series, pl.DataFrame]:
    """Number the codes that occur from 1, in order; return the new column and its id table."""
    occurs = np.bincount(codes.to_numpy(), minlength=len(raw_ids)) > 0
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
