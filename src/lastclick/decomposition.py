"""The linear algebra of the norm decomposition: who contributes how much to a layer's output.

Given its attention weights, a layer mixes positions linearly: its output at position i is a sum
over input positions j of vectors F_i(x_j), and of a constant that belongs to no position
(Kobayashi et al., "Attention is Not Only a Weight", EMNLP 2020, and "Incorporating Residual and
Normalization Layers into Analysis of Masked Language Models", EMNLP 2021).

A layer is described by one or more branches b,

    output_i = sum_b share_b LN_b(residual_i + own_i + sum_h sum_j a^h_ij W^h v^h_j + bias_b)

with heads h, values v^h_j, and W^h the columns of the output projection that read head h. The
three levels stop after the mixing (``attn``: own and heads), after the residual (``attn_res``) and
after the LayerNorm (``attn_res_ln``). The LayerNorm is linear once its mean and variance are
taken as given: every part loses its own mean, is divided by the total's standard deviation and
multiplied by gamma.

The value bias b_V is part of the constant: the attention weights of a position sum to 1, so that
every output receives the same W b_V wherever attention looks. Moving b_V into the bias of the
output projection changes neither the model nor, counted like this, its decomposition.

Nothing of the size sequences x i x j x hidden is ever built. The sum over j != i is a product with
the weights whose diagonal is zero. For the norm of a single part the vectors W^h v^h_j of one
position are reduced to a triangular heads x heads matrix R_j with the same Gram matrix, because
    |sum_h a^h_ij W^h v^h_j| = |R_j a_ij|.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lastclick.data.sequences import Batch
from lastclick.models.attention import SelfAttention

Level = Literal["attn", "attn_res", "attn_res_ln"]
LEVELS: tuple[Level, ...] = ("attn", "attn_res", "attn_res_ln")

# Mixing weights of one chunk, in elements. Bounds memory, and keeps the handful of arrays of this
# size (512 KiB in float32) in a processor's cache.
_CHUNK_ELEMENTS = 2**17


@dataclass(frozen=True)
class Chunk:
    """Some sequences of one bucket.

    ``tokens (count, width)``, where places beyond a sequence repeat token 0; ``sequences (count,)``
    are their numbers in the batch, ``lengths (count,)`` their lengths, and ``places`` the part of
    the batch's ``padded_index`` that the chunk covers.
    """

    tokens: Tensor
    sequences: Tensor
    lengths: Tensor
    places: slice


def chunks(batch: Batch, n_heads: int) -> Iterator[Chunk]:
    """Cut a batch's buckets so that a chunk has few enough mixing weights for ``n_heads``."""
    place = row = 0
    for count, width in batch.buckets:
        step = max(1, _CHUNK_ELEMENTS // (n_heads * width * width))
        for first in range(0, count, step):
            size = min(step, count - first)
            places = slice(place + first * width, place + (first + size) * width)
            sequences = batch.bucket_order[row + first : row + first + size]
            yield Chunk(
                tokens=batch.padded_index[places].view(size, width),
                sequences=sequences,
                lengths=batch.lengths[sequences],
                places=places,
            )
        place += count * width
        row += count


class Weights(Protocol):
    """Mixing weights over positions, made for one chunk at a time."""

    @property
    def n_heads(self) -> int: ...

    def of(self, chunk: Chunk) -> Tensor:
        """``(count, n_heads, width, width)``, output position first.

        Finite everywhere, and zero from a place beyond the sequence to any real position.
        """
        ...


@dataclass(frozen=True)
class CausalAttentionWeights:
    """Softmax weights of causal attention from ``query`` and ``key (n_tokens, heads, size)``."""

    query: Tensor
    key: Tensor

    @property
    def n_heads(self) -> int:
        return self.query.shape[1]

    def of(self, chunk: Chunk) -> Tensor:
        count, width = chunk.tokens.shape
        # Places beyond the sequence follow its real positions, so the causal mask hides them too.
        future = self.key.new_full((width, width), -torch.inf).triu_(1)
        logits = torch.baddbmm(
            future,
            _head_major(self.query, chunk),
            _head_major(self.key, chunk).transpose(1, 2),
            alpha=self.key.shape[-1] ** -0.5,
        )
        return logits.softmax(dim=-1).view(count, self.n_heads, width, width)


@dataclass(frozen=True)
class FilterWeights:
    """The weights of a filter over positions, the same in every channel.

    ``response (n_tokens, longest)``: what each token receives from every position of its sequence,
    zero beyond it; ``longest`` is at least the width of every bucket.
    """

    response: Tensor
    n_heads: int = 1

    def of(self, chunk: Chunk) -> Tensor:
        width = chunk.tokens.shape[1]
        return self.response[chunk.tokens, :width][:, None]


@dataclass(frozen=True)
class Branch:
    """One branch of a layer, in the notation of the module's docstring.

    ``values (n_tokens, heads, value_size)``; ``output (hidden, heads, value_size)``; ``residual``
    (already times alpha), ``own`` (None for zero) and ``total``, the true input of the LayerNorm,
    are ``(n_tokens, hidden)``; ``bias (hidden,)``.
    """

    weights: Weights
    values: Tensor
    output: Tensor
    residual: Tensor
    total: Tensor
    bias: Tensor
    norm: nn.LayerNorm
    share: float = 1.0
    own: Tensor | None = None

    @property
    def inverse_deviation(self) -> Tensor:
        """What the LayerNorm multiplies by at every position, ``(n_tokens, 1)``."""
        return (self.total.var(dim=-1, correction=0, keepdim=True) + self.norm.eps).rsqrt()

    def project(self, merged: Tensor) -> Tensor:
        """Merge heads: ``(n_tokens, heads, value_size)`` to ``(n_tokens, hidden)``."""
        return F.linear(merged.flatten(1), self.output.flatten(1))

    def vectors(self) -> Tensor:
        """share W^h v^h_j, ``(n_tokens, heads, hidden)``."""
        return torch.einsum("thv,ohv->tho", self.values, self.share * self.output)

    def normalise(self, part: Tensor) -> Tensor:
        """The LayerNorm's linear map but for the division: centred, and times gamma."""
        return (part - part.mean(dim=-1, keepdim=True)) * self.norm.weight


def attention_branch(
    attention: SelfAttention,
    norm: nn.LayerNorm,
    *,
    query_input: Tensor,
    input: Tensor,
    residual: Tensor,
    total: Tensor,
    share: float = 1.0,
) -> Branch:
    """The branch of a causal ``SelfAttention`` and the residual that it is added to.

    ``query_input`` and ``input`` are what attention was given; ``residual`` is multiplied by alpha
    already; ``total`` is its sum with the attention output, and ``norm`` the LayerNorm that reads
    that sum. All tensors ``(n_tokens, hidden)``.
    """
    hidden_size = input.shape[-1]
    key_bias, value_bias = attention.key_value.bias.split(hidden_size)
    bias = torch.cat((key_bias, torch.zeros_like(value_bias)))
    key, value = F.linear(input, attention.key_value.weight, bias).split(hidden_size, dim=-1)

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (attention.n_heads, -1))

    return Branch(
        weights=CausalAttentionWeights(heads(attention.query(query_input)), heads(key)),
        values=heads(value),
        output=heads(attention.output.weight),
        residual=residual,
        total=total,
        bias=attention.output(value_bias),
        norm=norm,
        share=share,
    )


def filter_branch(
    filter: nn.Module,
    norm: nn.LayerNorm,
    batch: Batch,
    *,
    input: Tensor,
    residual: Tensor,
    total: Tensor,
    share: float,
) -> Branch:
    """The branch of BSARec's filter, beta^2 x + (1 - beta^2) low(x) with a gain beta^2 per channel.

    The low pass mixes positions as one head does. What the filter passes on unmixed, beta^2 x,
    reaches a position's own output. Arguments as in ``attention_branch``.
    """
    # A linear operator is what it makes of unit vectors, here one for every position.
    longest = max(width for _, width in batch.buckets)
    units = F.one_hot(batch.positions, longest).to(input.dtype)
    gain = filter.beta.square()
    return Branch(
        weights=FilterWeights(filter.low_pass(units, batch)),
        values=input[:, None],
        output=torch.diag(1 - gain)[:, None],
        own=gain * input,
        residual=residual,
        total=total,
        bias=torch.zeros_like(gain),
        norm=norm,
        share=share,
    )


def block_branches(
    block: nn.Module,
    batch: Batch,
    capture: dict[str, Tensor],
    prefix: str,
    residual_scale: float | Tensor,
) -> tuple[Branch, ...]:
    """The branches of a block, from what its forward pass captured under ``prefix``.

    A transformer block (``models.attention.Block``) has one. In both kinds the LayerNorm of level
    ``attn_res_ln`` is the one that follows the sum and feeds the feed-forward part:
    ``attention_norm`` in ``post_ln``, ``feed_forward_norm`` in ``classic``, whose residual is the
    normalised query LN(x) rather than x.

    BSARec's block has two, each with its residual and LayerNorm, blended by ``filter_weight`` at
    every level. It is known by its filter, so that analysing one model does not depend on the file
    of another.
    """
    input, residual = capture[f"{prefix}input"], capture[f"{prefix}residual"]
    scaled = residual * residual_scale
    has_filter = hasattr(block, "filter")
    is_classic = not has_filter and block.kind == "classic"
    attention = attention_branch(
        block.attention,
        block.feed_forward_norm if is_classic else block.attention_norm,
        query_input=residual,
        input=input,
        residual=scaled,
        total=capture[f"{prefix}sum"],
        share=1 - block.filter_weight if has_filter else 1.0,
    )
    if not has_filter:
        return (attention,)
    filtered = filter_branch(
        block.filter,
        block.filter_norm,
        batch,
        input=input,
        residual=scaled,
        total=capture[f"{prefix}filter_sum"],
        share=block.filter_weight,
    )
    return attention, filtered


@dataclass(frozen=True)
class Contributions:
    """A layer's output at one level, ``others + own + constant``, each ``(n_tokens, hidden)``.

    ``others`` is the sum of F_i(x_j) over j != i, ``own`` is F_i(x_i), and ``constant`` belongs to
    no position. ``other_norms (n_tokens,)``, the sum of |F_i(x_j)| over j != i, is None where it
    was not asked for.
    """

    others: Tensor
    own: Tensor
    constant: Tensor
    other_norms: Tensor | None = None

    def __add__(self, other: Contributions) -> Contributions:
        """The sum of two branches, before any norms are taken."""
        return Contributions(
            self.others + other.others, self.own + other.own, self.constant + other.constant
        )


def decompose_layer(
    branches: Sequence[Branch],
    batch: Batch,
    levels: Sequence[Level] = LEVELS,
    *,
    norms: bool = True,
) -> dict[Level, Contributions]:
    """What positions contribute to a layer's output, at each of ``levels``.

    ``norms=False`` leaves ``other_norms`` out, which saves about half of the work. Time is in
    O(sum of length^2 x (hidden + heads^2)), memory in O(n_tokens x heads x hidden).
    """
    mixed = [_Rows(batch, branch.values, branch.values.shape[1:]) for branch in branches]
    self_weights = [_Rows(batch, branch.values, branch.values.shape[1:2]) for branch in branches]
    part_norms = _part_norms(branches, levels) if norms else {}
    norm_sums = {kind: _Rows(batch, branches[0].values, ()) for kind in part_norms}
    for chunk, weights in _mixing(branches, batch):
        for branch, weight, of_others, of_self in zip(
            branches, weights, mixed, self_weights, strict=True
        ):
            diagonal = weight.diagonal(dim1=-2, dim2=-1)
            of_self.put(chunk, diagonal.transpose(1, 2))
            diagonal.zero_()
            merged = weight.flatten(0, 1) @ _head_major(branch.values, chunk)
            of_others.put(chunk, merged.unflatten(0, weight.shape[:2]).transpose(1, 2))
        for kind, part_norm in part_norms.items():
            norm_sums[kind].put(chunk, part_norm.of(chunk, weights).sum(dim=-1))

    found: dict[Level, Contributions] = {}
    for branch, of_others, of_self in zip(branches, mixed, self_weights, strict=True):
        own = branch.project(of_self.tokens()[..., None] * branch.values)
        of_branch = _at_levels(branch, branch.project(of_others.tokens()), own, levels)
        found = {level: found[level] + part if found else part for level, part in of_branch.items()}
    sums = {kind: rows.tokens() for kind, rows in norm_sums.items()}
    return {
        level: replace(part, other_norms=sums.get(level == "attn_res_ln"))
        for level, part in found.items()
    }


def contribution_norms(
    branches: Sequence[Branch], batch: Batch, levels: Sequence[Level] = LEVELS
) -> Iterator[tuple[Chunk, Tensor, dict[Level, Tensor]]]:
    """|F_i(x_j)| for every pair of positions, one chunk of sequences at a time.

    Yields the chunk, the first branch's weights (attention) averaged over heads, and per level the
    norms; the latter two ``(count, width, width)``, output position first. Rows and columns beyond
    a sequence's length hold nothing of meaning.
    """
    contributions = decompose_layer(branches, batch, levels, norms=False)
    own = {level: part.own.norm(dim=-1) for level, part in contributions.items()}
    part_norms = _part_norms(branches, levels)
    for chunk, weights in _mixing(branches, batch):
        head_mean = weights[0].mean(dim=1)
        of_kind = {kind: part_norm.of(chunk, weights) for kind, part_norm in part_norms.items()}
        norms = {}
        for level in levels:
            norms[level] = of_kind[level == "attn_res_ln"].clone()
            norms[level].diagonal(dim1=-2, dim2=-1).copy_(own[level][chunk.tokens])
        yield chunk, head_mean, norms


def _mixing(branches: Sequence[Branch], batch: Batch) -> Iterator[tuple[Chunk, list[Tensor]]]:
    """The chunks of a batch with each branch's mixing weights."""
    for chunk in chunks(batch, sum(branch.weights.n_heads for branch in branches)):
        yield chunk, [branch.weights.of(chunk) for branch in branches]


def _at_levels(
    branch: Branch, others: Tensor, own: Tensor, levels: Sequence[Level]
) -> dict[Level, Contributions]:
    """One branch's sums at each level from what its mixing gives, all ``(n_tokens, hidden)``."""
    share = branch.share
    constant = (share * branch.bias).expand_as(own)
    if branch.own is not None:
        own = own + branch.own
    with_residual = own + branch.residual
    found: dict[Level, Contributions] = {}
    for level in levels:
        if level == "attn":
            found[level] = Contributions(share * others, share * own, constant)
        elif level == "attn_res":
            found[level] = Contributions(share * others, share * with_residual, constant)
        else:
            scale = share * branch.inverse_deviation
            found[level] = Contributions(
                branch.normalise(others) * scale,
                branch.normalise(with_residual) * scale,
                branch.normalise(branch.bias) * scale + share * branch.norm.bias,
            )
    return found


class _PartNorms:
    """|F_i(x_j)| for j != i, before (levels ``attn``, ``attn_res``) or after the LayerNorm.

    The residual and ``own`` only reach j = i, so that the first two levels share these norms.
    """

    def __init__(self, branches: Sequence[Branch], *, normalised: bool):
        vectors = [branch.vectors() for branch in branches]
        self._row_scales = None
        if normalised:
            vectors = [b.normalise(v) for b, v in zip(branches, vectors, strict=True)]
            self._row_scales = [branch.inverse_deviation[:, 0] for branch in branches]
        self._factor = triangular_factor(torch.cat(vectors, dim=1))

    def of(self, chunk: Chunk, weights: Sequence[Tensor]) -> Tensor:
        """``(count, width, width)`` from each branch's ``weights``; what it has for j = i is
        the contribution of the mixing alone."""
        if self._row_scales is not None:
            weights = [
                weight * scale[chunk.tokens][:, None, :, None]
                for weight, scale in zip(weights, self._row_scales, strict=True)
            ]
        heads = [head for weight in weights for head in weight.unbind(dim=1)]
        squares = torch.zeros_like(heads[0])
        for row, entries in enumerate(self._factor):
            along = torch.zeros_like(squares)
            for head, entry in zip(heads[row:], entries, strict=True):
                along.addcmul_(head, entry[chunk.tokens][:, None, :])
            squares.addcmul_(along, along)
        return squares.sqrt_()


def _part_norms(branches: Sequence[Branch], levels: Sequence[Level]) -> dict[bool, _PartNorms]:
    """The norms that ``levels`` need, by whether they are taken after the LayerNorm."""
    kinds = {level == "attn_res_ln" for level in levels}
    return {kind: _PartNorms(branches, normalised=kind) for kind in sorted(kinds)}


def triangular_factor(vectors: Tensor) -> list[Tensor]:
    """Rows of upper triangular R with |R a| = |sum_h a_h vectors[:, h]| for every a.

    ``vectors (n, heads, size)``; returns, per row g, the entries R[g, g:] as ``(heads - g, n)``.
    Modified Gram-Schmidt rather than a Cholesky factor of the Gram matrix: where heads nearly
    cancel, that would lose half of the digits.
    """
    remaining = vectors
    rows = []
    for _ in range(vectors.shape[1]):
        length = remaining[:, 0].norm(dim=-1, keepdim=True)
        direction = remaining[:, 0] / length.clamp_min(torch.finfo(vectors.dtype).tiny)
        along = (remaining[:, 1:] @ direction[..., None])[..., 0]
        remaining = remaining[:, 1:] - along[..., None] * direction[:, None]
        rows.append(torch.cat((length, along), dim=1).T.contiguous())
    return rows


class _Rows:
    """An array over tokens, ``(n_tokens, *shape)``, filled chunk by chunk."""

    def __init__(self, batch: Batch, like: Tensor, shape: Sequence[int]):
        self._padded = like.new_empty(len(batch.padded_index), *shape)
        self._inverse = batch.padded_inverse

    def put(self, chunk: Chunk, values: Tensor) -> None:
        """Store a chunk's ``values (count, width, *shape)``."""
        self._padded[chunk.places].view_as(values).copy_(values)

    def tokens(self) -> Tensor:
        return self._padded.index_select(0, self._inverse)


def _head_major(x: Tensor, chunk: Chunk) -> Tensor:
    """``x (n_tokens, heads, size)`` of a chunk's places, ``(count * heads, width, size)``."""
    return x[chunk.tokens].transpose(1, 2).flatten(0, 1)
