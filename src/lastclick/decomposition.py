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
output projection changes neither the model nor, counted like this, its decomposition. Where
attention sees padding, what it reads from there belongs to no position either.

Nothing of the size sequences x i x j x hidden is ever built. The sum over j != i is a product with
the weights whose diagonal is zero. For the norm of a single part the vectors W^h v^h_j of one
position are reduced to a triangular heads x heads matrix R_j with the same Gram matrix, because
    |sum_h a^h_ij W^h v^h_j| = |R_j a_ij|.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
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
    """``count`` sequences of one bucket, in rectangles that are ``width`` wide.

    ``sequences (count,)`` are their numbers in the batch, ``lengths (count,)`` their lengths, and
    ``places`` the part of the batch's ``padded_index`` that the chunk covers.
    """

    width: int
    sequences: Tensor
    lengths: Tensor
    places: slice

    @property
    def count(self) -> int:
        return len(self.sequences)

    def rows(self, n_heads: int) -> slice:
        """The chunk's part of rectangles ``(count, n_heads, width)`` laid end to end."""
        return slice(self.places.start * n_heads, self.places.stop * n_heads)


def chunks(batch: Batch, n_heads: int) -> Iterator[Chunk]:
    """Cut a batch's buckets so that a chunk has few enough mixing weights for ``n_heads``."""
    place = row = 0
    for count, width in batch.buckets:
        step = max(1, _CHUNK_ELEMENTS // (n_heads * width * width))
        for first in range(0, count, step):
            size = min(step, count - first)
            sequences = batch.bucket_order[row + first : row + first + size]
            places = slice(place + first * width, place + (first + size) * width)
            yield Chunk(width, sequences, batch.lengths[sequences], places)
        place += count * width
        row += count


class Weights(Protocol):
    """Mixing weights over positions, made for one chunk at a time."""

    n_heads: int

    def of(self, chunk: Chunk) -> Tensor:
        """``(count, n_heads, width, width)``, output position first, for the caller to keep.

        Finite everywhere, and zero from a place beyond the sequence to any real position.
        """
        ...


class CausalAttentionWeights:
    """Softmax weights of causal attention from ``query`` and ``key (n_tokens, hidden)``.

    Where attention sees padding, ``padding_key (hidden,)`` is the key of each of the
    ``padding_counts (n_sequences,)`` places before a sequence; they share the softmax.
    """

    def __init__(
        self, query: Tensor, key: Tensor, n_heads: int, batch: Batch,
        padding_key: Tensor | None = None, padding_counts: Tensor | None = None,
    ):  # fmt: skip
        self.n_heads = n_heads
        self._batch = batch
        rows, self._slots = batch.head_slots(n_heads)
        self._query, self._key = (
            x.reshape(len(x) * n_heads, -1).index_select(0, rows) for x in (query, key)
        )
        self._padding_key = None if padding_key is None else padding_key.view(1, n_heads, -1, 1)
        self._padding_counts = padding_counts

    def of(self, chunk: Chunk) -> Tensor:
        return self._with_padding(chunk)[..., -chunk.width :]

    def of_padding(self) -> Tensor:
        """The weight of all padding together, ``(n_tokens, n_heads)``."""
        found = self._query.new_empty(len(self._query))
        for chunk in chunks(self._batch, self.n_heads):
            found[chunk.rows(self.n_heads)] = self._with_padding(chunk)[..., 0].flatten()
        return found[self._slots].view(-1, self.n_heads)

    def _with_padding(self, chunk: Chunk) -> Tensor:
        """As ``of``, with a first column for the padding where attention sees it."""
        rows, shape = chunk.rows(self.n_heads), (chunk.count * self.n_heads, chunk.width, -1)
        query, key = self._query[rows].view(shape), self._key[rows].view(shape)
        scale = key.shape[-1] ** -0.5
        # Places beyond the sequence follow its real positions, so the causal mask hides them too.
        future = key.new_full((chunk.width, chunk.width), -torch.inf).triu_(1)
        logits = torch.baddbmm(future, query, key.transpose(1, 2), alpha=scale)
        logits = logits.unflatten(0, (chunk.count, self.n_heads))
        if self._padding_key is not None:
            padding = query.view(*logits.shape[:-1], -1) @ self._padding_key * scale
            counts = self._padding_counts[chunk.sequences].to(padding.dtype)
            logits = torch.cat([padding + counts.log()[:, None, None, None], logits], dim=-1)
        return logits.softmax(dim=-1)


class FilterWeights:
    """The weights of a filter over positions, the same in every channel.

    ``response (n_tokens, longest)``: what each token receives from every position of its sequence,
    zero beyond it; ``longest`` is at least the width of every bucket.
    """

    n_heads = 1

    def __init__(self, response: Tensor, batch: Batch):
        self._response = response.index_select(0, batch.padded_index)

    def of(self, chunk: Chunk) -> Tensor:
        response = self._response[chunk.places, : chunk.width]
        return response.unflatten(0, (chunk.count, 1, chunk.width)).clone()


@dataclass(frozen=True)
class Branch:
    """One branch of a layer, in the notation of the module's docstring.

    ``values (n_tokens, heads, value_size)``; ``output (hidden, heads, value_size)``; ``residual``
    (already times alpha), ``own`` (None for zero) and ``total``, the true input of the LayerNorm,
    are ``(n_tokens, hidden)``; ``bias`` is ``(hidden,)`` or ``(n_tokens, hidden)``.
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

    def at(self, level: Level) -> LinearMap:
        """The branch's map from head outputs and positions to what it adds to ``level``."""
        own = self.own
        if level != "attn":
            own = self.residual if own is None else own + self.residual
        if level != "attn_res_ln":
            return LinearMap(self.output, own, self.bias, self.share)

        def centre(x: Tensor, dim: int) -> Tensor:
            return x - x.mean(dim=dim, keepdim=True)

        gain = self.norm.weight
        _, _, inverse_deviation = torch.native_layer_norm(
            self.total, gain.shape, None, None, self.norm.eps
        )
        return LinearMap(
            output=gain[:, None, None] * centre(self.output, dim=0),
            own=gain * centre(own, dim=-1),
            bias=gain * centre(self.bias, dim=-1),
            scale=self.share * inverse_deviation,
            shift=self.share * self.norm.bias,
        )


@dataclass(frozen=True)
class LinearMap:
    """scale_i (sum_h output^h m^h_i + own_i + bias) + shift for the mixed values m^h_i of a branch.

    ``output (hidden, heads, value_size)``; ``own (n_tokens, hidden)`` or None for zero; ``bias``
    as in ``Branch``; ``shift (hidden,)``; ``scale`` a number or ``(n_tokens, 1)``.
    """

    output: Tensor
    own: Tensor | None
    bias: Tensor
    scale: Tensor | float
    shift: Tensor | float = 0.0

    def of_others(self, mixed: Tensor) -> Tensor:
        """From values mixed over other positions, ``(n_tokens, heads * value_size)``."""
        return F.linear(mixed, self.output.flatten(1)) * self.scale

    def of_own(self, mixed: Tensor) -> Tensor:
        """From a position's own values times its weights for itself."""
        own = F.linear(mixed, self.output.flatten(1))
        return (own if self.own is None else own.add_(self.own)) * self.scale

    def constant(self) -> Tensor:
        """What belongs to no position: ``(n_tokens, hidden)``, or ``(hidden,)`` if constant."""
        return self.bias * self.scale + self.shift


def attention_branch(
    attention: SelfAttention,
    norm: nn.LayerNorm,
    batch: Batch,
    *,
    query_input: Tensor,
    input: Tensor,
    residual: Tensor,
    total: Tensor,
    share: float = 1.0,
    padding: tuple[Tensor, Tensor] | None = None,
) -> Branch:
    """The branch of a causal ``SelfAttention`` and the residual that it is added to.

    ``query_input`` and ``input`` are what attention was given; ``residual`` is multiplied by alpha
    already; ``total`` is its sum with the attention output, and ``norm`` the LayerNorm that reads
    that sum. All tensors ``(n_tokens, hidden)``. ``padding``: where attention sees
    places before the sequences, the vector ``(hidden,)`` that they hold and how many there are of
    them, ``(n_sequences,)``.
    """
    n_heads = attention.n_heads
    key_weight, value_weight = attention.key_value.weight.chunk(2)
    key_bias, value_bias = attention.key_value.bias.chunk(2)
    query, key = attention.query(query_input), F.linear(input, key_weight, key_bias)
    if padding is None:
        weights = CausalAttentionWeights(query, key, n_heads, batch)
        constant = value_bias
    else:
        vector, counts = padding
        padding_key = F.linear(vector, key_weight, key_bias)
        weights = CausalAttentionWeights(query, key, n_heads, batch, padding_key, counts)
        value = F.linear(vector, value_weight).view(n_heads, -1)
        constant = value_bias + (weights.of_padding()[..., None] * value).flatten(1)
    return Branch(
        weights=weights,
        values=F.linear(input, value_weight).unflatten(-1, (n_heads, -1)),
        output=attention.output.weight.unflatten(-1, (n_heads, -1)),
        residual=residual,
        total=total,
        bias=attention.output(constant),
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
        weights=FilterWeights(filter.low_pass(units, batch), batch),
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
    normalised query LN(x) rather than x, and in ``pre_ln``. What attention reads where that is
    neither x nor the residual, and padding that it sees, are captured under names of their own.

    BSARec's block has two, each with its residual and LayerNorm, blended by ``filter_weight`` at
    every level. It is known by its filter, so that analysing one model does not depend on the file
    of another.
    """
    input, residual = capture[f"{prefix}input"], capture[f"{prefix}residual"]
    scaled = residual * residual_scale
    has_filter = hasattr(block, "filter")
    is_post_ln = has_filter or block.kind == "post_ln"
    has_padding = f"{prefix}padding_vector" in capture
    attention = attention_branch(
        block.attention,
        block.attention_norm if is_post_ln else block.feed_forward_norm,
        batch,
        query_input=capture.get(f"{prefix}query_input", residual),
        input=capture.get(f"{prefix}attention_input", input),
        residual=scaled,
        total=capture[f"{prefix}sum"],
        share=1 - block.filter_weight if has_filter else 1.0,
        padding=(capture[f"{prefix}padding_vector"], capture[f"{prefix}padding_counts"])
        if has_padding
        else None,
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
    """What positions add to a layer's output at one level, each ``(n_tokens, hidden)``.

    ``others`` is the sum of F_i(x_j) over j != i and ``own`` is F_i(x_i); what they lack of the
    output is ``level_constant``. ``other_norms (n_tokens,)``, the sum of |F_i(x_j)| over j != i, is
    None where it was not asked for.
    """

    others: Tensor
    own: Tensor
    other_norms: Tensor | None


def decompose_layer(
    branches: Sequence[Branch],
    batch: Batch,
    levels: Sequence[Level] = LEVELS,
    *,
    norms: bool = True,
) -> dict[Level, Contributions]:
    """What positions contribute to a layer's output, at each of ``levels``.

    ``norms=False`` leaves ``other_norms`` and its work out. Time is in O(n_tokens x hidden^2 +
    sum of length^2 x (hidden + heads^2)), memory in O(n_tokens x heads x hidden).
    """
    maps = {level: [branch.at(level) for branch in branches] for level in levels}
    part_norms = _part_norms(branches, batch, maps) if norms else {}
    norm_sums = {kind: branches[0].values.new_empty(len(batch.padded_index)) for kind in part_norms}
    mixers = [_Mixer(branch, batch) for branch in branches]
    for chunk in _chunks(branches, batch):
        weights = [mixer.mix(chunk) for mixer in mixers]
        for kind, part_norm in part_norms.items():
            norm_sums[kind][chunk.places] = part_norm.of(chunk, weights).sum(dim=-1).flatten()
    mixed = [mixer.mixed() for mixer in mixers]

    found: dict[Level, Contributions] = {}
    for level, of_level in maps.items():
        norm_sum = norm_sums.get(_is_normalised(level))
        found[level] = Contributions(
            others=_total(
                one.of_others(others) for one, (others, _) in zip(of_level, mixed, strict=True)
            ),
            own=_total(one.of_own(own) for one, (_, own) in zip(of_level, mixed, strict=True)),
            other_norms=None if norm_sum is None else norm_sum[batch.padded_inverse],
        )
    return found


def level_constant(branches: Sequence[Branch], level: Level) -> Tensor:
    """What of a layer's output at ``level`` belongs to no position.

    Biases, as they reach that level: ``(n_tokens, hidden)``, or ``(hidden,)`` where it is the same
    at all positions.
    """
    return _total(branch.at(level).constant() for branch in branches)


def contribution_norms(
    branches: Sequence[Branch], batch: Batch, levels: Sequence[Level] = LEVELS
) -> Iterator[tuple[Chunk, Tensor, dict[Level, Tensor]]]:
    """|F_i(x_j)| for every pair of positions, one chunk of sequences at a time.

    Yields the chunk, the first branch's weights (attention) averaged over heads, and per level the
    norms; the latter two ``(count, width, width)``, output position first. Rows and columns beyond
    a sequence's length hold nothing of meaning.
    """
    contributions = decompose_layer(branches, batch, levels, norms=False)
    own = {
        level: part.own.norm(dim=-1)[batch.padded_index] for level, part in contributions.items()
    }
    maps = {level: [branch.at(level) for branch in branches] for level in levels}
    part_norms = _part_norms(branches, batch, maps)
    for chunk in _chunks(branches, batch):
        weights = [branch.weights.of(chunk) for branch in branches]
        of_kind = {kind: part_norm.of(chunk, weights) for kind, part_norm in part_norms.items()}
        norms = {}
        for level in levels:
            norms[level] = of_kind[_is_normalised(level)].clone()
            diagonal = norms[level].diagonal(dim1=-2, dim2=-1)
            diagonal.copy_(own[level][chunk.places].view_as(diagonal))
        yield chunk, weights[0].mean(dim=1), norms


class _Mixer:
    """Mixes a branch's values over positions, other positions and the own one apart."""

    def __init__(self, branch: Branch, batch: Batch):
        self._branch = branch
        self._n_heads = branch.weights.n_heads
        rows, self._slots = batch.head_slots(self._n_heads)
        self._values = branch.values.flatten(0, 1).index_select(0, rows)
        self._mixed = torch.empty_like(self._values)
        self._self_weights = self._values.new_empty(len(rows))

    def mix(self, chunk: Chunk) -> Tensor:
        """Mix a chunk; returns its weights with a zero diagonal."""
        rows, shape = chunk.rows(self._n_heads), (chunk.count * self._n_heads, chunk.width, -1)
        weights = self._branch.weights.of(chunk)
        diagonal = weights.diagonal(dim1=-2, dim2=-1)
        self._self_weights[rows] = diagonal.flatten()
        diagonal.zero_()
        torch.bmm(
            weights.flatten(0, 1), self._values[rows].view(shape), out=self._mixed[rows].view(shape)
        )
        return weights

    def mixed(self) -> tuple[Tensor, Tensor]:
        """Values from other positions, and from the own one, ``(n_tokens, heads * value_size)``."""
        values = self._branch.values
        others = self._mixed.index_select(0, self._slots).view(len(values), -1)
        self_weights = self._self_weights[self._slots].view(len(values), -1, 1)
        return others, (self_weights * values).flatten(1)


class _PartNorms:
    """|F_i(x_j)| for j != i at a level, from one linear map per branch.

    Levels ``attn`` and ``attn_res`` share their norms: the residual and ``own`` only reach j = i.
    """

    def __init__(self, branches: Sequence[Branch], maps: Sequence[LinearMap], batch: Batch):
        vectors = [
            F.linear(branch.values[:, head], one.output[:, head])
            for branch, one in zip(branches, maps, strict=True)
            for head in range(branch.weights.n_heads)
        ]
        self._factor = [row[:, batch.padded_index] for row in triangular_factor(vectors)]
        self._scales = [
            one.scale if isinstance(one.scale, float) else one.scale[batch.padded_index, 0]
            for one in maps
        ]

    def of(self, chunk: Chunk, weights: Sequence[Tensor]) -> Tensor:
        """``(count, width, width)`` from each branch's weights; holds for j = i, too, if ``own``
        and the residual are zero."""
        heads = []
        for weight, scale in zip(weights, self._scales, strict=True):
            if isinstance(scale, Tensor):
                scale = scale[chunk.places].view(chunk.count, 1, chunk.width, 1)
            heads += (weight * scale).unbind(dim=1)
        squares = torch.zeros_like(heads[0])
        along = torch.empty_like(squares)
        for row, entries in enumerate(self._factor):
            entries = entries[:, chunk.places].view(-1, chunk.count, 1, chunk.width)
            torch.mul(heads[row], entries[0], out=along)
            for head, entry in zip(heads[row + 1 :], entries[1:], strict=True):
                along.addcmul_(head, entry)
            squares.addcmul_(along, along)
        return squares.sqrt_()


def _is_normalised(level: Level) -> bool:
    return level == "attn_res_ln"


def _part_norms(
    branches: Sequence[Branch], batch: Batch, maps: dict[Level, list[LinearMap]]
) -> dict[bool, _PartNorms]:
    """The norms that the levels of ``maps`` need, by whether they are taken after the LayerNorm."""
    kinds = {_is_normalised(level): of_level for level, of_level in maps.items()}
    return {kind: _PartNorms(branches, of_level, batch) for kind, of_level in kinds.items()}


def _chunks(branches: Sequence[Branch], batch: Batch) -> Iterator[Chunk]:
    return chunks(batch, sum(branch.weights.n_heads for branch in branches))


def _total(terms: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, terms)


def triangular_factor(vectors: Sequence[Tensor]) -> list[Tensor]:
    """Rows of upper triangular R with |R a| = |sum_h a_h vectors[h]| for every a.

    ``vectors``: one ``(n, size)`` per head; returns, per row g, the entries R[g, g:] as
    ``(heads - g, n)``. Modified Gram-Schmidt rather than a Cholesky factor of the Gram matrix:
    where heads nearly cancel, that would lose half of the digits.
    """
    remaining = list(vectors)
    rows = []
    while remaining:
        first, *remaining = remaining
        length = first.norm(dim=-1)
        direction = first / length.clamp_min(torch.finfo(first.dtype).tiny)[:, None]
        along = [torch.linalg.vecdot(direction, one) for one in remaining]
        remaining = [
            one.addcmul(direction, part[:, None], value=-1)
            for one, part in zip(remaining, along, strict=True)
        ]
        rows.append(torch.stack([length, *along]))
    return rows
