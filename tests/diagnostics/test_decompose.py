"""The norm decomposition against worked examples, closed forms and a materialised reference."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from torch import Tensor, nn

from lastclick import decomposition
from lastclick.data.sequences import Batch, Sequences
from lastclick.decomposition import (
    LEVELS,
    attention_branch,
    block_branches,
    contribution_norms,
    decompose_layer,
    level_constant,
    triangular_factor,
)
from lastclick.diagnostics.decompose import (
    decompose_all,
    decompose_observations,
    recent_heatmaps,
    user_mixing_ratios,
)
from lastclick.mixing import DEFINITIONS, encode_and_decompose, mixing_ratios
from lastclick.models import bsarec, duorec, sasrec
from lastclick.models.attention import SelfAttention
from lastclick.models.base import Recommender
from lastclick.tabulation import paper

N_ITEMS, HIDDEN_SIZE, N_HEADS, INNER_SIZE, MAX_LENGTH, N_LAYERS = 19, 15, 3, 7, 23, 2
KINDS = ("post_ln", "classic", "bsarec")
# Against references of our own in float64; BSARec's filter is only as exact as its amplitudes.
TOLERANCE = {"post_ln": 1e-12, "classic": 1e-12, "bsarec": 1e-7}
# Four bucket widths; one sequence of one item, one that is long enough for every heatmap offset.
LENGTHS = (5, 1, 17, 2, 11, 3)


def random_model(kind: str = "post_ln", seed: int = 0, dtype=torch.float64) -> Recommender:
    """All weights, biases and LayerNorm gains random and of a size where everything matters."""
    sizes = dict(
        hidden_size=HIDDEN_SIZE, inner_size=INNER_SIZE, n_layers=N_LAYERS, n_heads=N_HEADS,
        activation="gelu", attention_init="normal", dropout=0.5, max_length=MAX_LENGTH,
    )  # fmt: skip
    if kind == "bsarec":
        blend = dict(filter_weight=0.7, low_frequencies=3, prefixes_per_sequence=1)
        model = bsarec.Model(bsarec.Config(**sizes, **blend), N_ITEMS)
    else:
        model = sasrec.Model(sasrec.Config(block=kind, **sizes), N_ITEMS)
    model = model.to(dtype).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=dtype) * 0.5)
    return model


def random_batch(lengths=LENGTHS, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch.of(Sequences.from_lists([rng.integers(1, N_ITEMS + 1, n) for n in lengths]))


def one_sequence(batch: Batch, number: int) -> Batch:
    return Batch.of(Sequences.from_lists([batch.items[batch.sequence == number].tolist()]))


@dataclass
class Materialised:
    """One sequence's parts ``(length, length, hidden)`` and constants ``(length, hidden)``, per
    level, and the attention weights ``(heads, length, length)``."""

    parts: dict[str, Tensor]
    constants: dict[str, Tensor]
    weights: Tensor


def materialised(block: nn.Module, x: Tensor, alpha: float) -> Materialised:
    """Every F_i(x_j) of one sequence ``x (length, hidden)``, by the definitions."""
    if isinstance(block, bsarec.Block):
        attention, bias, weights = attention_parts(block.attention, x, x)
        of_attention = with_residual_and_norm(attention, bias, alpha * x, block.attention_norm)
        of_filter = with_residual_and_norm(
            filter_parts(block.filter, x), torch.zeros_like(x), alpha * x, block.filter_norm
        )
        share = block.filter_weight
        parts, constants = (
            {level: share * f[level] + (1 - share) * a[level] for level in LEVELS}
            for f, a in zip(of_filter, of_attention, strict=True)
        )
        return Materialised(parts, constants, weights)
    residual = x if block.kind == "post_ln" else block.attention_norm(x)
    norm = block.attention_norm if block.kind == "post_ln" else block.feed_forward_norm
    attention, bias, weights = attention_parts(block.attention, residual, x)
    return Materialised(*with_residual_and_norm(attention, bias, alpha * residual, norm), weights)


def attention_parts(
    attention: SelfAttention, query_input: Tensor, x: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Parts, constants and weights of attention alone."""
    length, hidden = x.shape
    size = hidden // attention.n_heads
    query = attention.query(query_input)
    key = attention.key_value(x)[:, :hidden]
    value_weight = attention.key_value.weight[hidden:]
    parts = x.new_zeros(length, length, hidden)
    weights = x.new_zeros(attention.n_heads, length, length)
    for h in range(attention.n_heads):
        head = slice(h * size, (h + 1) * size)
        for i in range(length):
            logits = (key[: i + 1, head] @ query[i, head]) / size**0.5
            weights[h, i, : i + 1] = logits.softmax(dim=0)
        transformed = (x @ value_weight[head].T) @ attention.output.weight[:, head].T
        parts += weights[h][:, :, None] * transformed
    value_bias = attention.key_value.bias[hidden:]
    bias = attention.output.weight @ value_bias + attention.output.bias
    return parts, bias.expand(length, hidden), weights


def filter_parts(frequency_filter: bsarec.FrequencyFilter, x: Tensor) -> Tensor:
    """What each position of the filter's output receives when only one input is not zero."""
    length, hidden = x.shape
    gain = frequency_filter.beta.square()
    parts = x.new_zeros(length, length, hidden)
    for j in range(length):
        alone = torch.zeros_like(x)
        alone[j] = x[j]
        spectrum = torch.fft.rfft(alone, dim=0)
        spectrum[frequency_filter.n_frequencies :] = 0
        low = torch.fft.irfft(spectrum, n=length, dim=0)
        parts[:, j] = low + gain * (alone - low)
    return parts


def with_residual_and_norm(
    parts: Tensor, bias: Tensor, residual: Tensor, norm: nn.LayerNorm
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parts and constants per level, from those of the mixing."""
    with_residual = parts.clone()
    for i in range(len(residual)):
        with_residual[i, i] += residual[i]
    total = with_residual.sum(dim=1) + bias
    deviation = (total.var(dim=-1, correction=0) + norm.eps).sqrt()[:, None]

    def linearised(vectors: Tensor, deviation: Tensor) -> Tensor:
        return norm.weight * (vectors - vectors.mean(dim=-1, keepdim=True)) / deviation

    of_parts = {
        "attn": parts,
        "attn_res": with_residual,
        "attn_res_ln": linearised(with_residual, deviation[:, None]),
    }
    of_constants = {
        "attn": bias, "attn_res": bias, "attn_res_ln": linearised(bias, deviation) + norm.bias,
    }  # fmt: skip
    return of_parts, of_constants


def true_outputs(block: nn.Module, captured: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the forward pass computed at each level."""
    outputs = {"attn": captured["attention"], "attn_res": captured["sum"]}
    if isinstance(block, bsarec.Block):
        filters = {"attn": captured["filter"], "attn_res": captured["filter_sum"]}
        share = block.filter_weight
        outputs = {k: share * filters[k] + (1 - share) * v for k, v in outputs.items()}
    return {**outputs, "attn_res_ln": captured["normalised"]}


def expected_ratio(parts: Tensor, i: int, definition: str) -> float:
    others = torch.cat((parts[i, :i], parts[i, i + 1 :]))
    own = parts[i, i].norm()
    mixed = {"norm_of_sum": others.sum(dim=0).norm(), "sum_of_norms": others.norm(dim=-1).sum()}
    return float(mixed[definition] / (mixed[definition] + own))


def layers_of(model: Recommender, batch: Batch, alpha: float):
    """Each layer's block, captured values and branches."""
    capture: dict[str, Tensor] = {}
    model.encode(batch, residual_scale=alpha, capture=capture)
    for number, block in enumerate(model.encoder.blocks, start=1):
        prefix = f"layer{number}."
        own = {k.removeprefix(prefix): v for k, v in capture.items() if k.startswith(prefix)}
        yield block, own, block_branches(block, batch, capture, prefix, alpha)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0, 2.0])
def test_parts_and_constant_add_up_to_the_blocks_output(kind, alpha):
    batch = random_batch()
    for block, captured, branches in layers_of(random_model(kind), batch, alpha):
        found = decompose_layer(branches, batch)
        expected = true_outputs(block, captured)
        for level in LEVELS:
            total = found[level].others + found[level].own + level_constant(branches, level)
            torch.testing.assert_close(total, expected[level], rtol=0, atol=1e-12)
        for sequence in range(batch.n_sequences):
            mine = batch.sequence == sequence
            every = materialised(block, captured["input"][mine], alpha)
            for level in LEVELS:
                total = every.parts[level].sum(dim=1) + every.constants[level]
                torch.testing.assert_close(
                    total, expected[level][mine], rtol=0, atol=TOLERANCE[kind]
                )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_fast_form_equals_the_materialised_sum(kind, dtype):
    batch, alpha = random_batch(), 0.3
    tolerance = TOLERANCE[kind] if dtype == torch.float64 else 1e-5
    for block, captured, branches in layers_of(random_model(kind, dtype=dtype), batch, alpha):
        found = decompose_layer(branches, batch)
        reference = copy.deepcopy(block).double()
        for sequence in range(batch.n_sequences):
            mine = batch.sequence == sequence
            every = materialised(reference, captured["input"][mine].double(), alpha)
            for level in LEVELS:
                norms = every.parts[level].norm(dim=-1)
                own = every.parts[level].diagonal(dim1=0, dim2=1).T
                for name, expected in {
                    "others": every.parts[level].sum(dim=1) - own,
                    "own": own,
                    "other_norms": norms.sum(dim=1) - norms.diagonal(),
                }.items():
                    torch.testing.assert_close(
                        getattr(found[level], name)[mine].double(), expected,
                        rtol=tolerance, atol=tolerance,
                        msg=lambda m, n=name, v=level: f"{v} {n}: {m}",
                    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_mixing_ratios_follow_both_definitions(kind):
    model, batch, scales = random_model(kind), random_batch(), torch.tensor([0.4, 1.3])
    ratios = mixing_ratios(model, batch, residual_scale=scales)
    assert ratios.shape == (N_LAYERS, len(LEVELS), len(DEFINITIONS), sum(LENGTHS))
    capture: dict[str, Tensor] = {}
    model.encode(batch, residual_scale=scales, capture=capture)
    for number, block in enumerate(model.encoder.blocks):
        x = capture[f"layer{number + 1}.input"][batch.sequence == 4]
        parts = materialised(block, x, float(scales[number])).parts
        found = ratios[number][..., batch.sequence == 4]
        for level, of_level in zip(LEVELS, found, strict=True):
            for definition, of_definition in zip(DEFINITIONS, of_level, strict=True):
                expected = [expected_ratio(parts[level], i, definition) for i in range(LENGTHS[4])]
                np.testing.assert_allclose(of_definition, expected, atol=TOLERANCE[kind])


def identity_attention(size: int) -> SelfAttention:
    """Looks everywhere alike and passes its input on, so that F_i(x_j) = x_j / (i + 1)."""
    attention = SelfAttention(size, 1, 0.0).double().requires_grad_(False)
    for parameter in attention.parameters():
        parameter.zero_()
    attention.key_value.weight[size:].copy_(torch.eye(size))
    attention.output.weight.copy_(torch.eye(size))
    return attention


def test_worked_example():
    # Weights 1/3 each at the third position: parts (1, 0), (0, 4/3) and own (5/3, 4) + (5, 12).
    # Centred, the two others are (1/2, -1/2) and (-2/3, 2/3), their sum (-1/6, 1/6), and the own
    # part (-14/3, 14/3); the LayerNorm's deviation and gain cancel in a ratio.
    x = torch.tensor([[3.0, 0.0], [0.0, 4.0], [5.0, 12.0]], dtype=torch.float64)
    batch = Batch.of(Sequences.from_lists([[1, 2, 3]]))
    attention = identity_attention(2)
    branch = attention_branch(
        attention, nn.LayerNorm(2).double().requires_grad_(False), batch,
        query_input=x, input=x, residual=x, total=x + attention(x, x, batch),
    )  # fmt: skip
    found = decompose_layer([branch], batch)
    expected = {
        "attn": {"norm_of_sum": 5 / (5 + 13), "sum_of_norms": 7 / (7 + 13)},
        "attn_res": {"norm_of_sum": 5 / (5 + 52), "sum_of_norms": 7 / (7 + 52)},
        "attn_res_ln": {"norm_of_sum": 1 / (1 + 28), "sum_of_norms": 7 / (7 + 28)},
    }
    for level, ratios in expected.items():
        own = found[level].own[2].norm()
        mixed = {
            "norm_of_sum": found[level].others[2].norm(),
            "sum_of_norms": found[level].other_norms[2],
        }
        for definition, ratio in ratios.items():
            assert float(mixed[definition] / (mixed[definition] + own)) == pytest.approx(ratio)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_uniform_attention_over_equal_items_has_a_closed_form(alpha):
    # With equal inputs every part is x / i, and the own part has alpha x more (i counted from 1).
    length = 13
    x = torch.randn(7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = x.expand(length, 7)
    batch = Batch.of(Sequences.from_lists([[1] * length]))
    branch = attention_branch(
        identity_attention(7), nn.LayerNorm(7).double().requires_grad_(False), batch,
        query_input=x, input=x, residual=alpha * x, total=(alpha + 1) * x,
    )  # fmt: skip
    found = decompose_layer([branch], batch)
    i = torch.arange(1, length + 1, dtype=torch.float64)
    for level in LEVELS:
        expected = (i - 1) / i / (1 + (0.0 if level == "attn" else alpha))
        own = found[level].own.norm(dim=-1)
        for mixed in (found[level].others.norm(dim=-1), found[level].other_norms):
            torch.testing.assert_close(mixed / (mixed + own), expected, rtol=0, atol=1e-12)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    lengths=st.lists(st.integers(1, 23), min_size=1, max_size=5),
    alpha=st.floats(0, 2),
    kind=st.sampled_from(KINDS),
)
def test_norm_of_sum_is_never_above_sum_of_norms(seed, lengths, alpha, kind):
    batch = random_batch(lengths, seed)
    ratios = mixing_ratios(random_model(kind, seed), batch, residual_scale=alpha)
    assert ((ratios >= 0) & (ratios <= 1)).all()
    assert (ratios[:, :, 0] <= ratios[:, :, 1] + 1e-12).all()
    # Nobody to mix with, and one other position alone: the definitions agree.
    n_readable = batch.lengths[batch.sequence] if kind == "bsarec" else batch.positions + 1
    assert (ratios[..., n_readable == 1] == 0).all()
    one_other = ratios[..., n_readable == 2]
    torch.testing.assert_close(one_other[:, :, 0], one_other[:, :, 1], rtol=0, atol=1e-12)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    alphas=st.tuples(st.floats(0, 3), st.floats(0, 3)).map(sorted),
    kind=st.sampled_from(KINDS),
)
def test_mixing_falls_with_alpha_once_the_residual_outweighs_the_own_part(seed, alphas, kind):
    # |own + alpha residual| grows from alpha = -<own, residual> / |residual|^2 on, and what comes
    # from other positions does not depend on the first layer's alpha.
    model, batch = random_model(kind, seed), random_batch(seed=seed)
    _, captured, branches = next(layers_of(model, batch, 1.0))
    own = decompose_layer(branches, batch, ["attn"])["attn"].own
    residual = captured["residual"]
    turn = -(own * residual).sum(dim=-1) / residual.square().sum(dim=-1)
    less, more = (
        mixing_ratios(model, batch, residual_scale=alpha, levels=["attn_res"])[0, 0]
        for alpha in alphas
    )
    past = turn <= alphas[0]
    assert (more[:, past] <= less[:, past] + 1e-12).all()


@pytest.mark.parametrize("kind", KINDS)
def test_without_residual_attn_res_is_attn(kind):
    ratios = mixing_ratios(random_model(kind), random_batch(), residual_scale=0.0)
    assert torch.equal(ratios[:, 0], ratios[:, 1])
    assert not torch.allclose(ratios[:, 1], ratios[:, 2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk_elements", [1, 2**20])
def test_a_sequence_gives_the_same_alone_and_in_any_batch(kind, chunk_elements, monkeypatch):
    monkeypatch.setattr(decomposition, "_CHUNK_ELEMENTS", chunk_elements)
    model, batch = random_model(kind), random_batch()
    ratios = mixing_ratios(model, batch)
    heatmaps = recent_heatmaps(model, batch)
    alone = [one_sequence(batch, number) for number in range(batch.n_sequences)]
    torch.testing.assert_close(
        torch.cat([mixing_ratios(model, one) for one in alone], dim=-1), ratios, rtol=0, atol=1e-12
    )
    first, *others = (recent_heatmaps(model, one) for one in alone)
    added = sum(others, start=first)
    np.testing.assert_allclose(added.sums, heatmaps.sums, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(added.counts, heatmaps.counts)


def test_moving_the_value_bias_into_the_output_bias_changes_nothing():
    model, batch = random_model(), random_batch()
    before = mixing_ratios(model, batch)
    for block in model.encoder.blocks:
        value_bias = block.attention.key_value.bias[HIDDEN_SIZE:]
        block.attention.output.bias += block.attention.output.weight @ value_bias
        value_bias.zero_()
    torch.testing.assert_close(mixing_ratios(model, batch), before, rtol=0, atol=1e-12)


def test_the_forward_pass_is_shared_with_scoring():
    model, batch = random_model(), random_batch()
    states, ratios = encode_and_decompose(
        model, batch, residual_scale=0.3, levels=["attn_res_ln"], definitions=["norm_of_sum"]
    )
    assert torch.equal(states, model.encode(batch, residual_scale=0.3))
    every = mixing_ratios(model, batch, residual_scale=0.3)
    assert torch.equal(ratios, every[:, 2:, :1])


def test_duorec_is_decomposed_like_the_sasrec_it_is():
    plain = random_model("post_ln")
    contrast = duorec.Contrast(weight=0.1, temperature=1.0)
    sizes = plain.config.model_dump(exclude={"block"})
    config = duorec.Config(**sizes, unsupervised=contrast, supervised=contrast, cross=contrast)
    model = duorec.Model(config, N_ITEMS).double().eval()
    model.load_state_dict(plain.state_dict())
    batch = random_batch()
    assert torch.equal(mixing_ratios(model, batch), mixing_ratios(plain, batch))


def test_training_mode_and_models_without_item_residual_are_refused():
    model, batch = random_model(), random_batch()
    with pytest.raises(ValueError, match="evaluation mode"):
        mixing_ratios(model.train(), batch)
    model.eval().decomposable = False
    with pytest.raises(ValueError, match="not applicable"):
        mixing_ratios(model, batch)


def test_user_rows_keep_sums_counts_and_recent_positions():
    batch = random_batch()
    user_ids = np.array([41, 7, 23, 5, 11, 3], dtype=np.int32)
    ratios = mixing_ratios(random_model(), batch)
    users = user_mixing_ratios(ratios, batch, user_ids)
    assert users.height == N_LAYERS * len(LEVELS) * len(DEFINITIONS) * len(user_ids)
    row = 0
    for layer, of_layer in enumerate(ratios.numpy(), start=1):
        for level, of_level in zip(LEVELS, of_layer, strict=True):
            for definition, values in zip(DEFINITIONS, of_level, strict=True):
                for number, user_id in enumerate(user_ids.tolist()):
                    mine = values[batch.sequence.numpy() == number]
                    recent = [*mine[::-1][:3].tolist(), None, None][:3]
                    expected = (user_id, layer, level, definition, pytest.approx(mine.sum()),
                                len(mine), mine[0], *recent)  # fmt: skip
                    assert users.row(row) == expected
                    row += 1


def test_observations_weigh_positions_alike():
    # Two layers of a user with three positions, and of one with a single position.
    users = pl.DataFrame(
        [
            (1, 1, "attn", "norm_of_sum", 1.5, 3, 0.25, 0.75, 0.5, 0.25),
            (2, 1, "attn", "norm_of_sum", 0.5, 1, 0.5, 0.5, None, None),
            (1, 2, "attn", "norm_of_sum", 0.5, 3, 0.0, 0.25, 0.25, 0.0),
            (2, 2, "attn", "norm_of_sum", 0.0, 1, 0.0, 0.0, None, None),
        ],
        schema={
            "user_id": pl.Int32, "layer": pl.Int32, "level": pl.String, "definition": pl.String,
            "sum_over_positions": pl.Float64, "n_positions": pl.Int32, "at_first": pl.Float64,
            "at_L": pl.Float64, "at_L1": pl.Float64, "at_L2": pl.Float64,
        },
        orient="row",
    )  # fmt: skip
    rows = (
        decompose_observations(users)
        .group_by("metric", maintain_order=True)
        .agg(pl.col("numerator").sum() / pl.col("weight").sum(), users="user_id")
    )
    cell = "norm_of_sum/attn"
    assert rows.rows() == [
        (f"mixing_ratio/{cell}", 2.5 / 8, [1, 2]),
        (f"without_first_position/{cell}", 1.75 / 4, [1]),
        (f"by_layer/layer1/{cell}/all", 2.0 / 4, [1, 2]),
        (f"by_layer/layer1/{cell}/L", 0.625, [1, 2]),
        (f"by_layer/layer1/{cell}/L-1", 0.5, [1]),
        (f"by_layer/layer1/{cell}/L-2", 0.25, [1]),
        (f"by_layer/layer2/{cell}/all", 0.5 / 4, [1, 2]),
        (f"by_layer/layer2/{cell}/L", 0.125, [1, 2]),
        (f"by_layer/layer2/{cell}/L-1", 0.25, [1]),
        (f"by_layer/layer2/{cell}/L-2", 0.0, [1]),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_decompose_all_reads_what_the_model_reads_and_sorts_by_user(kind):
    rng = np.random.default_rng(0)
    items = [rng.integers(1, N_ITEMS + 1, n) for n in (2, MAX_LENGTH + 6, 13, 1)]
    user_ids = np.array([31, 5, 17, 11], dtype=np.int32)
    model = random_model(kind)
    users, heatmaps = decompose_all(model, Sequences.from_lists(items, user_ids), recent=5)

    batch = Batch.of(Sequences.from_lists([one[-MAX_LENGTH:] for one in items]))
    expected = user_mixing_ratios(mixing_ratios(model, batch), batch, user_ids)
    assert_frame_equal(users, expected.sort("user_id", maintain_order=True), abs_tol=1e-12)
    alike = recent_heatmaps(model, batch, recent=5)
    np.testing.assert_allclose(heatmaps.sums, alike.sums, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(heatmaps.counts, alike.counts)


@pytest.mark.parametrize("kind", KINDS)
def test_heatmaps_align_sequences_at_their_newest_position(kind):
    recent = 7
    model, batch = random_model(kind), random_batch()
    sums = np.zeros((N_LAYERS, 1 + len(LEVELS), recent, recent))
    counts = np.zeros((recent, recent), dtype=int)
    for layer, (block, captured, _) in enumerate(layers_of(model, batch, 1.0)):
        for sequence, length in enumerate(LENGTHS):
            every = materialised(block, captured["input"][batch.sequence == sequence], 1.0)
            norms = [every.parts[level].norm(dim=-1) for level in LEVELS]
            maps = [every.weights.mean(dim=0), *(n / n.sum(dim=1, keepdim=True) for n in norms)]
            for i in range(min(recent, length)):
                for j in range(min(recent, length)):
                    counts[i, j] += layer == 0
                    for number, one in enumerate(maps):
                        sums[layer, number, i, j] += one[length - 1 - i, length - 1 - j]
    heatmaps = recent_heatmaps(model, batch, recent=recent)
    assert heatmaps.names == ("weights", *LEVELS)
    np.testing.assert_allclose(heatmaps.sums, sums, rtol=0, atol=TOLERANCE[kind])
    np.testing.assert_array_equal(heatmaps.counts, counts)

    frame = heatmaps.to_frame()
    cell = frame.filter(layer=2, map="attn_res", output_offset=1, input_offset=3)
    assert cell["n_sequences"].item() == counts[1, 3] == 3
    assert cell["mean"].item() == pytest.approx(sums[1, 2, 1, 3] / 3)


def test_heatmap_cells_that_no_sequence_reaches_are_null():
    frame = recent_heatmaps(random_model(), random_batch([2, 1]), recent=3).to_frame()
    reached = (pl.col("output_offset") < 2) & (pl.col("input_offset") < 2)
    assert_frame_equal(
        frame.select(pl.col("mean").is_not_null()), frame.select(reached.alias("mean"))
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_triangular_factor_keeps_norms_where_heads_cancel(dtype):
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(11, 3, 7, generator=generator, dtype=dtype)
    vectors[0, 1] = -vectors[0, 0]
    vectors[1] = 0.0
    vectors[2, 0] = 0.0
    rows = triangular_factor(vectors.unbind(dim=1))
    assert [tuple(row.shape) for row in rows] == [(3, 11), (2, 11), (1, 11)]
    for coefficients in torch.tensor([[1, 1, 0], [0.5, 0.5, 1], [0, 0, 1], [0.2, 0.7, 0.1]]):
        a = coefficients.to(dtype)
        found = torch.stack([a[g:] @ row for g, row in enumerate(rows)]).norm(dim=0)
        expected = (a[:, None] * vectors).sum(dim=1).norm(dim=-1)
        tolerance = 16 * torch.finfo(dtype).eps
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_contribution_norms_cover_every_real_pair():
    batch = random_batch()
    block, captured, branches = next(layers_of(random_model(), batch, 1.0))
    seen = []
    for chunk, weights, norms in contribution_norms(branches, batch):
        for row, (sequence, length) in enumerate(
            zip(chunk.sequences.tolist(), chunk.lengths.tolist(), strict=True)
        ):
            x = captured["input"][batch.sequence == sequence]
            every = materialised(block, x, 1.0)
            real = (row, slice(length), slice(length))
            torch.testing.assert_close(weights[real], every.weights.mean(dim=0))
            for level in LEVELS:
                torch.testing.assert_close(norms[level][real], every.parts[level].norm(dim=-1))
            seen.append(sequence)
    assert sorted(seen) == list(range(batch.n_sequences))


def test_tables_name_every_definition_and_level():
    # Spelled out there: with the modules that define them comes torch, which no table needs.
    assert paper.DEFINITIONS == DEFINITIONS
    assert paper.LEVELS == LEVELS
