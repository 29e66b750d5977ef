"""Cut the interactions of one data set into train, validation and test."""

from pathlib import Path

from lastclick import params, tables
from lastclick.data.progress import steps
from lastclick.data.splitting import split_interactions
from stages.command import run


def main(dataset: str) -> None:
    """Write the three tables and the counts under data/splits."""
    settings = params.load()
    interactions = tables.read_table(
        Path("data/interactions") / f"{dataset}.parquet", tables.INTERACTIONS
    )
    folder = Path("data/splits") / dataset
    with steps(dataset, ("cutting", "train", "validation", "test")) as begin_step:
        begin_step()
        split = split_interactions(interactions, **settings.split.model_dump())
        for name, part, schema in (
            ("train", split.train, tables.INTERACTIONS),
            ("validation", split.validation, tables.EVALUATION),
            ("test", split.test, tables.EVALUATION),
        ):
            begin_step()
            tables.write_table(part.collect(), folder / f"{name}.parquet", schema)
    tables.write_json(split.report.as_dict(), folder / "split.json")


if __name__ == "__main__":
    run(main)
