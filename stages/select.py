"""Alpha chosen on validation for every epsilon; the test partition is opened once, afterwards."""

from dataclasses import asdict
from pathlib import Path

import polars as pl

from lastclick import params, tables
from lastclick.diagnostics.select import choose, curve, select_observations
from stages.cells import Cell
from stages.command import run
from stages.results import write_results


def main(dataset: str, model: str, seed: int) -> None:
    """Select alpha for one trained model and report what the choice does on test."""
    settings = params.load()
    epsilons = settings.selection.epsilons
    cell = Cell(dataset, model, seed)
    path = cell.scores("scales.parquet")

    validation = partition(path, "validation")
    chosen = choose(validation, epsilons)

    test = partition(path, "test")
    oracle = choose(test, epsilons)
    observations = select_observations(test, chosen, oracle)
    facts = {
        "choices": {
            f"{epsilon:g}": {"alpha": chosen[epsilon], "alpha_oracle": oracle[epsilon]}
            for epsilon in epsilons
        },
        "validation": asdict(curve(validation)),
    }
    write_results(cell, "select", observations, settings.evaluation, facts)


def partition(path: Path, name: str) -> pl.DataFrame:
    """The rows of one partition alone."""
    return tables.scan_table(path, tables.SCALES).filter(pl.col("partition") == name).collect()


if __name__ == "__main__":
    run(main)
