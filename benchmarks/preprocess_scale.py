"""Preprocess and split of generated interactions: time, peak memory, and pandas beside it.

    python -m benchmarks.preprocess_scale sizes 1_000_000 10_000_000 100_000_000
    python -m benchmarks.preprocess_scale pandas 20_000_000 --python PYTHON_WITH_PANDAS

``sizes`` prints, for each number of rows, seconds, seconds per million rows and the peak of
resident memory, of preprocess and of split, each in a process of its own as in the pipeline.
``pandas`` runs preprocess_pandas.py in each of its styles, prints the ratios (of everything, and of
everything but reading and writing files; our reading of text counts as work, since it also numbers
the ids), and compares the four tables row for row.

Files lie in a temporary folder (in ``--folder``, if given), 5 GB for 100 million rows, and are
deleted at the end.

The rows imitate a log of events: in order of time, ids of 14 characters, log-normal activity of
users (mean 20) and popularity of items (mean 50), one event in twenty repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from lastclick import tables
from lastclick.data.filtering import preprocess
from lastclick.data.splitting import split_interactions

MEAN_USER, MEAN_ITEM = 20, 50
HOURS = 5 * 365 * 24
TABLES = ("interactions", "train", "validation", "test")
BYTES_PER_ROW = 16  # two 4-byte ids and an 8-byte time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the files lie (default: a new one)")
    commands = parser.add_subparsers(dest="command", required=True)
    sizes = commands.add_parser("sizes")
    sizes.add_argument("rows", type=int, nargs="+")
    pandas = commands.add_parser("pandas")
    pandas.add_argument("rows", type=int)
    pandas.add_argument("--python", default=sys.executable, help="an interpreter with pandas")
    for step in STEPS:
        commands.add_parser(step)
    arguments = parser.parse_args()

    if arguments.command in STEPS:
        print(json.dumps(STEPS[arguments.command](arguments.folder)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if arguments.command == "sizes":
            for n_rows in arguments.rows:
                compare_sizes(n_rows, Path(folder))
        else:
            compare_with_pandas(arguments.rows, arguments.python, Path(folder))


def compare_sizes(n_rows: int, folder: Path) -> None:
    generate(n_rows, folder / "raw.parquet")
    for step in STEPS:
        found = run_step(step, folder)
        seconds = sum(found["seconds"].values())
        columns = n_rows * BYTES_PER_ROW / 2**30
        print(
            f"{n_rows:>11,} rows  {step:<10}  {seconds:7.1f} s  "
            f"{1e6 * seconds / n_rows:6.3f} s per million  peak {found['peak_gib']:5.2f} GiB "
            f"({found['peak_gib'] / columns:.1f} x the columns)  {found['counts']}",
            flush=True,
        )


def compare_with_pandas(n_rows: int, python: str, folder: Path) -> None:
    generate(n_rows, folder / "raw.parquet")
    ours: dict[str, float] = {}
    for step in STEPS:
        ours |= {f"{step}: {name}": s for name, s in run_step(step, folder)["seconds"].items()}
    show("lastclick", ours)
    script = str(Path(__file__).with_name("preprocess_pandas.py"))
    for style in ("stepwise", "once", "tuned"):
        found = run([python, script, str(folder / "raw.parquet"), str(folder / "pandas"), style])
        theirs, label = found["seconds"], f"pandas {found['pandas']} {style}"
        show(f"{label}, peak {found['peak_gib']:.1f} GiB", theirs)
        print(
            f"{n_rows:,} rows: {label} takes {ratio(theirs, ours):.1f} times as long, and "
            f"{ratio(without_files(theirs), without_files(ours)):.1f} times without files"
        )
        for name in TABLES:
            mine = pl.read_parquet(folder / f"{name}.parquet", columns=list(tables.INTERACTIONS))
            other = pl.read_parquet(folder / "pandas" / f"{name}.parquet")
            assert mine.equals(other), f"{name} differs"
        print(f"all rows of {', '.join(TABLES)} are equal", flush=True)


def ratio(theirs: dict[str, float], ours: dict[str, float]) -> float:
    return sum(theirs.values()) / sum(ours.values())


def without_files(seconds: dict[str, float]) -> dict[str, float]:
    return {step: s for step, s in seconds.items() if "read" not in step and "write" not in step}


def show(name: str, seconds: dict[str, float]) -> None:
    steps = ", ".join(f"{step} {value:.1f}" for step, value in seconds.items())
    print(f"{name}: {sum(seconds.values()):.1f} s ({steps})", flush=True)


def run_step(step: str, folder: Path) -> dict:
    return run([sys.executable, "-m", "benchmarks.preprocess_scale", "--folder", str(folder), step])


def run(command: list[str]) -> dict:
    """Run in a process of its own, so that each has its own peak; it prints JSON."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    return json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout
    )


def measured_preprocess(folder: Path) -> dict:
    start = time.perf_counter()
    result = preprocess(pl.scan_parquet(folder / "raw.parquet"), k_core=5)  # reads as it goes
    done = time.perf_counter()
    tables.write_table(result.interactions, folder / "interactions.parquet", tables.INTERACTIONS)
    tables.write_table(result.ids, folder / "ids.parquet", tables.IDS)
    report = result.report
    return {
        "seconds": {"compute": done - start, "write": time.perf_counter() - done},
        "peak_gib": peak_gib(),
        "counts": f"{report.n_interactions:,} interactions, {report.n_users:,} users, "
        f"{report.n_items:,} items, {report.n_repeats_dropped:,} repeats, {report.n_rounds} rounds",
    }


def measured_split(folder: Path) -> dict:
    start = time.perf_counter()
    interactions = tables.read_table(folder / "interactions.parquet", tables.INTERACTIONS)
    read = time.perf_counter()
    split = split_interactions(interactions)
    done = time.perf_counter()
    cutting = writing = 0.0
    for name, schema in (
        ("train", tables.INTERACTIONS),
        ("validation", tables.EVALUATION),
        ("test", tables.EVALUATION),
    ):
        begin = time.perf_counter()
        frame = getattr(split, name).collect()
        cut = time.perf_counter()
        tables.write_table(frame, folder / f"{name}.parquet", schema)
        cutting, writing = cutting + cut - begin, writing + time.perf_counter() - cut
    report = split.report
    return {
        "seconds": {
            "read": read - start,
            "compute": done - read + cutting,
            "write": writing,
        },
        "peak_gib": peak_gib(),
        "counts": f"{report.n_train_interactions:,} train, {report.n_validation_users:,} and "
        f"{report.n_test_users:,} users to evaluate",
    }


STEPS = {"preprocess": measured_preprocess, "split": measured_split}


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def generate(n_rows: int, path: Path) -> None:
    """Write ``n_rows`` interactions as Parquet with text ids, in order of time."""
    rng = np.random.default_rng(17)
    user = spread(n_rows, n_rows // MEAN_USER, 1.3, rng)
    item = rng.permutation(spread(n_rows, n_rows // MEAN_ITEM, 2.0, rng))
    hour = rng.integers(0, HOURS, n_rows, dtype=np.int32)
    frame = pl.DataFrame({"user": user, "item": item, "hour": hour}).sort("user", "hour")
    del user, item, hour
    repeats = pl.Series(rng.random(n_rows) < 0.05)
    frame = frame.with_columns(
        item=pl.when(repeats).then(pl.col("item").shift()).otherwise("item").fill_null(0)
    ).sort("hour", maintain_order=True)
    frame.lazy().select(
        user_id="u" + text_of("user"),
        item_id="i" + text_of("item"),
        timestamp=1_500_000_000 + 3600 * pl.col("hour").cast(pl.Int64),
    ).sink_parquet(path)


def text_of(column: str) -> pl.Expr:
    """13 digits that say nothing about the order in which ids were made."""
    return ((pl.col(column).cast(pl.UInt64) * 2_654_435_761) % 2**32 + 10**12).cast(pl.String)


def spread(n_rows: int, n_ids: int, sigma: float, rng: np.random.Generator) -> np.ndarray:
    """Ids 0 … n_ids - 1, ``(n_rows,)`` int32, each as often as a log-normal draw says."""
    weights = rng.lognormal(sigma=sigma, size=n_ids)
    counts = np.ceil(weights * (n_rows / weights.sum())).astype(np.int64)
    return np.repeat(np.arange(n_ids, dtype=np.int32), counts)[
        rng.permutation(counts.sum())[:n_rows]
    ]


if __name__ == "__main__":
    main()
