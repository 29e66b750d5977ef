"""What a run found, gathered from its cells: the input of every table, metric file and figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import polars as pl

from lastclick.tabulation.layout import Row, measured
from lastclick.tabulation.published import Published

#: Diagnostics that run for every model, and those that need an attention block with a residual.
BEHAVIOURAL = ("shuffle", "last_item")
STRUCTURAL = ("scale", "non_final", "recover", "select", "decompose")

#: Models are compared by these metrics: diagnostic -> (prefix of the metric path, names).
COMPARED = {"shuffle": ("chronological/", ("HR@10", "NDCG@10")), "last_item": ("", ("HRLI@1",))}

_NOT_APPLICABLE = {
    "bert4rec": "not applicable: the residual at the prediction position carries the mask token, "
    "not an item",
    "gru4rec": "not applicable: a recurrent model has no attention block and no attention residual",
}

#: dataset, model -> metric path -> {value, low, high, n_users, by_seed, spread?}
Findings = Mapping[tuple[str, str], Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class Subject:
    """One model on one data set, as one diagnostic found it.

    ``found``: metric path -> summary; empty where the diagnostic does not apply, and then
    ``reason`` says why.
    """

    dataset: str
    model: str
    found: Mapping[str, Mapping[str, Any]]
    reason: str | None

    @property
    def keys(self) -> Row:
        """The key columns that every table of subjects begins with."""
        return {"dataset": self.dataset, "model": self.model}

    def row(self, keys: Row, path: str, published: float | None = None) -> Row:
        """The table row of the metric at ``path``, or the reason why there is no number."""
        if self.reason:
            return self.keys | keys | {"note": self.reason}
        return self.keys | keys | measured(self.found.get(path), published)


@dataclass(frozen=True)
class Study:
    """All that the tables are made of.

    ``findings``: diagnostic -> (dataset, model) -> metric path -> summary, the two diagnostics of
    ``BEHAVIOURAL`` for every model, those of ``STRUCTURAL`` for ``attention_models``;
    ``comparisons``: the same for (dataset, "a_minus_b"). ``facts``: diagnostic ->
    (dataset, model) -> one mapping per seed. ``heatmaps``: (dataset, model) -> one table HEATMAPS
    per seed, of ``attention_models``. ``data``: dataset -> ``interactions`` and ``split``, the
    counts of the two stages. ``trained``: (dataset, model) -> one description per seed, and
    ``histories``: loss and validation NDCG@10 of each of its epochs. ``tuned``: (dataset, model)
    -> how dropout was chosen.
    """

    datasets: Sequence[str]
    models: Sequence[str]
    attention_models: Sequence[str]
    seeds: Sequence[int]
    ks: Sequence[int]
    published: Published
    findings: Mapping[str, Findings] = field(default_factory=dict)
    comparisons: Findings = field(default_factory=dict)
    facts: Mapping[str, Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]] = field(
        default_factory=dict
    )
    heatmaps: Mapping[tuple[str, str], Sequence[pl.DataFrame]] = field(default_factory=dict)
    data: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    trained: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    histories: Mapping[tuple[str, str], Sequence[pl.DataFrame]] = field(default_factory=dict)
    tuned: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)

    def subjects(self, diagnostic: str) -> Iterator[Subject]:
        """Every model of the run on every data set, those first that the run names first."""
        findings = self.findings.get(diagnostic, {})
        for dataset in self.datasets:
            for model in self.models:
                reason = self.why_not(model) if diagnostic in STRUCTURAL else None
                yield Subject(dataset, model, findings.get((dataset, model), {}), reason)

    def coverage(self, dataset: str, model: str) -> dict[int, list[float]]:
        """Share of the catalogue in somebody's top K: K -> one value per training seed."""
        per_seed = self.facts["shuffle"][dataset, model]
        return {k: [facts["coverage"][str(k)] for facts in per_seed] for k in self.ks}

    def why_not(self, model: str) -> str | None:
        """Why the structural diagnostics have nothing to say of ``model``; None if they do."""
        if model in self.attention_models:
            return None
        return _NOT_APPLICABLE.get(model, "not measured: not among run.attention_models")


def shares_of_chronological(observations: pl.DataFrame) -> pl.DataFrame:
    """What partial and full shuffles leave of each accuracy, as observations of their own.

    ``observations``: those of the diagnostic ``shuffle``. The share is the accuracy under the
    order over the chronological accuracy; its weight is therefore the user's chronological value.
    Users whose chronological value is 0 still carry what they gain under the order.
    """
    split = observations.with_columns(
        pl.col("metric").str.split_exact("/", 1).struct.rename_fields(["order", "measure"])
        .alias("path")
    ).unnest("path")  # fmt: skip
    chronological = split.filter(pl.col("order") == "chronological").select(
        "measure", "user_id", pl.col("numerator").alias("chronological")
    )
    return (
        split.filter(pl.col("order").is_in(["partial", "full"]))
        .join(
            chronological, on=["measure", "user_id"], how="inner", validate="m:1",
            maintain_order="left",
        )
        .select(
            pl.format("{}_share_of_chronological/{}", "order", "measure").alias("metric"),
            "user_id",
            "numerator",
            pl.col("chronological").alias("weight"),
        )
    )  # fmt: skip


def model_differences(observations: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Paired differences of every pair of models, user by user: "b_minus_a" -> observations.

    ``observations``: one frame per model, of the same metrics and evaluated users. Later models
    are set against earlier ones.
    """
    found = {}
    for first, second in combinations(observations, 2):
        paired = observations[second].join(
            observations[first], on=["metric", "user_id"], how="inner", validate="1:1",
            maintain_order="left",
        )  # fmt: skip
        difference = pl.col("numerator") - pl.col("numerator_right")
        found[f"{second}_minus_{first}"] = paired.select(
            "metric", "user_id", difference.alias("numerator"), "weight"
        )
    return found
