"""The fused loss against torch's own cross-entropy in float64. Every dimension is a prime."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lastclick import losses
from lastclick.losses import linear_cross_entropy

N_TOKENS, HIDDEN_SIZE, N_ITEMS = 37, 7, 101

# Cauchy-Schwarz tells that logits of the first size need no shift by their maximum, and cannot
# tell it of the second: the two ways through the code.
SIZES = pytest.mark.parametrize("size", [0.3, 5.0])


def make_inputs(size: float = 0.3, dtype: torch.dtype = torch.float64, seed: int = 17):
    """hidden, weight and target; logits are about ``size * sqrt(HIDDEN_SIZE)``."""
    rng = torch.Generator().manual_seed(seed)
    hidden = torch.randn(N_TOKENS, HIDDEN_SIZE, generator=rng, dtype=torch.float64)
    weight = torch.randn(N_ITEMS + 1, HIDDEN_SIZE, generator=rng, dtype=torch.float64) * size
    target = torch.randint(1, N_ITEMS + 1, (N_TOKENS,), generator=rng)
    hidden, weight = (t.to(dtype).requires_grad_() for t in (hidden, weight))
    return hidden, weight, target


def reference(hidden, weight, target, reduction="mean") -> Tensor:
    """Row 0 left out by hand, everything else by torch."""
    logits = hidden.double() @ weight.double()[1:].T
    return F.cross_entropy(logits, target - 1, reduction=reduction)


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Within ``tolerance`` of the largest value: a difference of terms may be small itself."""
    largest = expected.abs().max()
    assert largest > 0
    assert (actual.double() - expected).abs().max() <= tolerance * largest


@SIZES
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)], ids=["f64", "f32"]
)
def test_value_and_gradients_equal_the_reference(size, reduction, dtype, tolerance):
    hidden, weight, target = make_inputs(size, dtype)
    inputs = (hidden, weight)
    loss = linear_cross_entropy(hidden, weight, target, reduction=reduction)
    expected = reference(hidden, weight, target, reduction)
    assert loss.dtype == dtype
    assert_close(loss, expected, tolerance)
    for actual, right in zip(
        torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs), strict=True
    ):
        assert actual.dtype == dtype
        assert_close(actual, right.double(), tolerance)


@SIZES
def test_gradients_equal_finite_differences(size):
    hidden, weight, target = make_inputs(size)
    few = target[:5]

    def loss(hidden, weight):
        return linear_cross_entropy(hidden, weight, few, chunk_tokens=3)

    inputs = (hidden[:5].detach().requires_grad_(), weight)
    assert torch.autograd.gradcheck(loss, inputs)


def test_a_loss_worked_out_by_hand():
    # Logits 0 and log 3: probabilities 1/4 and 3/4. The target is the first item.
    hidden = torch.tensor([[1.0]], requires_grad=True)
    weight = torch.tensor([[1000.0], [0.0], [math.log(3)]], requires_grad=True)
    loss = linear_cross_entropy(hidden, weight, torch.tensor([1]))
    loss.backward()
    torch.testing.assert_close(loss.item(), math.log(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(weight.grad, torch.tensor([[0.0], [-0.75], [0.75]]))
    torch.testing.assert_close(hidden.grad, torch.tensor([[0.75 * math.log(3)]]))


@SIZES
@pytest.mark.parametrize("chunk_tokens", [1, 2, 11, N_TOKENS - 1, N_TOKENS, 1009])
def test_the_chunk_size_does_not_matter(size, chunk_tokens):
    hidden, weight, target = make_inputs(size)
    inputs = (hidden, weight)
    whole = linear_cross_entropy(hidden, weight, target)
    loss = linear_cross_entropy(hidden, weight, target, chunk_tokens=chunk_tokens)
    torch.testing.assert_close(loss, whole, atol=0, rtol=1e-13)
    torch.testing.assert_close(
        torch.autograd.grad(loss, inputs), torch.autograd.grad(whole, inputs), atol=1e-14, rtol=0
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("value", [1000.0, math.nan])
def test_row_0_is_neither_read_nor_trained(precision, value):
    hidden, weight, target = make_inputs(dtype=torch.float32)
    expected = linear_cross_entropy(hidden, weight, target, precision=precision)
    expected_grads = torch.autograd.grad(expected, (hidden, weight))
    with torch.no_grad():
        weight[0] = value
    loss = linear_cross_entropy(hidden, weight, target, precision=precision)
    grads = torch.autograd.grad(loss, (hidden, weight))
    assert torch.equal(loss, expected)
    assert all(map(torch.equal, grads, expected_grads))
    assert torch.equal(grads[1][0], torch.zeros(HIDDEN_SIZE))


@SIZES
def test_tied_logits_share_the_probability(size):
    hidden = torch.full((N_TOKENS, HIDDEN_SIZE), 3.0)
    weight = torch.full((N_ITEMS + 1, HIDDEN_SIZE), size)
    target = torch.arange(1, N_TOKENS + 1)
    loss = linear_cross_entropy(hidden, weight, target)
    torch.testing.assert_close(loss.item(), math.log(N_ITEMS), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-6), ("bf16", 0.01)])
@pytest.mark.parametrize("largest", [1e4, -1e4])
def test_huge_logits_neither_overflow_nor_vanish(precision, tolerance, largest):
    hidden = torch.full((3, 1), 1.0, requires_grad=True)
    weight = torch.full((N_ITEMS + 1, 1), largest)
    weight[5] = largest - 8192
    weight.requires_grad_()
    loss = linear_cross_entropy(hidden, weight, torch.tensor([5, 1, 2]), precision=precision)
    loss.backward()
    expected = reference(hidden, weight, torch.tensor([5, 1, 2]))
    assert_close(loss, expected, tolerance)
    for actual, right in zip(
        (hidden.grad, weight.grad), torch.autograd.grad(expected, (hidden, weight)), strict=True
    ):
        assert_close(actual, right.double(), max(tolerance, 1e-5))


@pytest.mark.parametrize("gap", [60.0, 85.0, 90.0, 1e4])
def test_far_logits_make_no_denormal_numbers(gap):
    # Arithmetic on them is 10 to 100 times slower. One item is ahead of all others by the gap.
    hidden = torch.full((2003, 1), 1e-4)
    weight = torch.full((N_ITEMS + 1, 1), -5000 * gap)
    weight[5] = 5000 * gap
    weight.requires_grad_()
    linear_cross_entropy(hidden, weight, torch.full((2003,), 5)).backward()
    sizes = weight.grad.abs()
    assert not ((sizes > 0) & (sizes < torch.finfo(torch.float32).tiny)).any()
    assert sizes.max() < 1e-20


@SIZES
def test_bf16_stays_close_and_returns_float32(size, monkeypatch):
    monkeypatch.setattr(losses, "_CONVERTED_COLUMNS", 32)  # fewer than there are items
    hidden, weight, target = make_inputs(size, torch.float32)
    inputs = (hidden, weight)
    loss = linear_cross_entropy(hidden, weight, target, precision="bf16")
    expected = reference(hidden, weight, target)
    # bfloat16 rounds an operand by at most 2**-9, and a logit by a few times that.
    assert loss.dtype == torch.float32
    assert_close(loss, expected, 0.01)
    for actual, right in zip(
        torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs), strict=True
    ):
        assert actual.dtype == torch.float32
        assert_close(actual, right.double(), 0.02 * max(1.0, size))


def test_bf16_accumulates_in_float32():
    # In bfloat16 a sum of ones stops at 256; here 2,003 tokens agree on one gradient.
    n_tokens = 2003
    hidden = torch.ones(n_tokens, HIDDEN_SIZE)
    weight = torch.zeros(3, HIDDEN_SIZE, requires_grad=True)
    target = torch.ones(n_tokens, dtype=torch.int64)
    linear_cross_entropy(
        hidden, weight, target, reduction="sum", precision="bf16", chunk_tokens=2
    ).backward()
    expected = torch.tensor([0.0, -n_tokens / 2, n_tokens / 2])
    torch.testing.assert_close(weight.grad, expected[:, None].expand(3, HIDDEN_SIZE))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("size", [0.1, 1.0, 100.0])
def test_a_confident_loss_is_not_negative(precision, size):
    hidden = torch.tensor([[1.0], [0.7], [size]])
    only_item, certain = torch.full((2, 1), size), torch.tensor([[0.0], [11 * size], [-29 * size]])
    for weight in (only_item, certain):
        loss = linear_cross_entropy(hidden, weight, torch.ones(3).long(), precision=precision)
        assert loss >= 0
    assert linear_cross_entropy(hidden, only_item, torch.ones(3).long(), precision=precision) == 0


@pytest.mark.parametrize("able", [True, False])
def test_bf16_rounds_only_where_the_cpu_multiplies_bfloat16(monkeypatch, able):
    monkeypatch.setattr(losses, "cpu_multiplies_bfloat16", lambda: able)
    hidden, weight, target = make_inputs(dtype=torch.float32)
    inputs = (hidden, weight)
    found, exact = (
        torch.autograd.grad(
            linear_cross_entropy(hidden, weight, target, precision=precision), inputs
        )
        for precision in ("bf16", "fp32")
    )
    assert all(torch.equal(*pair) != able for pair in zip(found, exact, strict=True))


def test_autocast_does_not_lower_the_precision():
    hidden, weight, target = make_inputs(dtype=torch.float32)
    expected = linear_cross_entropy(hidden, weight, target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(linear_cross_entropy(hidden, weight, target), expected)


@SIZES
@pytest.mark.parametrize("way", ["buffer", "no oneDNN"])
def test_other_ways_to_multiply_give_the_same(monkeypatch, size, way):
    hidden, weight, target = make_inputs(size, torch.float32)
    inputs = (hidden, weight)

    def loss_and_gradients():
        loss = linear_cross_entropy(hidden, weight, target, chunk_tokens=16)
        return loss, *torch.autograd.grad(loss, inputs)

    with Operations() as seen:
        usual = loss_and_gradients()
    assert ("_linear_pointwise" in seen.counts) == losses._onednn_suits_float32()
    if way == "buffer":
        monkeypatch.setattr(losses, "_MAPPED_BYTES", 1)
    else:
        monkeypatch.setattr(losses, "_onednn_suits_float32", lambda: False)
    with Operations() as seen:
        found = loss_and_gradients()
    assert "mm" in seen.counts
    assert way == "buffer" or "_linear_pointwise" not in seen.counts
    for actual, expected in zip(found, usual, strict=True):
        assert_close(actual, expected.double(), 1e-6)


def test_each_gradient_has_the_type_of_its_input():
    hidden, weight, target = make_inputs(dtype=torch.float32)
    hidden = hidden.detach().bfloat16().requires_grad_()
    loss = linear_cross_entropy(hidden, weight, target)
    loss.backward()
    assert (loss.dtype, hidden.grad.dtype, weight.grad.dtype) == (
        torch.float32, torch.bfloat16, torch.float32,
    )  # fmt: skip
    assert_close(loss, reference(hidden, weight, target), 1e-6)


@pytest.mark.parametrize("trained", ["hidden", "weight"])
def test_inputs_that_need_no_gradient_get_none(trained):
    hidden, weight, target = make_inputs()
    inputs = {"hidden": hidden, "weight": weight}
    expected = torch.autograd.grad(reference(hidden, weight, target), inputs[trained])[0]
    frozen = {name: t.detach().requires_grad_(name == trained) for name, t in inputs.items()}
    linear_cross_entropy(target=target, **frozen).backward()
    assert_close(frozen.pop(trained).grad, expected, 1e-13)
    assert all(t.grad is None for t in frozen.values())


def test_the_incoming_gradient_scales_each_backward_pass():
    hidden, weight, target = make_inputs()
    expected = torch.autograd.grad(reference(hidden, weight, target), (hidden, weight))
    loss = linear_cross_entropy(hidden, weight, target)
    (3 * loss).backward(retain_graph=True)
    (2 * loss).backward()
    assert_close(hidden.grad, 5 * expected[0], 1e-13)
    assert_close(weight.grad, 5 * expected[1], 1e-13)


def test_a_second_derivative_is_refused():
    hidden, weight, target = make_inputs()
    loss = linear_cross_entropy(hidden, weight, target)
    with pytest.raises(NotImplementedError, match="differentiated twice"):
        torch.autograd.grad(loss, hidden, create_graph=True)


def test_equal_calls_are_bit_equal():
    hidden, weight, target = make_inputs(dtype=torch.float32)
    losses = [linear_cross_entropy(hidden, weight, target, chunk_tokens=11) for _ in range(2)]
    grads = [torch.autograd.grad(loss, (hidden, weight)) for loss in losses]
    assert torch.equal(*losses)
    assert all(map(torch.equal, *grads))


@pytest.mark.parametrize("where", ["hidden", "weight"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_gives_a_nan_loss(where, value):
    hidden, weight, target = make_inputs(dtype=torch.float32)
    with torch.no_grad():
        {"hidden": hidden, "weight": weight}[where][3, 2] = value
    assert linear_cross_entropy(hidden, weight, target).isnan()


def test_the_sum_over_no_tokens_is_zero_and_its_mean_is_refused():
    weight = torch.ones(N_ITEMS + 1, HIDDEN_SIZE, requires_grad=True)
    hidden = torch.ones(0, HIDDEN_SIZE, requires_grad=True)
    target = torch.ones(0, dtype=torch.int64)
    loss = linear_cross_entropy(hidden, weight, target, reduction="sum")
    loss.backward()
    assert loss == 0
    assert torch.equal(weight.grad, torch.zeros_like(weight))
    assert hidden.grad.shape == (0, HIDDEN_SIZE)
    with pytest.raises(ValueError, match="no tokens"):
        linear_cross_entropy(hidden, weight, target)


@pytest.mark.parametrize("bad", [0, -1, N_ITEMS + 1])
def test_targets_outside_the_catalogue_are_refused(bad):
    hidden, weight, target = make_inputs()
    target[-1] = bad
    with pytest.raises(ValueError, match=rf"1 … {N_ITEMS}.* not in .*{bad}"):
        linear_cross_entropy(hidden, weight, target)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": torch.ones(N_TOKENS)}, "integers"),
        ({"target": torch.ones(N_TOKENS + 1, dtype=torch.int64)}, "target must be"),
        ({"target": torch.ones(N_TOKENS, 1, dtype=torch.int64)}, "target must be"),
        ({"hidden": torch.ones(N_TOKENS, HIDDEN_SIZE + 1)}, "hidden must be"),
        ({"hidden": torch.ones(1, N_TOKENS, HIDDEN_SIZE)}, "hidden must be"),
        ({"weight": torch.ones(1, HIDDEN_SIZE)}, "catalogue is empty"),
        ({"reduction": "none"}, "reduction must be"),
        ({"precision": "fp16"}, "precision must be"),
        ({"chunk_tokens": 0}, "chunk_tokens must be"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(change, message):
    hidden, weight, target = make_inputs(dtype=torch.float32)
    arguments = {"hidden": hidden, "weight": weight, "target": target} | change
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy(**arguments)


class Operations(TorchDispatchMode):
    """Records how often each operation runs and the largest storage that any of them returns."""

    def __init__(self) -> None:
        super().__init__()
        self.largest_bytes = 0
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.largest_bytes = max(self.largest_bytes, tensor.untyped_storage().nbytes())
        return result


def test_nothing_larger_than_a_chunk_of_logits_is_ever_made():
    n_tokens, n_items, chunk_tokens = 499, 1009, 32
    hidden = torch.randn(n_tokens, HIDDEN_SIZE, requires_grad=True)
    weight = torch.randn(n_items + 1, HIDDEN_SIZE, requires_grad=True)
    target = torch.randint(1, n_items + 1, (n_tokens,))
    losses._have_malloc_keep_memory()  # nothing is stored in what it allocates, once
    with Operations() as seen:
        linear_cross_entropy(hidden, weight, target, chunk_tokens=chunk_tokens).backward()
    one_chunk = chunk_tokens * n_items * 4
    assert one_chunk <= seen.largest_bytes <= 1.05 * one_chunk  # 5%: rows end on a cache line


def test_the_default_chunk_is_bounded_for_a_large_catalogue():
    n_tokens, n_items = 401, 150_001
    hidden = torch.zeros(n_tokens, 2)
    weight = torch.zeros(n_items + 1, 2)
    target = torch.ones(n_tokens, dtype=torch.int64)
    losses._have_malloc_keep_memory()
    with Operations() as seen:
        linear_cross_entropy(hidden, weight, target)
    assert seen.largest_bytes < 100 * 2**20  # all the logits are 229 MiB


@pytest.mark.parametrize("why", ["no_grad", "inputs"])
def test_without_gradients_the_two_products_that_form_them_are_skipped(why):
    hidden, weight, target = make_inputs(dtype=torch.float32)
    expected = linear_cross_entropy(hidden, weight, target)
    if why == "inputs":
        hidden, weight = hidden.detach(), weight.detach()
    with torch.set_grad_enabled(why == "inputs"), Operations() as seen:
        loss = linear_cross_entropy(hidden, weight, target)
    assert not loss.requires_grad
    assert torch.equal(loss, expected)
    assert sum(seen.counts.get(name, 0) for name in ("mm", "_linear_pointwise")) == 1
    assert "addmm_" not in seen.counts


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("deterministic", [False, True])  # True as in training
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 0.02)])
def test_cuda_equals_the_reference(precision, tolerance, deterministic):
    hidden, weight, target = make_inputs(dtype=torch.float32)
    expected = reference(hidden, weight, target)
    inputs = [t.detach().cuda().requires_grad_() for t in (hidden, weight)]
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(deterministic)
    try:
        loss = linear_cross_entropy(*inputs, target.cuda(), precision=precision, chunk_tokens=11)
    finally:
        torch.use_deterministic_algorithms(before)
    assert_close(loss.cpu(), expected, tolerance)
    for actual, right in zip(
        torch.autograd.grad(loss, inputs),
        torch.autograd.grad(expected, (hidden, weight)),
        strict=True,
    ):
        assert_close(actual.cpu(), right.double(), tolerance)
