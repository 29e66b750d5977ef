"""Train one model with one seed."""

from pathlib import Path

from lastclick import params, tables
from lastclick.artifacts import save_model
from stages.cells import Cell
from stages.command import run
from stages.given import is_given, take_checkpoint
from stages.trainable import Trainable


def main(dataset: str, model: str, seed: int) -> None:
    """Train to early stopping with the dropout of choose_dropout, and save the best epoch.

    A model whose weights are given is not trained: its checkpoint takes that place.
    """
    settings = params.load()
    cell = Cell(dataset, model, seed)
    if is_given(settings, model):
        take_checkpoint(cell, settings)
        return
    trainable = Trainable.prepare(dataset, model, settings)
    dropout = tables.read_json(Path("tuning") / dataset / f"{model}.json")["dropout"]
    fitted = trainable.fit(dropout, seed)
    if trainable.fabric.is_global_zero:
        save_model(
            cell.trained,
            fitted,
            model_name=model,
            config=trainable.configured(dropout),
            n_items=trainable.n_items,
            seed=seed,
        )


if __name__ == "__main__":
    run(main)
