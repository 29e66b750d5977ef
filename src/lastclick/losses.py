"""Cross-entropy over the whole catalogue, fused with the linear layer that makes its logits.

For token i with hidden state h_i, target y_i and item weights w_j (j = 1 … n_items)

    loss_i     = log sum_j exp(h_i · w_j) - h_i · w_{y_i}
    dloss/dh_i = sum_j (p_ij - [j = y_i]) w_j         p_ij = softmax over j
    dloss/dw_j = sum_i (p_ij - [j = y_i]) h_i

Everything that the gradients need is at hand once a token's logits are, so they are formed in the
forward pass, a chunk of tokens at a time, and the n_tokens x n_items logits never exist at once.
What remains is close to the three matrix products that no exact method can avoid.

Logits are computed to base 2, z = h · w / ln 2, since 2**z is three times as fast as exp.
"""

import math
from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Reduction = Literal["mean", "sum"]
Precision = Literal["fp32", "bf16"]

# Logits held at once, in numbers. On a CPU 4.5 million are enough tokens for efficient matrix
# products, and few enough to stay in the cache from one pass to the next. A GPU wants larger work.
_CHUNK_LOGITS = {"cpu": 4_500_000, "cuda": 64_000_000}
# Below this many tokens a product re-reads the item weights too often to be efficient, so a huge
# catalogue gets a larger buffer instead: 150,000 items need 73 MiB.
_MIN_CHUNK_TOKENS = 128
# oneDNN, which multiplies bfloat16 on a CPU, builds a kernel for each new shape of a product.
# Numbers of tokens are new at every step, and building took a third of the loss: chunks get filled.
_BF16_CHUNK_MULTIPLE = 16
# Columns that become float32 at once to be summed: a chunk's fit the cache.
_CONVERTED_COLUMNS = 2048
# Logits in ±40 need no shift: their exps, sums of them over any catalogue, and the products of
# these with the gradients' factors all stay normal float32 numbers.
_SAFE_LOGIT = 40.0
# 2**-72 beside a largest term of 1 is nothing, in float64 too. Far smaller ones would become
# denormal, in exp2 or in the products, and each of these then takes 10 to 100 times as long.
_NEGLIGIBLE_LOGIT_BASE_2 = -72.0
_LN_2 = math.log(2)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    reduction: Reduction = "mean",
    precision: Precision = "fp32",
    chunk_tokens: int | None = None,
) -> Tensor:
    """Equal `F.cross_entropy(hidden @ weight[1:].T, target - 1)`, faster and smaller.

    Row 0 of `weight` is padding: it is never part of the softmax, and its gradient is exactly
    zero, whatever its values are.

    Args:
        hidden: (n_tokens, hidden_size), the states that predict.
        weight: (n_items + 1, hidden_size), one row per item.
        target: (n_tokens,), integers in 1 … n_items. Their range is checked on a CPU only, as a
            GPU would have to be waited for.
        reduction: "mean" over the tokens, or their "sum".
        precision: "fp32", or "bf16": the matrix products are those of bfloat16 numbers, on a CPU
            rounded to bfloat16 as well; the sums inside them, softmax statistics and gradients are
            float32. Where there are no instructions for it (`effective_precision`), "fp32".
        chunk_tokens: tokens whose logits are held at once; the default suits the catalogue.
            The result does not depend on it beyond rounding.

    Returns:
        A scalar, float32 (float64 if an input is, at "fp32"). Its gradients are computed during
        this call, for the inputs that require them; with gradients disabled they are skipped.
        It can be differentiated once (create_graph=True raises NotImplementedError). A NaN in an
        input gives a NaN loss.

    Raises:
        ValueError: shapes, targets or options that do not fit, or the mean of no tokens.
    """
    _check_inputs(hidden, weight, target, reduction, precision)
    n_tokens, n_items = len(hidden), len(weight) - 1
    if chunk_tokens is None:
        chunk_tokens = default_chunk_tokens(n_tokens, n_items, hidden.device)
    elif chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, not {chunk_tokens}")
    return _LinearCrossEntropy.apply(
        hidden,
        weight,
        target,
        1.0 if reduction == "sum" else 1.0 / n_tokens,
        precision,
        chunk_tokens,
        torch.is_grad_enabled(),
    )


def _check_inputs(
    hidden: Tensor, weight: Tensor, target: Tensor, reduction: str, precision: str
) -> None:
    if reduction not in ("mean", "sum"):
        raise ValueError(f'reduction must be "mean" or "sum", not {reduction!r}')
    if precision not in ("fp32", "bf16"):
        raise ValueError(f'precision must be "fp32" or "bf16", not {precision!r}')
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            "hidden must be (n_tokens, hidden_size) and weight (n_items + 1, hidden_size), "
            f"not {tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    if len(weight) < 2:
        raise ValueError("weight has no row besides the padding row 0: the catalogue is empty")
    if target.shape != hidden.shape[:1]:
        raise ValueError(f"target must be ({len(hidden)},), like hidden, not {tuple(target.shape)}")
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise ValueError(f"target must hold integers, not {target.dtype}")
    if len(target) == 0:
        if reduction == "mean":
            raise ValueError("the mean loss of no tokens is undefined: the batch has no target")
        return
    if target.is_cuda:
        return
    lowest, highest = torch.stack(torch.aminmax(target)).tolist()
    if lowest < 1 or highest >= len(weight):
        raise ValueError(
            f"target must lie in 1 … {len(weight) - 1} (n_items; 0 is padding), "
            f"not in {lowest} … {highest}"
        )


def default_chunk_tokens(n_tokens: int, n_items: int, device: torch.device) -> int:
    """Split the tokens evenly into chunks that fit the buffer: a short last chunk is slow."""
    at_most = max(_MIN_CHUNK_TOKENS, _CHUNK_LOGITS[device.type] // n_items)
    n_chunks = max(1, -(-n_tokens // at_most))
    return max(1, -(-n_tokens // n_chunks))


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        target: Tensor,
        scale: float,
        precision: Precision,
        chunk_tokens: int,
        grad_enabled: bool,
    ) -> Tensor:
        inputs = (hidden, weight)
        dtype = torch.float32
        if precision == "fp32" and torch.float64 in (hidden.dtype, weight.dtype):
            dtype = torch.float64
        in_bfloat16 = effective_precision(precision, hidden.device) == "bf16"
        n_tokens = len(hidden)
        scales = hidden.new_full((n_tokens, 1), scale, dtype=dtype)
        operands = [t.to(dtype) for t in inputs]
        if in_bfloat16 and not hidden.is_cuda:
            chunk_tokens = _round_up(chunk_tokens, _BF16_CHUNK_MULTIPLE)
            filling = _round_up(n_tokens, _BF16_CHUNK_MULTIPLE) - n_tokens
            operands[0] = F.pad(operands[0], (0, 0, 0, filling))
            scales = F.pad(scales, (0, 0, 0, filling))  # 0: no part of loss or gradients
            target = F.pad(target, (0, filling), value=1)
        # Under torch.no_grad() needs_input_grad still says what the inputs ask for.
        gradients = [
            torch.zeros_like(t) if needed and grad_enabled else None
            for t, needed in zip(operands, ctx.needs_input_grad, strict=False)
        ]
        factor_dtype = torch.bfloat16 if in_bfloat16 else dtype
        # Autocast would choose the products' type in our place.
        with torch.autocast(hidden.device.type, enabled=False):
            loss = _accumulate(*operands, target, scales, factor_dtype, chunk_tokens, *gradients)
        ctx.save_for_backward(
            *(
                None if gradient is None else gradient[: len(t)].to(t.dtype)
                for t, gradient in zip(inputs, gradients, strict=True)
            )
        )
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            # The gradients below are constants to autograd: a second derivative would be silently
            # wrong, which once_differentiable notices only if grad_loss requires a gradient.
            raise NotImplementedError("linear_cross_entropy cannot be differentiated twice")
        scaled = (g if g is None else g * grad_loss.to(g.dtype) for g in ctx.saved_tensors)
        return *scaled, None, None, None, None, None


def _accumulate(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    scales: Tensor,
    factor_dtype: torch.dtype,
    chunk_tokens: int,
    grad_hidden: Tensor | None,
    grad_weight: Tensor | None,
) -> Tensor:
    """Return the sum of every token's loss times its scale, `scales (n_tokens, 1)`.

    Its gradients are added to the given zeros (None: skip). The factors of the matrix products
    are rounded to `factor_dtype`.
    """
    label = (target.long() - 1).unsqueeze(1)
    shift = not _logits_are_small(hidden, weight[1:])
    states_base_2 = (hidden / _LN_2).to(factor_dtype)
    items = weight[1:].to(factor_dtype)
    logit_dtype = hidden.dtype if hidden.is_cuda else factor_dtype
    losses = hidden.new_empty(len(hidden), 1)
    tokens = torch.arange(min(chunk_tokens, len(hidden)), device=hidden.device).unsqueeze(1)
    buffer = aligned_rows(min(chunk_tokens, len(hidden)), len(items), logit_dtype, hidden.device)
    for start in range(0, len(hidden), chunk_tokens):
        rows = slice(start, start + chunk_tokens)
        y = label[rows]
        # One buffer throughout: logits, then 2**logits, then total * (softmax - one_hot).
        padded = buffer[: len(y)]  # contiguous, which some operations would make it by copying
        logits, padding = padded[:, : len(items)], padded[:, len(items) :]
        at_target = (tokens[: len(y)], y)
        _matmul(states_base_2[rows], items.T, out=logits)
        if shift:
            logits -= logits.amax(1, keepdim=True)
            # Clamped later than read: the loss of a hopeless target is as large as it is.
            target_logit = padded[at_target].to(hidden.dtype)
            logits.clamp_(min=_NEGLIGIBLE_LOGIT_BASE_2)
        padding.zero_()
        padded.exp2_()
        exps = logits
        total = _row_sums(exps, hidden.dtype)
        if not shift:
            # As rounded as the total that holds it, or the loss could be negative.
            target_logit = padded[at_target].to(hidden.dtype).log2()
        losses[rows] = total.log2() - target_logit

        if grad_hidden is grad_weight is None:
            continue
        # Dividing by the total here, on vectors, saves a pass over the chunk.
        padded[at_target] -= total
        errors = exps.to(factor_dtype)
        factor = scales[rows] / total
        if grad_hidden is not None:
            _matmul(errors, items, out=grad_hidden[rows])
            grad_hidden[rows] *= factor
        if grad_weight is not None:
            _add_matmul(grad_weight[1:], errors.T, (hidden[rows] * factor).to(factor_dtype))
    return (losses * scales).sum() * _LN_2


def _row_sums(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """(n_rows, 1). `sum(dtype=...)` of bfloat16 on a CPU converts all of the rows first."""
    if rows.dtype == dtype:
        return rows.sum(1, keepdim=True)
    pieces = rows.split(_CONVERTED_COLUMNS, dim=1)
    return torch.cat([piece.to(dtype).sum(1, keepdim=True) for piece in pieces], 1).sum(1, True)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def aligned_rows(n_rows: int, n_columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Room for (n_rows, n_columns), each row padded to an odd number of cache lines.

    The products run up to 10% faster than on packed rows: no load straddles two lines, and a
    column does not fall into few cache sets.
    """
    per_line = 64 // dtype.itemsize
    n_lines = -(-n_columns // per_line) | 1
    return torch.empty(n_rows, n_lines * per_line, dtype=dtype, device=device)


def _logits_are_small(hidden: Tensor, items: Tensor) -> bool:
    """Whether exp(logit) is safe as it is, so that two passes over every chunk can be saved.

    |h · w| <= max |h| max |w| (Cauchy-Schwarz). A NaN is not small. Not asked on a GPU, which
    would have to be waited for.
    """
    if hidden.is_cuda or len(hidden) == 0:
        return False
    return bool(hidden.norm(dim=1).max() * items.norm(dim=1).max() <= _SAFE_LOGIT)


def _matmul(a: Tensor, b: Tensor, *, out: Tensor) -> None:
    """Products of bfloat16 sum in float32 on every device; a CPU returns them as bfloat16 only."""
    if a.dtype == out.dtype:
        torch.mm(a, b, out=out)
    elif a.is_cuda:
        torch.mm(a, b, out_dtype=out.dtype, out=out)
    else:
        out.copy_(a @ b)


def _add_matmul(accumulator: Tensor, a: Tensor, b: Tensor) -> None:
    if a.dtype == accumulator.dtype:
        accumulator.addmm_(a, b)
    elif a.is_cuda:
        accumulator += torch.mm(a, b, out_dtype=accumulator.dtype)
    else:
        accumulator += a @ b


def effective_precision(precision: Precision, device: torch.device) -> Precision:
    """What the loss computes on the device where `precision` is asked for."""
    if precision == "fp32":
        return "fp32"
    if device.type == "cuda":
        able = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        able = cpu_multiplies_bfloat16()
    return "bf16" if able else "fp32"


@cache
def cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for it: without them torch takes many times as long."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))
