"""How long the fused loss takes against torch's cross-entropy and against its bare products.

    python -m benchmarks.loss --tokens 1800 --items 12102

One step is the loss and its gradients with respect to hidden states and item weights:

- unfused:   F.cross_entropy(hidden @ weight.T, target) and its backward pass;
- products:  only the three float32 products that no exact method can avoid (logits, gradient of
             the hidden states, gradient of the weights), by torch.mm, in about as large chunks
             and on the same padded rows as the fused loss's;
- fused:     linear_cross_entropy and its backward pass, fp32 and bf16.

In each repetition every contestant does two steps, and the second counts: the first finds the
memory allocator as another contestant left it. A ratio is the median over the repetitions of the
ratio within each, so that a machine that slows down slows both sides of it. Errors are relative to
the largest value of the same quantity computed in float64.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lastclick import losses
from lastclick.losses import linear_cross_entropy


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=1800)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--items", type=int, default=12102, help="rows of weight, with padding")
    parser.add_argument("--weight-size", type=float, default=0.1, help="standard deviation")
    parser.add_argument("--chunk-tokens", type=int, default=None, help="default: the loss's own")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--seed", type=int, default=17)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    rng = torch.Generator().manual_seed(arguments.seed)
    hidden = torch.randn(arguments.tokens, arguments.hidden, generator=rng)
    weight = torch.randn(arguments.items, arguments.hidden, generator=rng) * arguments.weight_size
    weight[0] = 0
    target = torch.randint(1, arguments.items, (arguments.tokens,), generator=rng)
    chunk_tokens = arguments.chunk_tokens or losses.default_chunk_tokens(
        arguments.tokens, arguments.items - 1, hidden.device
    )
    print(
        f"{arguments.tokens} tokens x {arguments.hidden} x {arguments.items} rows, chunks of "
        f"{chunk_tokens} tokens, {arguments.threads} threads"
    )

    def fused(precision: losses.Precision) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        return lambda hidden, weight, target: linear_cross_entropy(
            hidden, weight, target, precision=precision, chunk_tokens=chunk_tokens
        )

    contestants = {"unfused": unfused, "fused fp32": fused("fp32"), "fused bf16": fused("bf16")}
    steps: dict[str, Callable[[], object]] = {
        name: lambda loss=loss: loss_and_gradients(loss, hidden, weight, target)
        for name, loss in contestants.items()
    }
    items = losses._whole_lines(weight[1:], torch.float32)
    steps["products"] = lambda: products(hidden, items, chunk_tokens)
    seconds = time_in_turns(steps, arguments.repetitions)

    for name, times in seconds.items():
        print(f"{name:11} {1e3 * statistics.median(times):8.1f} ms (least {1e3 * min(times):.1f})")
    for name in ("fused fp32", "fused bf16"):
        speedup = median_ratio(seconds["unfused"], seconds[name])
        overhead = median_ratio(seconds[name], seconds["products"])
        print(f"{name}: {speedup:.2f} x as fast as unfused; takes {overhead:.2f} x the products")

    exact = loss_and_gradients(row_0_left_out, hidden.double(), weight.double(), target)
    for name in ("fused fp32", "fused bf16"):
        found = loss_and_gradients(contestants[name], hidden, weight, target)
        errors = [relative_error(a, b) for a, b in zip(found, exact, strict=True)]
        print("{}: error of loss {:.1e}, hidden {:.1e}, weight {:.1e}".format(name, *errors))


def unfused(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(hidden @ weight.T, target)


def row_0_left_out(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(hidden @ weight[1:].T, target - 1)


def loss_and_gradients(
    loss: Callable[[Tensor, Tensor, Tensor], Tensor], hidden: Tensor, weight: Tensor, target: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    hidden, weight = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
    value = loss(hidden, weight, target)
    value.backward()
    return value.detach(), hidden.grad, weight.grad


def products(hidden: Tensor, items: Tensor, chunk_tokens: int) -> None:
    grad_hidden, grad_items = torch.empty_like(hidden), torch.zeros_like(items)
    buffer = torch.empty(min(chunk_tokens, len(hidden)), len(items))
    for start in range(0, len(hidden), chunk_tokens):
        rows = slice(start, start + chunk_tokens)
        states = hidden[rows]
        logits = buffer[: len(states)]
        torch.mm(states, items.T, out=logits)
        torch.mm(logits, items, out=grad_hidden[rows])
        grad_items.addmm_(logits.T, states)


def time_in_turns(
    steps: dict[str, Callable[[], object]], repetitions: int
) -> dict[str, list[float]]:
    """Seconds of each step, by name."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repetitions):
        for name, step in steps.items():
            step()
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def median_ratio(numerators: list[float], denominators: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).abs().max() / exact.abs().max())


if __name__ == "__main__":
    main()
