"""From the findings of all cells to tables, metric files and the data of the figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from tqdm import tqdm

from lastclick import params, tables
from lastclick.tabulation.aggregates import metric_files
from lastclick.tabulation.contents import TABLES, tabulate
from lastclick.tabulation.layout import markdown
from lastclick.tabulation.marks import plot_data
from lastclick.tabulation.published import load_published
from lastclick.tabulation.study import (
    BEHAVIOURAL,
    COMPARED,
    STRUCTURAL,
    Study,
    model_differences,
    shares_of_chronological,
)
from stages.cells import Cell
from stages.command import run
from stages.results import over_users


def main() -> None:
    """Write tables/, metrics/ and plots/data/ of the run that params.yaml describes."""
    study = gather(params.load())
    for name, frame in tabulate(study).items():
        tables.write_csv(frame, Path("tables") / f"{name}.csv")
        tables.write_text(markdown(TABLES[name][0], frame), Path("tables") / f"{name}.md")
    for name, content in metric_files(study).items():
        tables.write_json(content, Path("metrics") / f"{name}.json")
    for name, frame in plot_data(study).items():
        tables.write_csv(frame, Path("plots/data") / f"{name}.csv")


def gather(settings: params.Params) -> Study:
    """Read what every cell of the run found, and summarise it over seeds and users."""
    covered = settings.run
    models_of = {
        **dict.fromkeys(BEHAVIOURAL, covered.models),
        **dict.fromkeys(STRUCTURAL, covered.attention_models),
    }
    cells = {
        (dataset, model): [Cell(dataset, model, seed) for seed in covered.seeds]
        for dataset in covered.datasets
        for model in covered.models
    }
    parts = [
        (diagnostic, dataset, model)
        for diagnostic, models in models_of.items()
        for dataset in covered.datasets
        for model in models
    ]
    findings: dict[str, dict[tuple[str, str], Any]] = {name: {} for name in models_of}
    for diagnostic, dataset, model in tqdm(parts, desc="intervals", unit="cell"):
        found = summary(diagnostic, cells[dataset, model], settings.evaluation)
        findings[diagnostic][dataset, model] = found
    facts = {
        diagnostic: {
            (dataset, model): [
                tables.read_json(cell.results(diagnostic, ".json"))["facts"]
                for cell in cells[dataset, model]
            ]
            for dataset in covered.datasets
            for model in models
        }
        for diagnostic, models in models_of.items()
    }
    return Study(
        datasets=covered.datasets,
        models=covered.models,
        attention_models=covered.attention_models,
        seeds=covered.seeds,
        ks=settings.evaluation.ks,
        published=load_published(),
        findings=findings,
        comparisons=comparisons(settings),
        facts=facts,
        heatmaps={
            (dataset, model): [
                tables.read_table(cell.results("decompose", ".heatmaps.parquet"), tables.HEATMAPS)
                for cell in cells[dataset, model]
            ]
            for dataset in covered.datasets
            for model in covered.attention_models
        },
        data={dataset: counts(dataset) for dataset in covered.datasets},
        trained={
            place: [tables.read_json(cell.trained / "config.json") for cell in of_seeds]
            for place, of_seeds in cells.items()
        },
        histories={
            place: [read_history(cell) for cell in of_seeds] for place, of_seeds in cells.items()
        },
        tuned={
            (dataset, model): tables.read_json(Path("tuning") / dataset / f"{model}.json")
            for dataset, model in cells
        },
    )


def summary(
    diagnostic: str, of_seeds: list[Cell], evaluation: params.Evaluation
) -> dict[str, dict[str, Any]]:
    """The summaries of one diagnostic of one model over its seeds."""
    per_seed = [
        tables.read_table(cell.results(diagnostic, ".parquet"), tables.OBSERVATIONS)
        for cell in of_seeds
    ]
    if diagnostic == "shuffle":
        per_seed = [pl.concat([frame, shares_of_chronological(frame)]) for frame in per_seed]
    return over_users(per_seed, evaluation)


def comparisons(settings: params.Params) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    """Paired differences of every two models of the run, by data set."""
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for dataset in settings.run.datasets:
        per_pair: dict[str, list[pl.DataFrame]] = {}
        for seed in settings.run.seeds:
            observations = {
                model: compared_observations(Cell(dataset, model, seed))
                for model in settings.run.models
            }
            for pair, frame in model_differences(observations).items():
                per_pair.setdefault(pair, []).append(frame)
        for pair, per_seed in per_pair.items():
            found[dataset, pair] = over_users(per_seed, settings.evaluation)
    return found


def compared_observations(cell: Cell) -> pl.DataFrame:
    """One model's observations of the metrics that models are compared by."""
    return pl.concat(
        tables.read_table(cell.results(diagnostic, ".parquet"), tables.OBSERVATIONS)
        .filter(pl.col("metric").is_in([prefix + name for name in names]))
        .with_columns(pl.col("metric").str.strip_prefix(prefix))
        for diagnostic, (prefix, names) in COMPARED.items()
    )


def counts(dataset: str) -> dict[str, dict[str, Any]]:
    """What preprocess and split counted."""
    return {
        "interactions": tables.read_json(Path("data/interactions") / f"{dataset}.json"),
        "split": tables.read_json(Path("data/splits") / dataset / "split.json"),
    }


def read_history(cell: Cell) -> pl.DataFrame:
    """Epoch, loss and validation accuracy of one training."""
    wanted = {"epoch": pl.Int64, "loss": pl.Float64, "validation_NDCG@10": pl.Float64}
    return tables.read_csv(cell.trained / "history.csv", wanted)


if __name__ == "__main__":
    run(main)
