"""How a raw file of interactions is laid out: the ``raw:`` blocks of params.yaml.

What a layout cannot do without is a required key. The few keys with a default are those whose
default can only stop a run, never change its result: a wrong encoding, a row that does not fit,
a quote that does not close or a time that is not recognised are refused with their line number.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    RootModel,
    StringConstraints,
    model_validator,
)

Name = Annotated[str, StringConstraints(min_length=1)]
TimeUnit = Literal["s", "ms", "us", "ns"]

#: What programs write where a value is missing. A user called ``None`` exists now and then:
#: ``missing: []`` takes every text at its word.
MISSING = ("NA", "N/A", "<NA>", "NaN", "nan", "NULL", "null", "None", r"\N")


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class UserSample(_Block):
    """Keep ``users`` users, drawn with ``seed`` before anything is filtered."""

    users: PositiveInt
    seed: Annotated[int, Field(ge=0, lt=2**63)]


class _Columns(_Block):
    """Which columns (or keys) hold what, and what to do with rows that do not fit.

    ``time_format`` is ``s``, ``ms``, ``us`` or ``ns`` (numbers since 1970 in that unit), ``iso``
    (ISO 8601 dates or date-times; without a zone they are UTC), a pattern such as ``%m %d, %Y``,
    or ``auto``: numbers or ISO 8601 text, with the unit recognised from the size of the numbers.
    ``rejects: strict`` stops at rows that do not fit; ``lenient`` leaves them out and counts them.
    ``sample_users``: keep only so many users, before anything else.
    """

    user: Name
    item: Name
    time: Name
    time_format: Name = "auto"
    rejects: Literal["strict", "lenient"] = "strict"
    sample_users: UserSample | None = None

    def column_names(self) -> list[str]:
        """The columns (or keys) that are read."""
        return [self.user, self.item, self.time]

    @model_validator(mode="after")
    def _time_format_is_known(self) -> _Columns:
        named = self.time_format in ("auto", "iso", "s", "ms", "us", "ns")
        if not named and not re.search(r"%[-_0]?[YyGFDcxsv+]", self.time_format):
            raise ValueError(
                f"time_format {self.time_format!r} is none of auto, iso, s, ms, us, ns, "
                "nor a pattern with a year such as '%Y-%m-%d'"
            )
        return self


class TimeOffset(_Block):
    """A second time column, an integer that is added to the first (time of day beside a date)."""

    column: Name
    unit: TimeUnit


class _Text(_Columns):
    """Anything kept as lines of text, plain or compressed with gzip or zstd (recognised)."""

    encoding: Literal["utf-8", "utf-16", "latin-1", "cp1252"] = "utf-8"
    missing: tuple[str, ...] = MISSING


class Delimited(_Text):
    """One row a line, columns divided by ``separator`` (one or more characters).

    ``columns`` names the columns of a file that has no header line. ``quote: null`` is for files
    in which quotes are ordinary characters. A quoted field ends on its line.
    """

    kind: Literal["delimited"]
    separator: Name
    quote: Annotated[str, StringConstraints(min_length=1, max_length=1)] | None = '"'
    columns: tuple[Name, ...] | None = None
    time_offset: TimeOffset | None = None

    def column_names(self) -> list[str]:
        """As of every layout, and the second time column where there is one."""
        return super().column_names() + ([self.time_offset.column] if self.time_offset else [])

    @model_validator(mode="after")
    def _can_be_told_apart(self) -> Delimited:
        if set(self.separator) & {"\n", "\r", "\0"}:
            raise ValueError("separator may hold neither line ends nor NUL")
        if self.quote is not None and self.quote in self.separator:
            raise ValueError(f"quote {self.quote!r} is part of the separator")
        if self.quote is not None and len(self.separator) > 1:
            raise ValueError(
                f"a separator of several characters ({self.separator!r}) goes without quotes: "
                "add `quote: null`"
            )
        if self.columns is not None:
            wanted = [self.user, self.item, self.time]
            absent = [name for name in wanted if name not in self.columns]
            if absent:
                raise ValueError(f"columns does not hold {', '.join(absent)}")
        return self


class Recbole(_Text):
    """RecBole's atomic ``.inter`` file: tabs, a header of ``name:type``; names go without type."""

    kind: Literal["recbole"]


class JsonLines(_Text):
    """One JSON object a line; ``user``, ``item`` and ``time`` are keys of its top level."""

    kind: Literal["json_lines"]


class PythonLines(_Text):
    """One Python dictionary a line, as ``print(record)`` writes it; read without running it."""

    kind: Literal["python_lines"]


class Parquet(_Columns):
    """Parquet. Ids are text or integers; times are integers, text, dates or date-times."""

    kind: Literal["parquet"]


RawFormat = Annotated[
    Delimited | Recbole | JsonLines | PythonLines | Parquet, Field(discriminator="kind")
]


class Raw(RootModel[RawFormat]):
    """``datasets.<name>.raw`` of params.yaml: any of the layouts."""
