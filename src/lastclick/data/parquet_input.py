"""Interactions that lie in a Parquet file: checked in one streaming pass, read where they are."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from lastclick.data.parquet_footer import check_footer
from lastclick.data.raw_formats import Parquet
from lastclick.data.rejects import SHOWN, Rejects
from lastclick.data.timestamps import TICKS, TimeReader, number_size
from lastclick.errors import UserError

_TEXT = (pl.String, pl.Categorical, pl.Enum)
BATCH_ROWS = 500_000


@dataclass(frozen=True)
class ParquetScan:
    """What ``formats.RawTable`` is made of."""

    frame: pl.LazyFrame
    ticks_per_second: int
    n_rows: int
    n_rejected: int


def open_parquet(path: Path, raw: Parquet) -> pl.LazyFrame:
    """The wanted columns as ``user``, ``item`` (String, Int64 or UInt64) and ``time`` (as it is).

    Raises UserError for a file that is no Parquet or is damaged, that lacks a column, whose footer
    contradicts itself, or whose ids are neither text nor integers.
    """
    with explained(path):
        table = pl.scan_parquet(path, glob=False)
        schema = table.collect_schema()
        for name in (raw.user, raw.item, raw.time):
            if name not in schema:
                near = difflib.get_close_matches(name, schema.names(), n=1, cutoff=0.5)
                hint = (
                    f"did you mean {near[0]!r}?" if near else "name the right one in its raw: block"
                )
                names = ", ".join(map(repr, schema.names()))
                raise UserError(f"{path} has no column {name!r}, but {names}; {hint}")
        check_footer(path, (raw.user, raw.item, raw.time))
        return table.select(
            user=_id(path, raw.user, schema[raw.user]),
            item=_id(path, raw.item, schema[raw.item]),
            time=pl.col(raw.time),
        )


def has_text_times(table: pl.LazyFrame, time_format: str) -> bool:
    """Whether the times have to be parsed as text: they are, or are dates written as integers."""
    dtype = table.collect_schema()["time"]
    return dtype in _TEXT or (dtype.is_integer() and not _is_numeric(time_format))


def _is_numeric(time_format: str) -> bool:
    return time_format == "auto" or time_format in TICKS


def read_text_times(path: Path, table: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    """Batches as ``read_delimited``'s, of a table whose times are text; ``line`` is the row."""
    texts = table.select(pl.all().cast(pl.String)).with_row_index("line", offset=1)
    with explained(path):
        for batch in texts.collect_batches(chunk_size=BATCH_ROWS, engine="streaming"):
            yield batch.cast({"line": pl.Int64})


def scan_interactions(path: Path, raw: Parquet, table: pl.LazyFrame) -> ParquetScan:
    """Check the times and ids of ``table``, which are numbers, dates or date-times.

    Raises UserError for mixed units and, unless lenient, for rows with a gap.
    """
    with explained(path):
        ticks, ticks_per_second = _ticks(path, raw, table)
        frame = table.select(user_id="user", item_id="item", timestamp=ticks)
        reasons = {name: _gap(name, dtype) for name, dtype in frame.collect_schema().items()}
        bad = pl.any_horizontal(*reasons.values())
        n_rows, n_bad = frame.select(pl.len(), bad.sum()).collect(engine="streaming").row(0)
        if n_bad:
            rejects = Rejects(path, raw.rejects, "row")
            first = (
                frame.select(**reasons)
                .with_row_index("row", offset=1)
                .filter(pl.any_horizontal(*reasons))
                .head(SHOWN)
                .collect(engine="streaming")
            )
            rejects.add_counted(n_bad, [(row["row"], _why(row)) for row in first.rows(named=True)])
            rejects.raise_if_strict()
            frame = frame.filter(~bad)
    return ParquetScan(frame, ticks_per_second, n_rows - n_bad, n_bad)


def _gap(name: str, dtype: pl.DataType) -> pl.Expr:
    absent = pl.col(name).is_null()
    return absent | (pl.col(name).str.strip_chars() == "") if dtype == pl.String else absent


def _why(gaps: dict) -> str:
    words = {"user_id": "no user", "item_id": "no item", "timestamp": "no time, or not a time"}
    return ", ".join(word for name, word in words.items() if gaps[name])


def _id(path: Path, name: str, dtype: pl.DataType) -> pl.Expr:
    """Exact ids: text stays text, integers stay integers."""
    column = pl.col(name)
    if dtype == pl.UInt64:
        return column
    if dtype.is_integer() and dtype not in (pl.Int128, pl.UInt128):
        return column.cast(pl.Int64)
    if dtype.is_integer() or dtype in _TEXT or (dtype == pl.Decimal and dtype.scale == 0):
        return column.cast(pl.String)
    if dtype == pl.Binary:
        return column.cast(pl.String, strict=False)
    hint = ""
    if dtype.is_float():
        hint = ": beyond 2^53 neighbouring ids have become one. Export them as integers or text"
    raise UserError(f"{path}: column {name!r} is {dtype}, but ids are text or integers{hint}")


def _ticks(path: Path, raw: Parquet, table: pl.LazyFrame) -> tuple[pl.Expr, int]:
    time, dtype = pl.col("time"), table.collect_schema()["time"]
    if dtype == pl.Date:
        return time.cast(pl.Int64) * 86_400, 1
    if dtype == pl.Datetime:
        return time.to_physical(), TICKS[dtype.time_unit]
    if dtype.is_numeric() and not _is_numeric(raw.time_format):
        raise UserError(
            f"{path}: column {raw.time!r} is {dtype}, but time_format {raw.time_format!r} is for "
            "text"
        )
    if dtype.is_integer():
        number, has_fraction = time.cast(pl.Int64, strict=False), pl.lit(False)
    elif dtype.is_float():
        finite = pl.when(time.is_finite()).then(time)
        number, has_fraction = finite.floor().cast(pl.Int64, strict=False), finite != finite.floor()
    else:
        raise UserError(f"{path}: column {raw.time!r} is {dtype}, which is not a time")
    reader = TimeReader(raw.time_format, str(path), "row")
    reader.settle_unit(_first_of_each_size(table, number))
    ticks_per_second = reader.integer_ticks_per_second()
    if not table.select(has_fraction.any()).collect(engine="streaming").item():
        return number, ticks_per_second
    if ticks_per_second == 1:
        return (time * TICKS["us"]).round().cast(pl.Int64, strict=False), TICKS["us"]
    return pl.when(~has_fraction).then(number), ticks_per_second


def _first_of_each_size(table: pl.LazyFrame, number: pl.Expr) -> list[tuple[int, int]]:
    sized = table.with_row_index("row", offset=1).select(
        "row", number=number, size=number_size(number)
    )
    firsts = sized.select(
        pl.col("row")
        .filter((pl.col("number") != 0) & (pl.col("size") == size))
        .min()
        .alias(str(size))
        for size in range(4)
    ).collect(engine="streaming")
    rows = [row for row in firsts.row(0) if row is not None]
    return [(row, table.select(number).slice(row - 1, 1).collect().item()) for row in rows]


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Polars' errors, and panics on damaged files, as what they mean here."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        reason = str(error).split("\n", 1)[0]
        raise UserError(f"{path} is not a whole, readable Parquet file: {reason}") from None
