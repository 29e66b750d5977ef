"""Figure 5: how many recoverable misses a smaller residual turns into hits."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from lastclick.plotting.style import (
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

_COLUMNS = 3


@styled
def figures(marks: pl.DataFrame) -> dict[str, Figure]:
    """One panel per data set, models as curves, the size of each base set under the heading.

    ``marks``: ``plots/data/recovery.csv``.
    """
    if marks.is_empty():
        return {}
    marks = marks.filter(layers="all")
    datasets = in_order(marks, "dataset")
    look_of = looks(in_order(marks, "model"))
    columns = min(_COLUMNS, len(datasets))
    rows = -(-len(datasets) // columns)
    figure, axes = panels(rows, columns, width=5.2 if columns == 1 else 3.9, height=2.8)
    for panel, dataset in zip(axes.flat, datasets, strict=False):
        part = marks.filter(dataset=dataset)
        sizes = []
        for model, look in look_of.items():
            of_model = part.filter(model=model)
            curve(panel, of_model, "alpha", look)
            if not of_model.is_empty():
                sizes.append(f"{title(model)} {of_model['base_set'][0]:,.0f}")
        heading(panel, title(dataset))
        panel.set_title(f"base set: {', '.join(sizes)}", fontsize=8)
        mark_trained(panel)
        panel.set_ylim(bottom=0)
        panel.margins(x=0.03)
        panel.set_xlabel("residual scale α")
    for panel in axes[:, 0]:
        panel.set_ylabel("recovery")
    for panel in axes.flat[len(datasets) :]:
        panel.set_visible(False)
    legend(figure, [model_handle(model, look) for model, look in look_of.items()])
    return {"figure5_recovery": figure}
