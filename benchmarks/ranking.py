"""What ranking costs on top of the products it cannot do without.

The whole alpha grid of a Toys-sized run: 13 alphas x 10,811 users (validation and test) x 3
wanted items (target, last, second-last) on 11,924 items, with filter-seen, against the bare
``states @ item_vectors.T`` in chunks, and against sorting the scores. Alphas alternate between
the two, so that a busy machine slows both. Bar: at most 3 times the bare products.

    OMP_NUM_THREADS=2 python -m benchmarks.ranking
"""

import time
from collections.abc import Callable

import torch

from lastclick.ranking import SeenItems, ranks_of

N_ALPHAS, N_USERS, N_ITEMS, HIDDEN = 13, 10_811, 11_924, 64
SEEN_PER_USER = 9
SORTED_USERS = 1_024


def seconds(work: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def main() -> None:
    torch.set_num_threads(2)
    rng = torch.Generator().manual_seed(17)
    item_vectors = torch.randn(N_ITEMS + 1, HIDDEN, generator=rng)
    wanted = torch.randint(1, N_ITEMS + 1, (N_USERS, 3), generator=rng)
    seen = SeenItems.from_sequences(
        torch.randint(1, N_ITEMS + 1, (N_USERS * SEEN_PER_USER,), generator=rng),
        torch.arange(N_USERS + 1) * SEEN_PER_USER,
    )

    def products(states: torch.Tensor, rows: int = 512) -> None:
        scores = torch.empty(rows, N_ITEMS + 1)
        for chunk in states.split(rows):
            torch.mm(chunk, item_vectors.T, out=scores[: len(chunk)])

    def by_sorting(states: torch.Tensor) -> torch.Tensor:
        order = (states @ item_vectors.T).argsort(dim=1, descending=True, stable=True)
        return (order.unsqueeze(1) == wanted[: len(states)].unsqueeze(2)).nonzero()

    bare = ranked = 0.0
    for _ in range(N_ALPHAS):
        states = torch.randn(N_USERS, HIDDEN, generator=rng)
        bare += seconds(products, states)
        ranked += seconds(ranks_of, states, item_vectors, wanted, seen)
    share = N_ALPHAS * N_USERS / SORTED_USERS
    sorting = seconds(by_sorting, states[:SORTED_USERS]) * share
    print(f"bare products    {bare:7.2f} s")
    print(f"products + ranks {ranked:7.2f} s   {ranked / bare:.2f} x the products (bar: 3)")
    print(f"by sorting       {sorting:7.2f} s   {sorting / bare:.2f} x, from {SORTED_USERS} users")


if __name__ == "__main__":
    main()
