"""Whether a Parquet file's footer contradicts itself, before anything is decoded by its word.

A footer states the type and the number of values of a column twice, once in the schema and once
for each chunk. Decoders believe one of the two; where they differ the values that come out are
wrong without a message. Layout: parquet.thrift of the Apache Parquet format, in Thrift's compact
protocol.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any

from lastclick.errors import UserError

MAGIC = b"PAR1"
# Dictionaries and run lengths shrink ids and times a lot, but a footer that promises more rows, or
# more unpacked bytes, than this many per byte of the file was made to exhaust memory.
MAX_ROWS_PER_BYTE = 64
MAX_UNPACKED_PER_BYTE = 1_000

_TYPE_NAMES = (
    "BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"
)  # fmt: skip
_WIDTHS = {1: 4, 2: 8, 4: 4, 5: 8}
_MAX_DEPTH = 32


class _Malformed(Exception):
    """The bytes are no footer."""


def check_footer(path: Path, columns: Collection[str]) -> None:
    """Check the footer of the Parquet file at ``path`` and the chunks of its ``columns``.

    Raises UserError for a file without a whole footer, and for one whose footer contradicts
    itself or promises more than the file can hold.
    """
    try:
        _check(path, _read_footer(path), columns)
    except _Malformed as error:
        raise UserError(f"{path} is not a whole, readable Parquet file: {error}") from None


def _read_footer(path: Path) -> dict[int, Any]:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size < 12 or file.read(4) != MAGIC:
            raise _Malformed("it does not begin like one")
        file.seek(size - 8)
        length, magic = struct.unpack("<I4s", file.read(8))
        if magic != MAGIC:
            raise _Malformed("it does not end like one (cut short, or still being written?)")
        if length > size - 12:
            raise _Malformed("its footer is longer than the file")
        file.seek(size - 8 - length)
        return _Compact(file.read(length)).struct()


def _check(path: Path, footer: dict[int, Any], columns: Collection[str]) -> None:
    size = path.stat().st_size
    n_rows, groups = _get(footer, 3, int), _get(footer, 4, list, default=[])
    if n_rows > MAX_ROWS_PER_BYTE * size:
        raise UserError(f"{path} claims {n_rows:,} rows in {size:,} bytes: not credible")
    if n_rows != sum(_get(group, 3, int) for group in groups):
        raise _Malformed("the rows of its parts do not add up to its own number of rows")
    types = _flat_column_types(_get(footer, 2, list))
    for group in groups:
        for chunk in _get(group, 1, list):
            about = _get(chunk, 3, dict)
            names = [_text(part) for part in _get(about, 3, list)]
            if len(names) == 1 and names[0] in columns:
                _check_chunk(names[0], about, types.get(names[0]), _get(group, 3, int), size)


def _check_chunk(name: str, about: dict, stated: int | None, n_rows: int, size: int) -> None:
    kind = _get(about, 1, int)
    if kind != stated:
        raise _Malformed(
            f"its schema says that {name!r} is {_type_name(stated)}, the data {_type_name(kind)}"
        )
    if _get(about, 5, int) != n_rows:
        raise _Malformed(f"{name!r} does not have one value for each row")
    unpacked, packed = _get(about, 6, int), _get(about, 7, int)
    start = _get(about, 11, int, default=_get(about, 9, int))
    if start < 0 or packed < 0 or start + packed > size:
        raise _Malformed(f"{name!r} is said to lie outside the file")
    if unpacked > MAX_UNPACKED_PER_BYTE * size:
        raise _Malformed(f"{name!r} unpacks to {unpacked:,} bytes: not credible")
    bounds = _get(about, 12, dict, default={})
    width = _WIDTHS.get(kind)
    if width and any(len(bounds[field]) != width for field in (1, 2, 5, 6) if field in bounds):
        raise _Malformed(f"the bounds of {name!r} are not of its type, {_type_name(kind)}")


def _flat_column_types(schema: list[dict]) -> dict[str, int]:
    """Physical types of the top-level columns that are no groups."""
    types = {}
    skip = 0
    for element in schema[1:]:
        children = _get(element, 5, int, default=0)
        if skip:
            skip += children - 1
        elif children:
            skip = children
        else:
            types[_text(_get(element, 4, bytes))] = _get(element, 1, int)
    return types


def _type_name(kind: int | None) -> str:
    return _TYPE_NAMES[kind] if kind is not None and 0 <= kind < len(_TYPE_NAMES) else str(kind)


def _get(fields: Any, field: int, kind: type, default: Any = None) -> Any:
    value = fields.get(field, default) if isinstance(fields, dict) else None
    if not isinstance(value, kind):
        raise _Malformed("its footer is damaged")
    return value


def _text(content: Any) -> str:
    try:
        return content.decode()
    except (AttributeError, UnicodeDecodeError):
        raise _Malformed("its footer is damaged") from None


class _Compact:
    """Thrift's compact protocol: structs as ``{field number: value}``, text as bytes."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        fields = {}
        field = 0
        while (header := self._take(1)[0]) != 0:
            step, kind = header >> 4, header & 0x0F
            field = field + step if step else self._zigzag()
            fields[field] = kind == 1 if kind in (1, 2) else self._value(kind, depth + 1)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise _Malformed("its footer is nested too deeply")
        if kind in (1, 2):  # inside lists a boolean takes a byte
            return self._take(1)[0] == 1
        if kind == 3:
            return self._take(1)[0]
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 7:
            return struct.unpack("<d", self._take(8))[0]
        if kind == 8:
            return self._take(self._varint())
        if kind in (9, 10):
            header = self._take(1)[0]
            count = self._count(header >> 4 if header >> 4 < 15 else self._varint())
            return [self._value(header & 0x0F, depth + 1) for _ in range(count)]
        if kind == 11:
            count = self._count(self._varint())
            kinds = self._take(1)[0] if count else 0
            return [
                (self._value(kinds >> 4, depth + 1), self._value(kinds & 0x0F, depth + 1))
                for _ in range(count)
            ]
        if kind == 12:
            return self.struct(depth + 1)
        raise _Malformed("its footer is damaged")

    def _count(self, count: int) -> int:
        if count > len(self._content) - self._at:  # every element takes a byte at least
            raise _Malformed("its footer is damaged")
        return count

    def _take(self, count: int) -> bytes:
        taken = self._content[self._at : self._at + count]
        if len(taken) != count:
            raise _Malformed("its footer ends too early")
        self._at += count
        return taken

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise _Malformed("its footer is damaged")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
