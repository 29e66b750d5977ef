"""Seconds that a training step of RecTools' SASRec takes; run by benchmarks/training.py.

Needs an interpreter with ``rectools[torch]`` and polars; prints the mean of three steps after one.
"""

from __future__ import annotations

import argparse
import time

import pandas as pd
import polars as pl
import torch
from pytorch_lightning import Callback, Trainer
from rectools.dataset import Dataset
from rectools.models import SASRecModel

N_STEPS = 4


# When each step ended; not in the callback, which RecTools copies before it trains.
step_ends: list[float] = []


class StepTimes(Callback):
    def on_train_batch_end(self, *arguments, **options) -> None:
        step_ends.append(time.perf_counter())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("interactions")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    # Every sequence is padded to 128, so it does not matter which of a user's items are there.
    frame = pl.read_parquet(options.interactions)
    interactions = pd.DataFrame(
        {
            "user_id": frame["user_id"].to_numpy(),
            "item_id": frame["item_id"].to_numpy(),
            "weight": 1.0,
            "datetime": pd.to_datetime(frame["timestamp"].to_numpy(), unit="s"),
        }
    )

    def trainer() -> Trainer:
        return Trainer(
            max_epochs=1,
            limit_train_batches=N_STEPS,
            accelerator="cpu",
            devices=1,
            callbacks=[StepTimes()],
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            logger=False,
        )

    model = SASRecModel(
        n_blocks=2,
        n_heads=2,
        n_factors=64,
        dropout_rate=0.5,
        session_max_len=128,
        batch_size=256,
        loss="softmax",
        lr=1e-3,
        get_trainer_func=trainer,
    )
    model.fit(Dataset.construct(interactions))
    print((step_ends[-1] - step_ends[0]) / (N_STEPS - 1))


if __name__ == "__main__":
    main()
