"""Weights that somebody else trained, in the place of training."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from lastclick import params, tables
from lastclick.artifacts import Fitted, build_model, load_weights, model_module, save_model
from lastclick.errors import UserError
from lastclick.layouts import Section, read_checkpoint
from stages.cells import Cell
from stages.trainable import Trainable


def take_checkpoint(cell: Cell, settings: params.Params) -> None:
    """Convert a cell's checkpoint, validate it once and save it like a trained model.

    Every seed of the cell gets the same weights. Raises UserError as ``read_checkpoint`` does, and
    where params.yaml names no checkpoint for the data set.
    """
    key = f"models.{cell.model}"
    section = params.validate_section(Section, settings.model(cell.model), key)
    if cell.dataset not in section.checkpoints:
        raise UserError(
            f"params.yaml: {key}.checkpoints has none for {cell.dataset} (it has: "
            f"{', '.join(sorted(section.checkpoints)) or 'nothing'}); a checkpoint belongs to the "
            "items of one data set"
        )
    given = section.checkpoints[cell.dataset]
    ids = tables.read_table(Path("data/interactions") / f"{cell.dataset}.ids.parquet", tables.IDS)
    converted = read_checkpoint(given, ids.filter(kind="item").sort("id")["raw_id"].to_list())
    config = model_module(cell.model).Config.model_validate(converted.config)
    trainable = Trainable.prepare(cell.dataset, cell.model, settings, config)
    model = build_model(cell.model, config, trainable.n_items)
    load_weights(model, converted.weights, str(given.path))
    ndcg = trainable.validation_ndcg(model)
    if math.isnan(ndcg):
        raise UserError(f"{given.path}: the model's scores are not finite numbers")
    history = [{"epoch": 0, "loss": None, "validation_NDCG@10": ndcg}]
    if trainable.fabric.is_global_zero:
        print(f"{cell.label}: {given.path}, validation NDCG@10 {ndcg:.4f}", file=sys.stderr)
        save_model(
            cell.trained,
            Fitted(converted.weights, history, best_epoch=0, best_ndcg=ndcg),
            model_name=cell.model,
            config=config,
            n_items=trainable.n_items,
            seed=cell.seed,
        )
