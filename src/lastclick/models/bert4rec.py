"""BERT4Rec: bidirectional self-attention, trained to fill in masked items.

Sun et al., "BERT4Rec: Sequential Recommendation with Bidirectional Encoder Representations from
Transformer", CIKM 2019, but simpler, as in *time to split*: every item of a training sequence is
masked with the same probability, always by the mask token, and nothing else is done to favour the
last place. There is no extra layer and no bias between the encoder and the scores: the output
vectors are the item embeddings (tied weights).

A masking asks for the few items that it hides, where a causal model is asked for every item at
once. So an epoch masks a sequence several times, anew and in other company each time (the
original's data hold ten maskings of each): ``maskings_per_sequence`` times ``mask_probability`` is
how often an epoch asks for an item. At 1 it does so as often as a causal model's, and patience,
which counts epochs, means the same for both.

At inference a mask is appended to the input and its output ranks the catalogue. So the residual at
the prediction position carries the mask, not an item, and residual scaling does not apply.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from lastclick.data.sequences import Batch, Queries, Sequences
from lastclick.fields import Count, Number
from lastclick.models.attention import AttentionConfig, Block, Encoder, SelfAttentive
from lastclick.models.base import EVERYTHING, TrainingLoss, refuse_residual_scale


class Config(AttentionConfig):
    """Sizes and choices of one BERT4Rec; one place of ``max_length`` is the mask's."""

    mask_probability: Number = Field(gt=0, lt=1)
    maskings_per_sequence: Count
    max_length: Count = Field(ge=2)

    @property
    def passes_per_epoch(self) -> int:
        return self.maskings_per_sequence


@dataclass(frozen=True)
class MaskedBatch:
    """Sequences with masks in them, where the masks are and what they hide, ``(n_masked,)``.

    ``counts``: False of a share of a batch that has no mask but one without which there would be
    nothing to compute.
    """

    inputs: Batch
    masked: Queries
    targets: Tensor
    counts: bool

    def to(self, device: torch.device | str) -> MaskedBatch:
        targets = self.targets.to(device, non_blocking=True)
        return replace(
            self, inputs=self.inputs.to(device), masked=self.masked.to(device), targets=targets
        )


class Model(SelfAttentive):
    """See the module's docstring."""

    causal = False
    decomposable = False

    def __init__(self, config: Config, n_items: int):
        encoder = Encoder(
            n_items,
            [
                Block(
                    "post_ln", config.hidden_size, config.inner_size, config.n_heads,
                    "gelu", config.dropout, causal=False,
                )
                for _ in range(config.n_layers)
            ],
            kind="post_ln",
            max_length=config.max_length,
            hidden_size=config.hidden_size,
            dropout=config.dropout,
            n_extra_tokens=1,
        )  # fmt: skip
        encoder.initialise(attention_xavier=False)
        super().__init__(config, n_items, encoder)
        self.mask_token = n_items + 1

    def training_batch(
        self,
        sequences: Sequences,
        indices: np.ndarray,
        rng: np.random.Generator,
        share: slice = EVERYTHING,
    ) -> MaskedBatch:
        """Mask each item with ``mask_probability``; one at random where that masks none at all.

        A sequence without a mask says nothing this time. To force one upon it would make the items
        of short sequences count more than others.
        """
        batch = sequences.take(indices).window(keep=self.max_length)
        is_masked = rng.random(len(batch.items)) < self.config.mask_probability
        if not is_masked.any():
            is_masked[rng.integers(len(is_masked))] = True
        hidden = replace(batch, items=np.where(is_masked, np.int32(self.mask_token), batch.items))
        own = np.arange(len(batch))[share]
        original, inputs = batch.take(own), hidden.take(own)
        counts = bool((inputs.items == self.mask_token).any())
        if not counts:
            inputs.items[0] = self.mask_token

        masked = np.flatnonzero(inputs.items == self.mask_token)
        targets = torch.from_numpy(original.items[masked].astype(np.int64))
        ragged = Batch.of(inputs)
        return MaskedBatch(ragged, Queries.of(ragged, torch.from_numpy(masked)), targets, counts)

    def training_loss(self, training_batch: MaskedBatch) -> TrainingLoss:
        states = self.encoder(training_batch.inputs, queries=training_batch.masked)
        loss = self.catalogue_loss(states, training_batch.targets)
        return loss if training_batch.counts else TrainingLoss(loss.total * 0, 0)

    def encode(
        self,
        batch: Batch,
        *,
        residual_scale: float | Tensor = 1.0,
        capture: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Output at every place of sequences that may hold masks; each depends on all of them."""
        refuse_residual_scale(self, residual_scale)
        return super().encode(batch, capture=capture)

    def final_states(self, batch: Batch, *, residual_scale: float | Tensor = 1.0) -> Tensor:
        """Outputs at a mask appended to each sequence of at most ``max_input_length`` items."""
        refuse_residual_scale(self, residual_scale)
        masked = batch.append(self.mask_token)
        return self.encoder(masked, queries=masked.final_queries())

    def item_vectors(self) -> Tensor:
        return super().item_vectors()[: self.n_items + 1]

    @property
    def max_input_length(self) -> int:
        """One place is the mask's."""
        return self.max_length - 1
