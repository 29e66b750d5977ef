"""Rows that do not fit: a stop with their line numbers, or a count."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from lastclick.errors import UserError

SHOWN = 5
# With so many bad rows the layout is wrong, not the rows; no need to read on.
STOP_AT = 10_000


class Rejects:
    """Collects the rows of one file that were left out, with their numbers and the reason.

    ``word`` is what a row is called in messages: "line", or "row" where there are no lines.
    """

    def __init__(self, path: Path, policy: str, word: str = "line") -> None:
        self.count = 0
        self.word = word
        self._path = path
        self._strict = policy == "strict"
        self._examples: list[tuple[int, str]] = []

    def add(self, row: int, reason: str) -> None:
        """Leave out one row."""
        self.add_counted(1, [(row, reason)])

    def add_all(self, rows: pl.DataFrame, reason: str, value: str | None = None) -> None:
        """Leave out all ``rows``, numbered by their column ``line``.

        ``value`` names the text column whose content the message shows before the reason.
        """
        examples = rows.head(SHOWN).rows(named=True)
        self.add_counted(
            len(rows),
            [
                (row["line"], f"{_shown(row[value])} {reason}" if value else reason)
                for row in examples
            ],
        )

    def add_counted(self, count: int, examples: list[tuple[int, str]]) -> None:
        """Leave out ``count`` rows, of which ``examples`` are (number, reason) of the first."""
        self.count += count
        self._examples = sorted(self._examples + examples)[:SHOWN]
        if self._strict and self.count >= STOP_AT:
            self.raise_if_strict("at least ")

    def raise_if_strict(self, at_least: str = "") -> None:
        """Raise UserError if there are any and ``rejects`` is strict."""
        if not self.count or not self._strict:
            return
        lines = [f"  {self.word} {row}: {reason}" for row, reason in self._examples]
        if self.count > len(lines):
            lines.append(f"  … and {self.count - len(lines):,} more")
        rows = "row does" if self.count == 1 else "rows do"
        raise UserError(
            f"{self._path}: {at_least}{self.count:,} {rows} not fit:\n"
            + "\n".join(lines)
            + "\nMend the file or its raw: block, or leave such rows out with `rejects: lenient`"
        )


def _shown(text: str, limit: int = 80) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "…")
