"""Times as they are written in raw files, turned into whole ticks since 1970-01-01 UTC.

The unit of a number is stated or recognised from its size, and then holds for the whole file: a
file whose numbers are of different sizes (seconds among milliseconds) is refused, since nobody can
tell which of them are meant.
"""

from __future__ import annotations

from datetime import datetime

import polars as pl

from lastclick.errors import UserError

TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_UNITS = list(TICKS)
_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}

# Seconds below 1e11 reach to the year 5138; each finer unit passes a thousand times that bound in
# 1973. So the size of a number tells its unit, but for zero, which is 1970-01-01 in all of them.
_SIZE_BOUNDS = (10**11, 10**14, 10**17)

_NUMBER = r"^([+-]?\d{1,19})(?:\.(\d{1,9}))?$"
_ISO = (
    r"^(?<date>\d{4}-\d{2}-\d{2})"
    r"(?:[T ](?<hour>\d{2}):(?<minute>\d{2})(?::(?<second>\d{2})(?:[.,](?<fraction>\d{1,9}))?)?"
    r"(?: ?(?<zone>Z|[+-]\d{2}(?::?\d{2})?))?)?$"
)
_MICROSECOND = TICKS["us"]
_DATE_DIGITS = {
    "YYYYMMDD": "%Y%m%d",
    "YYYYMMDDhhmm": "%Y%m%d%H%M",
    "YYYYMMDDhhmmss": "%Y%m%d%H%M%S",
}


class TimeReader:
    """Reads the time column of one file, batch after batch.

    ``time_format`` as in ``raw_formats``; ``where`` names the file in messages and ``row_word``
    what its rows are called there ("line" or "row").
    """

    def __init__(self, time_format: str, where: str, row_word: str = "line") -> None:
        self._format = time_format
        self._where = where
        self._row_word = row_word
        self._first_number: tuple[int, int] | None = None
        self._first_time: tuple[int, str, bool] | None = None
        self._format_words = f"time_format: {time_format}"

    @property
    def format_words(self) -> str:
        """The ``time_format`` for messages and, if it is auto, what was recognised from which row.

        Final for a row after ``read_text`` has seen it.
        """
        return self._format_words

    @property
    def ticks_per_second(self) -> int:
        """Of ``read_text``: microseconds for text and for seconds, which may carry decimals."""
        return TICKS[self._format] if self._format in ("ms", "us", "ns") else _MICROSECOND

    def read_text(self, texts: pl.Series, rows: pl.Series) -> pl.Series:
        """Ticks, Int64, null where the text is not a time; ``rows`` are numbers for messages.

        Raises UserError where the file mixes units, or times with and without a zone.
        """
        frame = pl.DataFrame({"text": texts, "row": rows})
        if self._format == "auto":
            like = pl.col("text").str.contains
            first = frame.filter(like(_NUMBER) | like(_ISO)).head(1)
            if len(first) and first["text"].str.contains(_ISO)[0]:
                self._recognise("iso", first["row"][0], first["text"][0])
        if self._format == "iso":
            return self._iso_ticks(frame)
        if "%" in self._format:
            return self._pattern_ticks(texts)
        return self._number_ticks(frame)

    def settle_unit(self, first_of_each_size: list[tuple[int, int]]) -> None:
        """Recognise or check the unit of the file's numbers.

        ``first_of_each_size`` holds (row, number) of the first number, other than zero, of each
        size that occurs (see ``number_size``). Raises UserError for more than one size, or for one
        that the stated unit cannot have.
        """
        for row, number in sorted(first_of_each_size):
            unit = _unit_of(number)
            if self._first_number is None:
                self._first_number = (row, number)
                if self._format == "auto":
                    self._refuse_date_digits(row, number)
                    self._recognise(unit, row, number)
                elif _UNITS.index(unit) > _UNITS.index(self._format):
                    raise UserError(
                        f"{self._where}, {self._row_word} {row}: timestamp {number} looks like "
                        f"{_NAMES[unit]}, but time_format says {self._format}"
                    )
            first_row, first_number = self._first_number
            if unit != _unit_of(first_number):
                raise UserError(
                    f"{self._where}, {self._row_word} {row}: timestamp {number} looks like "
                    f"{_NAMES[unit]}, {self._row_word} {first_row} ({first_number}) like "
                    f"{_NAMES[_unit_of(first_number)]}: mixed units. Convert the column to one unit"
                )

    def _recognise(self, time_format: str, row: int, value: str | int) -> None:
        """Settle what ``auto`` means for this file, from the ``value`` of one row."""
        self._format = time_format
        self._format_words += f", which is {time_format} here because of {self._row_word} {row}: "
        self._format_words += repr(value)

    def _refuse_date_digits(self, row: int, number: int) -> None:
        """20231114 is a day in November to its writer, and one in August 1970 in seconds."""
        for form, pattern in _DATE_DIGITS.items():
            try:
                year = datetime.strptime(str(number), pattern).year
            except ValueError:
                continue
            if len(str(number)) == len(form) and 1900 <= year <= 2100:
                raise UserError(
                    f"{self._where}, {self._row_word} {row}: {number} may be a date, {form}, or a "
                    f"number of seconds: state time_format: {pattern!r} or s"
                )

    def integer_ticks_per_second(self) -> int:
        """Ticks of a column of integers that ``settle_unit`` has seen: the column's own unit."""
        return TICKS.get(self._format, 1)

    def _number_ticks(self, frame: pl.DataFrame) -> pl.Series:
        whole = pl.col("text").str.extract(_NUMBER, 1).str.strip_prefix("+")
        frame = frame.select(
            "row",
            whole.cast(pl.Int64, strict=False).alias("number"),
            pl.col("text").str.extract(_NUMBER, 2).fill_null("").alias("fraction"),
            pl.col("text").str.starts_with("-").alias("negative"),
        )
        sizes = frame.filter(pl.col("number") != 0).with_columns(size=number_size(pl.col("number")))
        firsts = sizes.unique("size", keep="first", maintain_order=True)
        self.settle_unit(firsts.select("row", "number").rows())
        if self._format == "s":
            micros = pl.col("fraction").str.pad_end(6, "0").str.slice(0, 6).cast(pl.Int64)
            signed = pl.when("negative").then(-micros).otherwise(micros)
            ticks = pl.col("number") * _MICROSECOND + signed
        else:
            # A fraction of a millisecond is no tick; `.0` is what floating point adds to integers.
            ticks = pl.when(pl.col("fraction").str.strip_chars("0") == "").then(pl.col("number"))
        return frame.select(ticks.alias("timestamp")).to_series()

    def _iso_ticks(self, frame: pl.DataFrame) -> pl.Series:
        groups = pl.col("text").str.extract_groups(_ISO).alias("groups")
        parts = frame.select("row", "text", groups).unnest("groups")
        self._check_zones(parts)
        return parts.select(_iso_microseconds().alias("timestamp")).to_series()

    def _check_zones(self, parts: pl.DataFrame) -> None:
        timed = parts.filter(pl.col("hour").is_not_null()).select(
            "row", "text", zoned=pl.col("zone").is_not_null()
        )
        if self._first_time is None and len(timed):
            self._first_time = timed.row(0)
        if self._first_time is None:
            return
        first_row, first_text, first_zoned = self._first_time
        other = timed.filter(pl.col("zoned") != first_zoned).head(1)
        if len(other):
            row, text, zoned = other.row(0)
            raise UserError(
                f"{self._where}, {self._row_word} {row}: time {text!r} has "
                f"{'a' if zoned else 'no'} zone, {self._row_word} {first_row} ({first_text!r}) has "
                f"{'one' if first_zoned else 'none'}: give all of them a zone, or none (then UTC)"
            )

    def _pattern_ticks(self, texts: pl.Series) -> pl.Series:
        try:
            times = texts.str.strptime(pl.Datetime("us"), self._format, strict=False)
        except pl.exceptions.PolarsError as error:
            raise UserError(f"time_format {self._format!r} is not usable: {error}") from None
        return times.dt.epoch("us").rename("timestamp")


def number_size(number: pl.Expr) -> pl.Expr:
    """0, 1, 2 or 3: in which unit (s, ms, us, ns) numbers of this size are times of our days."""
    magnitude = number.clip(lower_bound=-(2**63 - 1)).abs()  # |Int64 minimum| has no Int64
    return pl.sum_horizontal((magnitude >= bound).cast(pl.Int32) for bound in _SIZE_BOUNDS)


def _unit_of(number: int) -> str:
    return _UNITS[sum(abs(number) >= bound for bound in _SIZE_BOUNDS)]


def _iso_microseconds() -> pl.Expr:
    """From the groups of ``_ISO``; null where there is no such date or time of day."""

    def number(digits: pl.Expr) -> pl.Expr:
        return digits.cast(pl.Int64, strict=False).fill_null(0)

    hour, minute, second = (number(pl.col(name)) for name in ("hour", "minute", "second"))
    micros = number(pl.col("fraction").str.pad_end(6, "0").str.slice(0, 6))
    zone = pl.col("zone").str.replace_all(":", "", literal=True)
    zone_hours, zone_minutes = number(zone.str.slice(1, 2)), number(zone.str.slice(3, 2))
    behind = pl.when(zone.str.starts_with("-")).then(-1).otherwise(1)
    possible = (hour < 24) & (minute < 60) & (second < 60) & (zone_hours < 24) & (zone_minutes < 60)
    days = pl.col("date").str.to_date("%Y-%m-%d", strict=False).cast(pl.Int64)
    seconds = (
        days * 86_400
        + (hour * 3600 + minute * 60 + second)
        - behind * (zone_hours * 3600 + zone_minutes * 60)
    )
    return pl.when(possible).then(seconds * _MICROSECOND + micros)
