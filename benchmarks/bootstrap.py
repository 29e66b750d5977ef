"""What bootstrap intervals cost: 2,000 draws of 281,000 users (all of Steam) for 20 metrics.

Compared with taking the drawn users' rows out of the table for every draw, timed over fewer draws.
Bars: seconds, not minutes, and a peak memory far below draws x users.

    OMP_NUM_THREADS=2 python -m benchmarks.bootstrap
"""

import resource
import time

import numpy as np

from lastclick.bootstrap import ratio_intervals

DRAWS, N_USERS, N_METRICS = 2_000, 281_000, 20
GATHERED_DRAWS = 20


def peak_memory() -> int:
    """Bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def gathered(values: np.ndarray, draws: int) -> np.ndarray:
    rng = np.random.default_rng(17)
    means = [values[rng.integers(0, len(values), len(values))].mean(axis=0) for _ in range(draws)]
    return np.quantile(means, (0.025, 0.975), axis=0)


def main() -> None:
    values = np.random.default_rng(17).random((1, N_USERS, N_METRICS)).round(1)
    weights = np.ones_like(values)
    before, start = peak_memory(), time.perf_counter()
    ratio_intervals(values, weights, draws=DRAWS, seed=17, confidence=0.95)
    ours, memory = time.perf_counter() - start, peak_memory() - before
    start = time.perf_counter()
    gathered(values[0], GATHERED_DRAWS)
    naive = (time.perf_counter() - start) * DRAWS / GATHERED_DRAWS
    print(f"{DRAWS} draws of {N_USERS} users, {N_METRICS} metrics")
    print(f"shared counts and products {ours:7.1f} s, {memory / 2**20:.0f} MiB on top of the table")
    print(f"rows gathered by each draw {naive:7.1f} s, {naive / ours:.1f} x as long")
    print(f"draws x users at once      {DRAWS * N_USERS * 8 / 2**20:7.0f} MiB")


if __name__ == "__main__":
    main()
