"""Figure 4: mixing, last-item reliance and accuracy as the residual is scaled."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lastclick.plotting.style import (
    FAINT,
    INK,
    Look,
    curve,
    heading,
    in_order,
    legend,
    looks,
    mark_trained,
    model_handle,
    panels,
    styled,
)
from lastclick.titles import title

#: panel -> the metrics drawn in it, each with what changes in the model's look
COLUMNS = {
    "mixing ratio (+LN)": {
        "mixing_ratio/norm_of_sum": {},
        "mixing_ratio/sum_of_norms": {"markerfacecolor": "white", "linewidth": 1.0},
    },
    "HRLI@1": {"HRLI@1": {}},
    "HR@10": {"HR@10": {}},
    "NDCG@10": {"NDCG@10": {}},
}
_LAYER_LINES = ((0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)), (0, (2, 2)))
_LAYER_MARKERS = ("^", "s", "D", "v")


@styled
def figures(marks: pl.DataFrame) -> dict[str, Figure]:
    """All layers scaled at once, models as curves; and one layer at a time, a row per model.

    ``marks``: ``plots/data/scaling.csv``.
    """
    if marks.is_empty():
        return {}
    drawn = {"figure4_scaling": _all_layers(marks.filter(layers="all"))}
    if marks["layers"].n_unique() > 1:
        drawn["figure4_scaling_by_layer"] = _by_layer(marks)
    return drawn


def _all_layers(marks: pl.DataFrame) -> Figure:
    datasets = in_order(marks, "dataset")
    look_of = looks(in_order(marks, "model"))
    figure, axes = panels(len(datasets), len(COLUMNS), width=2.6, height=2.55)
    for row, dataset in zip(axes, datasets, strict=True):
        heading(row[0], title(dataset))
        for panel, (name, metrics) in zip(row, COLUMNS.items(), strict=True):
            for model, look in look_of.items():
                for metric, changes in metrics.items():
                    part = marks.filter(dataset=dataset, model=model, metric=metric)
                    curve(panel, part, "alpha", look, **changes)
            _finish(panel, name)
    for panel in axes[-1]:
        panel.set_xlabel("residual scale α")
    legend(
        figure, [*(model_handle(model, look) for model, look in look_of.items()), *_definitions()]
    )
    return figure


def _by_layer(marks: pl.DataFrame) -> Figure:
    cells = marks.select("dataset", "model").unique(maintain_order=True).rows()
    layers = in_order(marks, "layers")
    look_of = looks(in_order(marks, "model"))
    figure, axes = panels(len(cells), len(COLUMNS), width=2.6, height=2.55)
    for row, (dataset, model) in zip(axes, cells, strict=True):
        looks_of_layers = _layer_looks(layers, look_of[model].colour)
        heading(row[0], f"{title(dataset)} · {title(model)}")
        for panel, (name, metrics) in zip(row, COLUMNS.items(), strict=True):
            metric = next(iter(metrics))
            for layer, look in looks_of_layers.items():
                part = marks.filter(dataset=dataset, model=model, layers=layer, metric=metric)
                curve(panel, part, "alpha", look, linewidth=2.0 if layer == "all" else 1.2)
            _finish(panel, name)
    for panel in axes[-1]:
        panel.set_xlabel("residual scale α")
    handles = [
        Line2D(
            [], [], color=look.colour, linestyle=look.line, marker=look.marker, label=_name(layer)
        )
        for layer, look in _layer_looks(layers, look_of[cells[0][1]].colour).items()
    ]
    legend(figure, handles)
    return figure


def _name(layers: str) -> str:
    return "all layers" if layers == "all" else f"{layers.replace('layer', 'layer ')} alone"


def _layer_looks(layers: Sequence[str], colour: str) -> dict[str, Look]:
    found = {}
    for number, layer in enumerate(layers):
        if layer == "all":
            found[layer] = Look(colour, "o", "-")
        else:
            place = (number - 1) % len(_LAYER_LINES)
            grey = (INK, "#8F8F8F")[place % 2]
            found[layer] = Look(grey, _LAYER_MARKERS[place], _LAYER_LINES[place])
    return found


def _definitions() -> list[Line2D]:
    return [
        Line2D([], [], color=FAINT, marker="o", label="norm of sum"),
        Line2D([], [], color=FAINT, marker="o", markerfacecolor="white", linewidth=1.0,
               label="sum of norms"),
    ]  # fmt: skip


def _finish(axes: Axes, name: str) -> None:
    axes.set_title(name)
    mark_trained(axes)
    axes.set_ylim(bottom=0)
    if name in ("mixing ratio (+LN)", "HRLI@1"):
        axes.set_ylim(0, 1.04)
    axes.margins(x=0.03)
