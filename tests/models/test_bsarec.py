from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from lastclick.data.sequences import Batch, Sequences
from lastclick.models.bsarec import FrequencyFilter, draw_targets, low_pass_basis
from tests.models.small import MAX_LENGTH, build, build_lively, random_sequences
from tests.models.test_attention import causal_mask, copy_attention

LENGTHS = [5, 1, 11, 2, 7, 3, 13, 4, 6, 8, 9, 10, 12]
SIZE = 15


def low_pass_by_fft(x: torch.Tensor, n_frequencies: int) -> torch.Tensor:
    """``x (length, hidden_size)`` cut down in frequency space."""
    spectrum = torch.fft.rfft(x, dim=0)
    spectrum[n_frequencies:] = 0
    return torch.fft.irfft(spectrum, n=len(x), dim=0)


def test_a_sequence_is_filtered_at_its_own_length():
    # C11: the constant part of [4, 8] is 6, 6, whoever else is in the batch.
    filter_ = FrequencyFilter(1, n_frequencies=1)
    batch = Batch.of(Sequences.from_lists([[1, 2, 3, 4, 5], [6, 7]]))
    x = torch.tensor([[1.0], [1.0], [1.0], [1.0], [6.0], [4.0], [8.0]])
    low = filter_.low_pass(x, batch).flatten().tolist()
    assert low == pytest.approx([2, 2, 2, 2, 2, 6, 6])


@pytest.mark.parametrize("n_frequencies", [1, 2, 3, 5, 7])
def test_low_pass_equals_the_fft_at_every_length(n_frequencies):
    torch.manual_seed(0)
    filter_ = FrequencyFilter(SIZE, n_frequencies).double()
    batch = Batch.of(random_sequences(LENGTHS))
    x = torch.randn(batch.n_tokens, SIZE, dtype=torch.float64, requires_grad=True)
    low = filter_.low_pass(x, batch)
    expected = torch.cat(
        [low_pass_by_fft(part, n_frequencies) for part in x.split(batch.lengths.tolist())]
    )
    torch.testing.assert_close(low, expected, atol=1e-12, rtol=0)
    direction = torch.randn_like(low)
    gradient, expected_gradient = (
        torch.autograd.grad(output, x, direction)[0] for output in (low, expected)
    )
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-12, rtol=0)


def test_the_basis_is_orthonormal_and_leaves_out_what_a_sequence_does_not_have():
    batch = Batch.of(random_sequences(LENGTHS))
    basis = low_pass_basis(batch, 4)
    for part in basis.split(batch.lengths.tolist()):
        gram = part.T @ part
        present = gram.diagonal() > 0.5
        assert present.sum() == min(len(part), 7)
        torch.testing.assert_close(gram, torch.diag(present.double()), atol=1e-12, rtol=0)


def test_beta_rescales_the_high_frequencies_only():
    torch.manual_seed(0)
    filter_ = FrequencyFilter(SIZE, 2).double()
    batch = Batch.of(random_sequences([7]))
    x = torch.randn(7, SIZE, dtype=torch.float64)
    low = low_pass_by_fft(x, 2)
    with torch.no_grad():
        torch.testing.assert_close(filter_(x, batch), low + filter_.beta**2 * (x - low))


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_a_layer_is_the_blend_of_two_branches(alpha):
    model, capture = build_lively("bsarec").double(), {}
    batch = Batch.of(random_sequences(LENGTHS))
    with torch.inference_mode():
        output = model.encode(batch, residual_scale=alpha, capture=capture)
    names = ("input", "residual", "attention", "filter", "sum", "filter_sum", "normalised")
    assert set(capture) == {f"layer{n}.{name}" for n in (1, 2) for name in names}
    layer = model.encoder.blocks[1]
    expected = []
    for x in capture["layer2.input"].clone().split(batch.lengths.tolist()):
        mask = causal_mask(len(x))
        attended = copy_attention(layer.attention)(x[None], x[None], x[None], attn_mask=mask)[0][0]
        low = low_pass_by_fft(x, 2)
        filtered = low + layer.filter.beta**2 * (x - low)
        blend = 0.6 * layer.filter_norm(alpha * x + filtered)
        blend = blend + 0.4 * layer.attention_norm(alpha * x + attended)
        inner = nn.functional.gelu(layer.feed_forward.inner(blend))
        expected.append(layer.feed_forward_norm(blend + layer.feed_forward.outer(inner)))
    torch.testing.assert_close(output.clone(), torch.cat(expected))


def test_no_loss_sees_what_it_predicts_or_what_comes_after():
    # C11: every training input ends right before its target.
    model = build_lively("bsarec", prefixes_per_sequence=MAX_LENGTH)
    items = [3, 1, 4, 1, 5, 9, 2, 6]
    for place in range(1, len(items)):
        losses = []
        for replacement in (items[place + 1 :], [31] * (len(items) - place - 1)):
            sequences = Sequences.from_lists([items[: place + 1] + replacement])
            batch = model.training_batch(sequences, np.array([0]), np.random.default_rng(0))
            which = int((batch.inputs.lengths == place).nonzero())
            assert batch.targets[which] == items[place]
            with torch.inference_mode():
                state = model.final_states(batch.inputs)[which]
                losses.append(
                    -(state @ model.item_vectors()[1:].T).log_softmax(0)[items[place] - 1]
                )
        torch.testing.assert_close(losses[0], losses[1], atol=1e-5, rtol=0)


def test_training_prefixes_are_drawn_from_the_pairs_in_the_window():
    model = build("bsarec", prefixes_per_sequence=3)
    sequences = random_sequences([2, 3, 4, MAX_LENGTH + 9])
    batch = model.training_batch(sequences, np.arange(4), np.random.default_rng(0))
    assert batch.inputs.n_sequences == 1 + 2 + 3 + 3
    pairs = sequences.window(keep=MAX_LENGTH + 1)
    for row, part in enumerate(batch.inputs.items.split(batch.inputs.lengths.tolist())):
        user = [0, 1, 1, 2, 2, 2, 3, 3, 3][row]
        whole = pairs.items[pairs.offsets[user] : pairs.offsets[user + 1]]
        assert part.tolist() == whole[: len(part)].tolist()
        assert batch.targets[row] == whole[len(part)]


def test_targets_are_distinct_never_first_and_equally_likely():
    sequences = random_sequences([2, 5, 11])
    rng = np.random.default_rng(0)
    counts = np.zeros(18)
    for _ in range(2000):
        drawn = draw_targets(sequences, 4, rng)
        assert (np.diff(drawn) > 0).all()
        counts[drawn] += 1
    assert counts[[0, 2, 7]].tolist() == [0, 0, 0]
    assert counts[1] == 2000
    assert (counts[3:7] == 2000).all()
    assert counts[8:] == pytest.approx(800, abs=120)
