"""How a diagnostic's findings are summarised over users, and those about one cell written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from lastclick import params, tables
from lastclick.observations import summarise
from stages.cells import Cell


def write_results(
    cell: Cell,
    diagnostic: str,
    observations: pl.DataFrame,
    evaluation: params.Evaluation,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Write a diagnostic's observations and, from them, its values with intervals.

    ``facts`` holds what is not a metric over users (choices, sizes).
    """
    tables.write_table(observations, cell.results(diagnostic, ".parquet"), tables.OBSERVATIONS)
    content = {"values": over_users([observations], evaluation), "facts": dict(facts or {})}
    tables.write_json(content, cell.results(diagnostic, ".json"))


def over_users(
    per_seed: Sequence[pl.DataFrame], evaluation: params.Evaluation
) -> dict[str, dict[str, Any]]:
    """Values and bootstrap intervals of observations, under the run's settings."""
    return summarise(
        per_seed,
        draws=evaluation.bootstrap_draws,
        seed=evaluation.bootstrap_seed,
        confidence=evaluation.confidence,
    )
