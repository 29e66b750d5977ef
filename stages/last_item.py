"""HRLI and HRL2I: how often the last two input items are themselves recommended."""

from lastclick import params, tables
from lastclick.diagnostics.last_item import last_item_observations
from stages.cells import Cell
from stages.command import run
from stages.results import write_results


def main(dataset: str, model: str, seed: int) -> None:
    """Measure the last-item hit rates of one trained model."""
    evaluation = params.load().evaluation
    cell = Cell(dataset, model, seed)
    scores = tables.read_table(cell.scores("shuffles.parquet"), tables.SHUFFLES)
    write_results(cell, "last_item", last_item_observations(scores, evaluation.ks), evaluation)


if __name__ == "__main__":
    run(main)
