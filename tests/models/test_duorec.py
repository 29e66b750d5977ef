from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastclick.data.sequences import Sequences
from lastclick.models.duorec import Model, SameTarget, contrastive_loss
from tests.models.small import MAX_LENGTH, build, build_lively, random_sequences


def brute_force(one, other, targets, temperature) -> float:
    """The definition, a member at a time."""
    members = [*one.tolist(), *other.tolist()]
    targets = [*targets.tolist(), *targets.tolist()]
    n = len(one)
    losses = []
    for place, member in enumerate(members):
        partner = (place + n) % (2 * n)

        def similarity(index, member=member):
            return sum(a * b for a, b in zip(member, members[index], strict=True)) / temperature

        negatives = [k for k in range(2 * n) if targets[k] != targets[place]]
        total = sum(math.exp(similarity(k)) for k in [partner, *negatives])
        losses.append(math.log(total) - similarity(partner))
    return sum(losses) / len(losses)


def test_the_contrastive_loss_is_its_definition():
    torch.manual_seed(0)
    one, other = torch.randn(2, 7, 5, dtype=torch.float64).unbind()
    targets = torch.tensor([3, 1, 3, 2, 1, 3, 5])
    loss = contrastive_loss(one.float(), other.float(), targets, 0.7)
    assert loss.item() == pytest.approx(brute_force(one, other, targets, 0.7), rel=1e-5)


def test_sequences_with_the_same_target_never_repel_each_other():
    torch.manual_seed(0)
    one, other = torch.randn(2, 2, 5).unbind()
    one.requires_grad_()
    same = contrastive_loss(one, other, torch.tensor([7, 7]), 1.0)
    assert same.item() == 0  # no negatives: nothing to tell the partner from
    same.backward()
    assert (one.grad == 0).all()
    assert contrastive_loss(one, other, torch.tensor([7, 8]), 1.0).item() > 0


def test_a_single_pair_has_nothing_to_contrast_with():
    assert contrastive_loss(torch.ones(1, 3), torch.ones(1, 3), torch.tensor([1]), 1.0).item() == 0


@settings(max_examples=50)
@given(
    lists=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=7), min_size=1, max_size=7),
    seed=st.integers(0, 99),
)
def test_partners_are_other_examples_with_the_same_target_and_their_inputs_precede_it(lists, seed):
    sequences = Sequences.from_lists(lists)
    same_target = SameTarget(sequences)
    examples = np.sort(same_target.examples)
    expected = [
        int(start) + place
        for start, items in zip(sequences.offsets[:-1], lists, strict=True)
        for place in range(1, len(items))
    ]
    assert examples.tolist() == expected
    if len(examples) == 0:
        return
    partners = same_target.partner(examples, np.random.default_rng(seed))
    items = sequences.items
    assert (items[partners] == items[examples]).all()
    assert set(partners) <= set(examples)
    _, place, counts = np.unique(items[examples], return_inverse=True, return_counts=True)
    assert ((partners == examples) == (counts[place] == 1)).all()
    inputs = sequences.before(partners)
    for row, token in enumerate(partners):
        user = int(np.searchsorted(sequences.offsets[1:], token, side="right"))
        start = sequences.offsets[user]
        found = inputs.items[inputs.offsets[row] : inputs.offsets[row + 1]]
        assert found.tolist() == items[start:token].tolist()
        assert inputs.user_ids[row] == sequences.user_ids[user]


def test_every_other_example_is_drawn_equally_often():
    sequences = Sequences.from_lists([[1, 9], [2, 9], [3, 9, 4, 9], [5, 6]])
    same_target = SameTarget(sequences)
    example = np.full(9000, 3)  # the 9 of the second user
    partners = same_target.partner(example, np.random.default_rng(0))
    tokens, counts = np.unique(partners, return_counts=True)
    assert tokens.tolist() == [1, 5, 7]
    assert counts == pytest.approx(3000, abs=200)


def test_views_are_the_inputs_again_and_then_their_partners():
    model = build("duorec")
    sequences = random_sequences([5, 2, MAX_LENGTH + 6, 7] * 3, n_items=3)
    indices = np.array([4, 0, 2, 10])
    batch = model.training_batch(sequences, indices, np.random.default_rng(0))
    inputs, views = batch.next_items.inputs, batch.views
    n, n_tokens = inputs.n_sequences, inputs.n_tokens
    assert views.n_sequences == 2 * n
    assert torch.equal(views.items[:n_tokens], inputs.items)
    assert torch.equal(views.lengths[:n], inputs.lengths)
    assert views.lengths.max() <= MAX_LENGTH
    # With three items over twelve sequences, partners differ from the inputs.
    assert views.lengths[n:].tolist() != inputs.lengths.tolist()


def assert_terms(extra, final, again, partner, targets) -> None:
    for name, pair, weight, temperature in (
        ("unsupervised", (final, again), 0.2, 0.7),
        ("supervised", (final, partner), 0.3, 1.1),
        ("cross", (again, partner), 0.5, 1.3),
    ):
        value = weight * contrastive_loss(*pair, targets, temperature)
        torch.testing.assert_close(extra[name], value, rtol=1e-4, atol=1e-5)
    assert list(extra) == ["unsupervised", "supervised", "cross"]


def test_the_loss_is_the_next_item_s_and_three_weighted_terms_of_final_states():
    model = build_lively("duorec").eval()  # without dropout both views of an input are equal
    sequences = random_sequences([5, 2, 11, 7, 3], n_items=3)
    batch = model.training_batch(sequences, np.arange(5), np.random.default_rng(0))
    loss = model.training_loss(batch)
    with torch.inference_mode():
        encoded = model.encode(batch.next_items.inputs)
        last = encoded[batch.next_items.inputs.last]
        partner = model.final_states(batch.views)[5:]
        targets = torch.from_numpy(sequences.recent_item(0)).long()
        logits = encoded @ model.item_vectors()[1:].T
        expected = torch.nn.functional.cross_entropy(
            logits, batch.next_items.targets - 1, reduction="sum"
        )
        torch.testing.assert_close(loss.total, expected, rtol=1e-5, atol=0)
        assert_terms(loss.extra, last, last, partner, targets)


def test_under_dropout_each_term_contrasts_its_own_two_of_three_states():
    model = build_lively("duorec").train()
    sequences = random_sequences([5, 2, 11, 7, 3], n_items=3)
    batch = model.training_batch(sequences, np.arange(5), np.random.default_rng(0))
    outputs = []
    model.encoder.register_forward_hook(lambda _, __, output: outputs.append(output.detach()))
    with torch.no_grad():
        loss = model.training_loss(batch)
    encoded, *views = outputs
    final = encoded[np.cumsum(sequences.lengths - 1) - 1]
    again, partner = torch.cat(views).chunk(2)
    for one, other in ((final, again), (final, partner), (again, partner)):
        assert not torch.isclose(one, other).all(dim=1).any()
    targets = torch.from_numpy(sequences.recent_item(0)).long()
    assert_terms(loss.extra, final, again, partner, targets)


def test_the_index_follows_the_training_sequences():
    model = build("duorec")
    rng = np.random.default_rng(0)
    model.training_batch(random_sequences([3, 4]), np.array([0]), rng)
    other = random_sequences([5, 6, 7], seed=1)
    model.training_batch(other, np.array([2]), rng)
    assert model._same_target.sequences is other


@pytest.mark.parametrize(
    ("counting", "views"),
    [
        ((), ()),
        (("unsupervised",), ("again",)),
        (("supervised",), ("partner",)),
        (("cross",), ("again", "partner")),
    ],
)
def test_a_term_of_weight_0_costs_nothing_and_leaves_the_others_as_they_are(counting, views):
    sequences = random_sequences([5, 2, 11, 7, 3], n_items=3)
    all_terms = build_lively("duorec").eval()
    config = all_terms.config
    without = {
        name: getattr(config, name).model_copy(update={"weight": 0.0})
        for name in config.contrasts
        if name not in counting
    }
    some_terms = Model(config.model_copy(update=without), all_terms.n_items).eval()
    some_terms.load_state_dict(all_terms.state_dict())

    losses = []
    for model in (all_terms, some_terms):
        batch = model.training_batch(sequences, np.arange(5), np.random.default_rng(0))
        with torch.no_grad():
            losses.append(model.training_loss(batch))
    assert batch.names == views
    assert (batch.views.n_sequences if batch.views else 0) == 5 * len(views)
    expected, found = losses
    assert tuple(found.extra) == counting
    assert found.total == expected.total
    for name in counting:
        torch.testing.assert_close(found.extra[name], expected.extra[name])
