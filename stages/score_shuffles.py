"""Rank targets and input items under chronological, partly and fully shuffled inputs."""

from lastclick import params, tables
from lastclick.scoring import coverage, score_shuffles
from stages.cells import Cell
from stages.command import run
from stages.trained import load_evaluation, load_trained


def main(dataset: str, model: str, seed: int) -> None:
    """Score the test partition of one trained model under every order of its input."""
    settings = params.load()
    cell = Cell(dataset, model, seed)
    recommender = load_trained(cell, settings.compute)
    test = load_evaluation(cell, "test")
    filter_seen = settings.dataset(dataset).filter_seen
    scores = score_shuffles(
        recommender, test, seeds=settings.shuffle.seeds, filter_seen=filter_seen,
        progress=f"{cell.label}: orders",
    )  # fmt: skip
    covered = coverage(recommender, test, ks=settings.evaluation.ks, filter_seen=filter_seen)
    tables.write_table(scores, cell.scores("shuffles.parquet"), tables.SHUFFLES)
    tables.write_json(covered, cell.scores("coverage.json"))


if __name__ == "__main__":
    run(main)
