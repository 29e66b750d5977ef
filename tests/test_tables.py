"""Tables appear whole, of the right schema, or not at all; JSON is strict."""

from __future__ import annotations

import json
import resource

import numpy as np
import polars as pl
import pytest
import torch

from lastclick import tables
from lastclick.checkpoint import _save
from lastclick.errors import UserError

ROWS = pl.DataFrame(
    {"user_id": [1, 1], "item_id": [5, 7], "timestamp": [11, 13]}, schema=dict(tables.INTERACTIONS)
)

MANY_ROWS = pl.DataFrame(
    np.random.default_rng(1).integers(1, 2**31 - 1, size=(3_000, 3)),
    schema=list(tables.INTERACTIONS),
).cast(dict(tables.INTERACTIONS))


def test_a_table_comes_back_as_it_was_written(tmp_path):
    path = tmp_path / "new folder" / "train.parquet"
    tables.write_table(ROWS, path, tables.INTERACTIONS)
    assert tables.read_table(path, tables.INTERACTIONS).equals(ROWS)
    assert tables.scan_table(path, tables.INTERACTIONS).collect().equals(ROWS)
    assert [entry.name for entry in path.parent.iterdir()] == ["train.parquet"]


def test_a_frame_of_another_schema_is_not_written(tmp_path):
    path = tmp_path / "train.parquet"
    with pytest.raises(ValueError, match="expected columns"):
        tables.write_table(ROWS.cast(pl.Int64), path, tables.INTERACTIONS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("read", [tables.read_table, tables.scan_table])
def test_a_table_of_another_schema_is_not_read(tmp_path, read):
    path = tmp_path / "train.parquet"
    ROWS.rename({"item_id": "item"}).write_parquet(path)
    with pytest.raises(UserError, match=r"train\.parquet has columns"):
        read(path, tables.INTERACTIONS)


@pytest.mark.parametrize("read", [tables.read_table, tables.scan_table])
def test_a_damaged_table_says_what_to_do(tmp_path, read):
    path = tmp_path / "train.parquet"
    tables.write_table(ROWS, path, tables.INTERACTIONS)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(UserError, match="delete it and run again"):
        read(path, tables.INTERACTIONS)


def test_a_missing_table_or_summary_says_what_to_do(tmp_path):
    for read in (
        lambda path: tables.read_table(path, tables.INTERACTIONS),
        lambda path: tables.scan_table(path, tables.INTERACTIONS),
        tables.read_json,
    ):
        with pytest.raises(UserError, match="dvc repro"):
            read(tmp_path / "nothing")


def test_what_is_written_half_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    tables.write_json({"HR@10": 0.5}, path)

    def write_half():
        with tables.replacing(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        write_half()
    assert tables.read_json(path) == {"HR@10": 0.5}
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_refused_by_key(tmp_path, number):
    with pytest.raises(ValueError, match=r"sasrec\.HR@10\[1\]"):
        tables.write_json({"sasrec": {"HR@10": [0.5, number]}}, tmp_path / "a.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "write",
    [
        lambda path: tables.write_table(MANY_ROWS, path, tables.INTERACTIONS),
        lambda path: tables.write_csv(MANY_ROWS, path),
        lambda path: tables.write_json({"text": "long" * 10_000}, path),
        lambda path: tables.write_text("long" * 10_000, path),
        lambda path: _save(path, {"weight": torch.rand(10_000)}, {}),
    ],
    ids=["parquet", "csv", "json", "text", "checkpoint"],
)
def test_a_file_that_finds_no_room_says_so_and_leaves_the_old_one(write, tmp_path):
    path = tmp_path / "file"
    path.write_text("what was there")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, hard))
    try:
        with pytest.raises(UserError) as caught:
            write(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(caught.value).startswith(f"{path} cannot be written (")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "what was there"


def test_a_folder_that_cannot_be_made_says_so(tmp_path):
    (tmp_path / "tables").write_text("a file")
    with pytest.raises(UserError, match=r"tables/x\.json cannot be written \("):
        tables.write_json({}, tmp_path / "tables" / "x.json")


def test_json_keeps_its_order_and_ends_with_a_line_end(tmp_path):
    path = tmp_path / "a.json"
    tables.write_json({"b": 1, "a": "ü"}, path)
    assert path.read_text().endswith("}\n")
    assert list(json.loads(path.read_text())) == ["b", "a"]
    assert "ü" in path.read_text()


def test_damaged_json_says_what_to_do(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"a":')
    with pytest.raises(UserError, match="is not JSON"):
        tables.read_json(path)
