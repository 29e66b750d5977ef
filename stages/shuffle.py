"""Accuracy under shuffled inputs."""

from lastclick import params, tables
from lastclick.diagnostics.shuffle import accuracy_by_order_seed, shuffle_observations
from stages.cells import Cell
from stages.command import run
from stages.results import write_results


def main(dataset: str, model: str, seed: int) -> None:
    """Compare chronological, partly and fully shuffled inputs of one trained model."""
    settings = params.load()
    cell = Cell(dataset, model, seed)
    scores = tables.read_table(cell.scores("shuffles.parquet"), tables.SHUFFLES)
    facts = {
        "by_order_seed": accuracy_by_order_seed(scores),
        "coverage": tables.read_json(cell.scores("coverage.json")),
    }
    observations = shuffle_observations(scores, settings.evaluation.ks)
    write_results(cell, "shuffle", observations, settings.evaluation, facts)


if __name__ == "__main__":
    run(main)
