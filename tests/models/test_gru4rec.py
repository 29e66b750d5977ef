from __future__ import annotations

import pytest
import torch
from torch import nn

from lastclick.data.sequences import Batch
from tests.models.small import build_lively, random_sequences

LENGTHS = [5, 1, 11, 2, 7, 3, 13, 5]


@pytest.mark.parametrize("n_layers", [1, 2])
def test_states_and_gradients_equal_those_of_torch_s_gru_on_one_sequence_at_a_time(n_layers):
    model = build_lively("gru4rec", n_layers=n_layers, dropout=0.0).double()
    size = model.config.hidden_size
    reference = nn.GRU(size, size, n_layers, batch_first=True, dtype=torch.float64)
    reference.load_state_dict(model.gru.state_dict())
    batch = Batch.of(random_sequences(LENGTHS))
    states = model.encode(batch)
    table = model.item_embedding.weight.detach().clone().requires_grad_()
    expected = torch.cat(
        [reference(table[items][None])[0][0] for items in batch.items.split(batch.lengths.tolist())]
    )
    torch.testing.assert_close(states, expected)

    direction = torch.randn(states.shape, dtype=torch.float64)
    ours = torch.autograd.grad(
        states, [model.item_embedding.weight, *model.gru.parameters()], direction
    )
    theirs = torch.autograd.grad(expected, [table, *reference.parameters()], direction)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("n_layers", [1, 2])
def test_what_a_cpu_computes_is_what_an_accelerator_computes(n_layers, monkeypatch):
    model = build_lively("gru4rec", n_layers=n_layers).double()
    batch = Batch.of(random_sequences(LENGTHS))
    with torch.inference_mode():
        states = model.encode(batch)
        monkeypatch.setattr(model, "_states", model._states_by_torch)
        torch.testing.assert_close(model.encode(batch), states)


def test_under_autocast_the_recurrence_stays_in_float32():
    model = build_lively("gru4rec", dropout=0.0)
    batch = Batch.of(random_sequences(LENGTHS))
    states = model.encode(batch)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model.encode(batch)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, states, atol=0.05, rtol=0)
    assert not torch.equal(rounded, states)
    rounded.sum().backward()
    assert all(torch.isfinite(weight.grad).all() for weight in model.gru.parameters())


def test_the_capture_is_what_enters_the_network():
    model, capture = build_lively("gru4rec"), {}
    batch = Batch.of(random_sequences(LENGTHS))
    model.encode(batch, capture=capture)
    assert list(capture) == ["embedded"]
    assert torch.equal(capture["embedded"], model.item_embedding(batch.items))
