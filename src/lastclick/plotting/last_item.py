"""Figure 2: how often the last two input items are themselves in the model's top K."""

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

#: item -> strength of the model's colour, hatch, label
ITEMS = {
    "last": (1.0, "", "last input item (HRLI)"),
    "second_last": (0.35, "////", "second-last input item (HRL2I)"),
}
_WIDTH = 0.36


@styled
def figures(marks: pl.DataFrame) -> dict[str, Figure]:
    """One row of panels per data set, one column per K; a pair of bars for each model.

    ``marks``: ``plots/data/last_item.csv``.
    """
    datasets, models = in_order(marks, "dataset"), in_order(marks, "model")
    ks = sorted(in_order(marks, "k"))
    figure, axes = bar_panels(len(datasets), len(ks), len(models), height=2.5)
    for row, dataset in zip(axes, datasets, strict=True):
        heading(row[0], title(dataset))
        for panel, k in zip(row, ks, strict=True):
            _bars(panel, marks.filter(dataset=dataset, k=k), models)
            panel.set_title(f"share of sequences with the item in the top {k}")
    legend(
        figure,
        [bar_handle(label, strength, hatch) for strength, hatch, label in ITEMS.values()],
    )
    return {"figure2_last_item": figure}


def _bars(axes: Axes, marks: pl.DataFrame, models: list[str]) -> None:
    for place, (model, look) in enumerate(looks(models).items()):
        for side, (item, (strength, hatch, _)) in zip((-0.5, 0.5), ITEMS.items(), strict=True):
            for mark in marks.filter(model=model, item=item).iter_rows(named=True):
                bar(
                    axes, place + side * _WIDTH, mark, look, width=_WIDTH * 0.94,
                    strength=strength, hatch=hatch, text=f"{mark['value']:.2f}",
                )  # fmt: skip
    models_across(axes, models)
    axes.set_ylim(0, 1.08)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
