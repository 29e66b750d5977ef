"""Models small enough to test, found by their files, every dimension another prime."""

from __future__ import annotations

import importlib
from pathlib import Path

import torch

import lastclick.models
from lastclick.data.sequences import Batch, Sequences
from lastclick.models.base import Recommender

N_ITEMS = 37
N_HEADS, HEAD_SIZE = 3, 5
MAX_LENGTH = 13
#: So small that it rounds to zero: nothing is dropped, but the code of training with dropout runs.
NEGLIGIBLE_DROPOUT = 1e-9

VALUES = {
    "hidden_size": N_HEADS * HEAD_SIZE,
    "inner_size": 11,
    "n_layers": 2,
    "n_heads": N_HEADS,
    "activation": "gelu",
    "attention_init": "xavier_uniform",
    "block": "post_ln",
    "dropout": 0.3,
    "max_length": MAX_LENGTH,
    "mask_probability": 0.4,
    "maskings_per_sequence": 1,
    "filter_weight": 0.6,
    "low_frequencies": 2,
    "prefixes_per_sequence": 3,
    "unsupervised": {"weight": 0.2, "temperature": 0.7},
    "supervised": {"weight": 0.3, "temperature": 1.1},
    "cross": {"weight": 0.5, "temperature": 1.3},
}


def module_of(name: str):
    return importlib.import_module(f"lastclick.models.{name}")


NAMES = sorted(
    path.stem
    for path in Path(lastclick.models.__file__).parent.glob("*.py")
    if hasattr(module_of(path.stem), "Model")
)
#: Every model, and every block kind of those that have a choice.
CASES = [
    (name, {"block": block})
    for name in NAMES
    for block in (
        ("post_ln", "classic") if "block" in module_of(name).Config.model_fields else ("post_ln",)
    )
]


def build(name: str, seed: int = 0, n_items: int = N_ITEMS, **changes) -> Recommender:
    """A small model in evaluation mode as it is when training starts."""
    module = module_of(name)
    values = {**VALUES, **changes}
    known = {key: value for key, value in values.items() if key in module.Config.model_fields}
    torch.manual_seed(seed)
    return module.Model(module.Config(**known), n_items).eval()


def build_lively(name: str, seed: int = 0, n_items: int = N_ITEMS, **changes) -> Recommender:
    """The same with weights so large that nothing in the model is close to doing nothing."""
    model = build(name, seed, n_items, **changes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4, generator=generator)
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("item_embedding.weight"):
                parameter[0] = 0
    return model


def scores(model: Recommender, batch: Batch) -> torch.Tensor:
    """Scores of items 1..n_items, ``(n_sequences, n_items)``."""
    with torch.inference_mode():
        return model.final_states(batch) @ model.item_vectors()[1:].T


def random_sequences(lengths: list[int], seed: int = 0, n_items: int = N_ITEMS) -> Sequences:
    generator = torch.Generator().manual_seed(seed)
    return Sequences.from_lists(
        [torch.randint(1, n_items + 1, (n,), generator=generator).tolist() for n in lengths]
    )
