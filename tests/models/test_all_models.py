"""What must hold for every model; a new file in models/ is tested without being named here."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastclick.data.sequences import Batch, Queries, Sequences
from tests.models.small import (
    CASES,
    MAX_LENGTH,
    N_ITEMS,
    NEGLIGIBLE_DROPOUT,
    build,
    build_lively,
    random_sequences,
    scores,
)

LENGTHS = [5, 1, 11, 2, 7, 3, 12]


def of_models(cases):
    ids = [f"{name}-{changes['block']}" for name, changes in cases]
    return pytest.mark.parametrize(("name", "changes"), cases, ids=ids)


NAMES_AND_CHANGES = of_models(CASES)
# A recurrent network has to go through every position; imported models do, too.
ASKED_AT_QUERIES = of_models([case for case in CASES if case[0] not in {"gru4rec", "imported"}])


def training_batch_of(model, sequences: Sequences, seed: int = 0):
    return model.training_batch(sequences, np.arange(len(sequences)), np.random.default_rng(seed))


def mean_loss(model, sequences: Sequences, seed: int = 0) -> torch.Tensor:
    loss = model.training_loss(training_batch_of(model, sequences, seed))
    return loss.total / loss.n_targets + sum(loss.extra.values())


def test_the_five_models_are_found():
    assert {name for name, _ in CASES} >= {"bert4rec", "bsarec", "duorec", "gru4rec", "sasrec"}


@NAMES_AND_CHANGES
def test_a_later_item_changes_earlier_outputs_only_where_the_model_says_so(name, changes):
    model = build_lively(name, **changes)
    lists = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9]]
    changed = [lists[0], lists[1], [*lists[2][:4], 31, *lists[2][5:]]]
    with torch.inference_mode():
        before = model.encode(Batch.of(Sequences.from_lists(lists)))
        after = model.encode(Batch.of(Sequences.from_lists(changed)))
    same = torch.isclose(before, after, atol=1e-6).all(dim=1)
    earlier, later = slice(8, 12), slice(12, 15)
    assert same[:8].all()  # the other sequences
    assert same[earlier].all() if model.causal else not same[earlier].any()
    assert not same[later].any()


@NAMES_AND_CHANGES
def test_padding_is_not_a_token(name, changes):
    # C09: the values of the padding row reach neither a score nor the loss.
    model = build_lively(name, **changes)
    batch, training = Batch.of(random_sequences(LENGTHS)), random_sequences([5, 2, 11, 13, 17])
    before, loss_before = scores(model, batch), mean_loss(model, training)
    with torch.no_grad():
        model.item_vectors()[0] = 1000.0
    torch.testing.assert_close(scores(model, batch), before, atol=1e-5, rtol=0)
    torch.testing.assert_close(mean_loss(model, training), loss_before, atol=0, rtol=0)


@NAMES_AND_CHANGES
@settings(max_examples=15)
@given(data=st.data())
def test_a_sequence_scores_the_same_alone_and_in_any_company(name, changes, data):
    model = build_lively(name, **changes)
    longest = model.max_input_length
    lengths = data.draw(st.lists(st.integers(1, longest), min_size=2, max_size=7))
    sequences = random_sequences(lengths, seed=data.draw(st.integers(0, 99)))
    together = scores(model, Batch.of(sequences))
    for place in range(len(sequences)):
        alone = scores(model, Batch.of(sequences.take(np.array([place]))))
        torch.testing.assert_close(together[[place]], alone, atol=1e-5, rtol=1e-5)


@NAMES_AND_CHANGES
def test_one_more_item_changes_the_scores_of_every_user(name, changes):
    # C10: reading any place but the last real one would leave some of them unchanged.
    model = build_lively(name, **changes)
    shorter = random_sequences(LENGTHS)
    longer = Sequences.from_lists(
        [
            [*shorter.items[start:end].tolist(), 23]
            for start, end in zip(shorter.offsets[:-1], shorter.offsets[1:], strict=True)
        ]
    ).window(keep=model.max_input_length)
    before, after = scores(model, Batch.of(shorter)), scores(model, Batch.of(longer))
    assert (before - after).abs().amax(dim=1).min() > 1e-3


@NAMES_AND_CHANGES
def test_a_residual_scale_of_one_changes_not_a_bit_and_others_are_used_or_refused(name, changes):
    model = build_lively(name, **changes)
    batch = Batch.of(random_sequences(LENGTHS))
    n_layers = model.config.n_layers
    with torch.inference_mode():
        trained = model.final_states(batch)
        assert torch.equal(model.final_states(batch, residual_scale=1.0), trained)
        assert torch.equal(model.final_states(batch, residual_scale=torch.ones(n_layers)), trained)
        first_layer = torch.tensor([0.5] + [1.0] * (n_layers - 1))
        last_layer = first_layer.flip(0)
        if not model.decomposable:
            for scale in (0.5, first_layer):
                with pytest.raises(ValueError, match="not applicable"):
                    model.final_states(batch, residual_scale=scale)
            return
        scaled = [
            model.final_states(batch, residual_scale=scale)
            for scale in (0.5, first_layer, last_layer)
        ]
    for one, other in zip(scaled, [trained, scaled[0], scaled[1]], strict=True):
        assert not torch.isclose(one, other).any(dim=1).all()
    with torch.inference_mode():
        uniform = model.final_states(batch, residual_scale=torch.full((n_layers,), 0.5))
    assert torch.equal(uniform, scaled[0])


@NAMES_AND_CHANGES
def test_final_states_are_those_of_the_last_place(name, changes):
    model = build_lively(name, **changes)
    batch = Batch.of(random_sequences(LENGTHS))
    # What a model appends to its input before it looks at the last place: BERT4Rec its mask.
    read = batch.append(model.mask_token) if hasattr(model, "mask_token") else batch
    for scale in (1.0, 0.5) if model.decomposable else (1.0,):
        final = model.final_states(batch, residual_scale=scale)
        encoded = model.encode(read, residual_scale=scale)
        torch.testing.assert_close(final, encoded[read.last], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("training", [False, True], ids=["fused", "with-dropout"])
@ASKED_AT_QUERIES
def test_queries_get_the_outputs_and_gradients_that_they_get_among_all(name, changes, training):
    model = build_lively(name, **changes, dropout=NEGLIGIBLE_DROPOUT).double().train(training)
    batch = Batch.of(random_sequences(LENGTHS))
    # Of one sequence none; of one only, so that whole rectangles of the batch have no query.
    for tokens in ([0, 3, 4, 5, 8, 15, 16, 18, 27, 29, 39], [2, 4]):
        among_all = model.encoder(batch)[tokens]
        alone = model.encoder(batch, queries=Queries.of(batch, torch.tensor(tokens)))
        torch.testing.assert_close(alone, among_all)
        direction = torch.randn_like(alone)
        for one, other in zip(
            torch.autograd.grad(alone, list(model.parameters()), direction),
            torch.autograd.grad(among_all, list(model.parameters()), direction),
            strict=True,
        ):
            torch.testing.assert_close(one, other)


@ASKED_AT_QUERIES
def test_the_last_layer_works_at_queries_only(name, changes):
    model = build_lively(name, **changes)
    n_rows = []
    for block in model.encoder.blocks:
        block.feed_forward.register_forward_hook(
            lambda _, inputs, __: n_rows.append(len(inputs[0]))
        )
    batch = Batch.of(random_sequences(LENGTHS))
    scores(model, batch)
    n_tokens = batch.n_tokens + (len(LENGTHS) if name == "bert4rec" else 0)  # a mask for each
    assert n_rows == [n_tokens, len(LENGTHS)]


@NAMES_AND_CHANGES
def test_dropout_acts_in_training_only_and_follows_the_seed(name, changes):
    model = build_lively(name, **changes)
    batch = Batch.of(random_sequences(LENGTHS))
    assert torch.equal(scores(model, batch), scores(model, batch))
    model.train()
    torch.manual_seed(1)
    first = scores(model, batch)
    second = scores(model, batch)
    torch.manual_seed(1)
    repeated = scores(model, batch)
    assert torch.equal(first, repeated)
    assert (first - second).abs().amax(dim=1).min() > 0


@NAMES_AND_CHANGES
def test_the_gradient_reaches_every_weight_but_the_padding_row(name, changes):
    model = build(name, **changes).train()
    mean_loss(model, random_sequences([MAX_LENGTH + 1, 2, 5, MAX_LENGTH + 4])).backward()
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("item_embedding.weight"):
            assert (parameter.grad[0] == 0).all()
            assert (parameter.grad[1:].abs().amax(dim=1) > 0).all()
        elif parameter_name.endswith("position_embedding.weight"):
            assert (parameter.grad.abs().amax(dim=1) > 0).all()
        else:
            assert parameter.grad.abs().max() > 0, parameter_name


@NAMES_AND_CHANGES
def test_half_precision_changes_the_loss_and_its_gradient_only_a_little(name, changes):
    sequences = random_sequences([5, 2, 11, 13, 17])
    gradients = []
    for enabled in (False, True):
        model = build(name, **changes).train()
        torch.manual_seed(11)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = mean_loss(model, sequences)
        assert loss.dtype == torch.float32
        loss.backward()
        gradient = torch.cat([weight.grad.flatten() for weight in model.parameters()])
        assert gradient.dtype == torch.float32
        gradients.append((loss.detach(), gradient))
    (loss, gradient), (rounded_loss, rounded_gradient) = gradients
    assert not torch.equal(gradient, rounded_gradient)
    torch.testing.assert_close(rounded_loss, loss, rtol=0.01, atol=0)
    assert torch.cosine_similarity(gradient, rounded_gradient, dim=0) > 0.99


@NAMES_AND_CHANGES
def test_equal_seeds_give_equal_models_batches_and_losses(name, changes):
    sequences = random_sequences([5, 2, 11, 13, 17])
    losses = []
    for _ in range(2):
        model = build(name, seed=7, **changes).train()
        torch.manual_seed(11)
        losses.append(mean_loss(model, sequences, seed=3))
    assert torch.equal(losses[0], losses[1])


@NAMES_AND_CHANGES
def test_a_batch_teaches_the_same_however_it_is_shared_out(name, changes):
    model = build_lively(name, **changes)
    sequences = random_sequences([5, 2, 11, 13, 17, 4, 6, 9])
    users = np.array([6, 1, 0, 7, 3, 2, 5])

    def loss_of(*share):
        batch = model.training_batch(sequences, users, np.random.default_rng(3), *share)
        return model.training_loss(batch)

    whole = loss_of()
    shares = [loss_of(slice(first, None, 3)) for first in range(3)]
    assert whole.n_targets == sum(share.n_targets for share in shares)
    torch.testing.assert_close(whole.total, sum(share.total for share in shares))


@NAMES_AND_CHANGES
def test_a_new_model_guesses_uniformly_and_learns_a_cycle(name, changes):
    model = build(name, n_items=7, **changes, dropout=0.0).train()
    sequences = Sequences.from_lists(
        [[(start + step) % 7 + 1 for step in range(13)] for start in range(7)]
    )
    loss = model.training_loss(training_batch_of(model, sequences))
    assert loss.total.item() / loss.n_targets == pytest.approx(np.log(7), abs=0.1)
    inputs = Batch.of(sequences.window(drop_last=2))
    # A few hundred steps at most. Larger steps, 0.02 say, leave BERT4Rec on a plateau, or not, as
    # rounding will have it.
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for step in range(1200):
        optimizer.zero_grad()
        mean_loss(model, sequences, seed=step).backward()
        optimizer.step()
        if step % 20 == 0:
            best = scores(model.eval(), inputs).argmax(dim=1).numpy() + 1
            model.train()
            if (best == sequences.recent_item(1)).all():
                return
    pytest.fail("no step predicted the next item of every sequence")


@NAMES_AND_CHANGES
def test_extremes_of_length(name, changes):
    model = build_lively(name, **changes)
    training = random_sequences([2, MAX_LENGTH + 29])
    assert torch.isfinite(mean_loss(model.train(), training))
    longest = Batch.of(random_sequences([1, MAX_LENGTH + 29]).window(keep=model.max_input_length))
    assert torch.isfinite(scores(model.eval(), longest)).all()
    assert scores(model, longest).shape == (2, N_ITEMS)


@NAMES_AND_CHANGES
def test_a_training_batch_moves_to_a_device_whole(name, changes):
    model = build(name, **changes)
    batch = training_batch_of(model, random_sequences([5, 2, 11]))
    moved = batch.to("meta")
    tensors = [value for value in nested_tensors(batch) if isinstance(value, torch.Tensor)]
    moved_tensors = list(nested_tensors(moved))
    assert len(tensors) == len(moved_tensors) > 5
    assert all(tensor.is_meta for tensor in moved_tensors)


def nested_tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif hasattr(value, "__dataclass_fields__"):
        for field in value.__dataclass_fields__:
            yield from nested_tensors(getattr(value, field))
