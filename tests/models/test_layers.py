from __future__ import annotations

import pytest
import torch

from lastclick.models.layers import Dropout, gather_rows, gather_rows_back


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5, 0.97])
def test_dropout_drops_its_share_and_keeps_the_expectation(probability):
    torch.manual_seed(0)
    x = torch.full((997, 1009), 3.0)
    dropped = Dropout(probability)(x)
    kept = dropped != 0
    n = x.numel()
    deviation = (probability * (1 - probability) / n) ** 0.5
    assert abs(1 - kept.float().mean().item() - probability) < 5 * deviation
    expected = torch.full_like(x, 3 / (1 - probability))
    torch.testing.assert_close(dropped[kept], expected[kept], rtol=1e-3, atol=0)
    # Rounding the probability to 16 bits is made good by the scale.
    scale = dropped[kept][0].item() / 3
    n_dropped = round(probability * 2**16)
    assert scale == pytest.approx(2**16 / (2**16 - n_dropped), rel=1e-6)


def test_dropout_treats_neighbours_independently():
    torch.manual_seed(0)
    kept = (Dropout(0.5)(torch.ones(4 * 99991)) != 0).float().view(-1, 4)
    correlations = torch.corrcoef(kept.T).fill_diagonal_(0)
    assert correlations.abs().max() < 0.02
    halves = torch.stack((kept[:-1, 0], kept[1:, 0]))
    assert torch.corrcoef(halves)[0, 1].abs() < 0.02


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 3, 11), (0, 5)])
def test_dropout_takes_any_shape_and_its_gradient_goes_where_the_value_went(shape):
    torch.manual_seed(0)
    x = torch.randn(shape, requires_grad=True)
    dropped = Dropout(0.5)(x)
    assert dropped.shape == shape
    dropped.sum().backward()
    torch.testing.assert_close(x.grad * x, dropped)


def test_dropout_is_the_identity_in_evaluation_and_at_zero():
    x = torch.randn(5, 3)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_dropout_follows_torch_s_seed():
    x, dropout = torch.ones(1013), Dropout(0.5)
    torch.manual_seed(5)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(5)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)


def test_gathered_rows_and_their_gradients_equal_plain_indexing():
    torch.manual_seed(0)
    inverse = torch.tensor([2, 6, 0, 3, 5])  # row i of x lies at place inverse[i] of seven
    index = torch.zeros(7, dtype=torch.int64)  # the two free places repeat row 0
    index[inverse] = torch.arange(5)
    weights = torch.randn(5, 3, dtype=torch.float64)
    gradients = []
    for gather, back in ((gather_rows, gather_rows_back), (None, None)):
        x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        x.requires_grad_()
        padded = gather(x, index, inverse) if gather else x[index]
        assert torch.equal(padded.detach(), x.detach()[index])
        # Squares, so that the gradient depends on the values that arrive.
        result = back(padded**2, inverse) if back else (padded**2)[inverse]
        (result * weights).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_rows_that_are_not_gathered_back_get_a_gradient_of_zero():
    x = torch.randn(7, 3, requires_grad=True)
    gather_rows_back(x, torch.tensor([4, 1])).sum().backward()
    assert x.grad.sum(dim=1).tolist() == [0, 3, 0, 0, 3, 0, 0]
