"""Putting the page together: tables and figures into one HTML file that needs no network."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import polars as pl
import yaml

from lastclick.report.answer import MAY_NOT_CONCLUDE, answers, limits, paragraph, short_answer
from lastclick.report.cautions import cautions
from lastclick.report.numbers import Numbers, listing, percent, plural
from lastclick.report.readings import (
    data_readings,
    mixing_readings,
    published_readings,
    recovery_readings,
    scaling_readings,
)
from lastclick.report.sections import CAPTIONS, SECTIONS, Caption, Section
from lastclick.tabulation.contents import TABLES
from lastclick.tabulation.layout import Layout, arrange, as_printed, number
from lastclick.tabulation.published import Published
from lastclick.titles import title

_MIME = {"svg": "image/svg+xml", "png": "image/png"}


@dataclass(frozen=True)
class Drawing:
    """A figure file: its name without suffix, its kind ("svg" or "png") and its bytes."""

    name: str
    kind: str
    content: bytes

    @property
    def uri(self) -> str:
        """The file itself as an address, so that the page needs no other."""
        encoded = base64.b64encode(self.content).decode("ascii")
        return f"data:{_MIME[self.kind]};base64,{encoded}"


@dataclass(frozen=True)
class FigureView:
    """One figure as the template needs it."""

    caption: Caption
    heading: str
    alt: str
    uri: str


@dataclass(frozen=True)
class Heading:
    """A heading cell over ``columns`` columns and ``rows`` rows; ``side``: over row headings."""

    text: str
    columns: int = 1
    rows: int = 1
    side: bool = False


@dataclass(frozen=True)
class CellView:
    """One number as text, in the parts that are set apart by style."""

    value: str = ""
    interval: str = ""
    spread: str = ""
    published: str = ""
    difference: str = ""
    inside: bool | None = None
    note: int = 0


@dataclass(frozen=True)
class RowView:
    """Heading cells of one row and its numbers; ``reason`` stands in place of them all."""

    headings: tuple[Heading, ...]
    cells: tuple[CellView, ...]
    reason: str = ""


@dataclass(frozen=True)
class TableView:
    """One table as the template needs it."""

    layout: Layout
    head: tuple[tuple[Heading, ...], ...]
    rows: tuple[RowView, ...]
    notes: tuple[str, ...]
    n_columns: int


@dataclass(frozen=True)
class SectionView:
    """One section with its figures, tables and computed sentences.

    Of a figure with several drawings the first is shown and the others are folded.
    """

    section: Section
    figures: tuple[FigureView, ...]
    folded_figures: tuple[FigureView, ...]
    tables: tuple[TableView, ...]
    folded: tuple[TableView, ...]
    readings: tuple[str, ...]


def render(
    *,
    settings: Mapping[str, Any],
    tables: Mapping[str, pl.DataFrame],
    drawings: Sequence[Drawing],
    published: Published,
    versions: Mapping[str, str],
) -> str:
    """The whole page.

    ``settings``: params.yaml as a mapping; ``tables``: the tidy cells by table name; ``drawings``
    in the order in which they are shown; ``versions``: name -> version of what computed the run.
    """
    numbers = Numbers(tables)
    covered = settings["run"]
    found = answers(numbers, covered["datasets"], covered["models"])
    readings = {
        "mixing": tuple(mixing_readings(settings)),
        "scaling": tuple(scaling_readings(numbers)),
        "recovery": tuple(recovery_readings(numbers, published)),
        "data": tuple(data_readings(numbers, settings)),
    }
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lastclick"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"title": title, "percent": percent}
    return environment.get_template("report.html.j2").render(
        run=_run_line(covered),
        short_answer=short_answer(found),
        paragraphs={dataset: paragraph(dataset, found) for dataset in covered["datasets"]},
        answers=found,
        limits=limits(),
        may_not_conclude=MAY_NOT_CONCLUDE,
        cautions=cautions(numbers, settings),
        against_the_papers=tuple(published_readings(numbers, published)),
        sections=[_section(section, tables, drawings, readings) for section in SECTIONS],
        settings=yaml.safe_dump(
            _settings_of_run(settings), sort_keys=False, allow_unicode=True, width=88
        ),
        versions=versions,
        data_sets={name: settings["datasets"][name] for name in covered["datasets"]},
        sources=published.sources.values(),
        confidence=settings["evaluation"]["confidence"],
        drawn=bool(drawings),
    )


def _run_line(covered: Mapping[str, Any]) -> str:
    return (
        f"{listing([title(name) for name in covered['models']])} on "
        f"{listing([title(name) for name in covered['datasets']])}, "
        f"{plural(len(covered['seeds']), 'training seed')} "
        f"({listing([str(seed) for seed in covered['seeds']])})"
    )


def _settings_of_run(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that this run's results hang on, without definitions that it does not name."""
    left_out = ("models", "datasets", "compute")
    kept = {name: part for name, part in settings.items() if name not in left_out}
    kept["models"] = {name: settings["models"][name] for name in settings["run"]["models"]}
    kept["datasets"] = {
        name: {"filter_seen": settings["datasets"][name]["filter_seen"]}
        for name in settings["run"]["datasets"]
    }
    return kept


def _section(
    section: Section,
    tables: Mapping[str, pl.DataFrame],
    drawings: Sequence[Drawing],
    readings: Mapping[str, Sequence[str]],
) -> SectionView:
    shown, folded = (
        tuple(_table(name, tables[name]) for name in names if not tables[name].is_empty())
        for names in (section.tables, section.folded)
    )
    figures = [views for name in section.figures if (views := _figures(name, drawings))]
    further = [view for views in figures for view in views[1:]]
    further += [view for name in section.folded_figures for view in _figures(name, drawings)]
    return SectionView(
        section,
        tuple(views[0] for views in figures),
        tuple(further),
        shown,
        folded,
        tuple(readings.get(section.anchor, ())),
    )


def _figures(name: str, drawings: Sequence[Drawing]) -> tuple[FigureView, ...]:
    """The drawings of one figure: itself, or one for each ``name_<data set>_<model>``."""
    caption = CAPTIONS[name]
    views = []
    for drawing in drawings:
        cell = drawing.name.removeprefix(name)
        if drawing.name == name:
            views.append(FigureView(caption, caption.title, caption.alt, drawing.uri))
        elif drawing.name.startswith(f"{name}_") and drawing.name not in CAPTIONS:
            of = " · ".join(title(part) for part in cell.strip("_").split("_", 1))
            heading = f"{caption.title}: {of}"
            views.append(FigureView(caption, heading, f"{of}: {caption.alt}", drawing.uri))
    return tuple(views)


def _table(name: str, frame: pl.DataFrame) -> TableView:
    layout = TABLES[name][0]
    grid = arrange(layout, frame)
    body = [
        _row(layout, cells, grid.notes, headings)
        for cells, headings in zip(grid.cells, _side(grid.rows), strict=True)
    ]
    left = [row for row in body if not row.reason]
    # A reason that stands in its row needs no note below.
    used = {cell.note for row in left for cell in row.cells if cell.note}
    notes = tuple(note if place in used else "" for place, note in enumerate(grid.notes, start=1))
    return TableView(layout, _head(layout, grid.columns), tuple(body), notes, len(grid.columns))


def _head(layout: Layout, columns: Sequence[tuple[str, ...]]) -> tuple[tuple[Heading, ...], ...]:
    depth = len(layout.across)
    side = tuple(Heading(title(key), rows=depth, side=True) for key in layout.side)
    lines = []
    for level in range(depth):
        line: list[Heading] = []
        for place, column in enumerate(columns):
            same = (
                level < depth - 1
                and place
                and columns[place - 1][: level + 1] == column[: level + 1]
            )
            if same:
                line[-1] = Heading(line[-1].text, columns=line[-1].columns + 1)
            else:
                line.append(Heading(title(column[level])))
        lines.append((*side, *line) if level == 0 else tuple(line))
    return tuple(lines)


def _side(rows: Sequence[tuple[str, ...]]) -> list[tuple[Heading, ...]]:
    """Row headings; a heading that repeats those above it is left to span them."""
    found: list[tuple[Heading, ...]] = []
    for place, row in enumerate(rows):
        headings = []
        for level, text in enumerate(row):
            prefix = row[: level + 1]
            last = level == len(row) - 1
            if not last and place and rows[place - 1][: level + 1] == prefix:
                continue
            span = 1
            if not last:
                while place + span < len(rows) and rows[place + span][: level + 1] == prefix:
                    span += 1
            headings.append(Heading(title(text), rows=span))
        found.append(tuple(headings))
    return found


def _row(
    layout: Layout,
    cells: Sequence[Mapping[str, Any] | None],
    notes: Sequence[str],
    headings: tuple[Heading, ...],
) -> RowView:
    filled = [cell for cell in cells if cell is not None]
    reasons = {cell["note"] for cell in filled}
    if len(reasons) == 1 and not any(
        cell["value"] is not None or cell["published"] is not None for cell in filled
    ):
        return RowView(headings, (), reasons.pop() or "")
    return RowView(headings, tuple(_cell(layout, cell, notes) for cell in cells))


def _cell(layout: Layout, cell: Mapping[str, Any] | None, notes: Sequence[str]) -> CellView:
    if cell is None:
        return CellView()
    digits = layout.digits_of(cell)
    difference = cell["difference"]
    return CellView(
        value="" if cell["value"] is None else number(cell["value"], digits),
        interval=""
        if cell["low"] is None
        else f"{number(cell['low'], digits)} – {number(cell['high'], digits)}",
        spread="" if cell["spread"] is None else number(cell["spread"], digits),
        published="" if cell["published"] is None else as_printed(cell["published"]),
        difference="" if difference is None else number(difference, digits, sign=True),
        inside=cell["published_within_interval"],
        note=0 if cell["note"] is None else notes.index(cell["note"]) + 1,
    )
