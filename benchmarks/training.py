"""What training costs, as ratios measured in the same run.

    python -m benchmarks.training epoch data/interactions/beauty.parquet
    python -m benchmarks.training tokens
    python -m benchmarks.training catalogue
    python -m benchmarks.training rectools data/interactions/beauty.parquet --python PYTHON

``epoch``: one epoch of SASRec (hidden 64, 2 layers, 2 heads, dropout 0.5, at most 128 items, 256
users a batch; the global time split's training users), everything in it: making batches, the model,
Adam, validation. After each step the three float32 matrix products of the step's loss are done
alone, in chunks, on the same threads, on packed rows and then on rows padded as in the fused loss,
which is faster; ratios are of the sums. On a machine that others use too, the median over the steps
says more.
``tokens``: cost per training interaction at 12,101 items, from 10,000 to 1,000,000 of them.
``catalogue``: peak memory with 150,000 items and sequences of 128.
``rectools``: a step against RecTools' SASRec with softmax loss at the same settings, run by PYTHON,
an interpreter with ``rectools[torch]`` and polars (for development only; it takes minutes).
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import torch
from lightning_fabric import Fabric

from benchmarks.loss import products
from lastclick import losses, training
from lastclick.data.sequences import Sequences
from lastclick.data.splitting import split_interactions
from lastclick.models import sasrec
from lastclick.training import Compute, Settings, Validation, fit, launch

HIDDEN_SIZE, MAX_LENGTH = 64, 128
BEAUTY_ITEMS = 12_101
# Fast for a product of this shape here; larger and smaller ones were slower.
MOST_TOKENS_A_CHUNK = 700


def config() -> sasrec.Config:
    return sasrec.Config(
        block="post_ln",
        hidden_size=HIDDEN_SIZE,
        inner_size=4 * HIDDEN_SIZE,
        n_layers=2,
        n_heads=2,
        activation="gelu",
        attention_init="xavier_uniform",
        dropout=0.5,
        max_length=MAX_LENGTH,
    )


def settings(loss_precision: str = "fp32", n_epochs: int = 1) -> Settings:
    return Settings(
        batch_size=256,
        learning_rate=1e-3,
        max_epochs=n_epochs,
        patience=n_epochs,
        validation_users=1024,
        precision="fp32",
        loss_precision=loss_precision,
    )


class BareProducts:
    """The matrix products that the loss of a step cannot do without, and the time they took."""

    def __init__(self, n_items: int, *, padded_rows: bool):
        items = torch.randn(n_items, HIDDEN_SIZE)
        self.items = losses._whole_lines(items, torch.float32) if padded_rows else items
        self.seconds: list[float] = []

    def __call__(self, n_tokens: int) -> None:
        chunk = -(-n_tokens // -(-n_tokens // MOST_TOKENS_A_CHUNK))  # evenly
        states = torch.randn(n_tokens, HIDDEN_SIZE)
        started = time.perf_counter()
        products(states, self.items, chunk)
        self.seconds.append(time.perf_counter() - started)


@contextmanager
def after_each_step(call: Callable[[int], None]) -> Iterator[list[float]]:
    """Calls ``call(n_tokens)`` after every training step; yields the seconds of the steps."""
    seconds = []
    train_step = training._Trainer._train_step

    def timed(self, users: np.ndarray) -> None:
        started = time.perf_counter()
        train_step(self, users)
        seconds.append(time.perf_counter() - started)
        call(count_targets(self.job.training.take(users)))

    training._Trainer._train_step = timed
    try:
        yield seconds
    finally:
        training._Trainer._train_step = train_step


def count_targets(sequences: Sequences) -> int:
    return int(np.minimum(sequences.lengths - 1, MAX_LENGTH).sum())


def read_split(path: Path) -> tuple[Sequences, Validation, int]:
    split = split_interactions(pl.read_parquet(path))
    return (
        Sequences.from_frame(split.train.collect()),
        Validation.from_frame(split.validation.collect(), filter_seen=True),
        split.report.n_items,
    )


def generate(n_interactions: int, mean_length: int, n_items: int) -> tuple[Sequences, Validation]:
    """Sequences of popular and rare items (Zipf), and validation users of the same kind."""
    rng = np.random.default_rng(17)
    n_users = n_interactions // mean_length
    lengths = np.full(n_users, mean_length)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    items = ((rng.zipf(1.2, offsets[-1]) - 1) % n_items + 1).astype(np.int32)
    sequences = Sequences(np.arange(1, n_users + 1, dtype=np.int32), items, offsets)
    some = sequences.take(np.arange(min(1024, n_users)))
    return sequences, Validation(some.window(drop_last=1), some.recent_item(0), filter_seen=True)


def train(
    fabric: Fabric, sequences: Sequences, validation: Validation, n_items: int, **changes
) -> float:
    """Train and return the seconds that it took."""
    started = time.perf_counter()
    fit("sasrec", config(), sequences, validation, n_items,
        settings=settings(**changes), seed=17, fabric=fabric)  # fmt: skip
    return time.perf_counter() - started


def peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def epoch(fabric: Fabric, path: Path, loss_precision: str) -> None:
    sequences, validation, n_items = read_split(path)
    packed, padded = (BareProducts(n_items, padded_rows=choice) for choice in (False, True))

    def both(n_tokens: int) -> None:
        packed(n_tokens)
        padded(n_tokens)

    both(2000)  # threads and buffers are ready from here on
    packed.seconds.clear()
    padded.seconds.clear()
    with after_each_step(both) as steps:
        total = train(fabric, sequences, validation, n_items, loss_precision=loss_precision)
    products, as_in_the_loss = sum(packed.seconds), sum(padded.seconds)
    spent = total - products - as_in_the_loss
    print(f"{count_targets(sequences):,} targets in {len(steps)} steps, {n_items:,} items")
    print(f"epoch {spent:.2f} s, of which steps {sum(steps):.2f} s; bare products {products:.2f} s")
    print(f"median step {statistics.median(steps):.4f} s")
    print(f"epoch / bare float32 products: {spent / products:.3f} (bar 1.2 with a float32 loss)")
    ratios = [step / alone for step, alone in zip(steps, packed.seconds, strict=True)]
    print(f"median over steps of step / its products: {statistics.median(ratios):.3f}")
    print(f"epoch / products on padded rows, as in the loss: {spent / as_in_the_loss:.3f}")
    print(f"peak memory {peak_gigabytes():.2f} GB (bar 1)")


def tokens(fabric: Fabric) -> None:
    per_token = {}
    for n_interactions in (10_000, 100_000, 1_000_000):
        sequences, validation = generate(n_interactions, mean_length=8, n_items=BEAUTY_ITEMS)
        # The small sizes train for several epochs, or they would be over before they can be timed.
        n_epochs = max(1, 100_000 // n_interactions)
        with after_each_step(lambda n_tokens: None) as steps:
            train(fabric, sequences, validation, BEAUTY_ITEMS, n_epochs=n_epochs)
        per_token[n_interactions] = sum(steps) / (n_epochs * count_targets(sequences))
        print(f"{n_interactions:,} interactions: {per_token[n_interactions] * 1e6:.1f} us a target")
    ratio = max(per_token.values()) / min(per_token.values())
    print(f"largest / smallest cost per target: {ratio:.3f} (bar 1.2)")


def catalogue(fabric: Fabric) -> None:
    n_items = 150_000
    sequences, validation = generate(2 * 256 * 129, mean_length=129, n_items=n_items)
    with after_each_step(lambda n_tokens: None) as steps:
        train(fabric, sequences, validation, n_items)
    print(f"{n_items:,} items, sequences of {MAX_LENGTH}: {statistics.mean(steps):.1f} s a step")
    print(f"peak memory {peak_gigabytes():.2f} GB (bar 4)")


def rectools(fabric: Fabric, path: Path, python: str) -> None:
    sequences, validation, n_items = read_split(path)
    with after_each_step(lambda n_tokens: None) as steps:
        train(fabric, sequences, validation, n_items)
    script = Path(__file__).with_name("training_rectools.py")
    command = [python, str(script), str(path), "--threads", str(torch.get_num_threads())]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    theirs = float(found.splitlines()[-1])
    ours = statistics.mean(steps)
    print(f"RecTools {theirs:.2f} s a step, here {ours:.4f} s a step")
    print(f"RecTools / here: {theirs / ours:.0f} (bar 60)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("epoch", "tokens", "catalogue", "rectools"))
    parser.add_argument("interactions", type=Path, nargs="?")
    parser.add_argument("--loss-precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    fabric = launch(Compute("cpu", 1, options.threads), "fp32")
    if options.what in ("epoch", "rectools") and options.interactions is None:
        parser.error(f"{options.what} needs a table of interactions")
    if options.what == "epoch":
        epoch(fabric, options.interactions, options.loss_precision)
    elif options.what == "tokens":
        tokens(fabric)
    elif options.what == "catalogue":
        catalogue(fabric)
    else:
        rectools(fabric, options.interactions, options.python)


if __name__ == "__main__":
    main()
