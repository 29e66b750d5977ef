"""How a table is laid out: tidy cells on disk, rows and columns on paper.

A table is written as a tidy CSV, one line per number, so that it can be read by machine; the
Markdown file and the report lay the same cells out, by the same ``Layout``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import polars as pl

#: What is known of one number. ``low`` and ``high`` bound its bootstrap interval over users,
#: ``spread`` is the standard deviation over training seeds, ``difference`` is value - published,
#: and ``note`` says why there is no value.
MEASURES: Mapping[str, pl.DataType] = {
    "value": pl.Float64(),
    "low": pl.Float64(),
    "high": pl.Float64(),
    "spread": pl.Float64(),
    "n_seeds": pl.Int64(),
    "n_users": pl.Int64(),
    "published": pl.Float64(),
    "difference": pl.Float64(),
    "published_within_interval": pl.Boolean(),
    "note": pl.String(),
}

Row = dict[str, Any]

#: Why a metric has no value: nobody belongs to its group of users, under some training seed.
NOBODY = "left out: nobody to average over"


@dataclass(frozen=True)
class Layout:
    """Title, keys and words of one table.

    ``side`` and ``across`` are the key columns whose values become row and column headings.
    ``digits`` after the decimal point, for all cells or by the value of the last ``across`` key.
    ``shows`` and ``does_not_show`` say in plain words what may be read from the table.
    """

    name: str
    title: str
    side: tuple[str, ...]
    across: tuple[str, ...]
    shows: str
    does_not_show: str
    digits: int | Mapping[str, int] = 4
    published: str = ""

    @property
    def schema(self) -> dict[str, pl.DataType]:
        """Columns of the tidy CSV."""
        return {**{key: pl.String() for key in (*self.side, *self.across)}, **MEASURES}

    def frame(self, rows: Sequence[Row]) -> pl.DataFrame:
        """The tidy table of ``rows``, each with every key and any of the measures."""
        return pl.DataFrame(rows, schema=self.schema, orient="row")

    def digits_of(self, cell: Mapping[str, Any]) -> int:
        """Digits after the decimal point of one cell."""
        if isinstance(self.digits, int):
            return self.digits
        return self.digits.get(cell[self.across[-1]], 4)


@dataclass(frozen=True)
class Grid:
    """A laid-out table: ``cells[row][column]`` is a tidy row, or None where there is none."""

    rows: tuple[tuple[str, ...], ...]
    columns: tuple[tuple[str, ...], ...]
    cells: tuple[tuple[Mapping[str, Any] | None, ...], ...]
    notes: tuple[str, ...] = field(default=())


def arrange(layout: Layout, frame: pl.DataFrame) -> Grid:
    """Lay out the tidy ``frame``; rows and columns keep the order of first appearance."""
    by_place: dict[tuple[tuple[str, ...], tuple[str, ...]], Mapping[str, Any]] = {}
    rows: dict[tuple[str, ...], None] = {}
    columns: dict[tuple[str, ...], None] = {}
    for cell in frame.iter_rows(named=True):
        row = tuple(cell[key] for key in layout.side)
        column = tuple(cell[key] for key in layout.across)
        rows.setdefault(row)
        columns.setdefault(column)
        by_place[row, column] = cell
    notes = frame["note"].drop_nulls().unique(maintain_order=True).to_list()
    return Grid(
        tuple(rows),
        tuple(columns),
        tuple(tuple(by_place.get((row, column)) for column in columns) for row in rows),
        tuple(notes),
    )


def measured(finding: Mapping[str, Any] | None, published: float | None = None) -> Row:
    """The measures of a summarised metric beside its published value.

    ``finding``: value, low, high, n_users, by_seed and, over several seeds, spread. Without one
    only the published value is filled in, with a note.
    """
    if finding is None:
        return {"published": published, "note": NOBODY}
    row: Row = {name: finding[name] for name in ("value", "low", "high", "n_users")}
    row["n_seeds"] = len(finding["by_seed"])
    row["spread"] = finding.get("spread")
    if published is not None:
        row |= {
            "published": published,
            "difference": finding["value"] - published,
            "published_within_interval": finding["low"] <= published <= finding["high"],
        }
    return row


def counted(value: float | None, published: float | None = None) -> Row:
    """The measures of a number that is counted, not estimated: it has no interval."""
    row: Row = {"value": value, "published": published}
    if value is None:
        row["note"] = "not recorded"
    elif published is not None:
        row["difference"] = value - published
    return row


def averaged(values: Sequence[float]) -> Row:
    """As ``counted``, of a number that was counted once under every training seed: the mean."""
    return counted(fmean(values)) | {"n_seeds": len(values)}


def number(value: float, digits: int, *, sign: bool = False) -> str:
    """``value`` with ``digits`` after the decimal point, thousands grouped, a true minus sign."""
    text = f"{value:{'+' if sign else ''},.{digits}f}"
    # A difference that rounds to nothing has no direction.
    if float(text.replace(",", "")) == 0:
        text = text.lstrip("+-")
    return text.replace("-", "−")


def as_printed(value: float) -> str:
    """A published value with the digits that it was printed with, less trailing zeros."""
    return f"{value:,.10g}".replace("-", "−")


def markdown(layout: Layout, frame: pl.DataFrame) -> str:
    """The table as a Markdown document: title, grid, notes, and what may be read from it."""
    grid = arrange(layout, frame)
    lines = [f"# {layout.title}", ""]
    if grid.rows:
        head = [*layout.side, *(" ".join(column) for column in grid.columns)]
        lines += [_line(head), _line(["---"] * len(layout.side) + ["---:"] * len(grid.columns))]
        lines += [
            _line([*row, *(_text(layout, cell, grid.notes) for cell in cells)])
            for row, cells in zip(grid.rows, grid.cells, strict=True)
        ]
    else:
        lines.append("Nothing in this run has such numbers.")
    lines += ["", *(f"{mark + 1}. {note}" for mark, note in enumerate(grid.notes))]
    lines += ["", layout.shows, "", layout.does_not_show, ""]
    if layout.published:
        lines += [f"Published values: {layout.published}.", ""]
    return "\n".join(lines).replace("\n\n\n", "\n\n")


def _text(layout: Layout, cell: Mapping[str, Any] | None, notes: Sequence[str]) -> str:
    if cell is None:
        return ""
    digits = layout.digits_of(cell)
    parts = []
    if cell["value"] is not None:
        parts.append(number(cell["value"], digits))
    if cell["low"] is not None:
        parts[0] += f" [{number(cell['low'], digits)}, {number(cell['high'], digits)}]"
    if cell["spread"] is not None:
        parts.append(f"seeds ± {number(cell['spread'], digits)}")
    if cell["published"] is not None:
        parts.append(_published_text(cell, digits))
    if cell["note"] is not None:
        parts.append(f"n/a ({notes.index(cell['note']) + 1})")
    return "; ".join(parts)


def _published_text(cell: Mapping[str, Any], digits: int) -> str:
    text = f"published {as_printed(cell['published'])}"
    if cell["difference"] is None:
        return text
    text += f" ({number(cell['difference'], digits, sign=True)}"
    if cell["published_within_interval"] is not None:
        text += ", inside" if cell["published_within_interval"] else ", outside"
    return f"{text})"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
