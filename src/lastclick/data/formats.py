"""Reading raw interactions of any supported layout into one shape, strictly.

Text is parsed once, in blocks, into typed Parquet parts in a scratch folder, every row checked on
the way; Parquet is checked in one streaming pass and then read where it lies. Either way memory
stays bounded, and what comes out is a lazy frame without gaps.
"""

from __future__ import annotations

import hashlib
import heapq
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from lastclick.data.delimited import read_delimited, read_recbole
from lastclick.data.parquet_input import (
    has_text_times,
    open_parquet,
    read_text_times,
    scan_interactions,
)
from lastclick.data.raw_formats import Parquet, RawFormat, UserSample
from lastclick.data.records import read_json_lines, read_python_lines
from lastclick.data.rejects import Rejects
from lastclick.data.timestamps import TICKS, TimeReader
from lastclick.errors import UserError

_TEXT_READERS = {
    "delimited": read_delimited,
    "recbole": read_recbole,
    "json_lines": read_json_lines,
    "python_lines": read_python_lines,
}


_SCHEMA = {"user_id": pl.String, "item_id": pl.String, "timestamp": pl.Int64}


@dataclass(frozen=True)
class RawTable:
    """Interactions as they came, in source order, with nothing missing.

    ``frame``: ``user_id`` and ``item_id`` String (or Int64 or UInt64, where a Parquet file holds
    integers), ``timestamp`` Int64, UTC, in ticks. Sort by ticks before dividing by
    ``ticks_per_second``: whole seconds have lost the order inside a second.
    """

    frame: pl.LazyFrame
    ticks_per_second: int
    n_rows: int
    n_rejected: int


def read_interactions(path: Path, raw: RawFormat, scratch: Path) -> RawTable:
    """Read the file at ``path``, laid out as ``raw`` says.

    ``scratch`` is an existing folder for temporary files, needed until the last collect of the
    frame. Raises UserError, with line or row numbers, for a file that is damaged or does not fit
    and, unless ``raw.rejects`` is lenient, for every row that does not.
    """
    if isinstance(raw, Parquet):
        table = _read_parquet(path, raw, scratch)
    else:
        rejects = Rejects(path, raw.rejects)
        batches = _TEXT_READERS[raw.kind](path, raw, rejects)
        table = _write_parts(batches, path, raw, rejects, scratch)
    if table.n_rows == 0:
        rejected = f" ({table.n_rejected:,} were rejected)" if table.n_rejected else ""
        raise UserError(f"{path} holds no interactions{rejected}")
    return table


def sample_users(frame: pl.LazyFrame, sample: UserSample) -> pl.LazyFrame:
    """All rows of ``sample.users`` users, or of all users where there are no more.

    The users are those with the smallest BLAKE2b hash of their id, as text, under the seed as
    key: a uniform draw that depends neither on the order of rows nor on threads or versions.
    """
    users = frame.select(pl.col("user_id").unique()).collect(engine="streaming")["user_id"]
    key = str(sample.seed).encode()

    def draw(user: str) -> bytes:
        return hashlib.blake2b(user.encode(), key=key, digest_size=16).digest()

    drawn = heapq.nsmallest(sample.users, users.cast(pl.String), key=draw)
    kept = pl.Series("user_id", drawn, dtype=pl.String).cast(users.dtype)
    return frame.filter(pl.col("user_id").is_in(kept.implode()))


def _read_parquet(path: Path, raw: Parquet, scratch: Path) -> RawTable:
    columns = open_parquet(path, raw)
    if has_text_times(columns, raw.time_format):
        rejects = Rejects(path, raw.rejects, "row")
        return _write_parts(read_text_times(path, columns), path, raw, rejects, scratch)
    scan = scan_interactions(path, raw, columns)
    return RawTable(scan.frame, scan.ticks_per_second, scan.n_rows, scan.n_rejected)


def _write_parts(
    batches: Iterator[pl.DataFrame], path: Path, raw: RawFormat, rejects: Rejects, scratch: Path
) -> RawTable:
    times = TimeReader(raw.time_format, str(path), rejects.word)
    folder = Path(tempfile.mkdtemp(dir=scratch))
    n_rows = 0
    parts = []
    for batch in batches:
        rows = _typed(batch, raw, times, rejects)
        if len(rows):
            parts.append(folder / f"{len(parts):06}.parquet")
            rows.write_parquet(parts[-1], compression="lz4", statistics=False)
            n_rows += len(rows)
    rejects.raise_if_strict()
    frame = pl.scan_parquet(parts) if parts else pl.LazyFrame(schema=_SCHEMA)
    return RawTable(frame, times.ticks_per_second, n_rows, rejects.count)


def _typed(
    batch: pl.DataFrame, raw: RawFormat, times: TimeReader, rejects: Rejects
) -> pl.DataFrame:
    missing = [] if isinstance(raw, Parquet) else list(raw.missing)
    for role in ("user", "item", "time"):
        value = pl.col(role)
        absent = value.is_null() | (value.str.strip_chars() == "")
        rejects.add_all(batch.filter(absent), f"no {role}")
        batch = batch.filter(~absent)
        if missing:
            marked = value.is_in(missing)
            rejects.add_all(
                batch.filter(marked),
                f"no {role}, but a mark for a missing value (if this is a real {role}, set "
                "`missing: []`)",
            )
            batch = batch.filter(~marked)
    batch = batch.with_columns(times.read_text(batch["time"], batch["line"]).alias("timestamp"))
    untimed = pl.col("timestamp").is_null()
    rejects.add_all(batch.filter(untimed), f"is not a time ({times.format_words})", "time")
    batch = batch.filter(~untimed)
    if "offset" in batch.columns:
        batch = _with_offset(batch, TICKS[raw.time_offset.unit], times.ticks_per_second, rejects)
    return batch.select(user_id="user", item_id="item", timestamp="timestamp")


def _with_offset(
    batch: pl.DataFrame, offsets_per_second: int, ticks_per_second: int, rejects: Rejects
) -> pl.DataFrame:
    whole = pl.when(pl.col("offset").str.contains(r"^-?\d{1,12}$")).then(pl.col("offset"))
    batch = batch.with_columns(whole.cast(pl.Int64).alias("added"))
    unusable = pl.col("added").is_null()
    rejects.add_all(batch.filter(unusable), "is not a whole number to add to the time", "offset")
    added = pl.col("added") * ticks_per_second // offsets_per_second
    return batch.filter(~unusable).with_columns(pl.col("timestamp") + added)
