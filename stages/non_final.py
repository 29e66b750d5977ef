"""Targets that are missed at L and hit by the output at an earlier position."""

from lastclick import params, tables
from lastclick.diagnostics.non_final import non_final_observations
from stages.cells import Cell
from stages.command import run
from stages.results import write_results


def main(dataset: str, model: str, seed: int) -> None:
    """Measure the non-final hits of one trained model."""
    cell = Cell(dataset, model, seed)
    scores = tables.read_table(cell.scores("scales.parquet"), tables.SCALES)
    write_results(cell, "non_final", non_final_observations(scores), params.load().evaluation)


if __name__ == "__main__":
    run(main)
