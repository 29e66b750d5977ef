"""Figure 1: accuracy under chronological, partly and fully shuffled inputs."""

from __future__ import annotations

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lastclick.plotting.style import (
    FAINT,
    INK,
    heading,
    in_order,
    legend,
    looks,
    panels,
    styled,
    tint,
)
from lastclick.titles import title

METRICS = ("HR@10", "NDCG@10")
#: order -> strength of the model's colour, hatch
ORDERS = {"chronological": (1.0, ""), "partial": (0.5, "////"), "full": (0.18, "")}
_LABELS = {
    "chronological": "in order",
    "partial": "all but the last item shuffled",
    "full": "all shuffled",
}
_WIDTH = 0.27


@styled
def figures(marks: pl.DataFrame) -> dict[str, Figure]:
    """One row of panels per data set, one column per metric; bars by model and order.

    ``marks``: ``plots/data/shuffle.csv``. Above a shuffled bar stands the share of the
    chronological accuracy that is left.
    """
    datasets, models = in_order(marks, "dataset"), in_order(marks, "model")
    width = max(4.6, 0.9 * len(models) + 1.0)
    figure, axes = panels(len(datasets), len(METRICS), width=width, height=2.6)
    for row, dataset in zip(axes, datasets, strict=True):
        heading(row[0], title(dataset))
        for panel, metric in zip(row, METRICS, strict=True):
            _bars(panel, marks.filter(dataset=dataset, metric=metric), models)
            panel.set_title(metric)
    legend(
        figure,
        [
            Patch(facecolor=tint(FAINT, strength), hatch=hatch, edgecolor=INK, label=_LABELS[order])
            for order, (strength, hatch) in ORDERS.items()
        ],
    )
    return {"figure1_shuffle": figure}


def _bars(axes: Axes, marks: pl.DataFrame, models: list[str]) -> None:
    look_of = looks(models)
    for place, model in enumerate(models):
        for step, (order, (strength, hatch)) in enumerate(ORDERS.items(), start=-1):
            for mark in marks.filter(model=model, order=order).iter_rows(named=True):
                x = place + step * _WIDTH
                axes.bar(
                    x, mark["value"], width=_WIDTH * 0.92, hatch=hatch, edgecolor=INK,
                    facecolor=tint(look_of[model].colour, strength), linewidth=0.6,
                )  # fmt: skip
                axes.vlines(x, mark["low"], mark["high"], color=INK, linewidth=1.1)
                if mark["share"] is not None:
                    axes.annotate(
                        f"{mark['share']:.0%}", (x, mark["high"]), xytext=(3, 2.5),
                        textcoords="offset points", ha="center", va="bottom", fontsize=7.5,
                    )  # fmt: skip
    axes.set_xticks(range(len(models)), [title(model) for model in models])
    axes.set_xlim(-0.6, len(models) - 0.4)
    axes.margins(y=0.12)
    axes.set_ylim(bottom=0)
    axes.grid(axis="x", visible=False)
    axes.tick_params(axis="x", length=0)
