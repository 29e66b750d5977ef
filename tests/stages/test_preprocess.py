"""The stage preprocess on a small raw file, through its own params.yaml."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from lastclick import tables
from lastclick.errors import UserError
from stages import download, preprocess

ROOT = Path(__file__).resolve().parent.parent.parent
RAW = {
    "kind": "delimited", "separator": ",", "user": "who", "item": "what", "time": "when",
    "time_format": "ms", "rejects": "lenient",
}  # fmt: skip


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> Path:
    """A current directory with params.yaml and the raw file of a data set named tiny."""
    monkeypatch.chdir(tmp_path)
    define({"raw": RAW, "filter_seen": True})
    rows = [f"{user},{item},{time}" for time, (user, item) in enumerate(histories(), 1_000)]
    raw = tmp_path / "data/raw/tiny"
    raw.mkdir(parents=True)
    (raw / "log.csv").write_text("\n".join(["who,what,when", *rows, "u1,i1"]) + "\n")
    record = {"source": "a test", "file": "log.csv", "sha256": "0" * 64, "size": 1, "raw": None}
    (raw / "source.json").write_text(json.dumps(record))
    return tmp_path


def define(data_set: dict, **preprocessing: object) -> None:
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["run"] |= {"datasets": ["tiny"], "models": ["sasrec"], "attention_models": ["sasrec"]}
    params["dropout"] |= {"datasets": [], "models": []}
    params["preprocess"] |= {"k_core": 3, **preprocessing}
    params["datasets"]["tiny"] = {"sources": [], "expected": None, **data_set}
    Path("params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def histories() -> list[tuple[str, str]]:
    """Three users with three items each, and one who reads a fourth item only, twice in a row."""
    common = [(user, item) for item in ("i1", "i2", "i10") for user in ("u1", "u2", "u10")]
    return [*common, ("u3", "i4"), ("u3", "i4")]


def test_writes_interactions_ids_and_counts(workspace):
    preprocess.main("tiny")
    folder = Path("data/interactions")
    interactions = tables.read_table(folder / "tiny.parquet", tables.INTERACTIONS)
    assert interactions.rows() == [
        (user, item, 1) for user in (1, 2, 3) for item in (1, 2, 3)
    ]  # ms are whole seconds here
    ids = tables.read_table(folder / "tiny.ids.parquet", tables.IDS)
    assert ids["raw_id"].to_list() == ["u1", "u2", "u10", "i1", "i2", "i10"]
    assert tables.read_json(folder / "tiny.json") == {
        "n_rows_read": 11, "n_rows_rejected": 1, "n_repeats_dropped": 1, "n_rounds": 1,
        "n_users": 3, "n_items": 3, "n_interactions": 9, "average_length": 3.0, "density": 1.0,
        "days": 0, "tie_share": 0.0,
    }  # fmt: skip
    assert sorted(path.name for path in folder.iterdir()) == [
        "tiny.ids.parquet", "tiny.json", "tiny.parquet"
    ]  # fmt: skip


def test_warns_where_counts_are_not_the_published_ones(workspace, capsys):
    counts = {"users": 3, "items": 3, "interactions": 9}
    define({"raw": RAW, "filter_seen": True, "expected": counts})
    preprocess.main("tiny")
    assert capsys.readouterr().err == ""
    define({"raw": RAW, "filter_seen": True, "expected": {**counts, "items": 1_400}})
    preprocess.main("tiny")
    assert "3 items instead of 1,400 (-1,397)" in capsys.readouterr().err


def test_ties_are_shuffled_by_their_seed(workspace):
    items = {}
    for seed in (1, 2):
        seconds = {**RAW, "time_format": "s"}
        define({"raw": seconds, "filter_seen": True}, ties="shuffled", ties_seed=seed)
        log = Path("data/raw/tiny/log.csv")
        log.write_text("who,what,when\n" + "".join(f"u,i{n},7\n" for n in range(13)) * 3)
        preprocess.main("tiny")
        table = tables.read_table(Path("data/interactions/tiny.parquet"), tables.INTERACTIONS)
        items[seed] = table["item_id"].to_list()
    assert items[1] != items[2]


def test_a_mistake_leaves_nothing_behind(workspace):
    define({"raw": {**RAW, "rejects": "strict"}, "filter_seen": True})
    with pytest.raises(UserError, match="line 13"):
        preprocess.main("tiny")
    define({"raw": RAW, "filter_seen": True}, k_core=11)
    with pytest.raises(UserError, match=r"lower preprocess\.k_core"):
        preprocess.main("tiny")
    assert list(Path("data/interactions").iterdir()) == []


@pytest.fixture
def dropped(workspace, monkeypatch) -> Path:
    """The same rows as a file dropped in and taken; the last row does not fit."""
    monkeypatch.delenv("INCOMING_DIR", raising=False)
    define({"raw": {**RAW, "rejects": "strict"}, "filter_seen": True})
    path = Path("data/incoming/tiny.csv")
    path.parent.mkdir()
    path.write_text(Path("data/raw/tiny/log.csv").read_text())
    download.main("tiny")
    return path


TAKE_ANEW = "`dvc repro -f download@tiny` and then `dvc repro`"


def test_bad_rows_name_the_dropped_file_and_how_to_take_it_anew(dropped):
    with pytest.raises(UserError) as caught:
        preprocess.main("tiny")
    message = str(caught.value)
    assert "line 13: 2 columns" in message
    assert f"was taken from {dropped}: if you mend that file, run {TAKE_ANEW}" in message


def test_bad_rows_of_a_download_name_no_dropped_file(workspace):
    define({"raw": {**RAW, "rejects": "strict"}, "filter_seen": True})
    with pytest.raises(UserError) as caught:
        preprocess.main("tiny")
    assert "dvc" not in str(caught.value)


def test_a_dropped_file_that_was_mended_has_to_be_taken_anew(dropped):
    dropped.write_text(dropped.read_text().removesuffix("u1,i1\n"))
    with pytest.raises(UserError) as caught:
        preprocess.main("tiny")
    assert f"{dropped} has changed since data/raw/tiny/tiny.csv was taken" in str(caught.value)
    assert TAKE_ANEW in str(caught.value)
    download.main("tiny")
    preprocess.main("tiny")


def test_a_dropped_file_may_be_gone(dropped):
    define({"raw": RAW, "filter_seen": True})
    dropped.unlink()
    preprocess.main("tiny")
    assert tables.read_json(Path("data/interactions/tiny.json"))["n_rows_rejected"] == 1


def test_an_unknown_data_set_names_the_nearest(workspace):
    with pytest.raises(UserError, match="no data set 'tinny'; did you mean 'tiny'"):
        preprocess.main("tinny")
