"""DuoRec: SASRec whose final states are also trained by contrast.

Qiu et al., "Contrastive Learning for Representation Degeneration Problem in Sequential
Recommendation", WSDM 2022. For the final state h of a sequence, h' that of the same sequence under
another dropout, and s that of another training sequence with the same next item:
    unsupervised  NCE(h, h')        supervised  NCE(h, s)        cross  NCE(h', s)
each with a weight and a temperature of its own (the released code contrasts h' with s in place of
the first two, or h with either). To them comes, as in SASRec, the cross-entropy of the next item
at every real position. Encoder and block are SASRec's ``post_ln``.

The negatives are the other sequences of the batch. Two sequences with the same next item are what
the supervised term pulls together, so they are never negatives of each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt
from torch import Tensor

from lastclick.data.sequences import Batch, Sequences
from lastclick.models.attention import Activation, SelfAttentive, causal_encoder
from lastclick.models.base import NextItemBatch, TrainingLoss


class Contrast(BaseModel):
    """How one contrastive term counts; similarities are dot products over ``temperature``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weight: float = Field(ge=0)
    temperature: PositiveFloat


class Config(BaseModel):
    """Sizes and choices of one DuoRec; ``inner_size`` is the width of the feed-forward part."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hidden_size: PositiveInt
    inner_size: PositiveInt
    n_layers: PositiveInt
    n_heads: PositiveInt
    activation: Activation
    attention_init: Literal["xavier_uniform", "normal"]
    dropout: float = Field(ge=0, lt=1)
    max_length: PositiveInt
    unsupervised: Contrast
    supervised: Contrast
    cross: Contrast


@dataclass(frozen=True)
class ContrastiveBatch:
    """A next-item batch of n sequences, and what its final states are compared with.

    ``views`` holds 2n sequences: the inputs of ``next_items`` once more, then for each of them a
    partner, the input of a training example with the same final target.
    """

    next_items: NextItemBatch
    views: Batch

    def to(self, device: torch.device | str) -> ContrastiveBatch:
        return ContrastiveBatch(self.next_items.to(device), self.views.to(device))


class SameTarget:
    """For every training example, the others with the same target.

    A training example is a token of a sequence other than its first: that item is the target, and
    all items before it are the input. Examples are named by their token.
    """

    def __init__(self, sequences: Sequences):
        self.sequences = sequences
        is_target = np.ones(len(sequences.items), dtype=bool)
        is_target[sequences.offsets[:-1][sequences.lengths > 0]] = False
        tokens = np.flatnonzero(is_target)
        #: All examples, those of a target next to each other.
        self.examples = tokens[np.argsort(sequences.items[tokens], kind="stable")]
        self.rank = np.full(len(sequences.items), -1)
        self.rank[self.examples] = np.arange(len(self.examples))
        self.sorted_targets = sequences.items[self.examples]

    def partner(self, examples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Another example with its target, drawn for each of ``examples``; itself if alone."""
        targets = self.sequences.items[examples]
        first = np.searchsorted(self.sorted_targets, targets, side="left")
        n_others = np.searchsorted(self.sorted_targets, targets, side="right") - first - 1
        drawn = first + (rng.random(len(examples)) * n_others).astype(np.int64)
        own = self.rank[examples]
        chosen = drawn + ((drawn >= own) & (n_others > 0))  # step over the example itself
        return self.examples[chosen]

    def inputs(self, examples: np.ndarray) -> Sequences:
        """The whole input of each of ``examples``."""
        ends = self.sequences.offsets[1:]
        sequence = np.searchsorted(ends, examples, side="right")
        return self.sequences.take(sequence).window(drop_last=ends[sequence] - examples)


class Model(SelfAttentive):
    """See the module's docstring."""

    def __init__(self, config: Config, n_items: int):
        super().__init__(config, n_items, causal_encoder(config, n_items, "post_ln"))
        self._same_target: SameTarget | None = None

    def training_batch(
        self, sequences: Sequences, indices: np.ndarray, rng: np.random.Generator
    ) -> ContrastiveBatch:
        """Partners come from the whole of ``sequences``, which is indexed when first seen."""
        if self._same_target is None or self._same_target.sequences is not sequences:
            self._same_target = SameTarget(sequences)
        chosen = sequences.take(indices)
        last_tokens = sequences.offsets[indices + 1] - 1
        partners = self._same_target.inputs(self._same_target.partner(last_tokens, rng))
        views = concatenate(chosen.window(drop_last=1), partners).window(keep=self.max_length)
        return ContrastiveBatch(NextItemBatch.of(chosen, self.max_length), Batch.of(views))

    def training_loss(self, training_batch: ContrastiveBatch) -> TrainingLoss:
        """With several processes, each contrasts the sequences of its own share of the batch."""
        next_items = training_batch.next_items
        states = self.encode(next_items.inputs)
        loss = self.catalogue_loss(states, next_items.targets)
        last = next_items.inputs.last
        final = states.index_select(0, last)
        targets = next_items.targets.index_select(0, last)
        again, partner = self.final_states(training_batch.views).chunk(2)
        pairs = {
            "unsupervised": (final, again),
            "supervised": (final, partner),
            "cross": (again, partner),
        }
        extra = {}
        for name, (one, other) in pairs.items():
            contrast: Contrast = getattr(self.config, name)
            term = contrastive_loss(one, other, targets, contrast.temperature)
            extra[name] = contrast.weight * term
        return replace(loss, extra=extra)


def contrastive_loss(one: Tensor, other: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Noise-contrastive loss of n pairs, averaged over their 2n members.

    ``one`` and ``other (n, hidden_size)`` hold the two members of each pair and ``targets (n,)``
    what both lead to. A member has to find its partner among the members of all pairs with another
    target: the cross-entropy of a softmax over dot products divided by ``temperature``.
    """
    n_pairs = len(targets)
    members = torch.cat((one, other))
    with torch.autocast(members.device.type, enabled=False):
        similarity = members.float() @ members.float().T / temperature  # (2n, 2n)
    partner = torch.arange(2 * n_pairs, device=targets.device).roll(n_pairs)
    excluded = (targets[:, None] == targets).repeat(2, 2)
    excluded.scatter_(1, partner[:, None], False)
    return F.cross_entropy(similarity.masked_fill(excluded, -torch.inf), partner)


def concatenate(one: Sequences, other: Sequences) -> Sequences:
    """The sequences of ``one`` and then those of ``other``."""
    return Sequences(
        np.concatenate((one.user_ids, other.user_ids)),
        np.concatenate((one.items, other.items)),
        np.concatenate((one.offsets, one.offsets[-1] + other.offsets[1:])),
    )
