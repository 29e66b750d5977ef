"""Preprocess and split in pandas: the opponent of preprocess_scale.py.

The same steps as ``lastclick.data.filtering`` and ``lastclick.data.splitting`` with their default
options: stable sort, consecutive repeats, k-core, dense ids, global time split. Needs pandas and
pyarrow and nothing of this repository:

    python benchmarks/preprocess_pandas.py INTERACTIONS.parquet FOLDER STYLE

STYLE is one of

- ``stepwise``: functions that can be called on any frame, as published pipelines have them: what
  needs an order sorts, what needs counts counts, and ids are the text that was read;
- ``once``: the frame is sorted once and stays sorted; ids are text;
- ``tuned``: ids become integers before anything else, and no step groups where a sorted frame can
  be asked.

Prints JSON with the seconds of each step; FOLDER gets the four tables.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import pandas as pd

K_CORE = 5
QUANTILE = 0.9


def main(source: Path, folder: Path, style: str) -> None:
    clock = Clock()
    frame = pd.read_parquet(source)
    clock.lap("read")
    if style == "tuned":
        for column in ("user_id", "item_id"):
            frame[column] = pd.factorize(frame[column], sort=True)[0]
        clock.lap("encode")
    frame = in_order(frame)
    clock.lap("sort")
    frame = drop_consecutive_repeats(frame)
    clock.lap("drop_repeats")
    frame = {"stepwise": core_stepwise, "once": core_once, "tuned": core_tuned}[style](frame)
    clock.lap("k_core")
    for column in ("user_id", "item_id"):
        frame[column] = pd.factorize(frame[column], sort=True)[0].astype("int32") + 1
    clock.lap("ids")
    cut = {"stepwise": cut_stepwise, "once": cut_once, "tuned": cut_tuned}[style]
    pool, test = cut(frame)
    train, validation = cut(pool)
    clock.lap("split")
    folder.mkdir(parents=True, exist_ok=True)
    tables = {"interactions": frame, "train": train, "validation": validation, "test": test}
    for name, table in tables.items():
        table.to_parquet(folder / f"{name}.parquet", index=False)
    clock.lap("write")
    print(json.dumps(clock.report()))


def in_order(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values(["user_id", "timestamp"], kind="stable")


def drop_consecutive_repeats(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["item_id"] != frame.groupby("user_id")["item_id"].shift()]


def is_core(frame: pd.DataFrame) -> bool:
    columns = ("user_id", "item_id")
    return all(frame[column].value_counts().min() >= K_CORE for column in columns)


def core_stepwise(frame: pd.DataFrame) -> pd.DataFrame:
    while len(frame) and not is_core(frame):
        for column in ("user_id", "item_id"):
            counts = frame[column].value_counts()
            frame = frame[frame[column].isin(counts.index[counts >= K_CORE])]
        frame = drop_consecutive_repeats(in_order(frame))
    return frame


def core_once(frame: pd.DataFrame) -> pd.DataFrame:
    while True:
        n_before = len(frame)
        for column in ("user_id", "item_id"):
            counts = frame.groupby(column)["timestamp"].transform("size")
            frame = frame[counts >= K_CORE]
        if len(frame) == n_before:
            return frame
        frame = drop_consecutive_repeats(frame)


def core_tuned(frame: pd.DataFrame) -> pd.DataFrame:
    while True:
        n_before = len(frame)
        for column in ("user_id", "item_id"):
            counts = frame[column].map(frame[column].value_counts(sort=False))
            frame = frame[counts >= K_CORE]
        if len(frame) == n_before:
            return frame
        frame = drop_consecutive_repeats(frame)


def cut_stepwise(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Pool and evaluation sequences at the time quantile."""
    frame = in_order(frame)
    threshold = frame["timestamp"].quantile(QUANTILE)
    times = frame.groupby("user_id")["timestamp"]
    second, last = times.nth(1), times.nth(-1)
    trains = frame.loc[second.index[second <= threshold], "user_id"]
    late = frame.loc[last.index[last > threshold], "user_id"]
    pool = frame[frame["user_id"].isin(trains) & (frame["timestamp"] <= threshold)]
    return pool, frame[frame["user_id"].isin(late)]


def cut_once(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Pool and evaluation sequences at the time quantile."""
    threshold = frame["timestamp"].quantile(QUANTILE)
    is_before = frame["timestamp"] <= threshold
    n_before = is_before.groupby(frame["user_id"]).transform("sum")
    last = frame.groupby("user_id")["timestamp"].transform("last")
    return frame[is_before & (n_before >= 2)], frame[last > threshold]


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
        return {"seconds": self.seconds, "peak_gib": peak, "pandas": pd.__version__}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
