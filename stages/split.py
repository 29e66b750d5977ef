"""Cut the interactions of one data set into train, validation and test."""

from pathlib import Path

from lastclick import params, tables
from lastclick.data.splitting import split_interactions
from stages.command import run


def main(dataset: str) -> None:
    """Write the three tables and the counts under data/splits."""
    settings = params.load()
    interactions = tables.read_table(
        Path("data/interactions") / f"{dataset}.parquet", tables.INTERACTIONS
    )
    split = split_interactions(interactions, **settings.split.model_dump())
    folder = Path("data/splits") / dataset
    tables.write_table(split.train.collect(), folder / "train.parquet", tables.INTERACTIONS)
    tables.write_table(split.validation.collect(), folder / "validation.parquet", tables.EVALUATION)
    tables.write_table(split.test.collect(), folder / "test.parquet", tables.EVALUATION)
    tables.write_json(split.report.as_dict(), folder / "split.json")


if __name__ == "__main__":
    run(main)
