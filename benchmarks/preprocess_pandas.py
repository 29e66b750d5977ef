"""Preprocess and split in pandas: the opponent of preprocess_scale.py.

The same steps as ``lastclick.data.filtering`` and ``lastclick.data.splitting`` with their default
options: stable sort, consecutive repeats, k-core, dense ids, global time split. Needs pandas and
pyarrow and nothing of this repository:

    python benchmarks/preprocess_pandas.py INTERACTIONS.parquet FOLDER [--tuned]

Written as one writes pandas, or ``--tuned`` for speed: ids become integers before anything else,
counts come from value_counts, and no step groups where a sorted frame can be asked. Prints JSON
with the seconds of each step; FOLDER gets the four tables.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import pandas as pd

K_CORE = 5
QUANTILE = 0.9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tuned", action="store_true")
    arguments = parser.parse_args()
    clock = Clock()

    frame = pd.read_parquet(arguments.source)
    clock.lap("read")
    if arguments.tuned:
        for column in ("user_id", "item_id"):
            frame[column] = pd.factorize(frame[column], sort=True)[0]
        clock.lap("encode")
    frame = frame.sort_values(["user_id", "timestamp"], kind="stable")
    clock.lap("sort")
    frame = drop_consecutive_repeats(frame)
    clock.lap("drop_repeats")
    frame = keep_core(frame, arguments.tuned)
    clock.lap("k_core")
    for column in ("user_id", "item_id"):
        frame[column] = pd.factorize(frame[column], sort=True)[0].astype("int32") + 1
    clock.lap("ids")
    cut = cut_tuned if arguments.tuned else cut_by_groups
    pool, test = cut(frame)
    train, validation = cut(pool)
    clock.lap("split")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    tables = {"interactions": frame, "train": train, "validation": validation, "test": test}
    for name, table in tables.items():
        table.to_parquet(arguments.folder / f"{name}.parquet", index=False)
    clock.lap("write")
    print(json.dumps(clock.report()))


def drop_consecutive_repeats(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["item_id"] != frame.groupby("user_id")["item_id"].shift()]


def keep_core(frame: pd.DataFrame, tuned: bool) -> pd.DataFrame:
    while True:
        n_before = len(frame)
        for column in ("user_id", "item_id"):
            if tuned:
                counts = frame[column].map(frame[column].value_counts(sort=False))
            else:
                counts = frame.groupby(column)["timestamp"].transform("size")
            frame = frame[counts >= K_CORE]
        frame = drop_consecutive_repeats(frame)
        if len(frame) == n_before:
            return frame


def cut_by_groups(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Pool and evaluation sequences at the time quantile."""
    threshold = frame["timestamp"].quantile(QUANTILE)
    times = frame.groupby("user_id")["timestamp"]
    is_before = frame["timestamp"] <= threshold
    n_before = is_before.groupby(frame["user_id"]).transform("sum")
    pool = frame[is_before & (n_before >= 2)]
    return pool, frame[times.transform("last") > threshold]


def cut_tuned(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Pool and evaluation sequences at the time quantile."""
    threshold = frame["timestamp"].quantile(QUANTILE)
    before = frame[frame["timestamp"] <= threshold]
    n_before = before["user_id"].value_counts()
    pool = before[before["user_id"].isin(n_before.index[n_before >= 2])]
    last = frame.drop_duplicates("user_id", keep="last")
    late = last.loc[last["timestamp"] > threshold, "user_id"]
    return pool, frame[frame["user_id"].isin(late)]


class Clock:
    """Seconds of each step, and the peak of memory."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, step: str) -> None:
        now = time.perf_counter()
        self.seconds[step] = now - self._last
        self._last = now

    def report(self) -> dict[str, object]:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        return {"seconds": self.seconds, "peak_gib": peak}


if __name__ == "__main__":
    main()
