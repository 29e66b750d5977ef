"""Figure 6: alpha chosen on validation, judged on test, beside an oracle that chooses on test."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lastclick.plotting.style import (
    FAINT,
    REFERENCE,
    Look,
    heading,
    in_order,
    legend,
    looks,
    model_handle,
    panels,
    styled,
)
from lastclick.titles import title

COLUMNS = {
    "delta_HR@10": "change of HR@10 on test",
    "recovery": "recovery on test",
    "alpha": "chosen α",
}


@styled
def figures(marks: pl.DataFrame) -> dict[str, Figure]:
    """One row of panels per data set: change of HR@10, recovery and alpha over epsilon.

    ``marks``: ``plots/data/selection.csv``. Epsilons stand at equal distances: the grid is dense
    where it matters. Intervals are over users, those of alpha from the smallest to the largest
    over seeds.
    """
    if marks.is_empty():
        return {}
    datasets, models = in_order(marks, "dataset"), in_order(marks, "model")
    epsilons = sorted(in_order(marks, "epsilon"))
    figure, axes = panels(len(datasets), len(COLUMNS), width=3.5, height=2.5)
    for row, dataset in zip(axes, datasets, strict=True):
        heading(row[0], title(dataset))
        for panel, (metric, name) in zip(row, COLUMNS.items(), strict=True):
            _curves(panel, marks.filter(dataset=dataset, metric=metric), models, epsilons)
            panel.set_title(name)
            if metric == "delta_HR@10":
                panel.axhline(0, **REFERENCE)
            else:
                panel.set_ylim(bottom=0)
    for panel in axes[-1]:
        panel.set_xlabel("allowed loss ε of HR@10 on validation")
    legend(
        figure,
        [
            *(model_handle(model, look) for model, look in looks(models).items()),
            Line2D([], [], color=FAINT, marker="o", label="chosen on validation"),
            Line2D([], [], color=FAINT, marker="o", markerfacecolor="white", linewidth=1.2,
                   linestyle=(0, (1, 1.5)), label="oracle, chosen on test"),
        ],
    )  # fmt: skip
    return {"figure6_selection": figure}


def _curves(axes: Axes, marks: pl.DataFrame, models: list[str], epsilons: list[float]) -> None:
    place = {epsilon: number for number, epsilon in enumerate(epsilons)}
    steps = np.linspace(-0.1, 0.1, num=2 * len(models))
    for number, (model, look) in enumerate(looks(models).items()):
        for which, chosen_on in enumerate(("validation", "test")):
            part = marks.filter(model=model, chosen_on=chosen_on).sort("epsilon")
            x = np.array([place[epsilon] for epsilon in part["epsilon"]])
            _curve(axes, part, x + steps[2 * number + which], look, oracle=chosen_on == "test")
    axes.set_xticks(range(len(epsilons)), [f"{epsilon:g}" for epsilon in epsilons])


def _curve(axes: Axes, part: pl.DataFrame, x: np.ndarray, look: Look, *, oracle: bool) -> None:
    axes.vlines(
        x, part["low"].to_numpy(), part["high"].to_numpy(), color=look.colour, linewidth=1.0,
        alpha=0.45 if oracle else 0.8,
    )  # fmt: skip
    axes.plot(
        x, part["value"].to_numpy(), color=look.colour, marker=look.marker,
        linestyle=(0, (1, 1.5)) if oracle else look.line, linewidth=1.2 if oracle else 1.7,
        markerfacecolor="white" if oracle else look.colour,
    )  # fmt: skip
