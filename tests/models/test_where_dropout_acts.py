"""Where dropout acts while a model learns, as its docstring and the paper behind it say.

Here it shrinks all elements alike instead of drawing some, so that it can be followed by hand.
"""

from __future__ import annotations

import pytest
import torch

from lastclick.data.sequences import Batch
from lastclick.models.layers import Dropout
from tests.models.small import N_HEADS, VALUES, build_lively, random_sequences

KEPT, PROBABILITY = 0.6, 0.3
LENGTHS = [5, 8, 7]  # of one rectangle, eight wide
N_TOKENS = sum(LENGTHS)
HIDDEN = (N_TOKENS, VALUES["hidden_size"])
INNER = (N_TOKENS, VALUES["inner_size"])
N_WEIGHTS = (len(LENGTHS) * N_HEADS * 8 * 8,)

MODELS = pytest.mark.parametrize(
    ("name", "block"),
    [
        ("sasrec", "post_ln"),
        ("sasrec", "classic"),
        ("duorec", "post_ln"),
        ("bert4rec", "post_ln"),
        ("bsarec", "post_ln"),
    ],
)


@pytest.fixture
def drawn(monkeypatch) -> list[tuple]:
    """The probability and the shape of every dropout that acts, in order."""
    found = []

    def shrink(self, x):
        found.append((self.probability, tuple(x.shape)))
        return torch.full_like(x, KEPT)

    monkeypatch.setattr(Dropout, "factors", shrink)
    return found


def encode(model) -> torch.Tensor:
    with torch.inference_mode():
        return model.encode(Batch.of(random_sequences(LENGTHS)))


@MODELS
def test_every_element_is_dropped_by_itself_and_with_the_model_s_probability(name, block, drawn):
    encode(build_lively(name, block=block, n_layers=2, dropout=PROBABILITY).train())
    layer = {
        # Weights of attention, its output, BSARec's filter, and the feed-forward part's output.
        "post_ln": [N_WEIGHTS, HIDDEN, *([HIDDEN] if name == "bsarec" else []), HIDDEN],
        # Weights of attention, and inside and after the feed-forward part.
        "classic": [N_WEIGHTS, INNER, HIDDEN],
    }[block]
    assert drawn == [(PROBABILITY, shape) for shape in (HIDDEN, *layer, *layer)]


@MODELS
@pytest.mark.usefixtures("drawn")
def test_dropout_acts_where_the_block_kind_has_it(name, block):
    model = build_lively(name, block=block).double()
    dropped = encode(model.train())
    assert not torch.isclose(dropped, encode(model.eval())).any()
    entering, leaving = {
        # To shrink the weights of attention is to shrink what enters its output projection.
        "post_ln": (
            ("attention.output",),
            ("encoder.norm", "attention.output", ".filter", "feed_forward.outer"),
        ),
        "classic": (
            ("attention.output", "feed_forward.outer"),
            ("item_embedding", "position_embedding", "feed_forward.outer"),
        ),
    }[block]
    for module_name, module in model.named_modules():
        if module_name.endswith(entering):
            module.register_forward_pre_hook(lambda _, inputs: (KEPT * inputs[0],))
        if module_name.endswith(leaving):
            module.register_forward_hook(lambda _, __, output: KEPT * output)
    torch.testing.assert_close(encode(model), dropped)


def test_gru4rec_drops_elements_of_the_embeddings_and_between_its_layers(drawn):
    model = build_lively("gru4rec", n_layers=2, dropout=PROBABILITY).double()
    dropped = encode(model.train())
    assert drawn == [(PROBABILITY, HIDDEN)] * 2
    assert model.gru.dropout == PROBABILITY  # in place of the second one, on an accelerator
    with torch.no_grad():
        model.item_embedding.weight *= KEPT
        model.gru.weight_ih_l1 *= KEPT
    torch.testing.assert_close(encode(model.eval()), dropped)
