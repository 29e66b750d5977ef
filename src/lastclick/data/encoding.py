"""From raw ids, which are text, to integers.

Text is looked at once, while it streams in: from there on an interaction is two 4-byte codes and
a time, whatever the ids look like. Ids never pass through a number, so ids beyond 2**53 or 2**64,
or with leading zeros, stay distinct.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from lastclick.errors import UserError


def encode(raw: pl.LazyFrame | pl.DataFrame) -> tuple[pl.DataFrame, pl.Series, pl.Series]:
    """Number the ids of raw interactions; return interactions by code, raw users, raw items.

    ``raw`` has ``user_id, item_id`` String (or integer) and ``timestamp`` Int64, in source order.
    It is run once, by the streaming engine, and no more text is held than the distinct ids.

    The interactions have ``user_id, item_id`` UInt32 codes and ``timestamp`` Int64, one row per raw
    row, in source order. Code ``c`` of a user stands for element ``c`` of raw users, likewise for
    items. Codes follow *id order*: shorter ids first, ids of one length by their bytes. Plain
    integers so come in numeric order. A code tells nothing about when or how often an id occurs,
    and depends neither on the order of the rows nor on threads.

    Raises UserError for a row without a user, an item or a time.
    """
    encoded = (
        raw.lazy()
        .select(
            pl.col("user_id").cast(pl.String).cast(pl.Categorical(pl.Categories.random())),
            pl.col("item_id").cast(pl.String).cast(pl.Categorical(pl.Categories.random())),
            pl.col("timestamp"),
        )
        .collect(engine="streaming")
    )
    _refuse_nulls(encoded)
    users, raw_users = _codes_in_id_order(encoded["user_id"])
    items, raw_items = _codes_in_id_order(encoded["item_id"])
    interactions = pl.DataFrame([users, items, encoded["timestamp"]]).rechunk()
    return interactions, raw_users, raw_items


def _codes_in_id_order(column: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Codes of a categorical ``column`` and the ids behind them.

    The physical values of the column are no such codes: they count first sightings, and which of
    several threads sees an id first is chance.
    """
    physical = column.to_physical()
    n_ids = 0 if column.is_empty() else physical.max() + 1
    sightings = pl.Series("sighting", range(n_ids), dtype=pl.UInt32)
    ids = pl.DataFrame([sightings, sightings.cat.to(column.dtype).cast(pl.String).alias("raw_id")])
    ids = ids.sort(pl.col("raw_id").str.len_bytes(), "raw_id")
    code = np.empty(n_ids, dtype=np.uint32)
    code[ids["sighting"].to_numpy()] = np.arange(n_ids, dtype=np.uint32)
    return pl.Series(code).gather(physical).alias(column.name), ids["raw_id"]


def _refuse_nulls(interactions: pl.DataFrame) -> None:
    for column in interactions.iter_columns():
        if column.null_count():
            row = column.is_null().arg_max()
            raise UserError(
                f"row {row + 1} of {interactions.height:,} has no {column.name}; "
                "remove the row or fill it in, and check the column names of the data set"
            )
