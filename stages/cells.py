"""Where the files of one cell (data set, model, seed) lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cell:
    """One trained model: which data set, which model, which seed."""

    dataset: str
    model: str
    seed: int

    @property
    def splits(self) -> Path:
        return Path("data/splits") / self.dataset

    @property
    def trained(self) -> Path:
        return Path("models") / self.dataset / self.model / str(self.seed)

    def scores(self, name: str) -> Path:
        return Path("scores") / self.dataset / self.model / str(self.seed) / name

    def results(self, diagnostic: str, suffix: str) -> Path:
        return Path("results") / diagnostic / self.dataset / self.model / f"{self.seed}{suffix}"

    @property
    def label(self) -> str:
        return f"{self.dataset} {self.model} seed {self.seed}"
