"""Figure 3: who reads from whom among the most recent positions."""

from __future__ import annotations

import matplotlib
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from lastclick.plotting.style import heading, in_order, panels, styled
from lastclick.titles import title

MAPS = ("weights", "attn", "attn_res", "attn_res_ln")
# The same scale in every panel, or panels could not be compared; the square root keeps the small
# shares apart that the residual leaves to other positions.
_NORM = PowerNorm(0.5, vmin=0, vmax=1)
_TICKS = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 1)


@styled
def figures(marks: pl.DataFrame) -> dict[str, Figure]:
    """A figure for each data set and model: one row per layer, one column per level.

    ``marks``: ``plots/data/heatmaps.csv``.
    """
    return {
        f"figure3_heatmaps_{dataset}_{model}": _figure(
            marks.filter(dataset=dataset, model=model), f"{title(dataset)} · {title(model)}"
        )
        for dataset, model in marks.select("dataset", "model").unique(maintain_order=True).rows()
    }


def _figure(marks: pl.DataFrame, text: str) -> Figure:
    layers = sorted(in_order(marks, "layer"))
    figure, axes = panels(len(layers), len(MAPS), width=2.55, height=2.4)
    image = None
    for row, layer in zip(axes, layers, strict=True):
        for panel, name in zip(row, MAPS, strict=True):
            image = panel.imshow(
                _square(marks.filter(layer=layer, map=name)),
                cmap=_colours(), norm=_NORM, origin="upper", interpolation="nearest",
            )  # fmt: skip
            _label(panel, int(marks["output_offset"].max()) + 1)
            panel.set_title(f"layer {layer}: {title(name)}")
        row[0].set_ylabel("output position")
    for panel in axes[-1]:
        panel.set_xlabel("input position")
    bar = figure.colorbar(image, ax=axes, ticks=_TICKS, aspect=32, pad=0.015, fraction=0.02)
    bar.ax.set_yticklabels([f"{tick:g}" for tick in _TICKS])
    bar.set_label("weight, or share of the summed norms (square-root scale)")
    bar.outline.set_visible(False)
    heading(axes[0, 0], text)
    return figure


def _square(marks: pl.DataFrame) -> np.ma.MaskedArray:
    """Output positions down, input positions across, L last; what does not exist is masked."""
    size = int(marks["output_offset"].max()) + 1
    square = np.full((size, size), np.nan)
    rows = size - 1 - marks["output_offset"].to_numpy()
    columns = size - 1 - marks["input_offset"].to_numpy()
    square[rows, columns] = marks["mean"].to_numpy()
    # Exact zeros are positions that the output cannot see (the future under a causal mask).
    return np.ma.masked_where(~(square > 0), square)


def _colours() -> matplotlib.colors.Colormap:
    return matplotlib.colormaps["cividis"].with_extremes(bad="white")


def _label(axes: Axes, size: int) -> None:
    offsets = [offset for offset in (0, 4, 9, 14, 19, 24, 29) if offset < size]
    places = [size - 1 - offset for offset in offsets]
    names = ["L" if offset == 0 else f"L−{offset}" for offset in offsets]
    axes.set_xticks(places, names)
    axes.set_yticks(places, names)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=2)
