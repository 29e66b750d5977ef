"""Draw every figure from the plot data."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure
from tqdm import tqdm

from lastclick import params, tables
from lastclick.plotting import heatmaps, last_item, recovery, scaling, selection, shuffle
from lastclick.plotting.data import SCHEMAS
from lastclick.plotting.style import save
from stages.command import run

DATA = Path("plots/data")
FIGURES = Path("plots/figures")


def main() -> None:
    """Write plots/figures/ from plots/data/."""
    settings = params.load().plots
    drawn: dict[str, Figure] = {}
    for module in (shuffle, last_item, heatmaps, scaling, recovery, selection):
        name = module.__name__.rpartition(".")[2]
        drawn |= module.figures(tables.read_csv(DATA / f"{name}.csv", SCHEMAS[name]))
    for name, figure in tqdm(drawn.items(), desc="figures", unit="figure"):
        save({name: figure}, FIGURES, settings.formats, settings.dpi)


if __name__ == "__main__":
    run(main)
