"""The conditions that scoring runs and diagnostics read, and how metrics are named after them."""

from __future__ import annotations

import polars as pl

#: Positions before L whose outputs the study looks at: L-1, L-2, L-3.
NON_FINAL_OFFSETS = (1, 2, 3)

#: The trained model as it is, among the rows of SCALES.
TRAINED = (pl.col("alpha") == 1) & (pl.col("layers") == "all")


def by_condition(rows: pl.DataFrame) -> list[tuple[tuple[str, float], pl.DataFrame]]:
    """The rows of each (layers, alpha), "all" first, alphas ascending."""
    parts = rows.partition_by("layers", "alpha", as_dict=True, maintain_order=True)
    return sorted(parts.items(), key=lambda part: (part[0][0] != "all", part[0]))


def condition_path(layers: str, alpha: float) -> str:
    """The metric path of one condition, such as ``all/alpha=0.1`` or ``layer1/alpha=0.1``."""
    return f"{layers if layers == 'all' else f'layer{layers}'}/alpha={alpha:g}"
