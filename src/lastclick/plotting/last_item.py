"""Figure 2: how often the last two input items are themselves in the model's top K."""

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
    width = max(4.6, 0.9 * len(models) + 1.0)
    figure, axes = panels(len(datasets), len(ks), width=width, height=2.5)
    for row, dataset in zip(axes, datasets, strict=True):
        heading(row[0], title(dataset))
        for panel, k in zip(row, ks, strict=True):
            _bars(panel, marks.filter(dataset=dataset, k=k), models)
            panel.set_title(f"share of sequences with the item in the top {k}")
    legend(
        figure,
        [
            Patch(facecolor=tint(FAINT, strength), hatch=hatch, edgecolor=INK, label=label)
            for strength, hatch, label in ITEMS.values()
        ],
    )
    return {"figure2_last_item": figure}


def _bars(axes: Axes, marks: pl.DataFrame, models: list[str]) -> None:
    look_of = looks(models)
    for place, model in enumerate(models):
        for side, (item, (strength, hatch, _)) in zip((-0.5, 0.5), ITEMS.items(), strict=True):
            for mark in marks.filter(model=model, item=item).iter_rows(named=True):
                x = place + side * _WIDTH
                axes.bar(
                    x, mark["value"], width=_WIDTH * 0.94, hatch=hatch, edgecolor=INK,
                    facecolor=tint(look_of[model].colour, strength), linewidth=0.6,
                )  # fmt: skip
                axes.vlines(x, mark["low"], mark["high"], color=INK, linewidth=1.1)
                axes.annotate(
                    f"{mark['value']:.2f}", (x, mark["high"]), xytext=(0, 2.5),
                    textcoords="offset points", ha="center", va="bottom", fontsize=7.5,
                )  # fmt: skip
    axes.set_xticks(range(len(models)), [title(model) for model in models])
    axes.set_xlim(-0.6, len(models) - 0.4)
    axes.set_ylim(0, 1.08)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.grid(axis="x", visible=False)
    axes.tick_params(axis="x", length=0)
