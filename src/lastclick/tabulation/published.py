"""The printed numbers that a run is set beside, read from ``published.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Generic, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict

Values = TypeVar("Values")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(_Strict):
    """A paper."""

    authors: str
    title: str
    venue: str
    arxiv: str


class Block(_Strict, Generic[Values]):
    """Printed numbers with the paper, the place in it and the settings they were measured under."""

    source: str
    location: str
    setting: str
    values: Values


class Range(_Strict):
    """Smallest and largest printed value over some data sets."""

    lowest: float
    highest: float
    data_sets: tuple[str, ...]


class PeakAlpha(_Strict):
    """The alphas between which the printed recovery curves peak."""

    lowest: float
    highest: float


class Recovery(_Strict):
    """What the paper says of its recovery curves."""

    source: str
    location: str
    setting: str
    peak_alpha: PeakAlpha
    peak_above: dict[str, float]


class Published(_Strict):
    """All of ``published.yaml``; data sets and models are named as in params.yaml."""

    sources: dict[str, Source]
    data_sets: Block[dict[str, dict[str, float]]]
    splits: Block[dict[str, dict[str, float]]]
    mixing_ratio: Block[dict[str, dict[str, dict[str, float]]]]
    mixing_ratio_ranges: Block[dict[str, Range]]
    mixing_ratio_by_layer: Block[dict[str, dict[int, dict[str, float]]]]
    non_final_hits: Block[dict[str, dict[str, float]]]
    recovery: Recovery
    accuracy: Block[dict[str, dict[str, tuple[dict[str, float], ...]]]]

    def best_accuracy(self, dataset: str, model: str) -> dict[str, float]:
        """The printed row with the highest NDCG@10 over its dropouts; empty without one."""
        rows = look_up(self.accuracy.values, dataset, model) or ()
        return max(rows, key=lambda row: row["NDCG@10"], default={})


def load_published() -> Published:
    """Read the package's ``published.yaml``."""
    text = files("lastclick").joinpath("published.yaml").read_text(encoding="utf-8")
    return Published.model_validate(yaml.safe_load(text))


def look_up(values: Mapping[Any, Any] | None, *keys: Any) -> Any:
    """``values[key][key]…``, or None where one of the keys, or ``values`` itself, is absent."""
    found: Any = values
    for key in keys:
        if found is None:
            return None
        found = found.get(key)
    return found
