"""The stages choose_dropout and train for a model that somebody else trained."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import polars as pl
import pytest
import torch
import yaml

from lastclick import tables
from lastclick.artifacts import load_model
from lastclick.errors import UserError
from lastclick.report.readings import mixing_readings
from stages import choose_dropout, train
from tests.test_layouts import LIBRARIES, N_ITEMS, SEQUENCES, batch, lively, scores

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> dict:
    """Params of a data set named tiny and a checkpoint for it; its folder is the current one."""
    monkeypatch.chdir(tmp_path)
    make, block = LIBRARIES["port"]
    torch.save(lively(make()).state_dict(), "weights.pth")
    digest = hashlib.sha256(Path("weights.pth").read_bytes()).hexdigest()
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["run"] |= {
        "datasets": ["tiny"], "models": ["imported"], "attention_models": ["imported"]
    }  # fmt: skip
    params["train"]["batch_size_of"] = {}
    params["compute"] |= {"device": "cpu", "threads": 1}
    params["models"]["imported"]["checkpoints"] = {
        "tiny": {**block, "path": "weights.pth", "sha256": digest}
    }
    params["datasets"] = {"tiny": {"sources": [], "raw": {"kind": "recbole"}, "filter_seen": True}}
    write_params(params)

    rows = [
        (user, item, 60 * user + place, 0)
        for user, items in enumerate(SEQUENCES, start=1)
        for place, item in enumerate(items)
        if len(items) > 1
    ]
    names = ["user_id", "item_id", "timestamp", "target_index"]
    schema = {name: tables.EVALUATION[name] for name in names}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    splits = Path("data/splits/tiny")
    tables.write_table(frame, splits / "validation.parquet", tables.EVALUATION)
    train_rows = frame.drop("target_index")
    tables.write_table(train_rows, splits / "train.parquet", tables.INTERACTIONS)
    tables.write_json({"n_items": N_ITEMS}, splits / "split.json")
    numbers = range(1, N_ITEMS + 1)
    ids = {"kind": ["item"] * N_ITEMS, "id": numbers, "raw_id": [str(n) for n in numbers]}
    frame = pl.DataFrame(ids, schema=tables.IDS)
    tables.write_table(frame, Path("data/interactions/tiny.ids.parquet"), tables.IDS)
    return params


def write_params(params: dict) -> None:
    Path("params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def test_the_checkpoint_is_saved_like_a_trained_model(workspace):
    choose_dropout.main("tiny", "imported")
    train.main("tiny", "imported", 17)
    folder = Path("models/tiny/imported/17")
    model = load_model(folder)
    make, _ = LIBRARIES["port"]
    with torch.inference_mode():
        expected = torch.stack([lively(make())(items) for items in SEQUENCES])
    torch.testing.assert_close(scores(model, batch()), expected, rtol=0, atol=1e-5)
    described = json.loads((folder / "config.json").read_text())
    assert described["config"]["block"] == "classic"
    assert described["config"]["layout"] == "sasrec_pytorch"
    assert 0 <= described["validation_NDCG@10"] <= 1
    history = pl.read_csv(folder / "history.csv")
    assert history["validation_NDCG@10"].to_list() == [described["validation_NDCG@10"]]


def test_there_is_no_dropout_to_choose(workspace):
    workspace["dropout"] |= {"datasets": ["tiny"], "models": ["imported"]}
    write_params(workspace)
    choose_dropout.main("tiny", "imported")
    found = json.loads(Path("tuning/tiny/imported.json").read_text())
    assert found == {"dropout": None, "chosen_on_validation": False, "batch_size": 256}


def test_a_data_set_without_a_checkpoint_is_refused(workspace):
    checkpoints = workspace["models"]["imported"]["checkpoints"]
    checkpoints["other"] = checkpoints.pop("tiny")
    write_params(workspace)
    with pytest.raises(UserError, match=r"has none for tiny \(it has: other\)"):
        train.main("tiny", "imported", 17)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_hads": 3}, r"models\.imported\.checkpoints\.tiny.*n_hads: unknown key"),
        ({"layout": "keras"}, r"models\.imported\.checkpoints\.tiny: .*'keras'"),
        ({"layout": "recbole", "block": "classic"}, r"block: Input should be 'post_ln'"),
    ],
)
def test_a_slip_in_the_block_is_named_with_its_key(workspace, change, message):
    workspace["models"]["imported"]["checkpoints"]["tiny"] |= change
    write_params(workspace)
    with pytest.raises(UserError, match=message):
        train.main("tiny", "imported", 17)


def test_the_report_says_which_residual_it_is(workspace):
    (reading,) = mixing_readings(workspace)
    assert reading == (
        "The residual of Imported SASRec on tiny (layout sasrec_pytorch) is the normalised query, "
        "as the classic block adds it."
    )
