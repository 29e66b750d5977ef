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

# Logits held at once, in numbers. On a CPU 2.6 million are enough tokens for efficient matrix
# products, and few enough to stay in the cache from one pass to the next. A GPU wants larger work.
_CHUNK_LOGITS = {"cpu": 2_600_000, "cuda": 64_000_000}
# Below this many tokens a product re-reads the item weights too often to be efficient, so a huge
# catalogue gets a larger buffer instead: 150,000 items need 73 MiB.
_MIN_CHUNK_TOKENS = 128
# oneDNN builds a kernel for each new shape of a product. Numbers of tokens are new at every step,
# and building took a third of the bfloat16 loss: chunks on a CPU get filled.
_CHUNK_MULTIPLE = 16
# From here on malloc always maps fresh pages (glibc's largest M_MMAP_THRESHOLD), and touching them
# takes longer than a product: one buffer is used for all chunks.
_MAPPED_BYTES = 32 * 2**20
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
        chunk_tokens: tokens whose logits are held at once (a CPU may round it up to a multiple of
            16); the default suits the catalogue. The result does not depend on it beyond rounding.

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
    """Split the tokens evenly into chunks of at most `_CHUNK_LOGITS`: a short last one is slow.

    (Filling them, on a CPU, makes the others up to 15 tokens longer and the last one shorter.)
    """
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
        factor_dtype = torch.bfloat16 if in_bfloat16 else dtype
        if _is_by_onednn(factor_dtype, hidden.device):
            chunk_tokens = _round_up(chunk_tokens, _CHUNK_MULTIPLE)
            filling = _round_up(n_tokens, _CHUNK_MULTIPLE) - n_tokens
            operands[0] = F.pad(operands[0], (0, 0, 0, filling))
            scales = F.pad(scales, (0, 0, 0, filling))  # 0: no part of loss or gradients
            target = F.pad(target, (0, filling), value=1)
        # Under torch.no_grad() needs_input_grad still says what the inputs ask for.
        gradients = [
            torch.zeros_like(t) if needed and grad_enabled else None
            for t, needed in zip(operands, ctx.needs_input_grad, strict=False)
        ]
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
    items = _whole_lines(weight[1:], factor_dtype)
    n_items = len(weight) - 1
    logit_dtype = hidden.dtype if hidden.is_cuda else factor_dtype
    losses = hidden.new_empty(len(hidden), 1)
    tokens = torch.arange(min(chunk_tokens, len(hidden)), device=hidden.device).unsqueeze(1)
    buffer = None
    if not hidden.is_cuda:
        _have_malloc_keep_memory()
        if len(tokens) * len(items) * logit_dtype.itemsize >= _MAPPED_BYTES:
            buffer = hidden.new_empty(len(tokens), len(items), dtype=logit_dtype)
    for start in range(0, len(hidden), chunk_tokens):
        rows = slice(start, start + chunk_tokens)
        y = label[rows]
        at_target = (tokens[: len(y)], y)
        # One matrix throughout: logits, then 2**logits, then total * (softmax - one_hot). All of
        # it is contiguous, which some operations would make a part of it by copying.
        room = None if buffer is None else buffer[: len(y)]
        padded = _matmul(states_base_2[rows], items.T, logit_dtype, out=room)
        logits, padding = padded[:, :n_items], padded[:, n_items:]
        if shift:
            logits -= logits.amax(1, keepdim=True)
            # Clamped later than read: the loss of a hopeless target is as large as it is.
            target_logit = padded[at_target].to(hidden.dtype)
            logits.clamp_(min=_NEGLIGIBLE_LOGIT_BASE_2)
        padded.exp2_()
        padding.zero_()
        total = _row_sums(padded, hidden.dtype)
        if not shift:
            # As rounded as the total that holds it, or the loss could be negative.
            target_logit = padded[at_target].to(hidden.dtype).log2()
        losses[rows] = total.log2() - target_logit

        if grad_hidden is grad_weight is None:
            continue
        # Dividing by the total here, on vectors, saves a pass over the chunk.
        padded[at_target] -= total
        errors = padded.to(factor_dtype)
        factor = scales[rows] / total
        if grad_hidden is not None:
            grad_hidden[rows] = _matmul(errors, items, hidden.dtype) * factor
        if grad_weight is not None:
            states = (hidden[rows] * factor).to(factor_dtype)
            _add_matmul(grad_weight[1:], errors[:, :n_items].T, states)
        # The next chunk's logits can take this one's memory, which is in the cache.
        del padded, logits, padding, errors
    return (losses * scales).sum() * _LN_2


def _row_sums(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """(n_rows, 1). `sum(dtype=...)` of bfloat16 on a CPU converts all of the rows first."""
    if rows.dtype == dtype:
        return rows.sum(1, keepdim=True)
    pieces = rows.split(_CONVERTED_COLUMNS, dim=1)
    return torch.cat([piece.to(dtype).sum(1, keepdim=True) for piece in pieces], 1).sum(1, True)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _whole_lines(items: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy with rows of zeros added: a logit for each then fills an odd number of cache lines.

    The products run up to 10% faster: no load straddles two lines, and a column of logits does not
    fall into few cache sets.
    """
    per_line = 64 // dtype.itemsize
    n_lines = -(-len(items) // per_line) | 1
    return F.pad(items.to(dtype), (0, 0, 0, n_lines * per_line - len(items)))


def _logits_are_small(hidden: Tensor, items: Tensor) -> bool:
    """Whether exp(logit) is safe as it is, so that two passes over every chunk can be saved.

    |h · w| <= max |h| max |w| (Cauchy-Schwarz). A NaN is not small. Not asked on a GPU, which
    would have to be waited for.
    """
    if hidden.is_cuda or len(hidden) == 0:
        return False
    return bool(hidden.norm(dim=1).max() * items.norm(dim=1).max() <= _SAFE_LOGIT)


def _matmul(a: Tensor, b: Tensor, dtype: torch.dtype, *, out: Tensor | None = None) -> Tensor:
    """Products of bfloat16 sum in float32 on every device; a CPU returns them as bfloat16 only."""
    if a.dtype != dtype:
        return torch.mm(a, b, out_dtype=dtype) if a.is_cuda else (a @ b).to(dtype)
    if dtype == torch.float32 and out is None and _is_by_onednn(dtype, a.device):
        return torch.ops.mkldnn._linear_pointwise(a, b.T, None, "none", [], "")
    return torch.mm(a, b, out=out)


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


def _is_by_onednn(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN multiplies matrices of this type here.

    torch leaves float32 products to MKL; oneDNN's are there through the operator that torch's
    compiler uses. On Zen 4 (AVX-512) it took 5% less time for the logits and 20% less for the
    gradient of the hidden states, and less still where others used the machine, too. For that of
    the weights it was no faster, and cannot add to what is there.
    """
    if device.type != "cpu" or dtype == torch.float64:
        return False
    return dtype == torch.bfloat16 or (torch.backends.mkldnn.enabled and _onednn_suits_float32())


@cache
def _have_malloc_keep_memory() -> None:
    """Keep the memory of one chunk's logits for the next: fresh pages cost a fifth of the loss.

    glibc maps a large piece of memory anew each time, until a freed one has shown it that such
    sizes come and go. It then keeps them, and up to twice as much. This one is never touched, so
    it takes no memory itself.
    """
    torch.empty(_MAPPED_BYTES - 2**16, dtype=torch.uint8, device="cpu")


@cache
def _onednn_suits_float32() -> bool:
    has_operator = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return has_operator and bool(torch.cpu.get_capabilities().get("avx512_f"))
