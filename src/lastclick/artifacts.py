"""Trained models on disk: built by name, saved, and loaded with every tensor checked.

A model's folder holds ``model.safetensors`` (weights), ``config.json`` (what to build before
loading them) and ``history.csv`` (one row per epoch). Nothing in it executes when it is loaded,
and nothing in it (no time, no date) differs between two runs that did the same.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import lastclick.models
from lastclick.errors import UserError
from lastclick.models.base import Recommender
from lastclick.tables import read_json, replacing, write_csv, write_json

HistoryRow = dict[str, float | int | None]


@dataclass(frozen=True)
class Fitted:
    """The weights of the best epoch, and how training went.

    ``history`` has one row per epoch: ``epoch``, ``loss`` (mean per target), the model's extra
    terms, and ``validation_NDCG@10`` (None where the scores were not finite).
    """

    weights: dict[str, Tensor]
    history: list[HistoryRow]
    best_epoch: int
    best_ndcg: float


def model_module(name: str) -> Any:
    """The module ``lastclick.models.<name>``, which defines ``Config`` and ``Model``.

    Raises UserError naming the nearest model when there is none of that name.
    """
    files = [file.name for file in pkgutil.iter_modules(lastclick.models.__path__)]
    module = _models_file(name) if name in files else None
    if not hasattr(module, "Model"):
        models = [file for file in files if hasattr(_models_file(file), "Model")]
        near = difflib.get_close_matches(name, models, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(models)}"
        raise UserError(f"unknown model {name!r}; {hint}")
    return module


def _models_file(name: str) -> Any:
    return importlib.import_module(f"lastclick.models.{name}")


def require_decomposable(name: str) -> None:
    """Raise UserError where params.yaml asks for the decomposition of a model that has none."""
    if not model_module(name).Model.decomposable:
        raise UserError(
            f"params.yaml: run.attention_models names {name}, which has no attention block "
            "whose residual carries an item: it can be neither scaled nor decomposed. Take it "
            "out of that list; the other diagnostics run for it all the same"
        )


def build_model(name: str, config: BaseModel | Mapping[str, Any], n_items: int) -> Recommender:
    """A model with fresh weights, drawn from torch's global random state.

    Raises pydantic's ValidationError when ``config`` is not a configuration of that model.
    """
    module = model_module(name)
    return module.Model(module.Config.model_validate(config), n_items)


def load_weights(model: Recommender, tensors: Mapping[str, Tensor], source: str) -> None:
    """Copy ``tensors`` into ``model``.

    Raises UserError that lists every missing, unexpected or misshapen tensor; ``source`` says
    where they came from.
    """
    expected = model.state_dict()
    slips = [f"missing: {name}" for name in expected if name not in tensors]
    slips += [f"unexpected: {name}" for name in tensors if name not in expected]
    slips += [
        f"{name}: shape {tuple(tensors[name].shape)}, expected {tuple(expected[name].shape)}"
        for name in expected
        if name in tensors and tensors[name].shape != expected[name].shape
    ]
    slips += [
        f"{name}: holds NaN or infinity"
        for name in expected
        if name in tensors and not bool(torch.isfinite(tensors[name]).all())
    ]
    if slips:
        raise UserError(f"{source} does not fit the model:\n  " + "\n  ".join(slips))
    model.load_state_dict(tensors)


def save_model(
    directory: Path,
    fitted: Fitted,
    *,
    model_name: str,
    config: BaseModel,
    n_items: int,
    seed: int,
) -> None:
    """Write a trained model's folder, each file whole or not at all, ``config.json`` last."""
    with replacing(directory / "model.safetensors") as temporary:
        save_file(fitted.weights, temporary)
    write_csv(pl.DataFrame(fitted.history), directory / "history.csv")
    write_json(
        {
            "model": model_name,
            "config": config.model_dump(mode="json"),
            "n_items": n_items,
            "seed": seed,
            "best_epoch": fitted.best_epoch,
            "n_epochs": len(fitted.history),
            "validation_NDCG@10": fitted.best_ndcg,
            "versions": {"torch": torch.__version__},
        },
        directory / "config.json",
    )


def load_model(directory: Path, device: torch.device | str = "cpu") -> Recommender:
    """The trained model of ``directory``, in evaluation mode (no dropout).

    Raises UserError when a file is absent or damaged, or the weights do not fit the config.
    """
    described = read_json(directory / "config.json")
    path = directory / "model.safetensors"
    try:
        model = build_model(described["model"], described["config"], described["n_items"])
    except (KeyError, ValidationError) as error:
        raise UserError(
            f"{directory / 'config.json'} does not describe a model of this version ({error}); "
            "delete the folder and train again"
        ) from None
    try:
        tensors = load_file(path)
    except (FileNotFoundError, SafetensorError) as error:
        raise UserError(
            f"{path} cannot be read ({error}); delete its folder and train again"
        ) from None
    load_weights(model, tensors, str(path))
    return model.to(device).eval()
