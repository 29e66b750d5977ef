"""The columns of the figures' data, ``plots/data/*.csv``: tidy, one row per mark."""

from __future__ import annotations

from typing import Any

import polars as pl

_WHERE: dict[str, Any] = {"dataset": pl.String, "model": pl.String}
_INTERVAL: dict[str, Any] = {"value": pl.Float64, "low": pl.Float64, "high": pl.Float64}

#: Columns of each file of plot data.
SCHEMAS: dict[str, dict[str, Any]] = {
    # share_*: accuracy under the order over the chronological accuracy.
    "shuffle": {
        **_WHERE, "metric": pl.String, "order": pl.String, **_INTERVAL,
        "share": pl.Float64, "share_low": pl.Float64, "share_high": pl.Float64,
    },
    "last_item": {**_WHERE, "k": pl.Int64, "item": pl.String, **_INTERVAL},
    "heatmaps": {
        **_WHERE, "layer": pl.Int64, "map": pl.String, "output_offset": pl.Int64,
        "input_offset": pl.Int64, "mean": pl.Float64,
    },
    "scaling": {
        **_WHERE, "layers": pl.String, "alpha": pl.Float64, "metric": pl.String, **_INTERVAL,
    },
    "recovery": {
        **_WHERE, "layers": pl.String, "alpha": pl.Float64, **_INTERVAL, "base_set": pl.Float64,
    },
    "selection": {
        **_WHERE, "epsilon": pl.Float64, "chosen_on": pl.String, "metric": pl.String, **_INTERVAL,
    },
    "training": {
        **_WHERE, "seed": pl.Int64, "epoch": pl.Int64, "loss": pl.Float64,
        "validation_NDCG@10": pl.Float64, "best": pl.Boolean,
    },
}  # fmt: skip
