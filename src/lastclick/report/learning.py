"""Signs that a model may not have learnt anything: its numbers then say little about it."""

from __future__ import annotations

from dataclasses import dataclass

from lastclick.report.numbers import Estimate, Numbers, listing

#: Cut-off of the hit rate that is set against chance.
K = 10


@dataclass(frozen=True)
class Training:
    """One training: how many epochs it took, and which of them (from 1) was the best."""

    dataset: str
    model: str
    seed: str
    epochs: int
    best_epoch: int

    @property
    def best_at_once(self) -> bool:
        """Whether no epoch was better than the first."""
        return self.best_epoch == 1

    def cut_short(self, max_epochs: int, patience: int) -> bool:
        """Whether it ended at the last epoch allowed, before ``patience`` ran out."""
        return self.epochs >= max_epochs and self.epochs - self.best_epoch < patience


def trainings(numbers: Numbers, **keys: str) -> list[Training]:
    """The trainings of the run whose data set, model or seed are ``keys``."""
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in numbers.rows("training", **keys):
        cell = row["dataset"], row["model"], row["seed"]
        found.setdefault(cell, {})[row["quantity"]] = row["value"]
    return [
        Training(*cell, epochs=int(values["epochs"]), best_epoch=int(values["best_epoch"]))
        for cell, values in found.items()
        # Weights that were given are those of epoch 0: nothing was trained here.
        if values["best_epoch"] > 0
    ]


def chance(numbers: Numbers, dataset: str) -> float | None:
    """HR@10 of recommendations drawn by lot from the catalogue."""
    items = numbers.count("table1", dataset=dataset, quantity="items")
    return None if items is None else min(1.0, K / items)


def hit_rate_near_chance(numbers: Numbers, dataset: str, model: str) -> Estimate | None:
    """HR@10 on test, if its interval does not lie above chance."""
    hit_rate = numbers.estimate("accuracy", dataset=dataset, model=model, metric=f"HR@{K}")
    by_lot = chance(numbers, dataset)
    if hit_rate is None or by_lot is None or hit_rate.low > by_lot:
        return None
    return hit_rate


def doubts(numbers: Numbers, dataset: str, model: str) -> tuple[str, ...]:
    """Why the model may not have learnt anything, as clauses; empty if nothing says so."""
    found = []
    of_model = trainings(numbers, dataset=dataset, model=model)
    at_once = [training.seed for training in of_model if training.best_at_once]
    if at_once:
        # Of a single training there is no need to say which.
        seeds = f" (seed {listing(at_once)})" if len(of_model) > 1 else ""
        found.append(f"its best epoch was the first{seeds}")
    hit_rate = hit_rate_near_chance(numbers, dataset, model)
    if hit_rate is not None:
        found.append(
            f"its HR@{K} of {hit_rate.value:.4f} is not clearly above chance "
            f"({chance(numbers, dataset):.4f})"
        )
    return tuple(found)
