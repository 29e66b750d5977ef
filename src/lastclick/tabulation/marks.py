"""The data of the figures: tidy frames, one row per mark.

The figures of the report and DVC's own plots are drawn from the same files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from statistics import fmean
from typing import Any

import polars as pl

from lastclick.plotting.data import SCHEMAS
from lastclick.tabulation.further import CHOSEN_ON, chosen_alphas, conditions
from lastclick.tabulation.layout import Row
from lastclick.tabulation.study import Study

_SCALED = ("mixing_ratio/norm_of_sum", "mixing_ratio/sum_of_norms", "HRLI@1", "HR@10", "NDCG@10")


def plot_data(study: Study) -> dict[str, pl.DataFrame]:
    """The marks of every figure, by file name."""
    rows = {
        "shuffle": _shuffle(study),
        "last_item": _last_item(study),
        "scaling": _scaling(study),
        "recovery": _recovery(study),
        "selection": _selection(study),
    }
    return {
        **{
            name: pl.DataFrame(list(marks), schema=SCHEMAS[name], orient="row")
            for name, marks in rows.items()
        },
        "heatmaps": _heatmaps(study),
        "training": _training(study),
    }


def _interval(finding: Mapping[str, Any]) -> dict[str, float]:
    return {name: finding[name] for name in ("value", "low", "high")}


def _shuffle(study: Study) -> Iterator[Row]:
    for subject, metric in product(study.subjects("shuffle"), ("HR@10", "NDCG@10")):
        for order in ("chronological", "partial", "full"):
            if finding := subject.found.get(f"{order}/{metric}"):
                share = subject.found.get(f"{order}_share_of_chronological/{metric}", {})
                yield {
                    **subject.keys, "metric": metric, "order": order, **_interval(finding),
                    "share": share.get("value"), "share_low": share.get("low"),
                    "share_high": share.get("high"),
                }  # fmt: skip


def _last_item(study: Study) -> Iterator[Row]:
    for subject, k in product(study.subjects("last_item"), (1, 10)):
        for item, name in (("last", "HRLI"), ("second_last", "HRL2I")):
            if finding := subject.found.get(f"{name}@{k}"):
                yield subject.keys | {"k": k, "item": item, **_interval(finding)}


def _scaling(study: Study) -> Iterator[Row]:
    for subject in study.subjects("scale"):
        for condition, prefix in conditions(subject):
            for metric in _SCALED:
                if finding := subject.found.get(f"{prefix}/{metric}"):
                    mark = {"metric": metric, **_interval(finding)}
                    yield subject.keys | _numbered(condition) | mark


def _recovery(study: Study) -> Iterator[Row]:
    for subject in study.subjects("recover"):
        for condition, prefix in conditions(subject):
            if finding := subject.found.get(f"{prefix}/recovery"):
                facts = study.facts["recover"][subject.dataset, subject.model]
                base_set = fmean(of_seed["base_set"] for of_seed in facts)
                mark = {**_interval(finding), "base_set": base_set}
                yield subject.keys | _numbered(condition) | mark


def _numbered(condition: Row) -> Row:
    """``condition`` with its alpha, which tables hold as text, as a number."""
    return condition | {"alpha": float(condition["alpha"])}


def _selection(study: Study) -> Iterator[Row]:
    for subject in study.subjects("select"):
        for epsilon, alphas in chosen_alphas(study, subject).items():
            for chosen_on, prefix in CHOSEN_ON.items():
                keys = subject.keys | {"epsilon": float(epsilon), "chosen_on": chosen_on}
                # Over seeds: their mean, smallest and largest.
                chosen = alphas[chosen_on]
                extent = {"value": fmean(chosen), "low": min(chosen), "high": max(chosen)}
                yield keys | {"metric": "alpha", **extent}
                for metric in ("delta_HR@10", "recovery"):
                    if finding := subject.found.get(f"epsilon={epsilon}/{prefix}{metric}"):
                        yield keys | {"metric": metric, **_interval(finding)}


def _heatmaps(study: Study) -> pl.DataFrame:
    """Means over seeds."""
    schema = SCHEMAS["heatmaps"]
    keys = [name for name in schema if name != "mean"]
    parts = [
        frame.with_columns(pl.lit(dataset).alias("dataset"), pl.lit(model).alias("model"))
        for (dataset, model), per_seed in study.heatmaps.items()
        for frame in per_seed
    ]
    if not parts:
        return pl.DataFrame(schema=schema)
    return (
        pl.concat(parts)
        .group_by(keys, maintain_order=True)
        .agg(pl.col("mean").mean())
        .select(*schema)
        .cast(schema)
    )


def _training(study: Study) -> pl.DataFrame:
    schema = SCHEMAS["training"]
    parts = []
    for (dataset, model), histories in study.histories.items():
        for described, history in zip(study.trained[dataset, model], histories, strict=True):
            parts.append(
                history.select(
                    pl.lit(dataset).alias("dataset"),
                    pl.lit(model).alias("model"),
                    pl.lit(described["seed"]).alias("seed"),
                    "epoch",
                    "loss",
                    "validation_NDCG@10",
                    (pl.col("epoch") == described["best_epoch"]).alias("best"),
                ).cast(schema)
            )
    return pl.concat(parts) if parts else pl.DataFrame(schema=schema)
