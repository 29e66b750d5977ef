"""SASRec: causal self-attention, trained to predict the next item at every position.

Kang & McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018; trained with cross-entropy
over the whole catalogue at every real position, as *residual dominance* and *time to split* do.
The output vectors are the item embeddings (tied weights).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PositiveInt
from torch import Tensor

from lastclick.data.sequences import Batch, Sequences
from lastclick.losses import linear_cross_entropy
from lastclick.models.attention import Activation, Block, BlockKind, Encoder
from lastclick.models.base import NextItemBatch, Recommender, TrainingLoss


class Config(BaseModel):
    """Sizes and choices of one SASRec; ``inner_size`` is the width of the feed-forward part."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    block: BlockKind
    hidden_size: PositiveInt
    inner_size: PositiveInt
    n_layers: PositiveInt
    n_heads: PositiveInt
    activation: Activation
    attention_init: Literal["xavier_uniform", "normal"]
    dropout: float = Field(ge=0, lt=1)
    max_length: PositiveInt


class Model(Recommender):
    """See the module's docstring; ``config.block`` chooses the block kind."""

    decomposable = True

    def __init__(self, config: Config, n_items: int):
        super().__init__()
        self.config = config
        self.n_items = n_items
        self.max_length = config.max_length
        self.encoder = Encoder(
            n_items,
            [
                Block(
                    config.block, config.hidden_size, config.inner_size, config.n_heads,
                    config.activation, config.dropout,
                )
                for _ in range(config.n_layers)
            ],
            kind=config.block,
            max_length=config.max_length,
            hidden_size=config.hidden_size,
            dropout=config.dropout,
        )  # fmt: skip
        self.encoder.initialise(attention_xavier=config.attention_init == "xavier_uniform")

    def training_batch(
        self, sequences: Sequences, indices: np.ndarray, rng: np.random.Generator
    ) -> NextItemBatch:
        return NextItemBatch.of(sequences.take(indices), self.max_length)

    def training_loss(self, training_batch: NextItemBatch) -> TrainingLoss:
        states = self.encode(training_batch.inputs)
        total = linear_cross_entropy(
            states, self.item_vectors(), training_batch.targets,
            reduction="sum", precision=self.loss_precision,
        )  # fmt: skip
        return TrainingLoss(total, training_batch.targets.shape[0])

    def encode(
        self,
        batch: Batch,
        *,
        residual_scale: float | Tensor = 1.0,
        capture: dict[str, Tensor] | None = None,
    ) -> Tensor:
        return self.encoder(batch, residual_scale=residual_scale, capture=capture)

    def item_vectors(self) -> Tensor:
        return self.encoder.item_embedding.weight
