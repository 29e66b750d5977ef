"""Bootstrap intervals over users.

Users are drawn with replacement (Efron & Tibshirani, "An Introduction to the Bootstrap", 1993);
the interval is the percentile interval of the draws. All metrics share the same draws, so that a
difference taken per user is a paired comparison.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Draw counts held at once, in elements: 2,000 draws of 281,000 users would be 4.5 GB at a time.
_CHUNK_ELEMENTS = 2**24


@dataclass(frozen=True)
class Interval:
    """A value and its bootstrap interval."""

    value: float
    low: float
    high: float


def ratio_intervals(
    numerator: np.ndarray, weight: np.ndarray, *, draws: int, seed: int, confidence: float
) -> list[Interval | None]:
    """Intervals of ``mean over seeds of sum(numerator) / sum(weight)``, one per metric.

    ``numerator`` and ``weight``: ``(n_seeds, n_users, n_metrics)``; the same users are drawn for
    every seed and metric. None for a metric whose weight a draw can lose altogether, so that no
    interval exists.
    """
    n_seeds, n_users, n_metrics = numerator.shape
    rng = np.random.default_rng(seed)
    sums = np.concatenate((numerator, weight), axis=2)  # (n_seeds, n_users, 2 * n_metrics)
    drawn = np.empty((n_seeds, draws, 2 * n_metrics))
    step = max(1, _CHUNK_ELEMENTS // n_users)
    for start in range(0, draws, step):
        size = min(step, draws - start)
        counts = np.stack(
            [np.bincount(rng.integers(0, n_users, n_users), minlength=n_users) for _ in range(size)]
        ).astype(np.float64)
        for of_seed, into in zip(sums, drawn, strict=True):
            into[start : start + size] = counts @ of_seed
    totals = sums.sum(axis=1)
    tail = (1 - confidence) / 2
    intervals: list[Interval | None] = []
    for metric in range(n_metrics):
        weights = drawn[:, :, n_metrics + metric]
        if (weights <= 0).any() or (totals[:, n_metrics + metric] <= 0).any():
            intervals.append(None)
            continue
        value = float((totals[:, metric] / totals[:, n_metrics + metric]).mean())
        ratios = (drawn[:, :, metric] / weights).mean(axis=0)
        low, high = np.quantile(ratios, (tail, 1 - tail))
        intervals.append(Interval(value, float(low), float(high)))
    return intervals
