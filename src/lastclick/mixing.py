"""Mixing ratios: how much of a layer's output at a position comes from other positions.

Section 4 of *residual dominance*. With F_i(x_j) the contribution of input position j to output
position i (``lastclick.decomposition``), the mixing ratio of position i is
    ``sum_of_norms``:  sum_{j != i} |F_i(x_j)| / sum_j |F_i(x_j)|, the paper's formula, or
    ``norm_of_sum``:   |sum_{j != i} F_i(x_j)| / (|sum_{j != i} F_i(x_j)| + |F_i(x_i)|), as in
                       Kobayashi et al. (EMNLP 2021); never the larger one (triangle inequality).
Both exist at three levels: attention alone (``attn``), with the residual (``attn_res``) and after
the LayerNorm (``attn_res_ln``). The oldest position of a sequence has nobody to mix with under a
causal mask: its ratio is 0 at every level.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from lastclick.data.sequences import Batch
from lastclick.decomposition import (
    LEVELS,
    Branch,
    Contributions,
    Level,
    block_branches,
    decompose_layer,
)
from lastclick.models.base import Recommender

Definition = Literal["norm_of_sum", "sum_of_norms"]
DEFINITIONS: tuple[Definition, ...] = ("norm_of_sum", "sum_of_norms")


@torch.inference_mode()
def encode_and_decompose(
    model: Recommender,
    batch: Batch,
    *,
    residual_scale: float | Tensor = 1.0,
    levels: Sequence[Level] = LEVELS,
    definitions: Sequence[Definition] = DEFINITIONS,
) -> tuple[Tensor, Tensor]:
    """The model's outputs and the mixing ratios of the same forward pass.

    Returns ``model.encode``'s output ``(n_tokens, hidden_size)`` and the ratios
    ``(n_layers, n_levels, n_definitions, n_tokens)``, each in 0..1; fewer levels or definitions
    cost less. ``residual_scale`` as in ``model.encode``. Raises ValueError for a model without a
    residual that carries an item, and for a model in training mode.
    """
    states, layers = encode_layers(model, batch, residual_scale)
    return states, layer_mixing_ratios(layers, batch, levels, definitions)


def mixing_ratios(
    model: Recommender,
    batch: Batch,
    *,
    residual_scale: float | Tensor = 1.0,
    levels: Sequence[Level] = LEVELS,
    definitions: Sequence[Definition] = DEFINITIONS,
) -> Tensor:
    """The mixing ratio of every position, ``(n_layers, n_levels, n_definitions, n_tokens)``.

    See ``encode_and_decompose``, which also returns the outputs that scoring needs.
    """
    return encode_and_decompose(
        model, batch, residual_scale=residual_scale, levels=levels, definitions=definitions
    )[1]


def layer_mixing_ratios(
    layers: Sequence[Sequence[Branch]],
    batch: Batch,
    levels: Sequence[Level],
    definitions: Sequence[Definition],
) -> Tensor:
    """As ``mixing_ratios``, from layers that ``encode_layers`` returned."""
    ratios = []
    for branches in layers:
        parts = decompose_layer(branches, batch, levels, norms="sum_of_norms" in definitions)
        ratios += [_mixing_ratio(parts[level], one) for level in levels for one in definitions]
    return torch.stack(ratios).view(len(layers), len(levels), len(definitions), -1)


def _mixing_ratio(part: Contributions, definition: Definition) -> Tensor:
    own = part.own.norm(dim=-1)
    others = part.others.norm(dim=-1) if definition == "norm_of_sum" else part.other_norms
    # A position to which nothing contributes mixes nothing in: 0, not 0 / 0.
    return others / (others + own).clamp_min(torch.finfo(own.dtype).tiny)


def encode_layers(
    model: Recommender, batch: Batch, residual_scale: float | Tensor
) -> tuple[Tensor, list[tuple[Branch, ...]]]:
    """The model's outputs, and every layer's branches at the values of this forward pass."""
    if not model.decomposable:
        raise ValueError(f"the norm decomposition is not applicable to {type(model).__module__}")
    if model.training:
        raise ValueError("the norm decomposition needs a model in evaluation mode (model.eval())")
    capture: dict[str, Tensor] = {}
    states = model.encode(batch, residual_scale=residual_scale, capture=capture)
    blocks = model.encoder.blocks
    scales = torch.as_tensor(residual_scale, dtype=states.dtype).expand(len(blocks)).tolist()
    layers = [
        block_branches(block, batch, capture, f"layer{number}.", scale)
        for number, (block, scale) in enumerate(zip(blocks, scales, strict=True), start=1)
    ]
    return states, layers
