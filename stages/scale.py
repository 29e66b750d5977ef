"""Accuracy, last-item reliance and mixing over the alpha grid."""

from lastclick import params, tables
from lastclick.diagnostics.scale import scale_observations
from stages.cells import Cell
from stages.command import run
from stages.results import write_results


def main(dataset: str, model: str, seed: int) -> None:
    """Summarise the scaled scores of one trained model."""
    cell = Cell(dataset, model, seed)
    scores = tables.read_table(cell.scores("scales.parquet"), tables.SCALES)
    write_results(cell, "scale", scale_observations(scores), params.load().evaluation)


if __name__ == "__main__":
    run(main)
