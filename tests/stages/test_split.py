"""The stage split on a small data set, through its own params.yaml."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import yaml

from lastclick import tables
from lastclick.errors import UserError
from stages import split

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = Path("data/splits/tiny")


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> Path:
    """A current directory with params.yaml and the interactions of case C07, named tiny."""
    monkeypatch.chdir(tmp_path)
    define()
    rows = [(1, 1, 10), (1, 2, 30), (1, 3, 50), (2, 4, 20), (2, 5, 40)]
    frame = pl.DataFrame(rows, schema=dict(tables.INTERACTIONS), orient="row")
    tables.write_table(frame, Path("data/interactions/tiny.parquet"), tables.INTERACTIONS)
    return tmp_path


def define(**splitting: object) -> None:
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["run"] |= {"datasets": ["tiny"], "models": ["sasrec"], "attention_models": ["sasrec"]}
    params["dropout"] |= {"datasets": [], "models": []}
    params["split"] |= splitting
    data_set = {"sources": [], "raw": {"kind": "recbole"}, "filter_seen": True, "expected": None}
    params["datasets"]["tiny"] = data_set
    Path("params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def test_writes_three_tables_and_the_counts(workspace):
    split.main("tiny")
    train = tables.read_table(FOLDER / "train.parquet", tables.INTERACTIONS)
    validation = tables.read_table(FOLDER / "validation.parquet", tables.EVALUATION)
    test = tables.read_table(FOLDER / "test.parquet", tables.EVALUATION)
    assert train.rows() == [(1, 1, 10), (1, 2, 30)]
    assert validation.rows() == [(2, 4, 20, 0), (2, 5, 40, 0)]
    assert test.rows() == [(1, 1, 10, 0), (1, 2, 30, 0), (1, 3, 50, 0)]
    counts = tables.read_json(FOLDER / "split.json")
    assert (counts["t_test"], counts["t_validation"], counts["n_items"]) == (46.0, 37.0, 5)
    assert (counts["n_train_users"], counts["n_test_users"], counts["n_test_skipped"]) == (1, 1, 0)


def test_the_options_of_params_yaml_reach_the_split(workspace):
    rows = [(user, 1 + place, place) for user in (1, 2, 3) for place in range(5)]
    frame = pl.DataFrame(rows, schema=dict(tables.INTERACTIONS), orient="row")
    tables.write_table(frame, Path("data/interactions/tiny.parquet"), tables.INTERACTIONS)
    define(protocol="leave_one_out")
    split.main("tiny")
    counts = tables.read_json(FOLDER / "split.json")
    assert "t_test" not in counts
    assert (counts["n_train_interactions"], counts["n_test_users"]) == (9, 3)
    define(target="x")
    with pytest.raises(UserError, match=r"split\.target"):
        split.main("tiny")


def test_a_mistake_leaves_nothing_behind(workspace):
    define(validation="by_user")
    with pytest.raises(UserError, match=r"split\.validation_users asks for 1,024 users"):
        split.main("tiny")
    Path("data/interactions/tiny.parquet").unlink()
    with pytest.raises(UserError, match="does not exist"):
        split.main("tiny")
    assert not FOLDER.exists()
