"""The look that all figures share, and how they are written.

Colours are Okabe and Ito's, distinguishable with any colour vision; a model also has its own
marker and line, so that nothing is lost in grey. No pyplot: a figure is an object, and settings
hold while it is drawn and no longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib
import numpy as np
import polars as pl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from lastclick.tables import replacing
from lastclick.titles import title

P = ParamSpec("P")
R = TypeVar("R")

INK = "#222222"
FAINT = "#767676"
GRID = "#E3E3E3"
#: Lines that values are read against.
REFERENCE = {"color": INK, "linewidth": 0.9, "linestyle": (0, (2, 2)), "zorder": 1}

_SETTINGS = {
    "axes.axisbelow": True,
    "axes.edgecolor": FAINT,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 9.5,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "figure.constrained_layout.h_pad": 0.11,
    "figure.constrained_layout.w_pad": 0.09,
    "font.size": 9.5,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "hatch.linewidth": 0.6,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "lastclick",  # the same figure, the same bytes
    "text.color": INK,
    "xtick.color": INK,
    "xtick.labelsize": 8.5,
    "xtick.major.width": 0.8,
    "ytick.color": INK,
    "ytick.labelsize": 8.5,
    "ytick.major.width": 0.8,
}


@dataclass(frozen=True)
class Look:
    """How one model is drawn."""

    colour: str
    marker: str
    line: str | tuple[int, tuple[float, ...]]


_LOOKS = {
    "gru4rec": Look("#E69F00", "o", (0, (1, 1))),
    "bert4rec": Look("#56B4E9", "s", (0, (5, 1, 1, 1))),
    "sasrec": Look("#0072B2", "o", "-"),
    "duorec": Look("#D55E00", "^", (0, (5, 1.5))),
    "bsarec": Look("#009E73", "D", (0, (3, 1, 1, 1))),
}
_OTHER_LOOKS = (
    Look("#CC79A7", "v", (0, (2, 1))),
    Look("#000000", "P", (0, (4, 1, 1, 1, 1, 1))),
    Look("#8C6D1F", "X", (0, (6, 2))),
)


def looks(models: Sequence[str]) -> dict[str, Look]:
    """How each of ``models`` is drawn: the study's five always alike, others in order."""
    unknown = [model for model in models if model not in _LOOKS]
    return {
        model: _LOOKS.get(model) or _OTHER_LOOKS[unknown.index(model) % len(_OTHER_LOOKS)]
        for model in models
    }


def tint(colour: str, strength: float) -> tuple[float, float, float]:
    """``colour`` mixed with white; strength 1 is the colour itself."""
    red, green, blue = (1 - strength * (1 - part) for part in to_rgb(colour))
    return red, green, blue


@contextmanager
def settings() -> Iterator[None]:
    """The figures' settings, for as long as the block lasts."""
    with matplotlib.rc_context(_SETTINGS):
        yield


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Draw under the figures' settings."""

    @wraps(draw)
    def under_settings(*args: P.args, **kwargs: P.kwargs) -> R:
        with settings():
            return draw(*args, **kwargs)

    return under_settings


def panels(rows: int, columns: int, *, width: float, height: float) -> tuple[Figure, np.ndarray]:
    """A figure of ``rows x columns`` panels, each ``width x height`` inches, with room on top."""
    figure = Figure(figsize=(width * columns, height * rows + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def heading(axes: Axes, text: str) -> None:
    """A bold heading above the panel's title, at its left edge."""
    axes.annotate(
        text, (0, 1), xycoords="axes fraction", xytext=(0, 21), textcoords="offset points",
        fontsize=10.5, fontweight="bold", ha="left", va="bottom",
    )  # fmt: skip


def legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """One legend above all panels."""
    figure.legend(
        handles=list(handles), loc="outside upper left", ncols=len(handles),
        handlelength=2.6, columnspacing=1.8,
    )  # fmt: skip


def model_handle(model: str, look: Look) -> Line2D:
    """The legend entry of a model's curve."""
    return Line2D(
        [], [], color=look.colour, linestyle=look.line, marker=look.marker, label=title(model)
    )


def curve(axes: Axes, rows: pl.DataFrame, x: str, look: Look, **changes: object) -> None:
    """The values of ``rows`` over column ``x``, with their interval as a band."""
    rows = rows.sort(x)
    style = {"color": look.colour, "linestyle": look.line, "marker": look.marker} | changes
    axes.plot(rows[x].to_numpy(), rows["value"].to_numpy(), **style)
    axes.fill_between(
        rows[x].to_numpy(), rows["low"].to_numpy(), rows["high"].to_numpy(),
        color=style["color"], alpha=0.15, linewidth=0,
    )  # fmt: skip


def bar(
    axes: Axes, x: float, mark: Mapping[str, Any], look: Look, *, width: float, strength: float,
    hatch: str, text: str | None, nudge: float = 0.0,
) -> None:  # fmt: skip
    """The bar of one ``mark`` (value, low, high) in its model's colour, interval and text on top.

    ``strength`` as of ``tint``; ``nudge``: how far right of the bar's middle the text stands, in
    points.
    """
    axes.bar(
        x, mark["value"], width=width, hatch=hatch, edgecolor=INK,
        facecolor=tint(look.colour, strength), linewidth=0.6,
    )  # fmt: skip
    axes.vlines(x, mark["low"], mark["high"], color=INK, linewidth=1.1)
    if text is not None:
        axes.annotate(
            text, (x, mark["high"]), xytext=(nudge, 2.5), textcoords="offset points",
            ha="center", va="bottom", fontsize=7.5,
        )  # fmt: skip


def bar_handle(label: str, strength: float, hatch: str) -> Patch:
    """The legend entry of the bars of this strength and hatch, whatever their model."""
    return Patch(facecolor=tint(FAINT, strength), hatch=hatch, edgecolor=INK, label=label)


def bar_panels(
    rows: int, columns: int, n_models: int, *, height: float
) -> tuple[Figure, np.ndarray]:
    """As ``panels``, wide enough for a group of bars for each of ``n_models``."""
    return panels(rows, columns, width=max(4.6, 0.9 * n_models + 1.0), height=height)


def models_across(axes: Axes, models: Sequence[str]) -> None:
    """Name under each group of bars the model that it stands for; groups lie at 0, 1, 2, …"""
    axes.set_xticks(range(len(models)), [title(model) for model in models])
    axes.set_xlim(-0.6, len(models) - 0.4)
    axes.grid(axis="x", visible=False)
    axes.tick_params(axis="x", length=0)


def mark_trained(axes: Axes) -> None:
    """A dashed line at alpha = 1, the model as it was trained."""
    axes.axvline(1, **REFERENCE)


def in_order(frame: pl.DataFrame, column: str) -> list[Any]:
    """The distinct values of a column in order of first appearance."""
    return frame[column].unique(maintain_order=True).to_list()


def save(figures: Mapping[str, Figure], folder: Path, formats: Sequence[str], dpi: int) -> None:
    """Write every figure in every format; the same figure gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    # Without these both writers would name the time and their version.
    metadata = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
    with settings():
        for name, figure in figures.items():
            # Laid out once, not again for every format.
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
            for kind in formats:
                with replacing(folder / f"{name}.{kind}") as path:
                    figure.savefig(path, format=kind, dpi=dpi, metadata=metadata[kind])
