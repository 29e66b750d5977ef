"""SASRec's encoder against independent implementations with the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lastclick.data.sequences import Batch, Sequences
from lastclick.models.attention import INITIAL_STD, LAYER_NORM_EPS, Block, SelfAttention
from tests.models.small import (
    HEAD_SIZE,
    N_HEADS,
    NEGLIGIBLE_DROPOUT,
    build,
    build_lively,
    random_sequences,
)

SIZE = N_HEADS * HEAD_SIZE
LENGTHS = [5, 1, 11, 2, 7, 3, 13, 4]


def copy_attention(attention: SelfAttention) -> nn.MultiheadAttention:
    """torch's own attention with the same weights."""
    copy = nn.MultiheadAttention(SIZE, N_HEADS, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        copy.in_proj_weight.copy_(torch.cat((attention.query.weight, attention.key_value.weight)))
        copy.in_proj_bias.copy_(torch.cat((attention.query.bias, attention.key_value.bias)))
        copy.out_proj.load_state_dict(attention.output.state_dict())
    return copy


def causal_mask(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def one_by_one(tokens: Tensor, batch: Batch) -> list[Tensor]:
    """The rows of each sequence, ``(1, length, hidden_size)``."""
    return [part[None] for part in tokens.split(batch.lengths.tolist())]


@pytest.mark.parametrize("training", [False, True], ids=["fused", "with-dropout"])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_equals_torch_s_multihead_attention(causal, training):
    torch.manual_seed(0)
    attention = SelfAttention(SIZE, N_HEADS, NEGLIGIBLE_DROPOUT, causal=causal).double()
    attention.train(training)
    reference = copy_attention(attention)
    batch = Batch.of(random_sequences(LENGTHS))
    inputs = [
        torch.randn(batch.n_tokens, SIZE, dtype=torch.float64, requires_grad=True) for _ in range(2)
    ]
    output = attention(*inputs, batch)
    expected = torch.cat(
        [
            reference(query, x, x, attn_mask=causal_mask(x.shape[1]) if causal else None)[0][0]
            for query, x in zip(*(one_by_one(tokens, batch) for tokens in inputs), strict=True)
        ]
    )
    torch.testing.assert_close(output, expected)

    direction = torch.randn_like(output)
    gradients = torch.autograd.grad(output, [*inputs, *attention.parameters()], direction)
    expected_gradients = torch.autograd.grad(
        expected, [*inputs, *reference.parameters()], direction
    )
    torch.testing.assert_close(gradients[:2], expected_gradients[:2])
    # Ours: query, key_value, output; torch's: the first two joined, output.
    query_weight, query_bias, other_weight, other_bias, *output_layer = gradients[2:]
    torch.testing.assert_close(torch.cat((query_weight, other_weight)), expected_gradients[2])
    torch.testing.assert_close(torch.cat((query_bias, other_bias)), expected_gradients[3])
    torch.testing.assert_close(tuple(output_layer), expected_gradients[4:])


def copy_post_ln_layer(block: Block, activation: str) -> nn.TransformerEncoderLayer:
    copy = nn.TransformerEncoderLayer(
        SIZE, N_HEADS, block.feed_forward.inner.out_features, dropout=0.0, activation=activation,
        layer_norm_eps=LAYER_NORM_EPS, batch_first=True, norm_first=False, dtype=torch.float64,
    )  # fmt: skip
    copy.self_attn = copy_attention(block.attention)
    copy.linear1.load_state_dict(block.feed_forward.inner.state_dict())
    copy.linear2.load_state_dict(block.feed_forward.outer.state_dict())
    copy.norm1.load_state_dict(block.attention_norm.state_dict())
    copy.norm2.load_state_dict(block.feed_forward_norm.state_dict())
    return copy.train()  # in evaluation mode torch would switch to a fused path


def classic_layer(block: Block, x: Tensor, activation: str) -> Tensor:
    """Kang & McAuley's block for one sequence ``(1, length, hidden_size)``."""

    def norm(values: Tensor, layer: nn.LayerNorm) -> Tensor:
        centred = values - values.mean(-1, keepdim=True)
        deviation = centred.square().mean(-1, keepdim=True).sqrt()
        return centred / deviation * layer.weight + layer.bias

    query = norm(x, block.attention_norm)
    mixed = copy_attention(block.attention)(query, x, x, attn_mask=causal_mask(x.shape[1]))[0]
    summed = norm(query + mixed, block.feed_forward_norm)
    inner = summed @ block.feed_forward.inner.weight.T + block.feed_forward.inner.bias
    active = getattr(nn.functional, activation)(inner)
    return summed + active @ block.feed_forward.outer.weight.T + block.feed_forward.outer.bias


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("block", ["post_ln", "classic"])
def test_sasrec_equals_an_independent_transformer(block, activation):
    model = build_lively("sasrec", block=block, activation=activation).double()
    batch = Batch.of(random_sequences(LENGTHS))
    encoder = model.encoder
    expected = []
    for items in batch.items.split(batch.lengths.tolist()):
        x = encoder.item_embedding.weight[items][None]
        if block == "classic":
            x = x * SIZE**0.5
        x = x + encoder.position_embedding.weight[: len(items)]
        if block == "post_ln":
            x = encoder.norm(x)
        for layer in encoder.blocks:
            if block == "post_ln":
                reference = copy_post_ln_layer(layer, activation)
                x = reference(x, src_mask=causal_mask(len(items)))
            else:
                x = classic_layer(layer, x, activation)
        expected.append((encoder.norm(x) if block == "classic" else x)[0])
    with torch.inference_mode():
        torch.testing.assert_close(model.encode(batch), torch.cat(expected))


@pytest.mark.parametrize("block", ["post_ln", "classic"])
def test_captures_say_what_the_block_computed(block):
    model = build_lively("sasrec", block=block)
    batch, capture = Batch.of(random_sequences(LENGTHS)), {}
    alpha = 0.7
    with torch.inference_mode():
        output = model.encode(batch, residual_scale=alpha, capture=capture)
        names = ("input", "residual", "attention", "sum", "normalised")
        assert set(capture) == {f"layer{n}.{name}" for n in (1, 2) for name in names}
        for number, layer in enumerate(model.encoder.blocks, start=1):
            x, residual, attention, total, normalised = (
                capture[f"layer{number}.{name}"] for name in names
            )
            post_ln = block == "post_ln"
            assert torch.equal(residual, x if post_ln else layer.attention_norm(x))
            torch.testing.assert_close(attention, layer.attention(residual, x, batch))
            torch.testing.assert_close(total, alpha * residual + attention)
            norm = layer.attention_norm if post_ln else layer.feed_forward_norm
            torch.testing.assert_close(normalised, norm(total))
        after = normalised + layer.feed_forward(normalised)
        torch.testing.assert_close(
            output, layer.feed_forward_norm(after) if post_ln else model.encoder.norm(after)
        )


def test_attention_of_a_head_size_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="not divisible"):
        SelfAttention(13, 3, 0.0)


def test_dropout_in_attention_acts_on_weights_not_on_outputs():
    # With one token the only weight is dropped or doubled, so an output is zero or twice itself.
    torch.manual_seed(0)
    attention = SelfAttention(SIZE, N_HEADS, 0.5)
    nn.init.eye_(attention.output.weight)
    nn.init.zeros_(attention.output.bias)
    batch = Batch.of(Sequences.from_lists([[1]] * 101))
    x = torch.randn(101, SIZE)
    with torch.inference_mode():
        kept = attention.eval()(x, x, batch).view(101, N_HEADS, HEAD_SIZE)
        dropped = attention.train()(x, x, batch).view(101, N_HEADS, HEAD_SIZE)
    factors = dropped / kept
    torch.testing.assert_close(factors, factors[:, :, :1].expand_as(factors))
    assert sorted(factors.round().unique().tolist()) == [0, 2]


def assert_normal(weight: Tensor) -> None:
    assert weight.std().item() == pytest.approx(INITIAL_STD, rel=0.1)
    assert 3 * INITIAL_STD < weight.abs().max() < 6 * INITIAL_STD  # a uniform draw ends at 1.7


@pytest.mark.parametrize(
    ("name", "attention_init"),
    [
        ("sasrec", "xavier_uniform"),
        ("sasrec", "normal"),
        ("duorec", "xavier_uniform"),
        ("duorec", "normal"),
        ("bsarec", "xavier_uniform"),
        ("bsarec", "normal"),
        ("bert4rec", "normal"),  # it has no choice
    ],
)
def test_queries_keys_and_values_start_as_attention_init_says_and_outputs_normal(
    name, attention_init
):
    size = 17 * N_HEADS
    model = build(name, hidden_size=size, attention_init=attention_init)
    bound = (6 / (4 * size)) ** 0.5  # of the joint matrix, (3 * size, size)
    for block in model.encoder.blocks:
        attention = block.attention
        for weight in (attention.query.weight, *attention.key_value.weight.chunk(2)):
            if attention_init == "normal":
                assert_normal(weight)
            else:
                assert 0.99 * bound < weight.abs().max() <= bound
                assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)
        assert_normal(attention.output.weight)
        for layer in (attention.query, attention.key_value, attention.output):
            assert (layer.bias == 0).all()
