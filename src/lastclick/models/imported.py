"""A SASRec that somebody else trained: the blocks and details of the implementations in use.

The weights come from a checkpoint (``lastclick.layouts`` reads it), which the stage train takes
instead of training. Three block kinds, of which the first two are those of ``attention.py``:
    ``post_ln``  x' = LN(alpha x + Attn(x)),                x'' = LN(x' + FFN(x'))
    ``classic``  q = LN(x), h = alpha q + Attn(q, x, x), f = LN(h),   x'' = f + FFN(f)
    ``pre_ln``   q = LN(x), h = alpha x + Attn(q), f = LN(h),         x'' = h + FFN(f)
                 (Xiong et al., "On Layer Normalization in the Transformer Architecture", ICML 2020)
alpha multiplies the residual that the kind really adds: x, or in ``classic`` the normalised query.

What else differs between implementations is in ``Config``. One thing is easily overlooked: who pads
on the left and gives attention a causal mask only, lets every item attend to the padding before it.
Such a model was trained so and scores so, and so does it here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveFloat
from torch import Tensor, nn

from lastclick.data.sequences import PADDING_ID, Batch, Sequences
from lastclick.models.attention import (
    INITIAL_STD,
    LAYER_NORM_EPS,
    Activation,
    AttentionConfig,
    SelfAttention,
    SelfAttentive,
)
from lastclick.models.attention import Block as AttentionBlock
from lastclick.models.base import Recommender
from lastclick.models.layers import Dropout


class Config(AttentionConfig):
    """Architecture of one SASRec.

    ``norm_eps`` is that of the blocks, ``last_norm_eps`` that of the one LayerNorm outside of them,
    which stands where ``norm_at`` says: after the embeddings or after the blocks. ``scale_items``:
    item embeddings are multiplied by sqrt(hidden_size) on their way in. ``newest_first``: position
    0 is the newest item, not the oldest kept one. ``padding``: whether attention sees the padding
    on the left of a sequence shorter than ``max_length``: not at all; as zeros, put back before
    every block; or as tokens that start as one given vector and pass through the blocks like any
    other. ``layout`` and ``n_mean_items`` (items that the checkpoint lacks) are for the record.
    """

    block: Literal["post_ln", "classic", "pre_ln"]
    activation: Activation
    dropout: float = Field(default=0.0, ge=0, lt=1)
    norm_eps: PositiveFloat = LAYER_NORM_EPS
    last_norm_eps: PositiveFloat = LAYER_NORM_EPS
    norm_at: Literal["input", "output"] = "input"
    scale_items: bool = False
    newest_first: bool = False
    padding: Literal["unseen", "zeros", "tokens"] = "unseen"
    layout: str = "plain"
    n_mean_items: NonNegativeInt = 0


@dataclass(frozen=True)
class LeftPadding:
    """Padding that attention sees: it precedes a sequence and is the same at all of its places.

    ``vector (hidden_size,)``: what a place holds; ``counts (n_sequences,)``: how many there are.
    """

    vector: Tensor
    counts: Tensor


class Attention(SelfAttention):
    """Causal attention that may see the padding before a sequence."""

    def forward(
        self, query_input: Tensor, input: Tensor, batch: Batch, padding: LeftPadding | None = None
    ) -> Tensor:
        """As ``SelfAttention``; equal keys count together, as one whose logit is log(count) larger.

        The rectangles get one column more than they have places, the first, for the padding.
        """
        if padding is None:
            return super().forward(query_input, input, batch)
        n_tokens, hidden_size = input.shape
        head_size = hidden_size // self.n_heads
        rows, slots = batch.head_slots(self.n_heads)
        key, value = self.key_value(input).chunk(2, dim=-1)
        sizes = [count * self.n_heads * width for count, width in batch.buckets]
        queries, keys, values = (
            x.reshape(-1, head_size).index_select(0, rows).split(sizes)
            for x in (self.query(query_input), key, value)
        )
        log_counts = padding.counts.to(input.dtype).log()[batch.bucket_order]
        padded = self.key_value(padding.vector).view(2, 1, self.n_heads, 1, head_size)

        outputs, first = [], 0
        for query, *key_value, (count, width) in zip(
            queries, keys, values, batch.buckets, strict=True
        ):
            shape = (count, self.n_heads, width, head_size)
            key, value = (
                torch.cat([of_padding.expand(count, -1, -1, -1), x.view(shape)], dim=2)
                for of_padding, x in zip(padded, key_value, strict=True)
            )
            mask = input.new_full((width, width + 1), -torch.inf).triu_(2)
            mask = mask.repeat(count, 1, 1, 1)
            mask[..., 0] = log_counts[first : first + count, None, None]
            dropout = self.dropout.probability if self.training else 0.0
            output = F.scaled_dot_product_attention(query.view(shape), key, value, mask, dropout)
            outputs.append(output.reshape(-1, head_size))
            first += count
        merged = torch.cat(outputs).index_select(0, slots)
        return self.output(merged.view(n_tokens, hidden_size))


class Block(AttentionBlock):
    """One transformer layer of the kind ``config.block``; formulas: the module's docstring."""

    def __init__(self, config: Config):
        super().__init__(
            config.block, config.hidden_size, config.inner_size, config.n_heads,
            config.activation, config.dropout, norm_eps=config.norm_eps,
        )  # fmt: skip
        self.attention = Attention(config.hidden_size, config.n_heads, config.dropout)

    def forward(
        self,
        x: Tensor,
        batch: Batch,
        *,
        residual_scale: float = 1.0,
        capture: dict[str, Tensor] | None = None,
        prefix: str = "",
        padding: LeftPadding | None = None,
    ) -> Tensor:
        """``x (n_tokens, hidden_size)`` to the block's output of the same shape.

        Captures, under ``prefix``, what ``attention.Block`` does, and: ``query_input`` and
        ``attention_input``, the vectors that queries, and that keys and values, are made from; and
        with ``padding`` its ``padding_vector``, as keys and values are made from it, and its
        ``padding_counts``.
        """
        query_input = x if self.kind == "post_ln" else self.attention_norm(x)
        residual = query_input if self.kind == "classic" else x
        attention_input = query_input if self.kind == "pre_ln" else x
        if padding is not None and self.kind == "pre_ln":
            padding = LeftPadding(self.attention_norm(padding.vector), padding.counts)
        attention = self.attention(query_input, attention_input, batch, padding)
        if capture is not None:
            named = {"query_input": query_input, "attention_input": attention_input}
            if padding is not None:
                named |= {"padding_vector": padding.vector, "padding_counts": padding.counts}
            capture.update({f"{prefix}{name}": value for name, value in named.items()})
        return self._add_attention(x, residual, attention, residual_scale, capture, prefix)


class Encoder(nn.Module):
    """Embeddings, blocks, and one LayerNorm before or after the blocks."""

    def __init__(self, config: Config, n_items: int):
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.item_embedding = nn.Embedding(n_items + 1, size, padding_idx=PADDING_ID)
        self.position_embedding = nn.Embedding(config.max_length, size)
        if config.padding == "tokens":
            self.padding_vector = nn.Parameter(torch.zeros(size))
        self.norm = nn.LayerNorm(size, eps=config.last_norm_eps)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=INITIAL_STD)

    def forward(
        self,
        batch: Batch,
        *,
        residual_scale: float | Tensor = 1.0,
        capture: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """As ``attention.Encoder``."""
        config = self.config
        embedded = self.item_embedding(batch.items)
        if config.scale_items:
            embedded = embedded * config.hidden_size**0.5
        positions = batch.positions
        if config.newest_first:
            positions = batch.lengths[batch.sequence] - 1 - positions
        x = embedded + self.position_embedding(positions)
        x = self.dropout(self.norm(x) if config.norm_at == "input" else x)
        padding = self._padding(batch, x)
        scales = torch.as_tensor(residual_scale, dtype=torch.float64).expand(len(self.blocks))
        for number, (block, scale) in enumerate(zip(self.blocks, scales.tolist(), strict=True), 1):
            x = block(
                x, batch, residual_scale=scale, capture=capture, prefix=f"layer{number}.",
                padding=padding,
            )  # fmt: skip
            if config.padding == "tokens":
                # Padding attends to padding only, all of it alike: a sequence of one such token.
                alone = Batch.of(Sequences.from_lists([[PADDING_ID]])).to(x.device)
                vector = block(padding.vector[None], alone, residual_scale=scale)[0]
                padding = LeftPadding(vector, padding.counts)
        return x if config.norm_at == "input" else self.norm(x)

    def _padding(self, batch: Batch, x: Tensor) -> LeftPadding | None:
        """What precedes the sequences at the first block's input; None: attention does not see."""
        if self.config.padding == "unseen":
            return None
        is_token = self.config.padding == "tokens"
        vector = self.padding_vector if is_token else x.new_zeros(x.shape[-1])
        return LeftPadding(vector, self.config.max_length - batch.lengths)


class Model(SelfAttentive):
    """See the module's docstring. Its loss is SASRec's, whatever the weights were trained with."""

    def __init__(self, config: Config, n_items: int):
        super().__init__(config, n_items, Encoder(config, n_items))

    def final_states(self, batch: Batch, *, residual_scale: float | Tensor = 1.0) -> Tensor:
        """As ``Recommender``: these blocks work at every position."""
        return Recommender.final_states(self, batch, residual_scale=residual_scale)
