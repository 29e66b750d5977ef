"""From raw ids, which are text, to integers.

Text is looked at once, while it streams in: from there on an interaction is two 4-byte codes and
a time, whatever the ids look like. Ids never pass through a number, so ids beyond 2**53 or 2**64,
or with leading zeros, stay distinct.
"""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
import polars as pl

from lastclick.errors import UserError

#: Rows numbered at a time; the text of a few such batches is held in memory.
BATCH_ROWS = 2**20
#: Tables over which ids are spread by hash, since one table of millions of ids outgrows the
#: processor's cache. Looking up a batch table by table keeps one of them there at a time. Numbers
#: have 32 bits, so a table has room for 2**28 ids.
N_TABLES = 16
_NUMBERED = {"user_id": pl.UInt32, "item_id": pl.UInt32, "timestamp": pl.Int64}


def encode(raw: pl.LazyFrame | pl.DataFrame) -> tuple[pl.DataFrame, pl.Series, pl.Series]:
    """Number the ids of raw interactions; return interactions by code, raw users, raw items.

    ``raw`` has ``user_id, item_id`` String (or integer) and ``timestamp`` Int64, in source order.
    It is run once, by the streaming engine, and no more text is held than the distinct ids and
    that of a few times ``BATCH_ROWS`` rows.

    The interactions have ``user_id, item_id`` UInt32 codes and ``timestamp`` Int64, one row per raw
    row, in source order. Code ``c`` of a user stands for element ``c`` of raw users, likewise for
    items. Codes follow *id order*: shorter ids first, ids of one length by their bytes. Plain
    integers so come in numeric order. A code tells nothing about when or how often an id occurs,
    and depends neither on the order of the rows nor on threads.

    Raises UserError for a row without a user, an item or a time.
    """
    text = raw.lazy().select(pl.col("user_id", "item_id").cast(pl.String), pl.col("timestamp"))
    users, items = _Numbering(), _Numbering()
    batches = [pl.DataFrame(schema=_NUMBERED)]
    with ThreadPoolExecutor(pl.thread_pool_size()) as pool:
        for batch in text.collect_batches(chunk_size=BATCH_ROWS, engine="streaming"):
            columns = [
                users.number(batch["user_id"], pool),
                items.number(batch["item_id"], pool),
                batch["timestamp"],
            ]
            batches.append(pl.DataFrame(columns))
        numbered = pl.concat(batches, rechunk=True)
        del batches
        _refuse_nulls(numbered)
        user_codes, raw_users = users.codes_in_id_order(numbered["user_id"], pool)
        item_codes, raw_items = items.codes_in_id_order(numbered["item_id"], pool)
    return pl.DataFrame([user_codes, item_codes, numbered["timestamp"]]), raw_users, raw_items


class _Numbering:
    """Numbers for the ids of one column, batch after batch.

    An id goes to the table that its hash says; there it is told from all others by its text, so
    that ids of one hash stay apart. Its number is made of its place in the table, which counts
    first sightings, and of the table. The hash may be another in another version of Polars; codes
    do not depend on it.
    """

    def __init__(self) -> None:
        # Columns, since a table lives only as long as a column of its type does.
        self._tables = [
            pl.Series(dtype=pl.Categorical(pl.Categories.random())) for _ in range(N_TABLES)
        ]
        self._n_ids = [0] * N_TABLES

    def number(self, ids: pl.Series, pool: Executor) -> pl.Series:
        """The number of each of ``ids``, null where there is none."""
        table = ids.hash().to_numpy() % np.uint64(N_TABLES)
        table = table.astype(np.min_scalar_type(N_TABLES))  # bytes are sorted by counting
        order = np.argsort(table, kind="stable").astype(np.uint32)
        ends = np.cumsum(np.bincount(table, minlength=N_TABLES)).tolist()
        # Gathering text from one chunk is ten times as fast as from many.
        by_table = ids.rechunk().gather(pl.Series(order))

        def find(table: int, start: int, end: int) -> pl.Series:
            place = by_table[start:end].cast(self._tables[table].dtype).to_physical()
            self._n_ids[table] = max(self._n_ids[table], place.max() + 1 if place.count() else 0)
            return place * N_TABLES + table

        numbers = pl.concat(pool.map(find, range(N_TABLES), [0, *ends[:-1]], ends))
        row = np.empty_like(order)
        row[order] = np.arange(len(order), dtype=np.uint32)
        return numbers.gather(pl.Series(row)).alias(ids.name)

    def codes_in_id_order(self, numbers: pl.Series, pool: Executor) -> tuple[pl.Series, pl.Series]:
        """Codes of the ids that have ``numbers``, and the ids behind the codes.

        The numbers are no such codes: which id of a table is seen first depends on the order of the
        rows.
        """
        raw_ids = _in_id_order(self._ids())
        code = np.empty(N_TABLES * max(self._n_ids), dtype=np.uint32)
        for start in range(0, len(raw_ids), BATCH_ROWS):
            found = self.number(raw_ids[start : start + BATCH_ROWS], pool).to_numpy()
            code[found] = np.arange(start, start + len(found), dtype=np.uint32)
        return pl.Series(code).gather(numbers).alias(numbers.name), raw_ids

    def _ids(self) -> pl.Series:
        """The ids of all tables, in no order that means anything."""
        places = [
            pl.LazyFrame({"raw_id": pl.Series(range(n_ids), dtype=pl.UInt32)}).select(
                pl.col("raw_id").cat.to(table.dtype).cast(pl.String)
            )
            for table, n_ids in zip(self._tables, self._n_ids, strict=True)
        ]
        return pl.concat(places).collect()["raw_id"]


def _in_id_order(raw_ids: pl.Series) -> pl.Series:
    """Sort by length, then bytes; text alone is sorted several times as fast as by two keys."""
    by_bytes = raw_ids.sort()
    order = np.argsort(by_bytes.str.len_bytes().to_numpy(), kind="stable")
    return by_bytes.gather(pl.Series(order.astype(np.uint32)))


def _refuse_nulls(interactions: pl.DataFrame) -> None:
    for column in interactions.iter_columns():
        if column.null_count():
            row = column.is_null().arg_max()
            raise UserError(
                f"row {row + 1} of {interactions.height:,} has no {column.name}; "
                "remove the row or fill it in, and check the column names of the data set"
            )
