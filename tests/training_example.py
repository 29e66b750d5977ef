"""A small training for the tests, and a script that runs it in a process (or several) of its own.

    python -m tests.training_example OUTPUT [--cell CELL] [--model NAME] [--dropout P] …

writes OUTPUT.safetensors (weights) and OUTPUT.json (history).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from lightning_fabric import Fabric
from safetensors.torch import save_file

from lastclick.artifacts import Fitted, model_module
from lastclick.data.sequences import Sequences
from lastclick.models.base import ModelConfig
from lastclick.training import Compute, Settings, Validation, fit, launch

N_ITEMS = 53
SETTINGS = Settings(
    batch_size=16,
    learning_rate=0.01,
    max_epochs=7,
    patience=3,
    validation_users=41,
    precision="fp32",
    loss_precision="fp32",
)
_SIZES = {"hidden_size": 8, "n_layers": 2, "max_length": 11}
_FEED_FORWARD = {"inner_size": 24, "n_heads": 2}
_ATTENTION = {**_FEED_FORWARD, "activation": "gelu", "attention_init": "xavier_uniform"}
_CONTRAST = {"weight": 0.1, "temperature": 1.0}
_CONFIGS = {
    "gru4rec": {},
    "sasrec": {**_ATTENTION, "block": "post_ln"},
    "bert4rec": {**_FEED_FORWARD, "mask_probability": 0.3, "maskings_per_sequence": 2},
    "duorec": {
        **_ATTENTION,
        "unsupervised": _CONTRAST,
        "supervised": _CONTRAST,
        "cross": _CONTRAST,
    },
    "bsarec": {
        **_ATTENTION,
        "filter_weight": 0.7,
        "low_frequencies": 2,
        "prefixes_per_sequence": 3,
    },
}
MODELS = tuple(_CONFIGS)


def config_of(model: str, dropout: float) -> ModelConfig:
    return model_module(model).Config(**_SIZES, **_CONFIGS[model], dropout=dropout)


def sequences(n_users: int = 97) -> Sequences:
    """Walks around a ring of items, so that the next item can be learned."""
    rng = np.random.default_rng(5)
    starts, lengths = rng.integers(N_ITEMS, size=n_users), rng.integers(2, 17, size=n_users)
    return Sequences.from_lists(
        [
            ((start + np.arange(length)) % N_ITEMS + 1).tolist()
            for start, length in zip(starts, lengths, strict=True)
        ]
    )


def validation_of(training: Sequences) -> Validation:
    return Validation(training.window(drop_last=1), training.recent_item(0), filter_seen=True)


def train(
    fabric: Fabric,
    *,
    model: str = "sasrec",
    dropout: float = 0.3,
    settings: Settings = SETTINGS,
    seed: int = 17,
    n_users: int = 97,
    cell: Path | None = None,
    checkpoint_seconds: float = 0.0,
) -> Fitted:
    training = sequences(n_users)
    return fit(
        model, config_of(model, dropout), training, validation_of(training), N_ITEMS,
        settings=settings, seed=seed, fabric=fabric, cell=cell,
        checkpoint_seconds=checkpoint_seconds,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--cell", type=Path)
    parser.add_argument("--model", default="sasrec")
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--users", type=int, default=97)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    fabric = launch(Compute("cpu", options.devices, options.threads), SETTINGS.precision)
    cell = options.cell
    if cell and not fabric.is_global_zero:
        cell = Path("what no process may need")  # as on another machine
    fitted = train(
        fabric, model=options.model, dropout=options.dropout, cell=cell, n_users=options.users,
    )  # fmt: skip
    if fabric.is_global_zero:
        save_file(fitted.weights, f"{options.output}.safetensors")
        Path(f"{options.output}.json").write_text(json.dumps(fitted.history))


if __name__ == "__main__":
    main()
