"""Train one model with one seed."""

import sys
from pathlib import Path

from lastclick import params, tables
from lastclick.artifacts import save_model
from lastclick.training import steps_of_epoch, usable_users
from stages.cells import Cell
from stages.command import run
from stages.given import take_checkpoint
from stages.trainable import Trainable, is_given

# Patience counts epochs: of fewer steps than this, it can run out before anything is learnt.
FEW_STEPS = 10


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
    if trainable.fabric.is_global_zero:
        warn_of_few_steps(trainable, cell.label)
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


def warn_of_few_steps(trainable: Trainable, label: str) -> None:
    """Say on stderr if an epoch has few steps, and what to do about it."""
    users = len(usable_users(trainable.training))
    batch_size, patience = trainable.settings.batch_size, trainable.settings.patience
    steps = steps_of_epoch(users, trainable.config, batch_size)
    if 0 < steps < FEW_STEPS:
        print(
            f"{label}: an epoch has only {steps} step{'s' if steps > 1 else ''} ({users} users, "
            f"{batch_size} a batch), and train.patience ({patience}) counts epochs; "
            f"train.batch_size_of.{trainable.dataset} makes batches smaller",
            file=sys.stderr,
        )


if __name__ == "__main__":
    run(main)
