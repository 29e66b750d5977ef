"""Trained models on disk: what is written, and what is refused when it is read."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
from lightning_fabric import Fabric

from lastclick.artifacts import Fitted, load_model, model_module, save_model
from lastclick.errors import UserError
from lastclick.training import Compute, launch
from tests.training_example import N_ITEMS, SETTINGS, config_of, train

NDCG = "validation_NDCG@10"


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return launch(Compute("cpu", 1, 0), "fp32")


@pytest.fixture
def saved(fabric, tmp_path) -> tuple[Path, Fitted]:
    fitted = train(fabric, settings=replace(SETTINGS, max_epochs=2))
    save_model(tmp_path, fitted, model_name="sasrec", config=config_of("sasrec", 0.3),
               n_items=N_ITEMS, seed=17)  # fmt: skip
    return tmp_path, fitted


def test_a_saved_model_comes_back_in_evaluation_mode(saved):
    directory, fitted = saved
    model = load_model(directory)
    assert not any(module.training for module in model.modules())
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, fitted.weights[name])
    described = json.loads((directory / "config.json").read_text())
    assert described["best_epoch"] == fitted.best_epoch
    assert described["config"]["dropout"] == 0.3
    history = pl.read_csv(directory / "history.csv")
    assert history.columns == ["epoch", "loss", NDCG]
    assert history["loss"].to_list() == [row["loss"] for row in fitted.history]


def test_saving_twice_gives_the_same_bytes(saved, fabric, tmp_path_factory):
    directory, _ = saved
    again = tmp_path_factory.mktemp("again")
    fitted = train(fabric, settings=replace(SETTINGS, max_epochs=2))
    save_model(again, fitted, model_name="sasrec", config=config_of("sasrec", 0.3),
               n_items=N_ITEMS, seed=17)  # fmt: skip
    names = sorted(path.name for path in directory.iterdir())
    assert names == ["config.json", "history.csv", "model.safetensors"]
    for name in names:
        assert (directory / name).read_bytes() == (again / name).read_bytes()


def test_weights_that_do_not_fit_are_listed_by_name(saved):
    directory, fitted = saved
    weights = dict(fitted.weights)
    weights["extra"] = torch.ones(3)
    del weights["encoder.norm.bias"]
    weights["encoder.norm.weight"] = torch.ones(5)
    weights["encoder.position_embedding.weight"] = torch.full((11, 8), math.nan)
    save_model(directory, replace(fitted, weights=weights), model_name="sasrec",
               config=config_of("sasrec", 0.3), n_items=N_ITEMS, seed=17)  # fmt: skip
    with pytest.raises(UserError) as refused:
        load_model(directory)
    assert str(refused.value).splitlines()[1:] == [
        "  missing: encoder.norm.bias",
        "  unexpected: extra",
        "  encoder.norm.weight: shape (5,), expected (8,)",
        "  encoder.position_embedding.weight: holds NaN or infinity",
    ]


@pytest.mark.parametrize("damage", ["cut weights", "no weights", "strange config", "no such model"])
def test_a_damaged_folder_is_refused(saved, damage):
    directory, _ = saved
    weights, config = directory / "model.safetensors", directory / "config.json"
    described = json.loads(config.read_text())
    if damage == "cut weights":
        weights.write_bytes(weights.read_bytes()[:-7])
    elif damage == "no weights":
        weights.unlink()
    elif damage == "strange config":
        described["config"]["hidden_size"] = "wide"
    else:
        described["model"] = "sasrek"
    config.write_text(json.dumps(described))
    match = {
        "cut weights": "model.safetensors cannot be read",
        "no weights": "model.safetensors cannot be read",
        "strange config": "config.json does not describe a model of this version",
        "no such model": "unknown model 'sasrek'; did you mean 'sasrec'",
    }[damage]
    with pytest.raises(UserError, match=match):
        load_model(directory)


def test_only_files_that_define_a_model_are_suggested():
    with pytest.raises(UserError, match="unknown model 'base'; did you mean 'sasrec'"):
        model_module("base")
    with pytest.raises(UserError, match="unknown model 'x'; there are bert4rec, bsarec, duorec, "):
        model_module("x")
