"""BSARec: self-attention blended with a filter in frequency space.

Shin et al., "An Attentive Inductive Bias for Sequential Recommendation beyond the Self-Attention",
AAAI 2024. A layer mixes positions in two ways, each with its own residual and LayerNorm, and
blends them by a fixed weight w (``filter_weight``; the paper's alpha, which here is the name of the
residual scale):
    a = LN(alpha x + Attn(x)),   f = LN(alpha x + Filter(x)),   x' = w f + (1 - w) a,
    x'' = LN(x' + FFN(x')).
    Filter(x) = low + beta^2 (x - low),   low = x cut down to its lowest frequencies.
The residual scale multiplies the residual of both branches. What the filter itself passes on from a
position to itself is mixing, as the diagonal of attention is, and is not scaled.

Attention is causal, but the filter is not: through it every output depends on every position. So
the model is trained on prefixes, each with its last output only, and never sees what it has to
predict. The same holds for padding: each sequence is filtered at its own length.

Prefixes cost what causal models get for free, one pass per target: a prefix of length n costs n
tokens of encoding. Its authors train on all prefixes. Here up to ``prefixes_per_sequence`` of a
sequence are drawn anew in every epoch, without replacement, which bounds time and memory where
histories are long; ``max_length`` means all. A small number counts users with a long history much
less than a loss at every position would, and costs accuracy (see the README).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from lastclick.data.sequences import Batch, Queries, Sequences
from lastclick.fields import Count, Number
from lastclick.models.attention import (
    LAYER_NORM_EPS,
    CausalConfig,
    Encoder,
    FeedForward,
    SelfAttention,
    SelfAttentive,
)
from lastclick.models.base import EVERYTHING, TargetBatch, TrainingLoss
from lastclick.models.layers import Dropout, gather_rows, gather_rows_back


class Config(CausalConfig):
    """Sizes and choices of one BSARec.

    ``low_frequencies`` counts the frequencies of a sequence, from the constant one, that the filter
    calls low; a sequence of n items has n // 2 + 1 of them.
    """

    filter_weight: Number = Field(ge=0, le=1)
    low_frequencies: Count
    prefixes_per_sequence: Count


def low_pass_basis(batch: Batch, n_frequencies: int) -> Tensor:
    """An orthonormal basis of the lowest frequencies of each sequence, at its own length.

    Returns B ``(n_tokens, 2 * n_frequencies - 1)``: the constant, then a cosine and a sine of each
    further frequency, zero where a sequence is too short to have it. For the rows of one sequence,
    B B^T x equals the inverse real FFT of the FFT of x with all higher frequencies set to zero.
    """
    length = batch.lengths[batch.sequence]
    n = length.double()
    columns = [n.rsqrt()]
    for frequency in range(1, n_frequencies):
        amplitude = torch.where(2 * frequency <= length, (2 / n).sqrt(), 0.0)
        # The highest frequency of an even length alternates: its sine is zero at every place.
        is_highest = 2 * frequency == length
        angle = (frequency * batch.positions % length) / n * (2 * torch.pi)
        columns.append(torch.where(is_highest, n.rsqrt(), amplitude) * angle.cos())
        columns.append(torch.where(is_highest, 0.0, amplitude) * angle.sin())
    return torch.stack(columns, dim=-1)


class FrequencyFilter(nn.Module):
    """Rescales the high frequencies of each sequence by a learned beta^2 per channel."""

    def __init__(self, hidden_size: int, n_frequencies: int):
        super().__init__()
        self.n_frequencies = n_frequencies
        self.beta = nn.Parameter(torch.randn(hidden_size))

    def forward(self, x: Tensor, batch: Batch, *, queries: Queries | None = None) -> Tensor:
        """``x (n_tokens, hidden_size)`` to the same shape, or to that of ``queries`` alone."""
        low = self.low_pass(x, batch, queries=queries)
        own = x if queries is None else x.index_select(0, queries.tokens)
        return low + self.beta.square() * (own - low)

    def low_pass(self, x: Tensor, batch: Batch, *, queries: Queries | None = None) -> Tensor:
        """What the lowest frequencies make of ``x (n_tokens, hidden_size)``, or at ``queries``."""
        basis = low_pass_basis(batch, self.n_frequencies).to(x.dtype)
        padded = gather_rows(x, batch.padded_index, batch.padded_inverse)
        bases = basis.new_zeros(len(batch.padded_index), basis.shape[1])
        bases[batch.padded_inverse] = basis  # zero beyond each sequence
        sizes = [math.prod(bucket) for bucket in batch.buckets]
        own, own_slots, own_sizes = bases, batch.padded_inverse, sizes
        if queries is not None:
            own, own_slots = basis.new_zeros(queries.n_slots, basis.shape[1]), queries.slots
            own[own_slots] = basis[queries.tokens]
            own_sizes = [math.prod(bucket) for bucket in queries.buckets]
        low = []
        for (count, _), own_part, basis_part, part in zip(
            batch.buckets, own.split(own_sizes), bases.split(sizes), padded.split(sizes),
            strict=True,
        ):  # fmt: skip
            own_part, basis_part, part = (
                rows.unflatten(0, (count, -1)) for rows in (own_part, basis_part, part)
            )
            low.append((own_part @ (basis_part.transpose(1, 2) @ part)).flatten(0, 1))
        return gather_rows_back(torch.cat(low), own_slots)


class Block(nn.Module):
    """One layer; see the module's docstring for the formulas."""

    def __init__(self, config: Config):
        super().__init__()
        size, dropout = config.hidden_size, config.dropout
        self.filter_weight = config.filter_weight
        self.attention = SelfAttention(size, config.n_heads, dropout)
        self.attention_norm = nn.LayerNorm(size, eps=LAYER_NORM_EPS)
        self.filter = FrequencyFilter(size, config.low_frequencies)
        self.filter_norm = nn.LayerNorm(size, eps=LAYER_NORM_EPS)
        self.feed_forward = FeedForward(
            size, config.inner_size, config.activation, dropout, inner_dropout=False
        )
        self.feed_forward_norm = nn.LayerNorm(size, eps=LAYER_NORM_EPS)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        batch: Batch,
        *,
        queries: Queries | None = None,
        residual_scale: float = 1.0,
        capture: dict[str, Tensor] | None = None,
        prefix: str = "",
    ) -> Tensor:
        """``x (n_tokens, hidden_size)`` to the layer's output of the same shape.

        With ``queries`` the output and what is captured are theirs, ``(n_queries, hidden_size)``.
        Captures, under ``prefix``: ``input`` and ``residual`` (both x), ``attention`` and
        ``filter`` (the outputs of the two branches), ``sum`` and ``filter_sum`` (each with its
        residual) and ``normalised`` (the blend of their LayerNorms, read by the feed-forward part).
        """
        own = x if queries is None else x.index_select(0, queries.tokens)
        attention = self.dropout(self.attention(own, x, batch, queries=queries))
        filtered = self.dropout(self.filter(x, batch, queries=queries))
        total = torch.add(attention, own, alpha=residual_scale)
        filter_total = torch.add(filtered, own, alpha=residual_scale)
        blend = (
            self.filter_weight * self.filter_norm(filter_total)
            + (1 - self.filter_weight) * self.attention_norm(total)
        )  # fmt: skip
        if capture is not None:
            named = {"input": own, "residual": own, "attention": attention, "filter": filtered,
                     "sum": total, "filter_sum": filter_total, "normalised": blend}  # fmt: skip
            capture.update({f"{prefix}{name}": value for name, value in named.items()})
        return self.feed_forward_norm(blend + self.feed_forward(blend))


class Model(SelfAttentive):
    """See the module's docstring. Through the filter each output depends on all positions."""

    causal = False

    def __init__(self, config: Config, n_items: int):
        encoder = Encoder(
            n_items,
            [Block(config) for _ in range(config.n_layers)],
            kind="post_ln",
            max_length=config.max_length,
            hidden_size=config.hidden_size,
            dropout=config.dropout,
        )
        encoder.initialise(attention_xavier=config.attention_init == "xavier_uniform")
        super().__init__(config, n_items, encoder)

    def training_batch(
        self,
        sequences: Sequences,
        indices: np.ndarray,
        rng: np.random.Generator,
        share: slice = EVERYTHING,
    ) -> TargetBatch:
        """Up to ``prefixes_per_sequence`` of each sequence's ``max_length`` newest targets."""
        chosen = sequences.take(indices).window(keep=self.max_length + 1)
        is_own = np.zeros(len(chosen), dtype=bool)
        is_own[share] = True
        targets = draw_targets(chosen, self.config.prefixes_per_sequence, rng)
        targets = targets[is_own[chosen.sequence_of(targets)]]
        items = torch.from_numpy(chosen.items[targets].astype(np.int64))
        return TargetBatch(Batch.of(chosen.before(targets)), items)

    def training_loss(self, training_batch: TargetBatch) -> TrainingLoss:
        states = self.final_states(training_batch.inputs)
        return self.catalogue_loss(states, training_batch.targets)


def draw_targets(sequences: Sequences, at_most: int, rng: np.random.Generator) -> np.ndarray:
    """Tokens to predict: of each sequence ``at_most`` of its tokens but the first, ascending."""
    sequence = np.repeat(np.arange(len(sequences)), sequences.lengths)
    key = rng.random(len(sequences.items))
    key[sequences.offsets[:-1]] = 2.0  # the first token of a sequence sorts after all others
    shuffled = np.lexsort((key, sequence))
    place = np.arange(len(shuffled)) - sequences.offsets[:-1][sequence]
    return np.sort(shuffled[place < np.minimum(sequences.lengths - 1, at_most)[sequence]])
