"""The causal self-attention encoder that SASRec, DuoRec and BSARec share, in its two block kinds.

``post_ln`` (the block that *residual dominance* analyses, section 3 of the paper):
    x' = LN(alpha x + Attn(x)),   x'' = LN(x' + FFN(x')),   with a LayerNorm after the embeddings.
``classic`` (Kang & McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018, as the widely
used PyTorch ports compute it): the query is normalised first and is itself the residual,
    q = LN(x),   h = alpha q + Attn(q, x, x),   f = LN(h),   x'' = f + FFN(f),
with a last LayerNorm after all blocks.

alpha is the residual scale of the paper's probe; training always uses 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lastclick.data.sequences import Batch
from lastclick.models.layers import Dropout, gather_rows, gather_rows_back

BlockKind = Literal["post_ln", "classic"]
Activation = Literal["gelu", "relu"]

LAYER_NORM_EPS = 1e-12
INITIAL_STD = 0.02


class SelfAttention(nn.Module):
    """Multi-head scaled dot-product attention over ragged batches."""

    def __init__(self, hidden_size: int, n_heads: int, dropout: float, *, causal: bool = True):
        super().__init__()
        if hidden_size % n_heads:
            raise ValueError(f"hidden_size {hidden_size} is not divisible by n_heads {n_heads}")
        self.n_heads = n_heads
        self.causal = causal
        self.dropout = Dropout(dropout)
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key_value = nn.Linear(hidden_size, 2 * hidden_size)
        self.output = nn.Linear(hidden_size, hidden_size)

    def forward(self, query_input: Tensor, input: Tensor, batch: Batch) -> Tensor:
        """Attend within each sequence.

        ``query_input`` and ``input``: ``(n_tokens, hidden_size)``, the vectors that queries, and
        that keys and values, are made from. Returns ``(n_tokens, hidden_size)``, the merged heads
        after the output projection.
        """
        n_tokens, hidden_size = input.shape
        head_size = hidden_size // self.n_heads
        rows, slots = batch.head_slots(self.n_heads)
        sizes = [count * self.n_heads * width for count, width in batch.buckets]

        def rectangles(x: Tensor) -> tuple[Tensor, ...]:
            """Of each bucket ``(sequences, heads, width, head_size)``."""
            padded = gather_rows(x.reshape(-1, head_size), rows, slots).split(sizes)
            return tuple(
                part.view(count, self.n_heads, width, head_size)
                for part, (count, width) in zip(padded, batch.buckets, strict=True)
            )

        key, value = self.key_value(input).chunk(2, dim=-1)
        attended = [
            self._attend(*part).reshape(-1, head_size)
            for part in zip(
                rectangles(self.query(query_input)), rectangles(key), rectangles(value),
                batch.lengths[batch.bucket_order].split([count for count, _ in batch.buckets]),
                strict=True,
            )
        ]  # fmt: skip
        merged = gather_rows_back(torch.cat(attended), slots)
        return self.output(merged.view(n_tokens, hidden_size))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, lengths: Tensor) -> Tensor:
        """Attention in one rectangle of sequences with these ``lengths (sequences,)``.

        Everything else is ``(sequences, heads, width, head_size)``. What comes out at places
        beyond a sequence is of no use.
        """
        n_heads, width, head_size = query.shape[1:]
        dropout = self.dropout.probability if self.training else 0.0
        if query.is_cuda or dropout == 0:
            # Padding follows the real tokens, so a causal mask already hides it from them.
            mask = None if self.causal else _padding_mask(lengths, query)[:, None]
            return F.scaled_dot_product_attention(query, key, value, mask, dropout, self.causal)
        # A CPU has no fused attention with dropout, and torch's fallback is slower than this.
        if self.causal:
            mask = query.new_full((width, width), -torch.inf).triu_(1)
        else:
            mask = _padding_mask(lengths, query).repeat_interleave(n_heads, 0)
        query, key, value = (x.flatten(0, 1) for x in (query, key, value))
        scores = torch.baddbmm(mask, query, key.transpose(1, 2), alpha=head_size**-0.5)
        return torch.bmm(self.dropout(scores.softmax(-1)), value)


def _padding_mask(lengths: Tensor, query: Tensor) -> Tensor:
    """What to add to scores so that no place sees padding, ``(sequences, 1, width)``."""
    padding = torch.arange(query.shape[2], device=query.device) >= lengths[:, None]
    return query.new_zeros(padding.shape).masked_fill_(padding, -torch.inf)[:, None]


class FeedForward(nn.Module):
    """Position-wise two-layer network; dropout as in the block it belongs to."""

    def __init__(
        self, hidden_size: int, inner_size: int, activation: Activation, dropout: float, *,
        inner_dropout: bool,
    ):  # fmt: skip
        super().__init__()
        self.inner = nn.Linear(hidden_size, inner_size)
        self.outer = nn.Linear(inner_size, hidden_size)
        self.activation = F.gelu if activation == "gelu" else F.relu
        self.inner_dropout = Dropout(dropout if inner_dropout else 0.0)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.outer(self.inner_dropout(self.activation(self.inner(x)))))


class Block(nn.Module):
    """One transformer layer of either kind; see the module's docstring for the formulas.

    ``attention_norm`` and ``feed_forward_norm`` stand where the block kind puts them: after the
    sums in ``post_ln``; before attention and before the feed-forward network in ``classic``.
    """

    def __init__(
        self, kind: BlockKind, hidden_size: int, inner_size: int, n_heads: int,
        activation: Activation, dropout: float, *, causal: bool = True,
    ):  # fmt: skip
        super().__init__()
        self.kind = kind
        self.attention = SelfAttention(hidden_size, n_heads, dropout, causal=causal)
        self.attention_norm = nn.LayerNorm(hidden_size, eps=LAYER_NORM_EPS)
        self.feed_forward = FeedForward(
            hidden_size, inner_size, activation, dropout, inner_dropout=kind == "classic"
        )
        self.feed_forward_norm = nn.LayerNorm(hidden_size, eps=LAYER_NORM_EPS)
        # The classic block has no dropout between the output projection and the residual sum.
        self.attention_dropout = Dropout(dropout if kind == "post_ln" else 0.0)

    def forward(
        self,
        x: Tensor,
        batch: Batch,
        *,
        residual_scale: float | Tensor = 1.0,
        capture: dict[str, Tensor] | None = None,
        prefix: str = "",
    ) -> Tensor:
        """``x (n_tokens, hidden_size)`` to the block's output of the same shape.

        Captures, under ``prefix``: ``input`` (x), ``residual`` (what the attention output is added
        to, before scaling), ``attention`` (the attention output), ``sum`` (their sum) and
        ``normalised`` (the LayerNorm of that sum, in both kinds what the feed-forward part reads).
        """
        residual = x if self.kind == "post_ln" else self.attention_norm(x)
        attention = self.attention_dropout(self.attention(residual, x, batch))
        total = residual * residual_scale + attention
        norm = self.attention_norm if self.kind == "post_ln" else self.feed_forward_norm
        normalised = norm(total)
        if capture is not None:
            named = {"input": x, "residual": residual, "attention": attention,
                     "sum": total, "normalised": normalised}  # fmt: skip
            capture.update({f"{prefix}{name}": value for name, value in named.items()})
        output = normalised + self.feed_forward(normalised)
        return self.feed_forward_norm(output) if self.kind == "post_ln" else output


class Encoder(nn.Module):
    """Embeddings, the given blocks and the last normalisation.

    Position 0 is the oldest kept item. The classic kind multiplies item embeddings by
    sqrt(hidden_size) before adding positions and normalises at the end; ``post_ln`` normalises
    right after the sum of embeddings.
    """

    def __init__(
        self, n_items: int, blocks: Sequence[nn.Module], *, kind: BlockKind, max_length: int,
        hidden_size: int, dropout: float, n_extra_tokens: int = 0,
    ):  # fmt: skip
        super().__init__()
        self.kind = kind
        self.item_embedding = nn.Embedding(n_items + 1 + n_extra_tokens, hidden_size, padding_idx=0)
        self.position_embedding = nn.Embedding(max_length, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=LAYER_NORM_EPS)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(blocks)

    def initialise(self, *, attention_xavier: bool) -> None:
        """Draw weights from N(0, 0.02); biases 0.

        ``attention_xavier`` leaves the input projections of attention at the Xavier-uniform draw of
        torch's own MultiheadAttention (one joint ``3 * hidden x hidden`` matrix), as the models
        released with *residual dominance* do.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=INITIAL_STD)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=INITIAL_STD)
        with torch.no_grad():
            self.item_embedding.weight[0].zero_()
            if attention_xavier:
                for block in self.blocks:
                    size = block.attention.query.in_features
                    joint = nn.init.xavier_uniform_(torch.empty(3 * size, size))
                    block.attention.query.weight.copy_(joint[:size])
                    block.attention.key_value.weight.copy_(joint[size:])

    def forward(
        self,
        batch: Batch,
        *,
        residual_scale: float | Tensor = 1.0,
        capture: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Output at every real position, ``(n_tokens, hidden_size)``.

        ``residual_scale``: one alpha, or one per layer ``(n_layers,)``. Captures are those of
        ``Block`` under ``layer1.``, ``layer2.``, …
        """
        embedded = self.item_embedding(batch.items)
        if self.kind == "classic":
            embedded = embedded * embedded.shape[-1] ** 0.5
        x = embedded + self.position_embedding(batch.positions)
        x = self.dropout(self.norm(x) if self.kind == "post_ln" else x)
        scales = torch.as_tensor(residual_scale, dtype=x.dtype, device=x.device)
        scales = scales.expand(len(self.blocks))
        for number, block in enumerate(self.blocks, start=1):
            x = block(
                x, batch, residual_scale=scales[number - 1], capture=capture,
                prefix=f"layer{number}.",
            )  # fmt: skip
        return x if self.kind == "post_ln" else self.norm(x)
