"""Figure 1: accuracy under chronological, partly and fully shuffled inputs."""

from __future__ import annotations

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lastclick.plotting.style import (
    bar,
    bar_handle,
    bar_panels,
    heading,
    in_order,
    legend,
    looks,
    models_across,
    styled,
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
    figure, axes = bar_panels(len(datasets), len(METRICS), len(models), height=2.6)
    for row, dataset in zip(axes, datasets, strict=True):
        heading(row[0], title(dataset))
        for panel, metric in zip(row, METRICS, strict=True):
            _bars(panel, marks.filter(dataset=dataset, metric=metric), models)
            panel.set_title(metric)
    legend(figure, [bar_handle(_LABELS[order], *drawn) for order, drawn in ORDERS.items()])
    return {"figure1_shuffle": figure}


def _bars(axes: Axes, marks: pl.DataFrame, models: list[str]) -> None:
    for place, (model, look) in enumerate(looks(models).items()):
        for step, (order, (strength, hatch)) in enumerate(ORDERS.items(), start=-1):
            for mark in marks.filter(model=model, order=order).iter_rows(named=True):
                bar(
                    axes, place + step * _WIDTH, mark, look, width=_WIDTH * 0.92,
                    strength=strength, hatch=hatch, nudge=3,
                    text=None if mark["share"] is None else f"{mark['share']:.0%}",
                )  # fmt: skip
    models_across(axes, models)
    axes.margins(y=0.12)
    axes.set_ylim(bottom=0)
