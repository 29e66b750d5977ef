"""The layout that any data set may be given in: columns ``user_id, item_id, timestamp``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from lastclick.data.parquet_input import explained
from lastclick.data.raw_formats import Delimited, Parquet, RawFormat, Recbole
from lastclick.data.text_lines import first_line

_COLUMNS = {"user": "user_id", "item": "item_id", "time": "timestamp"}
_SEPARATORS = {".csv": ",", ".tsv": "\t"}


def canonical_format(path: Path) -> RawFormat | None:
    """How to read ``path`` if its columns are named so, None if they are not.

    Looks at Parquet, CSV, TSV and ``.inter`` files, the latter three perhaps packed. Raises
    UserError for a damaged Parquet or packed file.
    """
    suffixes = [suffix for suffix in path.suffixes if suffix not in (".gz", ".zst")]
    kind = suffixes[-1] if suffixes else ""
    if kind == ".parquet":
        with explained(path):
            names = pl.read_parquet_schema(path)
        return Parquet(kind="parquet", **_COLUMNS) if _are_in(names) else None
    if kind in _SEPARATORS:
        names = first_line(path).split(_SEPARATORS[kind])
        if _are_in(name.strip('"') for name in names):
            return Delimited(kind="delimited", separator=_SEPARATORS[kind], **_COLUMNS)
    if kind == ".inter":
        names = first_line(path).split("\t")
        if _are_in(name.partition(":")[0] for name in names):
            return Recbole(kind="recbole", **_COLUMNS)
    return None


def _are_in(names: Iterable[str]) -> bool:
    return set(_COLUMNS.values()) <= set(names)
