"""A copy of the repository with a small data set of its own, in which DVC can be run for real."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

ROOT = Path(__file__).resolve().parent.parent
DATASET = "toy"
SEED = 1

# Everything small; every kind of stage and both kinds of model are there.
CHANGES: dict[str, Any] = {
    "run.datasets": [DATASET],
    "run.models": ["gru4rec", "sasrec"],
    "run.attention_models": ["sasrec"],
    "run.seeds": [SEED],
    "train.batch_size": 32,
    "train.learning_rate": 0.01,
    "train.max_epochs": 4,
    "compute.threads": 1,
    "shuffle.seeds": [0, 1],
    "scaling.alphas": [0.2, 1.0],
    "selection.epsilons": [0.0, 0.5],
    "evaluation.bootstrap_draws": 50,
    "plots.formats": ["png"],
    "plots.dpi": 40,
    "models.gru4rec.hidden_size": 8,
    "models.sasrec.hidden_size": 8,
    "models.sasrec.inner_size": 8,
    f"datasets.{DATASET}": {
        "sources": [],
        "raw": {
            "kind": "delimited",
            "separator": ",",
            "user": "user_id",
            "item": "item_id",
            "time": "timestamp",
            "time_format": "s",
        },
        "filter_seen": True,
    },
}


def interactions(n_users: int = 120, n_items: int = 30) -> pl.DataFrame:
    """Users who walk around a ring of items, each starting at a time of their own."""
    rng = np.random.default_rng(3)
    rows = []
    for user in range(n_users):
        length = int(rng.integers(6, 15))
        start, first = int(rng.integers(n_items)), int(rng.integers(100_000))
        steps = np.cumsum(rng.integers(1, 3, size=length))
        times = first + np.cumsum(rng.integers(1, 2_000, size=length))
        rows += [
            (f"u{user}", f"i{(start + step) % n_items}", 1_600_000_000 + int(time))
            for step, time in zip(steps, times, strict=True)
        ]
    rows = [rows[index] for index in rng.permutation(len(rows))]
    return pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")


class Project:
    """The copy in ``folder``: a git repository under DVC, with the toy data set dropped in."""

    def __init__(self, folder: Path):
        self.folder = folder

    @classmethod
    def create(cls, folder: Path) -> Project:
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout
        for name in filter(None, names.decode().split("\0")):
            source = ROOT / name
            # Results of the repository's own run are not the copy's.
            if (
                source.is_file()
                and name != "dvc.lock"
                and not name.startswith(("metrics/", "plots/"))
            ):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, folder / name)
        project = cls(folder)
        project.set_params(CHANGES)
        incoming = folder / "data" / "incoming"
        incoming.mkdir(parents=True)
        interactions().write_csv(incoming / f"{DATASET}.csv")
        project.run("git", "init", "--quiet", "--initial-branch", "main")
        project.commit("toy project")
        return project

    @classmethod
    def reproduced(cls, folder: Path) -> Project:
        """A copy after an undisturbed `dvc repro`."""
        project = cls.create(folder)
        project.run("dvc", "repro", "--quiet")
        project.commit("first run")
        return project

    @property
    def environment(self) -> dict[str, str]:
        binaries = Path(sys.executable).parent
        return {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "DVC_NO_ANALYTICS": "1",
            **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
               for what, value in (("NAME", "toy"), ("EMAIL", "toy@example.org"))},
        }  # fmt: skip

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in the project; its output is shown where it fails."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
        return done

    def start(self, *command: str) -> subprocess.Popen:
        """Start a command in a process group of its own, so that a test can kill all of it."""
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def commit(self, message: str) -> None:
        self.run("git", "add", "--all")
        self.run("git", "commit", "--quiet", "--allow-empty", "--message", message)

    def set_params(self, changes: dict[str, Any]) -> None:
        """Set keys of params.yaml, named by their path."""
        path = self.folder / "params.yaml"
        content = yaml.safe_load(path.read_text())
        for key, value in changes.items():
            *parents, last = key.split(".")
            section = content
            for parent in parents:
                section = section[parent]
            section[last] = value
        path.write_text(yaml.safe_dump(content, sort_keys=False))

    def invalidated(self) -> tuple[set[str], set[str]]:
        """Stages that DVC would run now, and those that depend on them."""
        script = """
import json
import networkx
from dvc.repo import Repo
repo = Repo()
with repo.lock:
    changed = [stage for stage in repo.index.stages if stage.changed()]
graph = repo.index.graph.reverse()
after = {stage for start in changed for stage in networkx.descendants(graph, start)}
names = [[stage.addressing for stage in found] for found in (changed, after - set(changed))]
print(json.dumps(names))
"""
        done = self.run("python", "-c", script)
        changed, after = json.loads(done.stdout.splitlines()[-1])
        return set(changed), set(after)
