"""Scoring agrees, row by row, with the plainest way to compute the same ranks."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import polars as pl
import pytest
import torch

from lastclick import tables
from lastclick.data.sequences import Batch, Sequences
from lastclick.errors import UserError
from lastclick.models.base import Recommender
from lastclick.scoring import (
    Evaluation,
    coverage,
    encode_all,
    permuted,
    score_scales,
    score_shuffles,
)
from tests.models.small import NAMES, build, build_lively, random_sequences

N_ITEMS = 23
MAX_LENGTH = 7


@pytest.fixture(params=["sasrec-post_ln", "sasrec-classic", "bsarec-post_ln"])
def model(request) -> Recommender:
    name, block = request.param.split("-")
    model = build(
        name, seed=3, n_items=N_ITEMS, block=block, hidden_size=10, inner_size=13, n_layers=3,
        n_heads=2, max_length=MAX_LENGTH,
    )  # fmt: skip
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            if not weight_name.endswith("filter.beta"):  # of one's size already, and squared
                weight.mul_(20)
    return model


def evaluation(partition: str = "test", seed: int = 0) -> Evaluation:
    """Eleven users with whole sequences of 2 to 12 items, some longer than the model reads."""
    rng = np.random.default_rng(seed)
    rows = [
        (user, int(rng.integers(1, N_ITEMS + 1)), place, 0)
        for user in range(1, 12)
        for place in range(user + 1)
    ]
    frame = pl.DataFrame(rows, schema=dict(tables.EVALUATION), orient="row")
    return Evaluation.from_frame(frame, partition)


def plain_rank(model: Recommender, history: list[int], item: int, seen: set[int], scale=1.0) -> int:
    """Rank of ``item`` from one sequence scored alone, by sorting; past the end when seen."""
    batch = Batch.of(Sequences.from_lists([history[-MAX_LENGTH:]]))
    with torch.inference_mode():
        scores = (model.final_states(batch, residual_scale=scale) @ model.item_vectors().T)[0]
    order = sorted(range(1, N_ITEMS + 1), key=lambda i: (-scores[i].item(), i))
    kept = [i for i in order if i not in seen]
    return kept.index(item) + 1 if item in kept else 2**31 - 1


def histories(found: Evaluation) -> list[list[int]]:
    offsets = found.inputs.offsets
    return [found.inputs.items[start:end].tolist() for start, end in pairwise(offsets)]


@pytest.mark.parametrize("filter_seen", [True, False])
def test_chronological_ranks_are_those_of_each_user_alone(model, filter_seen):
    users = evaluation()
    scores = score_shuffles(model, users, seeds=[5], filter_seen=filter_seen)
    assert scores.schema == pl.Schema(tables.SHUFFLES)
    rows = scores.filter(pl.col("order") == "chronological").sort("user_id")
    for row, history, target in zip(
        rows.iter_rows(named=True), histories(users), users.targets.tolist(), strict=True
    ):
        seen = set(history) if filter_seen else set()
        assert row["target_rank"] == plain_rank(model, history, target, seen)
        assert row["target_rank_unfiltered"] == plain_rank(model, history, target, set())
        assert row["last_item_rank"] == plain_rank(model, history, history[-1], set())
        assert row["input_length"] == len(history)
        if len(history) > 1:
            expected = plain_rank(model, history, history[-2], set())
            assert row["second_last_item_rank"] == expected
        else:
            assert row["second_last_item_rank"] is None


def test_the_trained_models_rows_agree_between_the_two_score_tables(model):
    users = evaluation()
    shuffles = score_shuffles(model, users, seeds=[5], filter_seen=True)
    scales = score_scales(
        model, [users], alphas=[0.5, 1.0], one_layer_at_a_time=False, offsets=(), filter_seen=True
    )
    ranks = ["target_rank", "target_rank_unfiltered", "last_item_rank", "second_last_item_rank"]
    chronological = shuffles.filter(pl.col("order") == "chronological").select(ranks)
    assert scales.filter(pl.col("alpha") == 1).select(ranks).equals(chronological)


@pytest.mark.parametrize("name", ["sasrec", "duorec", "bsarec"])
def test_outputs_have_the_same_bits_whether_or_not_somebody_looks_on(name):
    model = build_lively(name)
    inputs = random_sequences([5, 1, 11, 2, 7, 3, 12])
    watched = encode_all(model, inputs, encode=lambda _, batch: model.encode(batch, capture={}))
    assert torch.equal(encode_all(model, inputs)[0], watched[0])


@pytest.mark.parametrize("name", NAMES)
def test_earlier_outputs_are_final_states_of_the_window_without_its_newest_items(name):
    model = build_lively(name)
    scale = 0.7 if model.decomposable else 1.0
    inputs = random_sequences([5, 1, 11, 2, 7, 3, 16])
    states = encode_all(model, inputs, offsets=(0, 1, 2, 3), residual_scale=scale)
    window = inputs.window(keep=model.max_input_length)
    for offset, row in product(states, range(len(inputs))):
        shortened = window.take(np.array([row])).window(drop_last=offset)
        expected = torch.zeros_like(states[offset][row])
        if shortened.lengths[0] > 0:
            with torch.inference_mode():
                expected = model.final_states(Batch.of(shortened), residual_scale=scale)[0]
        torch.testing.assert_close(states[offset][row], expected, atol=1e-5, rtol=1e-5)


def test_scaled_and_earlier_outputs_are_ranked_as_each_user_alone(model):
    users = evaluation()
    scores = score_scales(
        model, [users], alphas=[0.3, 1.0], one_layer_at_a_time=True, offsets=(1, 2, 3),
        filter_seen=True,
    )  # fmt: skip
    assert scores.schema == pl.Schema(tables.SCALES)
    by_user = dict(zip(users.inputs.user_ids.tolist(), histories(users), strict=True))
    targets = dict(zip(users.inputs.user_ids.tolist(), users.targets.tolist(), strict=True))
    conditions = set()
    for row in scores.iter_rows(named=True):
        history, target = by_user[row["user_id"]], targets[row["user_id"]]
        conditions.add((row["layers"], row["alpha"], row["offset"]))
        # The earlier outputs are those within the window that the model reads at L.
        window = history[-MAX_LENGTH:]
        shortened = window[: max(len(window) - row["offset"], 0)]
        if not shortened:
            assert row["target_rank"] is None
            continue
        scale = torch.ones(3)
        scale[slice(None) if row["layers"] == "all" else int(row["layers"]) - 1] = row["alpha"]
        expected = plain_rank(model, shortened, target, set(history), scale)
        assert row["target_rank"] == expected
        if row["offset"]:
            assert row["last_item_rank"] is None
            assert row["mixing_ratio_norm_of_sum"] is None
        else:
            assert row["n_positions"] == min(len(history), MAX_LENGTH)
            ratios = row["mixing_ratio_norm_of_sum"], row["mixing_ratio_sum_of_norms"]
            # With two positions the definitions agree, up to rounding.
            assert 0 <= ratios[0] <= ratios[1] + 1e-6 < 1
    single = {(str(layer), 0.3, 0) for layer in (1, 2, 3)}
    earlier = {("all", 1.0, offset) for offset in (0, 1, 2, 3)}
    assert conditions == single | earlier | {("all", 0.3, 0)}


def test_the_identity_order_scores_bit_for_bit_the_same(model):
    users = evaluation()
    window = users.inputs.window(keep=MAX_LENGTH)
    first = encode_all(model, window)[0]
    assert torch.equal(first, encode_all(model, window, residual_scale=torch.ones(3))[0])
    assert torch.equal(first, encode_all(model, users.inputs)[0])


def test_partial_order_keeps_the_last_item_and_full_order_does_not_always():
    sequences = Sequences.from_lists([[1], [2, 3], [4, 5, 6, 7, 8], list(range(20, 1, -1))])
    for seed in range(10):
        partial = permuted(sequences, order="partial", seed=seed)
        assert (partial.recent_item(0) == sequences.recent_item(0)).all()
    full = [permuted(sequences, order="full", seed=seed).recent_item(0) for seed in range(20)]
    assert any((items != sequences.recent_item(0)).any() for items in full)


@pytest.mark.parametrize("order", ["partial", "full"])
def test_an_order_is_a_permutation_within_each_sequence(order):
    sequences = Sequences.from_lists([[1], [2, 3], [4, 5, 6, 7, 8], list(range(20, 1, -1))])
    found = permuted(sequences, order=order, seed=1)
    for user in range(len(sequences)):
        one = np.array([user])
        assert sorted(found.take(one).items) == sorted(sequences.take(one).items)
    assert not np.array_equal(found.items, sequences.items)
    assert np.array_equal(found.items, permuted(sequences, order=order, seed=1).items)
    assert not np.array_equal(found.items, permuted(sequences, order=order, seed=2).items)


def test_every_permutation_is_equally_likely():
    sequences = Sequences.from_lists([[1, 2, 3]] * 6000)
    found = permuted(sequences, order="full", seed=0).items.reshape(-1, 3)
    _, counts = np.unique(found, axis=0, return_counts=True)
    assert len(counts) == 6
    assert (abs(counts - 1000) < 150).all()


def test_an_unknown_order_is_refused():
    with pytest.raises(ValueError, match="partial"):
        permuted(Sequences.from_lists([[1, 2]]), order="reverse", seed=0)


def test_coverage_counts_items_in_anybodys_list(model):
    users = evaluation()
    found = coverage(model, users, ks=[1, 5, 100], filter_seen=True)
    firsts = set()
    for history in histories(users):
        ranks = {i: plain_rank(model, history, i, set(history)) for i in range(1, N_ITEMS + 1)}
        firsts |= {item for item, rank in ranks.items() if rank == 1}
    assert found["1"] == len(firsts) / N_ITEMS
    assert found["1"] <= found["5"] <= found["100"] <= 1


def test_a_model_in_training_mode_is_refused(model):
    with pytest.raises(ValueError, match="evaluation mode"):
        encode_all(model.train(), evaluation().inputs)


def test_scores_that_are_not_finite_name_the_user(model):
    with torch.no_grad():
        model.encoder.blocks[0].attention_norm.bias[0] = float("nan")
    with pytest.raises(UserError, match="user 1 are not finite"):
        score_shuffles(model, evaluation(), seeds=[1], filter_seen=True)


def test_an_empty_partition_is_refused():
    frame = pl.DataFrame(schema=dict(tables.EVALUATION))
    with pytest.raises(UserError, match="validation partition is empty"):
        Evaluation.from_frame(frame, "validation")


def test_several_targets_of_one_user_are_several_sequences():
    rows = [(4, 1, 10, 0), (4, 2, 11, 0), (4, 1, 10, 1), (4, 2, 11, 1), (4, 3, 12, 1)]
    frame = pl.DataFrame(rows, schema=dict(tables.EVALUATION), orient="row")
    found = Evaluation.from_frame(frame, "test")
    assert found.targets.tolist() == [2, 3]
    assert found.target_index.tolist() == [0, 1]
    assert found.inputs.user_ids.tolist() == [4, 4]
    assert histories(found) == [[1], [1, 2]]
