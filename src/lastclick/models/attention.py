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

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lastclick.data.sequences import Batch, Queries
from lastclick.fields import Count, Number
from lastclick.models.base import ModelConfig, Recommender
from lastclick.models.layers import Dropout, gather_rows, gather_rows_back

BlockKind = Literal["post_ln", "classic"]
Activation = Literal["gelu", "relu"]
Shape = tuple[int, int]  # sequences * heads, width

LAYER_NORM_EPS = 1e-12
INITIAL_STD = 0.02


class AttentionConfig(ModelConfig):
    """Sizes of an attention encoder; ``inner_size`` is the width of the feed-forward part."""

    hidden_size: Count
    inner_size: Count
    n_layers: Count
    n_heads: Count
    dropout: Number = Field(ge=0, lt=1)
    max_length: Count

    @model_validator(mode="after")
    def _with_heads_of_one_size(self) -> AttentionConfig:
        if self.hidden_size % self.n_heads:
            raise ValueError(
                f"n_heads {self.n_heads} does not divide hidden_size {self.hidden_size}"
            )
        return self


class CausalConfig(AttentionConfig):
    """What else the models that share SASRec's encoder have in common."""

    activation: Activation
    attention_init: Literal["xavier_uniform", "normal"]


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

    def forward(
        self, query_input: Tensor, input: Tensor, batch: Batch, *, queries: Queries | None = None
    ) -> Tensor:
        """Attend within each sequence.

        ``query_input`` and ``input``: ``(n_tokens, hidden_size)``, the vectors that queries, and
        that keys and values, are made from. Returns ``(n_tokens, hidden_size)``, the merged heads
        after the output projection. With ``queries``, only they attend: ``query_input`` and what is
        returned are ``(n_queries, hidden_size)``.
        """
        head_size = input.shape[1] // self.n_heads
        rows, slots = batch.head_slots(self.n_heads)
        laid_out = batch if queries is None else queries
        query_rows, query_slots = (
            (rows, slots) if queries is None else queries.head_slots(self.n_heads)
        )
        key_value = self.key_value(input).view(-1, head_size)
        key_value = gather_rows(key_value, *self._beside_each_other(rows, slots))
        query = self.query(query_input).view(-1, head_size)
        query = gather_rows(query, query_rows, query_slots)
        shapes, query_shapes = (
            [(count * self.n_heads, width) for count, width in buckets]
            for buckets in (batch.buckets, laid_out.buckets)
        )
        masks = self._masks(batch, queries, query.dtype)
        rectangles = (query, key_value, query_shapes, shapes, masks)
        if query.device.type != "cpu" or not self.training or self.dropout.probability == 0:
            attended = self._fused(*rectangles)
        else:
            attended = _DroppedAttention.apply(*rectangles, self.dropout)
        return self.output(gather_rows_back(attended, query_slots).view(query_input.shape))

    def _beside_each_other(self, rows: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and slots for two vectors a head: all slots of the first, then those of the second.

        A token's rows are the first vectors of its heads, then the second ones.
        """
        first = rows + rows // self.n_heads * self.n_heads
        of_token = slots.view(-1, self.n_heads)
        return (
            torch.cat((first, first + self.n_heads)),
            torch.cat((of_token, of_token + len(rows)), 1).flatten(),
        )

    def _fused(
        self, query: Tensor, key_value: Tensor, query_shapes: list[Shape], shapes: list[Shape],
        masks: list[Tensor] | None,
    ) -> Tensor:  # fmt: skip
        dropout = self.dropout.probability if self.training else 0.0
        outputs = []
        for number, ((q,), (k, v)) in enumerate(
            zip(
                _rectangles(query_shapes, query),
                _rectangles(shapes, *key_value.chunk(2)),
                strict=True,
            )
        ):
            # torch fuses nothing in three dimensions.
            q, k, v = (x.unflatten(0, (-1, self.n_heads)) for x in (q, k, v))
            attended = F.scaled_dot_product_attention(
                q, k, v,
                attn_mask=None if masks is None else masks[number][:, None],
                dropout_p=dropout,
                is_causal=masks is None,
            )  # fmt: skip
            outputs.append(attended.flatten(0, 2))
        return torch.cat(outputs)

    def _masks(
        self, batch: Batch, queries: Queries | None, dtype: torch.dtype
    ) -> list[Tensor] | None:
        """Per bucket what to add to scores to hide what a query must not see.

        ``(sequences, queries or 1, width)``. None: whatever comes after the query. That hides
        padding too, which follows the real tokens.
        """
        if self.causal and queries is None:
            return None
        if self.causal:
            last = torch.zeros(queries.n_slots, dtype=torch.int64, device=queries.slots.device)
            last[queries.slots] = batch.positions[queries.tokens]
            last = last.split([math.prod(bucket) for bucket in queries.buckets])
        else:
            last = (batch.lengths[batch.bucket_order] - 1).split([n for n, _ in batch.buckets])
        masks = []
        for of_bucket, (count, width) in zip(last, batch.buckets, strict=True):
            hidden = torch.arange(width, device=of_bucket.device) > of_bucket.view(count, -1, 1)
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            masks.append(mask.masked_fill_(hidden, -torch.inf))
        return masks


def _rectangles(shapes: list[Shape], *flat: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The parts of ``flat (slots, head_size)``, each ``(sequences * heads, width, head_size)``."""
    sizes = [math.prod(shape) for shape in shapes]
    for shape, *parts in zip(shapes, *(x.split(sizes) for x in flat), strict=True):
        yield tuple(part.view(*shape, -1) for part in parts)


class _DroppedAttention(torch.autograd.Function):
    """Attention with dropout of its weights, in rectangles, on a CPU.

    There torch fuses attention only without dropout; what it does otherwise, rectangle by
    rectangle, takes twice as long as this.

    With w = softmax(q k / sqrt(d)), m the factors of dropout, o = (w m) v and g the gradient of o,
    the scores q k / sqrt(d) have the gradient w m (g v) - w D with D = sum_j w_j m_j (g v_j) = g o.
    """

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(
        ctx: Any, query: Tensor, key_value: Tensor, query_shapes: list[Shape], shapes: list[Shape],
        masks: list[Tensor] | None, dropout: Dropout,
    ) -> Tensor:  # fmt: skip
        if masks is None:
            masks = [query.new_full((n, n), -torch.inf).triu_(1) for _, n in shapes]
        else:
            masks = [
                mask.repeat_interleave(n // len(mask), 0)  # once for each head
                for mask, (n, _) in zip(masks, shapes, strict=True)
            ]
        ctx.query_shapes, ctx.shapes = query_shapes, shapes
        output = torch.empty_like(query)
        # Drawn at once: most rectangles are too small to pay for the calls.
        sizes = [n * q * k for (n, q), (_, k) in zip(query_shapes, shapes, strict=True)]
        kept = dropout.factors(query.new_empty(sum(sizes))).split(sizes)
        weights = []
        for mask, factors, (q, out), (k, v) in zip(
            masks, kept, _rectangles(query_shapes, query, output),
            _rectangles(shapes, *key_value.chunk(2)), strict=True,
        ):  # fmt: skip
            scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=q.shape[-1] ** -0.5)
            weights.append(scores.softmax(-1))
            torch.bmm(weights[-1] * factors.view_as(scores), v, out=out)
        ctx.save_for_backward(query, key_value, output, *weights, *kept)
        return output

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key_value, output, *saved = ctx.saved_tensors
        weights, kept = saved[: len(ctx.shapes)], saved[len(ctx.shapes) :]
        grad_query, grad_key_value = torch.empty_like(query), torch.empty_like(key_value)
        sums = torch.linalg.vecdot(grad, output)[:, None]
        for w, factors, (q, g, total, grad_q), (k, v), (grad_k, grad_v) in zip(
            weights, kept, _rectangles(ctx.query_shapes, query, grad, sums, grad_query),
            _rectangles(ctx.shapes, *key_value.chunk(2)),
            _rectangles(ctx.shapes, *grad_key_value.chunk(2)), strict=True,
        ):  # fmt: skip
            dropped = w * factors.view_as(w)
            torch.bmm(dropped.transpose(1, 2), g, out=grad_v)
            grad_scores = torch.bmm(g, v.transpose(1, 2)).mul_(dropped)
            grad_scores.addcmul_(w, total, value=-1).mul_(q.shape[-1] ** -0.5)
            torch.bmm(grad_scores, k, out=grad_q)
            torch.bmm(grad_scores.transpose(1, 2), q, out=grad_k)
        return grad_query, grad_key_value, None, None, None, None


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
    sums in ``post_ln``; before attention and before the feed-forward network in ``classic``. The
    kind ``pre_ln`` is for the block of ``imported.py``, which attends by itself.
    """

    def __init__(
        self, kind: BlockKind | Literal["pre_ln"], hidden_size: int, inner_size: int, n_heads: int,
        activation: Activation, dropout: float, *, causal: bool = True,
        norm_eps: float = LAYER_NORM_EPS,
    ):  # fmt: skip
        super().__init__()
        self.kind = kind
        self.attention = SelfAttention(hidden_size, n_heads, dropout, causal=causal)
        self.attention_norm = nn.LayerNorm(hidden_size, eps=norm_eps)
        self.feed_forward = FeedForward(
            hidden_size, inner_size, activation, dropout, inner_dropout=kind != "post_ln"
        )
        self.feed_forward_norm = nn.LayerNorm(hidden_size, eps=norm_eps)
        # The classic block has no dropout between the output projection and the residual sum.
        self.attention_dropout = Dropout(dropout if kind == "post_ln" else 0.0)

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
        """``x (n_tokens, hidden_size)`` to the block's output of the same shape.

        With ``queries`` the output and what is captured are theirs, ``(n_queries, hidden_size)``.
        Captures, under ``prefix``: ``input`` (x), ``residual`` (what the attention output is added
        to, before scaling), ``attention`` (the attention output), ``sum`` (their sum) and
        ``normalised`` (the LayerNorm of that sum, in both kinds what the feed-forward part reads).
        """
        own = x if queries is None else x.index_select(0, queries.tokens)
        residual = own if self.kind == "post_ln" else self.attention_norm(own)
        attention = self.attention(residual, x, batch, queries=queries)
        return self._add_attention(own, residual, attention, residual_scale, capture, prefix)

    def _add_attention(
        self, own: Tensor, residual: Tensor, attention: Tensor, residual_scale: float,
        capture: dict[str, Tensor] | None, prefix: str,
    ) -> Tensor:  # fmt: skip
        """The rest of the block: the sum, its LayerNorm and the feed-forward part."""
        attention = self.attention_dropout(attention)
        total = torch.add(attention, residual, alpha=residual_scale)
        norm = self.attention_norm if self.kind == "post_ln" else self.feed_forward_norm
        normalised = norm(total)
        if capture is not None:
            named = {"input": own, "residual": residual, "attention": attention,
                     "sum": total, "normalised": normalised}  # fmt: skip
            capture.update({f"{prefix}{name}": value for name, value in named.items()})
        output = total if self.kind == "pre_ln" else normalised
        output = output + self.feed_forward(normalised)
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
        queries: Queries | None = None,
        residual_scale: float | Tensor = 1.0,
        capture: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Output at every real position, ``(n_tokens, hidden_size)``, or at ``queries`` alone.

        ``residual_scale``: one alpha, or one per layer ``(n_layers,)``. Captures are those of
        ``Block`` under ``layer1.``, ``layer2.``, …; with ``queries`` the last layer's are of them.
        """
        embedded = self.item_embedding(batch.items)
        if self.kind == "classic":
            embedded = embedded * embedded.shape[-1] ** 0.5
        x = embedded + self.position_embedding(batch.positions)
        x = self.dropout(self.norm(x) if self.kind == "post_ln" else x)
        scales = torch.as_tensor(residual_scale, dtype=torch.float64).expand(len(self.blocks))
        for number, (block, scale) in enumerate(zip(self.blocks, scales.tolist(), strict=True), 1):
            x = block(
                x, batch, queries=queries if number == len(self.blocks) else None,
                residual_scale=scale, capture=capture, prefix=f"layer{number}.",
            )  # fmt: skip
        return x if self.kind == "post_ln" else self.norm(x)


def causal_encoder(config: CausalConfig, n_items: int, kind: BlockKind) -> Encoder:
    """SASRec's encoder, its sizes from a model's ``config``, freshly initialised."""
    blocks = [
        Block(
            kind, config.hidden_size, config.inner_size, config.n_heads, config.activation,
            config.dropout,
        )
        for _ in range(config.n_layers)
    ]  # fmt: skip
    encoder = Encoder(
        n_items, blocks, kind=kind, max_length=config.max_length,
        hidden_size=config.hidden_size, dropout=config.dropout,
    )  # fmt: skip
    encoder.initialise(attention_xavier=config.attention_init == "xavier_uniform")
    return encoder


class SelfAttentive(Recommender):
    """A recommender that is an encoder, ``self.encoder``, whose item embeddings rank, too."""

    decomposable = True

    def __init__(self, config: AttentionConfig, n_items: int, encoder: nn.Module):
        super().__init__()
        self.config = config
        self.n_items = n_items
        self.max_length = config.max_length
        self.encoder = encoder

    def encode(
        self,
        batch: Batch,
        *,
        residual_scale: float | Tensor = 1.0,
        capture: dict[str, Tensor] | None = None,
    ) -> Tensor:
        return self.encoder(batch, residual_scale=residual_scale, capture=capture)

    def final_states(self, batch: Batch, *, residual_scale: float | Tensor = 1.0) -> Tensor:
        """As ``Recommender``; the last block works at the final position only."""
        queries = batch.final_queries()
        return self.encoder(batch, queries=queries, residual_scale=residual_scale)

    def item_vectors(self) -> Tensor:
        return self.encoder.item_embedding.weight
