"""Share of the recoverable misses that become hits at L under each alpha."""

from lastclick import params, tables
from lastclick.diagnostics.recover import base_set_size, recover_observations
from stages.cells import Cell
from stages.command import run
from stages.results import write_results


def main(dataset: str, model: str, seed: int) -> None:
    """Measure the recovery curve of one trained model."""
    cell = Cell(dataset, model, seed)
    scores = tables.read_table(cell.scores("scales.parquet"), tables.SCALES)
    observations = recover_observations(scores)
    evaluation = params.load().evaluation
    write_results(cell, "recover", observations, evaluation, base_set_size(scores))


if __name__ == "__main__":
    run(main)
