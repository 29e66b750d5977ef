"""Files of one row a line, their columns divided by a separator (CSV, TSV, ``::``, ``.inter``)."""

from __future__ import annotations

import csv
import difflib
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from lastclick.data.raw_formats import Delimited, Recbole
from lastclick.data.rejects import Rejects
from lastclick.data.text_lines import MAX_LINE_BYTES, NOT_UTF8, Block, read_blocks
from lastclick.errors import UserError

logger = logging.getLogger(__name__)

# Lines are bounded already; the module's own limit of 128 KiB a field would refuse a long text.
csv.field_size_limit(MAX_LINE_BYTES)


def read_delimited(path: Path, raw: Delimited, rejects: Rejects) -> Iterator[pl.DataFrame]:
    """Batches of the whole rows of ``path``; the others go to ``rejects``.

    Columns: ``line`` Int64 and, as written, ``user``, ``item``, ``time`` (and ``offset``) String.
    Raises UserError when a wanted column does not exist, or as ``read_blocks`` does.
    """
    table: _Table | None = None
    for block in read_blocks(path, raw.encoding):
        lines = block.lines()
        if table is None:
            if lines.is_empty() and not block.undecodable:
                continue
            if raw.columns is None:
                first_text = lines["line"].first()
                if block.undecodable and not (first_text and first_text < block.undecodable[0]):
                    raise UserError(f"{path}, line {block.undecodable[0]}: {NOT_UTF8}")
                header, lines = lines["text"][0], lines[1:]
                table = _Table(path, raw, _header_names(path, header, raw))
            else:
                table = _Table(path, raw, list(raw.columns))
        yield table.batch(block, lines, rejects)
    if table is None:
        raise UserError(f"{path} is empty")


def read_recbole(path: Path, raw: Recbole, rejects: Rejects) -> Iterator[pl.DataFrame]:
    """As ``read_delimited``, for RecBole's ``name:type`` headers."""
    first = next(read_blocks(path, raw.encoding))
    if first.first_line in first.undecodable:
        raise UserError(f"{path}, line {first.first_line}: {NOT_UTF8}")
    header = first.text.split("\n", 1)[0]
    types = dict(field.rpartition(":")[::2] for field in header.split("\t"))
    if "" in types:
        raise UserError(
            f"{path}: the first line of a RecBole file names each column with its type, "
            f"user_id:token say; found {_shown(header)}"
        )

    def typed(name: str) -> str:
        if name not in types:
            raise _missing_column(path, name, list(types), header)
        return f"{name}:{types[name]}"

    plain = Delimited(
        kind="delimited",
        separator="\t",
        quote=None,
        user=typed(raw.user),
        item=typed(raw.item),
        time=typed(raw.time),
        **raw.model_dump(include={"time_format", "rejects", "encoding", "missing"}),
    )
    return read_delimited(path, plain, rejects)


def _header_names(path: Path, header: str, raw: Delimited) -> list[str]:
    if raw.quote is None:
        return header.split(raw.separator)
    try:
        return next(csv.reader([header], delimiter=raw.separator, quotechar=raw.quote, strict=True))
    except csv.Error as error:
        raise UserError(f"{path}, line 1: the header is not well formed: {error}") from None


def _missing_column(path: Path, name: str, names: list[str], header: str) -> UserError:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        hint = f"did you mean {near[0]!r}?"
    elif len(names) == 1 and name in header:
        hint = "is the separator right?"
    else:
        hint = "if the file has no header line, name its columns in the raw: block (`columns:`)"
    return UserError(f"{path} has no column {name!r}; its first line is {_shown(header)}; {hint}")


def _shown(text: str, limit: int = 200) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "…")


class _Table:
    """The columns of one file, and what a well-formed line of it looks like."""

    def __init__(self, path: Path, raw: Delimited, names: list[str]) -> None:
        self._path = path
        self._raw = raw
        self._n_columns = len(names)
        shown = raw.separator.join(names)
        wanted = {"user": raw.user, "item": raw.item, "time": raw.time}
        if raw.time_offset is not None:
            wanted["offset"] = raw.time_offset.column
        self._index = {}
        for role, name in wanted.items():
            if name not in names:
                raise _missing_column(path, name, names, shown)
            if names.count(name) > 1:
                raise UserError(f"{path} has several columns named {name!r}: {_shown(shown)}")
            self._index[role] = names.index(name)
        self._last = next(
            (role for role, place in self._index.items() if place == len(names) - 1), None
        )
        self._last_widths: tuple[int, int] | None = None
        if raw.quote is not None:
            separator, quote = re.escape(raw.separator), re.escape(raw.quote)
            self._quoted_field = f"{quote}(?:[^{quote}]|{quote}{quote})*{quote}"
            field = f"(?:[^{separator}{quote}]*|{self._quoted_field})"
            self._well_quoted = f"^{field}(?:{separator}{field})*$"

    def batch(self, block: Block, lines: pl.DataFrame, rejects: Rejects) -> pl.DataFrame:
        """The whole rows of ``block``, of which ``lines`` are the lines that hold rows."""
        for line in block.undecodable:
            rejects.add(line, NOT_UTF8)
        text = pl.col("text")
        if "\0" in block.text or "\r" in block.text:
            odd = text.str.contains("[\0\r]")
            rejects.add_all(lines.filter(odd), "holds a NUL byte or a bare carriage return")
            lines = lines.filter(~odd)
        if self._raw.quote is not None and self._raw.quote in block.text:
            rows = self._quoted_rows(lines, rejects)
        else:
            rows = self._plain_rows(lines, rejects)
        if self._last is not None:
            rows = self._without_cut_row(rows, block, rejects)
        return rows

    def _without_cut_row(self, rows: pl.DataFrame, block: Block, rejects: Rejects) -> pl.DataFrame:
        """Leave out a last row that has no line end and may have lost part of its last field.

        Editors leave the last line end out, too. Where the last field has the same width in all
        rows (times do, as a rule) a cut one would be shorter, unless it was the first longer one:
        such a row is taken, with a warning.
        """
        last_line = block.first_line + block.text.count("\n")
        in_doubt = block.unterminated and not block.text.endswith(self._raw.quote or "\n")
        ended = rows.filter(pl.col("line") != last_line) if in_doubt else rows
        widths = ended[self._last].str.len_bytes()
        if len(widths):
            low, high = self._last_widths or (widths.min(), widths.max())
            self._last_widths = (min(low, widths.min()), max(high, widths.max()))
        if len(ended) == len(rows):
            return rows
        width = rows[self._last].str.len_bytes()[-1]
        if self._last_widths == (width, width):
            logger.warning(
                "%s ends without a line end; if it is complete, all is well, but if it was cut "
                "short its last line (%d) may have lost something",
                self._path,
                last_line,
            )
            return rows
        rejects.add(
            last_line,
            "the file ends inside this line, without a line end: it may have been cut short "
            "(if it is complete, add a line end)",
        )
        return ended

    def _plain_rows(self, lines: pl.DataFrame, rejects: Rejects) -> pl.DataFrame:
        separator = self._raw.separator
        lines = self._of_right_width(lines, pl.col("text"), rejects)
        fields = pl.col("text").str.split_exact(separator, self._n_columns - 1)
        wanted = [
            pl.col("fields").struct.field(f"field_{place}").alias(role)
            for role, place in self._index.items()
        ]
        return lines.select("line", fields=fields).select("line", *wanted)

    def _quoted_rows(self, lines: pl.DataFrame, rejects: Rejects) -> pl.DataFrame:
        """For lines with quotes somewhere; whatever is well formed is then split by ``csv``."""
        raw = self._raw
        whole = pl.col("text").str.contains(self._well_quoted)
        rejects.add_all(
            lines.filter(~whole),
            f"a quote ({raw.quote}) is not closed on its line, or stands inside a field",
        )
        unquoted = pl.col("text").str.replace_all(self._quoted_field, "")
        lines = self._of_right_width(lines.filter(whole), unquoted, rejects)
        reader = csv.reader(
            lines["text"], delimiter=raw.separator, quotechar=raw.quote, strict=True
        )
        rows = list(reader)
        columns = {role: [row[place] for row in rows] for role, place in self._index.items()}
        return lines.select("line").with_columns(
            pl.Series(name, values, dtype=pl.String) for name, values in columns.items()
        )

    def _of_right_width(
        self, lines: pl.DataFrame, unquoted: pl.Expr, rejects: Rejects
    ) -> pl.DataFrame:
        """The lines with as many columns as the file has; ``unquoted`` is without quoted fields."""
        n_fields = unquoted.str.count_matches(self._raw.separator, literal=True) + 1
        right = n_fields == self._n_columns
        wrong = lines.filter(~right).with_columns(n_fields=n_fields)
        for (found,), group in wrong.group_by("n_fields", maintain_order=True):
            rejects.add_all(group, f"{found} columns instead of {self._n_columns}")
        return lines.filter(right)
