"""Small score tables written by hand."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from lastclick import tables

MISS = 1000


def shuffles(rows: Sequence[tuple]) -> pl.DataFrame:
    """Rows of (user, order, order_seed, target_rank, last_item_rank, second_last_item_rank)."""
    return pl.DataFrame(
        [
            ("test", user, 0, 5, order, seed, 0, target, target, last, second_last)
            for user, order, seed, target, last, second_last in rows
        ],
        schema=dict(tables.SHUFFLES),
        orient="row",
    )


def scales(
    ranks: dict[tuple[str, float, int], Sequence[int | None]],
    *,
    partition: str = "test",
    last: Sequence[int] | None = None,
    mixing: Sequence[float] | None = None,
    n_positions: Sequence[int] | None = None,
) -> pl.DataFrame:
    """Rows of SCALES from (layers, alpha, offset) -> target rank of each user, numbered from 1."""
    rows = []
    for (layers, alpha, offset), of_users in ranks.items():
        for index, rank in enumerate(of_users):
            rows.append(
                (partition, index + 1, 0, 5, alpha, layers, offset, rank, rank,
                 last[index] if last else 1, None,
                 n_positions[index] if n_positions else 5,
                 mixing[index] if mixing else 0.5, mixing[index] if mixing else 0.5)
            )  # fmt: skip
    return pl.DataFrame(rows, schema=dict(tables.SCALES), orient="row")


def values(observations: pl.DataFrame) -> dict[str, float]:
    """Each metric's sum of numerators over its sum of weights."""
    assert observations.schema == pl.Schema(tables.OBSERVATIONS)
    assert observations.select("metric", "user_id").is_unique().all()
    sums = observations.group_by("metric").agg(pl.col("numerator", "weight").sum())
    return {row["metric"]: row["numerator"] / row["weight"] for row in sums.iter_rows(named=True)}
