"""Looking up the tables' numbers, and writing them into sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from lastclick.tabulation.layout import number


@dataclass(frozen=True)
class Estimate:
    """A number of a table with its bootstrap interval."""

    value: float
    low: float
    high: float
    n_users: int

    def percent(self) -> str:
        """Such as "82% (79% to 85%)"."""
        return f"{percent(self.value)} ({percent(self.low)} to {percent(self.high)})"

    def signed(self, digits: int = 4) -> str:
        """Such as "−0.0120 (−0.0180 to −0.0060)"."""
        value, low, high = (
            number(part, digits, sign=True) for part in (self.value, self.low, self.high)
        )
        return f"{value} ({low} to {high})"


@dataclass(frozen=True)
class Numbers:
    """The tidy tables of a run, by name."""

    tables: Mapping[str, pl.DataFrame]

    def rows(self, table: str, **keys: str) -> list[dict]:
        """The cells of a table whose key columns have these values and that hold a number."""
        frame = self.tables[table].filter(pl.col("value").is_not_null())
        for key, value in keys.items():
            frame = frame.filter(pl.col(key) == value)
        return frame.to_dicts()

    def estimate(self, table: str, **keys: str) -> Estimate | None:
        """The one cell with these keys, or None where it holds no estimated number."""
        rows = [row for row in self.rows(table, **keys) if row["low"] is not None]
        if not rows:
            return None
        (row,) = rows
        return Estimate(row["value"], row["low"], row["high"], row["n_users"])

    def count(self, table: str, **keys: str) -> float | None:
        """The value of the one cell with these keys, or None where it holds none."""
        rows = self.rows(table, **keys)
        if not rows:
            return None
        (row,) = rows
        return row["value"]


def percent(share: float, digits: int | None = None) -> str:
    """A share in percent; unless ``digits`` says otherwise whole, with a decimal below 10%."""
    if digits is None:
        digits = 0 if abs(share) >= 0.0995 or share == 0 else 1
    return f"{100 * share:.{digits}f}%".replace("-", "−")


def percents(shares: Iterable[float]) -> str:
    """The range of several shares, such as "72% to 83%", or the one that they share."""
    shares = list(shares)
    low, high = percent(min(shares)), percent(max(shares))
    return low if low == high else f"{low} to {high}"


def listing(names: Sequence[str]) -> str:
    """Such as "a", "a and b", "a, b and c"."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def plural(count: float, noun: str, many: str | None = None) -> str:
    """Such as "1 user" or "1,209 users"."""
    return f"{count:,.0f} {noun if count == 1 else many or noun + 's'}"
