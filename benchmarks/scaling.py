"""The alpha grid against the matrix products that it cannot do without.

    python -m benchmarks.scaling INTERACTIONS.parquet [--repetitions 3]

Scores validation and test of a data set (columns user_id, item_id, timestamp) under 13 alphas and,
at alpha 1, the three earlier positions, with ranks of three items and both mixing ratios: what the
stage score_scales does for all layers at once. The bare products, timed in the same run, encode
the same sequences the same number of times and multiply every resulting vector with the catalogue,
without ranks, ratios or tables. Random weights: time does not depend on them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import polars as pl
import torch

from lastclick import params
from lastclick.data.sequences import Batch, like_lengths
from lastclick.data.splitting import split_interactions
from lastclick.diagnostics.conditions import NON_FINAL_OFFSETS
from lastclick.models.sasrec import Config, Model
from lastclick.scoring import Evaluation, score_scales

_ROWS = 256


def evaluations(path: Path, settings: params.Params) -> tuple[list[Evaluation], int]:
    rows = pl.read_parquet(path).select(
        pl.col("user_id", "item_id").cast(pl.Int32), pl.col("timestamp").cast(pl.Int64)
    )
    split = split_interactions(rows, **settings.split.model_dump())
    found = [
        Evaluation.from_frame(split.validation.collect(), "validation"),
        Evaluation.from_frame(split.test.collect(), "test"),
    ]
    return found, rows["item_id"].max()


@torch.inference_mode()
def bare_products(model: Model, found: list[Evaluation], n_passes: int) -> float:
    """Seconds to encode every input and to score it against the catalogue, ``n_passes`` times."""
    start = time.perf_counter()
    items = model.item_vectors()
    scores = torch.empty(_ROWS, len(items))
    for evaluation in found:
        window = evaluation.inputs.window(keep=model.max_length)
        batches = [Batch.of(window.take(indices)) for indices in like_lengths(window)]
        for _ in range(n_passes):
            states = torch.cat([model.final_states(batch) for batch in batches])
            for first in range(0, len(states), _ROWS):
                rows = states[first : first + _ROWS]
                torch.mm(rows, items.T, out=scores[: len(rows)])
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("interactions", type=Path)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    settings = params.load()
    found, n_items = evaluations(arguments.interactions, settings)
    torch.manual_seed(0)
    model = Model(Config(**settings.models["sasrec"]), n_items).eval()
    alphas = settings.scaling.alphas
    # Each alpha ranks one vector a sequence; alpha 1 also those of the earlier positions.
    n_passes = len(alphas) + len(NON_FINAL_OFFSETS)
    ratios = []
    for _ in range(arguments.repetitions):
        bare = bare_products(model, found, n_passes)
        start = time.perf_counter()
        score_scales(
            model, found, alphas=alphas, one_layer_at_a_time=False, offsets=NON_FINAL_OFFSETS,
            filter_seen=True,
        )  # fmt: skip
        grid = time.perf_counter() - start
        ratios.append(grid / bare)
        print(f"grid {grid:.1f} s, bare products {bare:.1f} s, ratio {ratios[-1]:.2f}", flush=True)
    users = ", ".join(f"{len(e.inputs):,} {e.partition}" for e in found)
    print(f"{len(alphas)} alphas, {users} sequences, {n_items:,} items: "
          f"median ratio {statistics.median(ratios):.2f} (bar: 3)")  # fmt: skip


if __name__ == "__main__":
    main()
