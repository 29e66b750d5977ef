"""Codes of ids, against sorting in plain Python, however the work is divided."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from lastclick.data import encoding
from lastclick.data.encoding import encode
from lastclick.data.hashing import seeded_hash
from lastclick.errors import UserError

SCHEMA = {"user_id": pl.String, "item_id": pl.String, "timestamp": pl.Int64}
IDS = (
    "", "7", "07", "10", "9", "a", "é", "a\0", "\0a",
    "18446744073709551615", "18446744073709551616",
    "longer than a view's twelve bytes", "longer than a view's twelve bytEs",
)  # fmt: skip


def table(n_rows: int) -> pl.DataFrame:
    def draw(seed: int) -> list[str]:
        return [IDS[place] for place in seeded_hash(np.arange(n_rows), seed) % np.uint64(len(IDS))]

    return pl.DataFrame([draw(1), draw(2), list(range(n_rows))], schema=SCHEMA)


def in_id_order(ids: pl.Series) -> list[str]:
    return sorted(set(ids), key=lambda text: (len(text.encode()), text.encode()))


def assert_encodes(raw: pl.DataFrame) -> None:
    coded, users, items = encode(raw.lazy())
    assert coded.schema == {"user_id": pl.UInt32, "item_id": pl.UInt32, "timestamp": pl.Int64}
    assert users.to_list() == in_id_order(raw["user_id"])
    assert items.to_list() == in_id_order(raw["item_id"])
    assert users.gather(coded["user_id"]).to_list() == raw["user_id"].to_list()
    assert items.gather(coded["item_id"]).to_list() == raw["item_id"].to_list()
    assert coded["timestamp"].equals(raw["timestamp"])


@pytest.mark.parametrize("n_tables", [1, 3, 64])  # 64: some stay empty
@pytest.mark.parametrize("batch_rows", [1, 7, 1000])
def test_batches_and_tables_change_nothing(monkeypatch, batch_rows, n_tables):
    monkeypatch.setattr(encoding, "BATCH_ROWS", batch_rows)
    monkeypatch.setattr(encoding, "N_TABLES", n_tables)
    assert_encodes(table(101))


def test_ids_of_one_hash_stay_apart(monkeypatch):
    hash_of_all = 2**64 - 1
    monkeypatch.setattr(
        pl.Series, "hash", lambda ids: pl.Series(np.full(len(ids), hash_of_all, dtype=np.uint64))
    )
    assert_encodes(table(101))


def test_nothing_to_encode():
    assert_encodes(table(0))


def test_integers_are_ids_like_their_digits():
    raw = pl.DataFrame(
        {"user_id": [10, 9, -1, 10], "item_id": [1, 2, 2, 3], "timestamp": [0, 0, 0, 0]}
    )
    coded, users, _ = encode(raw)
    assert users.to_list() == ["9", "-1", "10"]
    assert coded["user_id"].to_list() == [2, 0, 1, 2]


@pytest.mark.parametrize("column", SCHEMA)
@pytest.mark.parametrize("n_rows", [1, 101])  # 1: the column is all gap
def test_a_gap_in_any_batch_is_refused_with_its_row(monkeypatch, column, n_rows):
    monkeypatch.setattr(encoding, "BATCH_ROWS", 7)
    is_last = pl.int_range(pl.len()) == n_rows - 1
    raw = table(n_rows).with_columns(pl.when(~is_last).then(column).alias(column))
    with pytest.raises(UserError, match=f"row {n_rows} of {n_rows} has no {column}"):
        encode(raw)
