"""Warnings that a reader of this run's numbers should have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lastclick.report.learning import K, Training, chance, hit_rate_near_chance, trainings
from lastclick.report.numbers import Numbers, listing, percent, plural
from lastclick.report.readings import rejected_rows
from lastclick.tabulation.layout import NOBODY
from lastclick.titles import title

# Below these a number moves in steps that a reader can see, or rests on a handful of cases.
FEW_USERS = 1000
FEW_HITS = 50
SMALL_BASE_SET = 100
# Above this share of neighbours with equal timestamps the source's own order matters.
MANY_TIES = 0.1
FEW_DRAWS = 1000
# Above this share of rejected rows the data set may be another than its source.
MANY_REJECTED = 0.01


def cautions(numbers: Numbers, settings: Mapping[str, Any]) -> list[str]:
    """Every warning that applies; ``settings``: params.yaml as a mapping."""
    return [
        *_learning(numbers, settings),
        *_settings(settings),
        *_data(numbers, settings),
        *_hits(numbers),
        *_base_sets(numbers),
        *_left_out(numbers),
    ]


def _learning(numbers: Numbers, settings: Mapping[str, Any]) -> Iterator[str]:
    train = settings["train"]
    for dataset in settings["run"]["datasets"]:
        name = title(dataset)
        found = trainings(numbers, dataset=dataset)
        at_once = [training for training in found if training.best_at_once]
        batch_size = train["batch_size_of"].get(dataset, train["batch_size"])
        advice = (
            f"Raise train.patience (now {plural(train['patience'], 'epoch')}), or make batches "
            f"smaller with train.batch_size_of.{dataset} (now {plural(batch_size, 'user')}), so "
            "that an epoch has more steps."
        )
        if at_once:
            yield (
                f"On {name} no epoch was better than the first in the training of "
                f"{_names(at_once)}, so nothing may have been learnt. {advice}"
            )
        cut_short = [
            training
            for training in found
            if training.cut_short(train["max_epochs"], train["patience"])
        ]
        if cut_short:
            yield (
                f"On {name} the training of {_names(cut_short)} reached train.max_epochs "
                f"({train['max_epochs']}) before train.patience ran out, so there may have been "
                "more to learn. Raise train.max_epochs."
            )
        for model in settings["run"]["models"]:
            hit_rate = hit_rate_near_chance(numbers, dataset, model)
            if hit_rate is not None:
                # Weights that were given have no training to mend; nor is advice given twice.
                mendable = any(training.model == model for training in found) and not any(
                    training.model == model for training in at_once
                )
                yield (
                    f"HR@{K} of {title(model)} on {name}, {hit_rate.value:.4f} "
                    f"({hit_rate.low:.4f} to {hit_rate.high:.4f}), is not clearly above chance "
                    f"({chance(numbers, dataset):.4f}, {K} over the number of items), so nothing "
                    f"may have been learnt.{' ' + advice if mendable else ''}"
                )


def _names(found: Sequence[Training]) -> str:
    return listing([f"{title(training.model)} (seed {training.seed})" for training in found])


def _settings(settings: Mapping[str, Any]) -> Iterator[str]:
    if len(settings["run"]["seeds"]) == 1:
        yield (
            "One training seed: the intervals are over users only, and another seed may move every "
            "number by more than they say."
        )
    draws = settings["evaluation"]["bootstrap_draws"]
    if draws < FEW_DRAWS:
        yield f"Intervals rest on only {draws} bootstrap draws; their ends are rough."
    if settings["preprocess"]["ties"] == "shuffled":
        yield (
            "Interactions with equal timestamps were put in a random order (preprocess.ties: "
            "shuffled). The published values follow the order of the source files."
        )
    if "sasrec" in settings["run"]["models"] and settings["models"]["sasrec"]["block"] == "classic":
        yield (
            "SASRec has the classic block here, which adds the normalised query; the published "
            "mixing ratios and non-final hits are those of the post-LN block."
        )
    split = settings["split"]
    as_published = {
        "protocol": "global_time", "quantile": 0.9, "target": "last", "validation": "global_time"
    }  # fmt: skip
    changed = [key for key, value in as_published.items() if split[key] != value]
    if changed:
        yield (
            f"The split differs from the published one in {listing(changed)}; published values "
            "are not comparable."
        )


def _data(numbers: Numbers, settings: Mapping[str, Any]) -> Iterator[str]:
    for dataset in settings["run"]["datasets"]:
        name = title(dataset)
        users = numbers.count("splits", dataset=dataset, quantity="test_users")
        if users is not None and users < FEW_USERS:
            yield (
                f"{name} has only {plural(users, 'test user')}: a single one moves a hit rate by "
                f"{1 / users:.4f}, and intervals are wide."
            )
        ties = numbers.count("table1", dataset=dataset, quantity="tie_share")
        if ties is not None and ties >= MANY_TIES and settings["preprocess"]["ties"] == "source":
            yield (
                f"{percent(ties)} of neighbouring interactions in {name} have equal timestamps, so "
                "their order, on which every result about order and the last item hangs, is the "
                "source file's. Repeat with preprocess.ties: shuffled to see how much."
            )
        rejected = rejected_rows(numbers, settings, dataset)
        if rejected is not None and rejected.share is not None and rejected.share > MANY_REJECTED:
            yield (
                f"{rejected}. Every number here is of the other rows; with rejects: strict the "
                "run stops and names the first of those rejected."
            )
        off = [
            f"{row['quantity']} {row['value']:,.0f} (published {row['published']:,.0f})"
            for row in numbers.rows("table1", dataset=dataset)
            if row["quantity"] in ("users", "items", "interactions") and row["difference"]
        ]
        if off:
            yield f"{name} is not the published data: {listing(off)}."


def _hits(numbers: Numbers) -> Iterator[str]:
    few = [
        (title(row["dataset"]), title(row["model"]), row["n_users"])
        for row in numbers.rows("shuffle", metric="HR@10", order="partial share")
        if row["n_users"] < FEW_HITS
    ]
    if few:
        cells = listing([f"{model} on {dataset} ({hits})" for dataset, model, hits in few])
        yield (f"The shares kept under shuffles divide by few hits with the true order: {cells}.")


def _base_sets(numbers: Numbers) -> Iterator[str]:
    rows = numbers.rows("recovery", layers="all", alpha="1", metric="base set")
    small = [row for row in rows if row["value"] < SMALL_BASE_SET]
    if small:
        cells = listing(
            [
                f"{title(row['model'])} on {title(row['dataset'])} ({row['value']:,.0f})"
                for row in small
            ]
        )
        yield f"Recovery rests on a small base set: {cells}."


def _left_out(numbers: Numbers) -> Iterator[str]:
    for name, frame in numbers.tables.items():
        missing = frame.filter(note=NOBODY).height
        if missing:
            yield (
                f"Table “{name}” leaves out {plural(missing, 'number')}: there is nobody to "
                "average over."
            )
