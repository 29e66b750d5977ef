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

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from lastclick.data.sequences import Batch, Sequences, concatenate
from lastclick.fields import Number
from lastclick.models.attention import CausalConfig, SelfAttentive, causal_encoder
from lastclick.models.base import EVERYTHING, ModelConfig, TargetBatch, TrainingLoss

# The two members of each term's pairs: final states of a batch's inputs, of the same once more, and
# of their partners.
PAIRS = {
    "unsupervised": ("final", "again"),
    "supervised": ("final", "partner"),
    "cross": ("again", "partner"),
}


class Contrast(ModelConfig):
    """How one contrastive term counts; similarities are dot products over ``temperature``.

    A term of weight 0 is not computed.
    """

    weight: Number = Field(ge=0)
    temperature: Number = Field(gt=0)


class Config(CausalConfig):
    """Sizes and choices of one DuoRec."""

    unsupervised: Contrast
    supervised: Contrast
    cross: Contrast

    @property
    def contrasts(self) -> dict[str, Contrast]:
        """The terms that count, by name."""
        contrasts = {name: getattr(self, name) for name in PAIRS}
        return {name: contrast for name, contrast in contrasts.items() if contrast.weight > 0}


@dataclass(frozen=True)
class ContrastiveBatch:
    """A next-item batch of n sequences, and what its final states are compared with.

    ``views`` holds n sequences for each of the ``names`` that a term needs: ``again``, the inputs
    of ``next_items`` once more, and ``partner``, for each of them the input of a training example
    with the same final target. None where no term counts.
    """

    next_items: TargetBatch
    names: tuple[str, ...]
    views: Batch | None

    def to(self, device: torch.device | str) -> ContrastiveBatch:
        views = None if self.views is None else self.views.to(device)
        return ContrastiveBatch(self.next_items.to(device), self.names, views)


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


class Model(SelfAttentive):
    """See the module's docstring."""

    def __init__(self, config: Config, n_items: int):
        super().__init__(config, n_items, causal_encoder(config, n_items, "post_ln"))
        self._same_target: SameTarget | None = None

    def training_batch(
        self,
        sequences: Sequences,
        indices: np.ndarray,
        rng: np.random.Generator,
        share: slice = EVERYTHING,
    ) -> ContrastiveBatch:
        """Partners come from the whole of ``sequences``, which is indexed when first seen."""
        if self._same_target is None or self._same_target.sequences is not sequences:
            self._same_target = SameTarget(sequences)
        chosen = sequences.take(indices[share])
        needed = {member for name in self.config.contrasts for member in PAIRS[name]}
        inputs = {}
        if "again" in needed:
            inputs["again"] = chosen.window(drop_last=1)
        if "partner" in needed:
            partners = self._same_target.partner(sequences.offsets[indices + 1] - 1, rng)
            inputs["partner"] = sequences.before(partners[share])
        views = None
        if inputs:
            views = Batch.of(concatenate([*inputs.values()]).window(keep=self.max_length))
        next_items = TargetBatch.of_all_tokens(chosen, self.max_length)
        return ContrastiveBatch(next_items, tuple(inputs), views)

    def training_loss(self, training_batch: ContrastiveBatch) -> TrainingLoss:
        """The sequences of the whole batch are contrasted, over however many processes."""
        next_items = training_batch.next_items
        states = self.encode(next_items.inputs)
        loss = self.catalogue_loss(states, next_items.targets)
        if not self.config.contrasts:
            return loss
        last = next_items.inputs.last
        targets = next_items.targets.index_select(0, last)
        own = {"final": states.index_select(0, last)}
        if training_batch.views is not None:
            of_views = self.final_states(training_batch.views).split(len(last))
            own |= zip(training_batch.names, of_views, strict=True)
        targets = self.of_whole_batch(targets)
        gathered = self.of_whole_batch(torch.stack(list(own.values()), dim=1)).unbind(dim=1)
        members = dict(zip(own, gathered, strict=True))
        extra = {}
        for name, contrast in self.config.contrasts.items():
            one, other = (members[member] for member in PAIRS[name])
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
