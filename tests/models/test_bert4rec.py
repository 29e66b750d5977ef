from __future__ import annotations

import numpy as np
import pytest
import torch

from lastclick.data.sequences import Batch, Sequences
from tests.models.small import (
    MAX_LENGTH,
    N_ITEMS,
    build,
    build_lively,
    random_sequences,
    scores,
)
from tests.models.test_attention import copy_post_ln_layer

LENGTHS = [5, 1, 11, 2, 7, 3, 12, 4]


def masked_batch(model, sequences: Sequences, seed: int = 0):
    return model.training_batch(sequences, np.arange(len(sequences)), np.random.default_rng(seed))


def test_masks_hide_real_items_at_the_given_rate_and_nothing_else_changes():
    model = build("bert4rec", mask_probability=0.2)
    sequences = random_sequences([MAX_LENGTH] * 499)
    batch = masked_batch(model, sequences)
    is_mask = batch.inputs.items == N_ITEMS + 1
    assert torch.equal(is_mask.nonzero()[:, 0], batch.masked.tokens)
    items = torch.from_numpy(sequences.items).long()
    assert torch.equal(batch.inputs.items[~is_mask], items[~is_mask])
    assert torch.equal(batch.targets, items[batch.masked.tokens])
    deviation = (0.2 * 0.8 / len(items)) ** 0.5
    assert abs(is_mask.double().mean().item() - 0.2) < 5 * deviation


def test_items_of_short_sequences_are_masked_no_more_often_than_others():
    model = build("bert4rec", mask_probability=0.2)
    batch = masked_batch(model, random_sequences([2, MAX_LENGTH] * 999))
    is_mask = batch.inputs.items == N_ITEMS + 1
    of_short = batch.inputs.lengths[batch.inputs.sequence] == 2
    deviation = (0.2 * 0.8 / (2 * 999)) ** 0.5
    assert abs(is_mask[of_short].double().mean().item() - 0.2) < 5 * deviation


def test_a_batch_has_at_least_one_mask_and_every_place_its_chance():
    model = build("bert4rec", mask_probability=1e-9)
    sequences = random_sequences([2, 3])
    places = set()
    for seed in range(50):
        batch = masked_batch(model, sequences, seed)
        assert len(batch.masked.tokens) == 1
        places.add(batch.masked.tokens.item())
    assert places == {0, 1, 2, 3, 4}


def test_a_share_without_a_mask_counts_nothing():
    model = build_lively("bert4rec", mask_probability=1e-9)
    sequences = random_sequences([2, 3, 4])
    share_losses = []
    for share in (slice(None), slice(0, 1), slice(1, 2), slice(2, 3)):
        rng = np.random.default_rng(0)
        batch = model.training_batch(sequences, np.arange(3), rng, share)
        share_losses.append(model.training_loss(batch))
    whole, *shares = share_losses
    assert sorted(loss.n_targets for loss in shares) == [0, 0, 1]
    assert whole.n_targets == 1
    torch.testing.assert_close(sum(loss.total for loss in shares), whole.total)


def test_the_newest_items_are_kept():
    model = build("bert4rec")
    sequences = Sequences.from_lists([list(range(1, MAX_LENGTH + 6))])
    batch = masked_batch(model, sequences)
    assert batch.inputs.n_tokens == MAX_LENGTH
    kept = batch.inputs.items.clone()
    kept[batch.masked.tokens] = batch.targets
    assert kept.tolist() == list(range(6, MAX_LENGTH + 6))


def test_the_final_state_is_the_output_at_a_mask_after_the_input():
    # C10: tokens 5, 6, mask read the third place.
    model = build_lively("bert4rec")
    mask = N_ITEMS + 1
    with torch.inference_mode():
        final = model.final_states(Batch.of(Sequences.from_lists([[5, 6], [7, 8, 9, 10]])))
        spelled_out = Batch.of(Sequences.from_lists([[5, 6, mask], [7, 8, 9, 10, mask]]))
        encoded = model.encode(spelled_out)
    torch.testing.assert_close(final, encoded[[2, 7]], atol=1e-6, rtol=0)


def test_one_place_is_left_for_the_mask_and_the_mask_is_never_ranked():
    model = build_lively("bert4rec")
    assert model.max_input_length == MAX_LENGTH - 1
    assert model.item_vectors().shape[0] == N_ITEMS + 1
    full = Batch.of(random_sequences([MAX_LENGTH - 1, 3]))
    assert scores(model, full).shape == (2, N_ITEMS)


def test_only_masked_places_count_in_the_loss():
    model = build_lively("bert4rec")
    batch = masked_batch(model, random_sequences(LENGTHS[2:]))
    loss = model.training_loss(batch)
    with torch.inference_mode():
        logits = model.encode(batch.inputs)[batch.masked.tokens] @ model.item_vectors()[1:].T
        expected = torch.nn.functional.cross_entropy(logits, batch.targets - 1, reduction="sum")
    assert loss.n_targets == len(batch.masked.tokens)
    torch.testing.assert_close(loss.total, expected, rtol=1e-5, atol=0)


def test_it_equals_torch_s_transformer_without_a_causal_mask():
    model = build_lively("bert4rec").double()
    encoder = model.encoder
    batch = Batch.of(random_sequences(LENGTHS, n_items=N_ITEMS + 1))  # masks among the items
    expected = []
    for items in batch.items.split(batch.lengths.tolist()):
        places = encoder.position_embedding.weight[: len(items)]
        x = encoder.norm(encoder.item_embedding.weight[items] + places)[None]
        for layer in encoder.blocks:
            x = copy_post_ln_layer(layer, "gelu")(x)
        expected.append(x[0])
    with torch.inference_mode():
        torch.testing.assert_close(model.encode(batch), torch.cat(expected))


@pytest.mark.slow
def test_it_equals_a_bert_model_of_the_same_size():
    transformers = pytest.importorskip("transformers")
    model = build_lively("bert4rec").double()
    config, encoder = model.config, model.encoder
    bert = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=N_ITEMS + 2, hidden_size=config.hidden_size,
            num_hidden_layers=config.n_layers, num_attention_heads=config.n_heads,
            intermediate_size=config.inner_size, max_position_embeddings=config.max_length,
            hidden_act="gelu", layer_norm_eps=1e-12,
        ),
        add_pooling_layer=False,
    ).double().eval()  # fmt: skip
    with torch.no_grad():
        bert.embeddings.word_embeddings.weight.copy_(encoder.item_embedding.weight)
        bert.embeddings.position_embeddings.weight.copy_(encoder.position_embedding.weight)
        bert.embeddings.token_type_embeddings.weight.zero_()
        bert.embeddings.LayerNorm.load_state_dict(encoder.norm.state_dict())
        for block, layer in zip(encoder.blocks, bert.encoder.layer, strict=True):
            attention, size = block.attention, config.hidden_size
            layer.attention.self.query.load_state_dict(attention.query.state_dict())
            for name, part in (("key", slice(0, size)), ("value", slice(size, None))):
                projection = getattr(layer.attention.self, name)
                projection.weight.copy_(attention.key_value.weight[part])
                projection.bias.copy_(attention.key_value.bias[part])
            layer.attention.output.dense.load_state_dict(attention.output.state_dict())
            layer.attention.output.LayerNorm.load_state_dict(block.attention_norm.state_dict())
            layer.intermediate.dense.load_state_dict(block.feed_forward.inner.state_dict())
            layer.output.dense.load_state_dict(block.feed_forward.outer.state_dict())
            layer.output.LayerNorm.load_state_dict(block.feed_forward_norm.state_dict())
    batch = Batch.of(random_sequences(LENGTHS, n_items=N_ITEMS + 1))
    padded = torch.nn.utils.rnn.pad_sequence(
        batch.items.split(batch.lengths.tolist()), batch_first=True
    )
    with torch.inference_mode():
        hidden = bert(padded, attention_mask=(padded > 0).long()).last_hidden_state
        torch.testing.assert_close(model.encode(batch), hidden[padded > 0])
