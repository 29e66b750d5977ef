"""What every recommender offers to training, scoring and diagnosis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from lastclick.data.sequences import Batch, Sequences
from lastclick.losses import linear_cross_entropy

#: The share of a process that is alone.
EVERYTHING = slice(None)


class ModelConfig(BaseModel):
    """Sizes and choices of a model: every key is known."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @property
    def passes_per_epoch(self) -> int:
        """How many times an epoch goes through all sequences."""
        return 1


@dataclass(frozen=True)
class TrainingLoss:
    """The summed next-item loss of a batch, and anything added to its mean.

    The trainer minimises ``total / n_targets + sum(extra.values())``; with several processes
    ``total`` and ``n_targets`` are summed over all of them first, so that this loss does not depend
    on how a batch is shared out. ``extra`` holds weighted terms of the whole batch, the same in
    every process (``Recommender.of_whole_batch``), under readable names.
    """

    total: Tensor
    n_targets: int
    extra: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class TargetBatch:
    """Inputs, and the item that each of the model's states has to predict, ``(n_states,)``.

    The states are those of all tokens, or of the final ones: the model's ``training_loss`` knows.
    """

    inputs: Batch
    targets: Tensor

    @classmethod
    def of_all_tokens(cls, sequences: Sequences, max_length: int) -> TargetBatch:
        """Of each sequence the ``max_length`` newest pairs of neighbours."""
        pairs = sequences.window(keep=max_length + 1)
        inputs = pairs.window(drop_last=1)
        is_first = np.zeros(len(pairs.items), dtype=bool)
        is_first[pairs.offsets[:-1]] = True
        targets = torch.from_numpy(pairs.items[~is_first].astype(np.int64))
        return cls(Batch.of(inputs), targets)

    def to(self, device: torch.device | str) -> TargetBatch:
        return TargetBatch(self.inputs.to(device), self.targets.to(device, non_blocking=True))


def _all_its_own(own: Tensor) -> Tensor:
    return own


class Recommender(nn.Module, ABC):
    """A next-item recommender over the whole catalogue.

    Items are numbered 1..n_items; row 0 of every table belongs to padding, is never ranked and
    never part of a loss. Scores are ``final_states(batch) @ item_vectors().T``.
    """

    #: The output at a position depends on items up to that position only, so that one pass over a
    #: sequence also yields the outputs of all its prefixes.
    causal: ClassVar[bool] = True
    #: Blocks of the form residual + attention whose residual carries an item: residual scaling and
    #: the norm decomposition apply.
    decomposable: ClassVar[bool] = False

    n_items: int
    max_length: int
    #: Precision of the products of the catalogue-sized loss ("fp32" or "bf16"); set by the trainer.
    loss_precision: str = "fp32"

    def __init__(self) -> None:
        super().__init__()
        #: From values of the sequences of this process's share of a batch, ``(n_own, ...)``, those
        #: of the whole batch, ``(n, ...)``: its own, which gradients pass through, and constants.
        #: For terms that compare sequences with each other; set by the trainer.
        self.of_whole_batch: Callable[[Tensor], Tensor] = _all_its_own

    def training_batch(
        self,
        sequences: Sequences,
        indices: np.ndarray,
        rng: np.random.Generator,
        share: slice = EVERYTHING,
    ) -> Any:
        """What ``training_loss`` needs of a process's ``share`` of a batch.

        The batch is of the users at ``indices`` of the training sequences. All random choices of
        data (masks, prefixes, partners) come from ``rng``, so that a step can be replayed, and are
        made for the whole batch, so that they do not depend on how it is shared out. Made on the
        CPU; the trainer calls its ``.to(device)``. Every sequence given has at least two items.
        Here: every item but the first is to be predicted.
        """
        return TargetBatch.of_all_tokens(sequences.take(indices[share]), self.max_length)

    def training_loss(self, training_batch: Any) -> TrainingLoss:
        """The loss of one training batch; here the next item's at every real position."""
        states = self.encode(training_batch.inputs)
        return self.catalogue_loss(states, training_batch.targets)

    def catalogue_loss(self, states: Tensor, targets: Tensor) -> TrainingLoss:
        """Cross-entropy over the whole catalogue of ``states (n, hidden_size)``, summed.

        ``targets (n,)``: the item that each of the states has to predict.
        """
        total = linear_cross_entropy(
            states, self.item_vectors(), targets,
            reduction="sum", precision=self.loss_precision,
        )  # fmt: skip
        return TrainingLoss(total, targets.shape[0])

    @abstractmethod
    def encode(
        self,
        batch: Batch,
        *,
        residual_scale: float | Tensor = 1.0,
        capture: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Output at every real position, ``(n_tokens, hidden_size)``.

        ``residual_scale`` (alpha, one number or one per layer, ``(n_layers,)``) multiplies the
        residual that each attention block adds; models that are not ``decomposable`` raise
        ValueError for any other value than 1. ``capture``, where given, receives intermediate
        values under readable names.
        """

    def final_states(self, batch: Batch, *, residual_scale: float | Tensor = 1.0) -> Tensor:
        """The vectors that the catalogue is ranked by, ``(n_sequences, hidden_size)``."""
        return self.encode(batch, residual_scale=residual_scale).index_select(0, batch.last)

    @abstractmethod
    def item_vectors(self) -> Tensor:
        """Output vector of every item, ``(n_items + 1, hidden_size)``; row 0 is padding."""

    @property
    def max_input_length(self) -> int:
        """How many of the newest items of a sequence the model can read."""
        return self.max_length


def refuse_residual_scale(model: nn.Module, residual_scale: float | Tensor) -> None:
    """Raise ValueError unless it is 1: the model has no residual that carries an item."""
    if not bool((torch.as_tensor(residual_scale) == 1).all()):
        raise ValueError(f"residual scaling is not applicable to {type(model).__name__}")
