"""Seconds that a training step of RecTools' SASRec takes; run by benchmarks/training.py.

Needs an interpreter with ``rectools[torch]`` and polars; prints the mean of three steps after one.
"""

from __future__ import annotations

import argparse
import time

import polars as pl
import torch
from pytorch_lightning import Callback, Trainer
from rectools.dataset import Dataset
from rectools.models import SASRecModel

N_STEPS = 4


class StepTimes(Callback):
    def __init__(self):
        self.ended: list[float] = []

    def on_train_batch_end(self, *arguments, **options) -> None:
        self.ended.append(time.perf_counter())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("interactions")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    frame = pl.read_parquet(options.interactions)
    cut = frame["timestamp"].quantile(0.81, interpolation="linear")
    interactions = (
        frame.filter(pl.col("timestamp") <= cut)
        .with_columns(weight=pl.lit(1.0), datetime=pl.from_epoch("timestamp", time_unit="s"))
        .select("user_id", "item_id", "weight", "datetime")
        .to_pandas()
    )
    times = StepTimes()

    def trainer() -> Trainer:
        return Trainer(
            max_epochs=1,
            limit_train_batches=N_STEPS,
            accelerator="cpu",
            devices=1,
            callbacks=[times],
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
    print((times.ended[-1] - times.ended[0]) / (N_STEPS - 1))


if __name__ == "__main__":
    main()
