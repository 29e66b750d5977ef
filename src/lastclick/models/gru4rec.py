"""GRU4Rec: a gated recurrent unit, trained to predict the next item at every position.

Hidasi et al., "Session-based Recommendations with Recurrent Neural Networks", ICLR 2016, as the
later comparisons train it: on whole sequences, with cross-entropy over the whole catalogue. The
output vectors are the item embeddings (tied weights), so the state is as wide as an embedding.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveInt
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lastclick.data.sequences import Batch, Sequences
from lastclick.losses import linear_cross_entropy
from lastclick.models.base import (
    NextItemBatch,
    Recommender,
    TrainingLoss,
    refuse_residual_scale,
)
from lastclick.models.layers import Dropout, gather_rows

INITIAL_STD = 0.02


class Config(BaseModel):
    """Sizes and choices of one GRU4Rec.

    ``dropout`` acts on the item embeddings that enter the network and between its layers.
    ``max_length`` bounds memory and time only: a recurrent network has no positions.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    hidden_size: PositiveInt
    n_layers: PositiveInt
    dropout: float = Field(ge=0, lt=1)
    max_length: PositiveInt


class Model(Recommender):
    """See the module's docstring."""

    def __init__(self, config: Config, n_items: int):
        super().__init__()
        self.config = config
        self.n_items = n_items
        self.max_length = config.max_length
        self.item_embedding = nn.Embedding(n_items + 1, config.hidden_size, padding_idx=0)
        self.dropout = Dropout(config.dropout)
        self.gru = nn.GRU(
            config.hidden_size,
            config.hidden_size,
            config.n_layers,
            dropout=config.dropout if config.n_layers > 1 else 0.0,
        )
        with torch.no_grad():
            nn.init.normal_(self.item_embedding.weight, std=INITIAL_STD)
            self.item_embedding.weight[0].zero_()

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
        """The state after every item; captures ``embedded``, the vectors that enter the network."""
        refuse_residual_scale(self, residual_scale)
        embedded = self.dropout(self.item_embedding(batch.items))
        if capture is not None:
            capture["embedded"] = embedded
        order, inverse = _time_major_order(batch)
        n_sequences_at = torch.bincount(batch.positions).cpu()  # PackedSequence wants it there
        packed = PackedSequence(gather_rows(embedded, order, inverse), n_sequences_at)
        states, _ = self.gru(packed)
        return gather_rows(states.data, inverse, order)

    def item_vectors(self) -> Tensor:
        return self.item_embedding.weight


def _time_major_order(batch: Batch) -> tuple[Tensor, Tensor]:
    """The tokens' order in a PackedSequence, and its inverse, both ``(n_tokens,)``.

    All first tokens come first, then all second ones, …, and at each time the longest sequence
    first: so the network advances every sequence that is still running at once, without padding.
    """
    longest_first = torch.argsort(batch.lengths, descending=True, stable=True)
    rank = torch.empty_like(longest_first)
    rank[longest_first] = torch.arange(batch.n_sequences, device=rank.device)
    order = torch.argsort(batch.positions * batch.n_sequences + rank[batch.sequence])
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(batch.n_tokens, device=order.device)
    return order, inverse
