"""Files of one record a line: JSON objects, and dictionaries as Python prints them."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

from lastclick.data.raw_formats import JsonLines, PythonLines
from lastclick.data.rejects import Rejects
from lastclick.data.text_lines import NOT_UTF8, read_blocks
from lastclick.errors import UserError

_SCHEMA = {"line": pl.Int64, "user": pl.String, "item": pl.String, "time": pl.String}


class _Decimal(str):
    """A number with a decimal point or an exponent, as it is written: a time perhaps, but no id."""


def read_json_lines(path: Path, raw: JsonLines, rejects: Rejects) -> Iterator[pl.DataFrame]:
    """Batches as ``read_delimited``'s, from one JSON object a line."""
    return _read_records(path, raw, rejects, _parse_json, "a JSON object")


def read_python_lines(path: Path, raw: PythonLines, rejects: Rejects) -> Iterator[pl.DataFrame]:
    """Batches as ``read_delimited``'s, from one Python dictionary literal a line.

    Literals are parsed, never evaluated as code.
    """
    return _read_records(path, raw, rejects, _parse_literal, "a Python dictionary")


def _parse_json(line: str) -> Any:
    return json.loads(line, parse_float=_Decimal, parse_constant=lambda _: None)


def _parse_literal(line: str) -> Any:
    return ast.literal_eval(line.strip())


def _read_records(
    path: Path,
    raw: JsonLines | PythonLines,
    rejects: Rejects,
    parse: Callable[[str], Any],
    what: str,
) -> Iterator[pl.DataFrame]:
    keys = {"user": raw.user, "item": raw.item, "time": raw.time}
    seen_keys: set[str] = set()
    other_keys: list[str] = []
    for block in read_blocks(path, raw.encoding):
        for line in block.undecodable:
            rejects.add(line, NOT_UTF8)
        rows = []
        with warnings.catch_warnings():
            # An odd backslash in somebody's review makes the compiler warn.
            warnings.simplefilter("ignore")
            for line, text in block.lines().rows():
                record = _parsed(text, parse)
                if not isinstance(record, dict):
                    rejects.add(line, f"is not {what}")
                    continue
                other_keys = other_keys or list(record)
                seen_keys.update(key for key in keys.values() if key in record)
                row = _row(record, keys)
                if isinstance(row, str):
                    rejects.add(line, row)
                else:
                    rows.append((line, *row))
        yield pl.DataFrame(rows, schema=_SCHEMA, orient="row")
    never_seen = [key for key in keys.values() if key not in seen_keys]
    if never_seen and other_keys:
        raise UserError(
            f"{path}: no record has the key {never_seen[0]!r}; the first record has "
            f"{', '.join(map(repr, other_keys[:20]))}"
        )


def _parsed(text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        # All of them mean malformed input here, see the documentation of ast.literal_eval.
        return None


def _row(record: dict, keys: dict[str, str]) -> list[str | None] | str:
    """The wanted values as text (None where missing), or the reason why they cannot be used."""
    row = []
    for role, key in keys.items():
        value = record.get(key)
        if isinstance(value, bool) or not isinstance(value, str | int | float | None):
            return f"{role} ({key}) is neither text nor a number"
        if role != "time" and isinstance(value, _Decimal | float):
            return f"{role} ({key}) is the decimal number {value}; ids are text or integers"
        text = value if value is None else str(value)
        if text is not None and not text.isascii() and not _is_unicode(text):
            return f"{role} ({key}) holds half a surrogate pair"
        row.append(text)
    return row


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
