"""The norm decomposition of a whole test set, against the same with every part written out.

    python -m benchmarks.decompose data/interactions/toys.parquet

Runs each form in a process of its own over the same sequences in the same batches: encode, then all
three levels and both definitions of the mixing ratio (SASRec, hidden 64, 2 layers, 2 heads, at most
128 items, freshly initialised weights). The materialised form builds sequences x i x j x hidden
per batch, padded to the model's maximum length or to the longest sequence of the batch, or in the
rectangles of similar length in which this package computes attention. Prints seconds, CPU
seconds (which other work on the machine disturbs less), the growth of peak memory over the loaded
model and data, and the ratios to the fast form; fails if the forms disagree by more than 1e-5.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import psutil
import torch
import torch.nn.functional as F
from torch import Tensor

from lastclick.data.sequences import Batch, Sequences
from lastclick.mixing import mixing_ratios
from lastclick.models import sasrec

MAX_LENGTH, BATCH_SIZE = 128, 256
FORMS = ("fast", "max_length", "longest", "buckets")


def inputs_of_test_users(interactions: pl.DataFrame) -> Sequences:
    """Inputs of the users whose last interaction is after the 0.9 quantile of all timestamps."""
    cut = np.quantile(interactions["timestamp"].to_numpy(), 0.9)
    is_test = pl.col("timestamp").last().over("user_id") > cut
    whole = Sequences.from_frame(interactions.filter(is_test))
    return whole.window(drop_last=1).window(keep=MAX_LENGTH)


def rectangles(batch: Batch, form: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Token numbers ``(count, width)`` and which of them are real."""
    if form == "buckets":
        place = row = 0
        for count, width in batch.buckets:
            lengths = batch.lengths[batch.bucket_order[row : row + count]]
            tokens = batch.padded_index[place : place + count * width].view(count, width)
            yield tokens, torch.arange(width) < lengths[:, None]
            place, row = place + count * width, row + count
    else:
        width = MAX_LENGTH if form == "max_length" else int(batch.lengths.max())
        real = torch.arange(width) < batch.lengths[:, None]
        tokens = torch.zeros(real.shape, dtype=torch.int64)
        tokens[real] = torch.arange(batch.n_tokens)
        yield tokens, real


@torch.inference_mode()
def materialised_ratios(model: sasrec.Model, batch: Batch, form: str) -> Tensor:
    """What ``mixing_ratios`` returns, from every F_i(x_j) of a rectangle at once."""
    capture: dict[str, Tensor] = {}
    model.encode(batch, capture=capture)
    ratios = torch.empty(len(model.encoder.blocks), 3, 2, batch.n_tokens)
    for tokens, real in rectangles(batch, form):
        for number, block in enumerate(model.encoder.blocks):
            x = capture[f"layer{number + 1}.input"][tokens]
            total = capture[f"layer{number + 1}.sum"][tokens]
            of_levels = _materialised_layer(block, x, total)
            ratios[number, ..., tokens[real]] = of_levels[..., real]
    return ratios


def _materialised_layer(block: torch.nn.Module, x: Tensor, total: Tensor) -> Tensor:
    """``x`` and ``total (count, width, hidden)`` to ``(levels, definitions, count, width)``."""
    attention, norm, hidden = block.attention, block.attention_norm, x.shape[-1]
    heads = (attention.n_heads, -1)
    query = attention.query(x).unflatten(-1, heads)
    key = attention.key_value(x)[..., :hidden].unflatten(-1, heads)
    value = F.linear(x, attention.key_value.weight[hidden:]).unflatten(-1, heads)
    future = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)
    logits = torch.einsum("bihd,bjhd->bhij", query, key) / key.shape[-1] ** 0.5 + future
    transformed = torch.einsum(
        "bjhd,ohd->bjho", value, attention.output.weight.unflatten(-1, heads)
    )
    parts = torch.einsum("bhij,bjho->bijo", logits.softmax(dim=-1), transformed)
    diagonal = parts.diagonal(dim1=1, dim2=2)  # (count, hidden, width)

    found = [_both_definitions(parts)]
    diagonal += x.transpose(1, 2)
    found.append(_both_definitions(parts))
    deviation = (total.var(dim=-1, correction=0) + norm.eps).sqrt()
    parts -= parts.mean(dim=-1, keepdim=True)
    parts *= norm.weight
    parts /= deviation[:, :, None, None]
    found.append(_both_definitions(parts))
    return torch.stack(found)


def _both_definitions(parts: Tensor) -> Tensor:
    norms = parts.norm(dim=-1)
    own = norms.diagonal(dim1=1, dim2=2)
    others = parts.sum(dim=2) - parts.diagonal(dim1=1, dim2=2).transpose(1, 2)
    mixed = torch.stack((others.norm(dim=-1), norms.sum(dim=-1) - own))
    return mixed / (mixed + own)


def reset_peak_memory() -> int:
    """Bytes in use now; the peak counted by ``peak_memory`` starts here (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    return psutil.Process().memory_info().rss


def peak_memory() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def measure(form: str, path: Path, output: Path) -> None:
    """Run one form over the whole test set; write what it found and print seconds and bytes."""
    interactions = pl.read_parquet(path)
    inputs = inputs_of_test_users(interactions)
    torch.manual_seed(17)
    config = sasrec.Config(
        block="post_ln", hidden_size=64, inner_size=256, n_layers=2, n_heads=2, activation="gelu",
        attention_init="xavier_uniform", dropout=0.5, max_length=MAX_LENGTH,
    )  # fmt: skip
    model = sasrec.Model(config, int(interactions["item_id"].max())).eval()

    decompose = mixing_ratios if form == "fast" else partial(materialised_ratios, form=form)
    order = np.random.default_rng(17).permutation(len(inputs))
    batches = [
        Batch.of(inputs.take(order[first : first + BATCH_SIZE]))
        for first in range(0, len(order), BATCH_SIZE)
    ]
    decompose(model, batches[0])
    before = reset_peak_memory()
    started, cpu_started = time.perf_counter(), time.process_time()
    ratios = [decompose(model, batch) for batch in batches]
    result = {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu_started,
        "bytes": peak_memory() - before,
        "sequences": len(inputs),
        "tokens": len(inputs.items),
    }
    print(json.dumps(result))
    np.save(output, torch.cat(ratios, dim=-1).numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("interactions", type=Path, help="Parquet: user_id, item_id, timestamp")
    parser.add_argument("--form", choices=FORMS, help="run this form only, in this process")
    parser.add_argument("--output", type=Path, help="where --form writes its ratios (.npy)")
    arguments = parser.parse_args()
    if arguments.form:
        measure(arguments.form, arguments.interactions, arguments.output)
        return

    with tempfile.TemporaryDirectory() as folder:
        fast, expected = run_form("fast", arguments.interactions, Path(folder))
        print(f"{fast['sequences']:,} sequences, {fast['tokens']:,} positions")
        print_row("fast", fast, fast)
        for form in FORMS[1:]:
            result, ratios = run_form(form, arguments.interactions, Path(folder))
            print_row(form, result, fast)
            difference = np.abs(ratios - expected).max()
            print(f"{'':>12}largest difference from the fast form {difference:.1e}", flush=True)
            if not difference < 1e-5:
                sys.exit(f"{form} and fast disagree")


def run_form(form: str, interactions: Path, folder: Path) -> tuple[dict, np.ndarray]:
    """Measure ``form`` in a process of its own; returns its measures and its ratios."""
    output = folder / f"{form}.npy"
    command = [sys.executable, "-m", "benchmarks.decompose", str(interactions)]
    command += ["--form", form, "--output", str(output)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(answer.stdout), np.load(output)


def print_row(form: str, result: dict, fast: dict) -> None:
    times = {name: result[name] / fast[name] for name in result}
    print(
        f"{form:>10}: {result['seconds']:7.2f} s ({times['seconds']:6.1f} x)  "
        f"{result['cpu_seconds']:7.2f} s of CPU ({times['cpu_seconds']:6.1f} x)  "
        f"{result['bytes'] / 2**20:7.1f} MiB ({times['bytes']:6.1f} x)",
        flush=True,
    )


if __name__ == "__main__":
    main()
