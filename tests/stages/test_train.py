"""The stages choose_dropout and train, on a small split, through their own params.yaml."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
import yaml

from lastclick import tables
from lastclick.artifacts import load_model
from lastclick.errors import UserError
from lastclick.params import load as load_params
from stages import choose_dropout, train
from stages.trainable import Trainable
from tests.training_example import N_ITEMS, sequences

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(autouse=True)
def _one_thread_is_quickest():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> Path:
    """A folder with params.yaml and the split of a data set named tiny; the current directory."""
    monkeypatch.chdir(tmp_path)
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["run"] |= {"datasets": ["tiny"], "models": ["sasrec"], "attention_models": ["sasrec"]}
    params["train"] |= {"batch_size": 16, "batch_size_of": {}}
    params["train"] |= {"learning_rate": 0.01, "max_epochs": 3}
    params["dropout"] = {"grid": [0.5, 0.1], "datasets": [], "models": []}
    params["compute"] |= {"device": "cpu", "threads": 1}
    params["models"]["sasrec"] |= {"hidden_size": 8, "inner_size": 24, "max_length": 11}
    params["datasets"] = {"tiny": {"sources": [], "raw": {"kind": "recbole"}, "filter_seen": True}}
    write_params(params)

    whole = sequences()
    frame = pl.DataFrame(
        {
            "user_id": np.repeat(whole.user_ids, whole.lengths),
            "item_id": whole.items,
            "timestamp": np.arange(len(whole.items)),
        },
        schema=tables.INTERACTIONS,
    )
    splits = Path("data/splits/tiny")
    tables.write_table(frame, splits / "train.parquet", tables.INTERACTIONS)
    evaluation = frame.with_columns(target_index=pl.lit(0, pl.Int32))
    tables.write_table(evaluation, splits / "validation.parquet", tables.EVALUATION)
    tables.write_json({"n_items": N_ITEMS}, splits / "split.json")
    return tmp_path


def read_params() -> dict:
    return yaml.safe_load(Path("params.yaml").read_text())


def write_params(params: dict) -> None:
    Path("params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def read(path: str) -> dict:
    return json.loads(Path(path).read_text())


def test_a_data_set_that_is_not_named_keeps_the_models_own_dropout(workspace):
    choose_dropout.main("tiny", "sasrec")
    assert read("tuning/tiny/sasrec.json") == {
        "dropout": read_params()["models"]["sasrec"]["dropout"],
        "chosen_on_validation": False,
        "batch_size": 16,
    }
    assert not Path(".ckpt").exists()


def test_dropout_is_the_best_of_the_grid_and_train_has_nothing_left_to_do(workspace, monkeypatch):
    params = read_params()
    params["dropout"] |= {"datasets": ["tiny"], "models": ["sasrec"]}
    write_params(params)
    choose_dropout.main("tiny", "sasrec")
    chosen = read("tuning/tiny/sasrec.json")
    measured = {float(p): found["validation_NDCG@10"] for p, found in chosen["grid"].items()}
    assert list(measured) == [0.5, 0.1]
    assert measured[0.1] > measured[0.5]  # three epochs are too few for the noise of 0.5
    assert (chosen["dropout"], chosen["chosen_on_validation"], chosen["seed"]) == (0.1, True, 17)

    def refuse(self, users):
        raise AssertionError("trained once more")

    monkeypatch.setattr("lastclick.training._Trainer._train_step", refuse)
    train.main("tiny", "sasrec", 17)
    described = read("models/tiny/sasrec/17/config.json")
    assert described["config"]["dropout"] == 0.1
    assert described["validation_NDCG@10"] == measured[0.1]
    assert described["seed"] == 17
    assert load_model(Path("models/tiny/sasrec/17")).n_items == N_ITEMS


def test_dropouts_are_compared_on_the_whole_validation_partition(workspace):
    params = read_params()
    params["dropout"] |= {"datasets": ["tiny"], "models": ["sasrec"]}
    params["train"]["validation_users"] = 5
    write_params(params)
    choose_dropout.main("tiny", "sasrec")
    chosen = read("tuning/tiny/sasrec.json")
    train.main("tiny", "sasrec", 17)
    trained = load_model(Path("models/tiny/sasrec/17"))
    trainable = Trainable.prepare("tiny", "sasrec", load_params())
    expected = trainable.validation_ndcg(trained)
    best = f"{chosen['dropout']:g}"
    assert chosen["grid"][best]["validation_NDCG@10"] == expected
    # What early stopping saw is the five sampled users' value.
    assert read("models/tiny/sasrec/17/config.json")["validation_NDCG@10"] != expected


# The stage, saving after every step.
SAVE_ALWAYS = """
from stages import train
from lastclick import training
training.CHECKPOINT_SECONDS = 0
train.main("tiny", "sasrec", 17)
"""


def test_train_writes_the_same_bytes_after_a_kill_as_undisturbed(workspace):
    params = read_params()
    params["train"] |= {"max_epochs": 30, "patience": 30}  # far from its end when it is killed
    write_params(params)
    choose_dropout.main("tiny", "sasrec")
    train.main("tiny", "sasrec", 17)
    folder = Path("models/tiny/sasrec/17")
    undisturbed = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(undisturbed) == ["config.json", "history.csv", "model.safetensors"]
    for path in sorted(workspace.glob(".ckpt/**/final.safetensors")):
        path.unlink()
    for path in folder.iterdir():
        path.unlink()

    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SAVE_ALWAYS]
    with subprocess.Popen(command, cwd=workspace, env=environment) as process:
        while process.poll() is None and not list(workspace.glob(".ckpt/**/state.safetensors")):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert list(workspace.glob(".ckpt/**/state.safetensors"))
    assert not list(workspace.glob(".ckpt/**/final.safetensors"))
    assert not list(folder.iterdir())
    command = [sys.executable, "-m", "stages.train", "tiny", "sasrec", "17"]
    subprocess.run(command, cwd=workspace, env=environment, check=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == undisturbed


@pytest.mark.parametrize(("steps", "warned"), [(1, True), (9, True), (10, False)])
def test_few_steps_to_an_epoch_are_told_with_what_to_do(workspace, capsys, steps, warned):
    n_users = int((sequences().lengths >= 2).sum())
    params = read_params()
    params["train"]["max_epochs"] = 1
    params["train"]["batch_size_of"] = {"tiny": math.ceil(n_users / steps)}
    write_params(params)
    assert math.ceil(n_users / params["train"]["batch_size_of"]["tiny"]) == steps
    choose_dropout.main("tiny", "sasrec")
    capsys.readouterr()

    train.main("tiny", "sasrec", 17)

    told = [line for line in capsys.readouterr().err.splitlines() if "batch_size_of" in line]
    assert len(told) == warned
    if warned:
        assert f"an epoch has only {steps} step" in told[0]
        assert "train.patience (10) counts epochs" in told[0]
        assert "train.batch_size_of.tiny makes batches smaller" in told[0]


def test_a_slip_in_the_models_section_is_named(workspace):
    params = read_params()
    params["models"]["sasrec"]["hiden_size"] = params["models"]["sasrec"].pop("hidden_size")
    write_params(params)
    with pytest.raises(UserError, match=r"models\.sasrec\.hiden_size: unknown key"):
        train.main("tiny", "sasrec", 17)


@pytest.mark.slow
def test_several_devices_write_one_model(workspace):
    params = read_params()
    params["compute"]["devices"] = 2
    write_params(params)
    choose_dropout.main("tiny", "sasrec")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "stages.train", "tiny", "sasrec", "17"]
    subprocess.run(command, cwd=workspace, env=environment, check=True, timeout=600)
    folder = Path("models/tiny/sasrec/17")
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "history.csv",
        "model.safetensors",
    ]
    assert (
        len(pl.read_csv(folder / "history.csv"))
        == read("models/tiny/sasrec/17/config.json")["n_epochs"]
    )


def test_a_model_without_an_attention_residual_is_refused_before_it_is_trained(workspace):
    params = read_params()
    params["run"] |= {"models": ["gru4rec"], "attention_models": ["gru4rec"]}
    write_params(params)
    with pytest.raises(UserError, match=r"run\.attention_models names gru4rec"):
        Trainable.prepare("tiny", "gru4rec", load_params())


@pytest.mark.parametrize("stage", [choose_dropout.main, lambda *cell: train.main(*cell, 17)])
def test_a_mistyped_name_on_the_command_line_is_refused(stage, workspace):
    with pytest.raises(UserError, match="no data set 'tinny'; did you mean 'tiny'"):
        stage("tinny", "sasrec")
    with pytest.raises(UserError, match="no model 'sasrecc'; did you mean 'sasrec'"):
        stage("tiny", "sasrecc")
    assert not (workspace / "tuning").exists()
