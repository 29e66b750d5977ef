"""A cell's trained model and evaluation sequences, for the stages that run the model."""

from __future__ import annotations

import torch

from lastclick import params, tables
from lastclick.artifacts import load_model
from lastclick.errors import UserError
from lastclick.models.base import Recommender
from lastclick.scoring import Evaluation
from stages.cells import Cell


def load_trained(cell: Cell, compute: params.Compute) -> Recommender:
    """The trained model of a cell, in evaluation mode, on the device that params.yaml asks for."""
    if compute.threads:
        torch.set_num_threads(compute.threads)
    if compute.device == "cuda" and not torch.cuda.is_available():
        raise UserError("compute.device is cuda, but torch finds no CUDA device; use auto or cpu")
    on_cuda = compute.device != "cpu" and torch.cuda.is_available()
    return load_model(cell.trained, device="cuda" if on_cuda else "cpu")


def load_evaluation(cell: Cell, partition: str) -> Evaluation:
    """The evaluation sequences of "validation" or "test"."""
    frame = tables.read_table(cell.splits / f"{partition}.parquet", tables.EVALUATION)
    return Evaluation.from_frame(frame, partition)
