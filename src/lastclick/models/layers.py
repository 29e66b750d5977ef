"""Small layers for ragged batches whose stock versions are slow on a CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_RANDOM_VALUES = 2**16  # of the 16 random bits that decide about one element


class Dropout(nn.Module):
    """Dropout that spends 16 random bits on an element; on a CPU several times faster than torch's.

    The probability is rounded to a multiple of 2^-16 below 1, and what is kept is scaled by the
    rounded one: the expectation is exact but for the rounding of the scale to the type of the
    elements. Random bits come from torch's global generator.
    """

    def __init__(self, probability: float):
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.probability == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.probability)
        return x * self.factors(x)

    def factors(self, x: Tensor) -> Tensor:
        """What to multiply the elements of ``x`` with: 0, or the scale of what is kept."""
        n_dropped = min(round(self.probability * _RANDOM_VALUES), _RANDOM_VALUES - 1)
        bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        values = bits.view(torch.int16)[: x.numel()].view(x.shape)  # uniform in -2^15 … 2^15 - 1
        kept = torch.empty_like(x)
        torch.ge(values, n_dropped - _RANDOM_VALUES // 2, out=kept)
        return kept.mul_(_RANDOM_VALUES / (_RANDOM_VALUES - n_dropped))

    def extra_repr(self) -> str:
        return f"probability={self.probability}"


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return grad.index_select(0, inverse), None, None


class _GatherBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.n_rows = len(x)
        return x.index_select(0, inverse)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (inverse,) = ctx.saved_tensors
        unused_stay_zero = grad.new_zeros(ctx.n_rows, *grad.shape[1:])
        return unused_stay_zero.index_copy_(0, inverse, grad), None


def gather_rows(x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
    """``x[index]``, where ``x == x[index][inverse]``; its gradient is a gather too, not a sum.

    Only the rows ``inverse`` of the result may be used: what else ``index`` repeats is filling,
    and a gradient that reaches it is dropped.
    """
    return _Gather.apply(x, index, inverse)


def gather_rows_back(x: Tensor, inverse: Tensor) -> Tensor:
    """``x[inverse]`` for distinct rows ``inverse``; the gradient of all other rows is zero."""
    return _GatherBack.apply(x, inverse)
