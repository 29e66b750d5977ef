"""Norm decomposition of all test sequences: mixing ratios per user, and heatmaps.

Section 4 of *residual dominance*, Tables 2 and 3 and Figure 3; the ratios are those of
``lastclick.mixing``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from torch import Tensor
from tqdm import tqdm

from lastclick.data.sequences import Batch, Sequences, like_lengths
from lastclick.decomposition import LEVELS, Branch, Level, contribution_norms
from lastclick.mixing import (
    DEFINITIONS,
    Definition,
    encode_layers,
    layer_mixing_ratios,
)
from lastclick.models.base import Recommender
from lastclick.observations import observe, under

RECENT_POSITIONS = 15


def user_mixing_ratios(
    ratios: Tensor,
    batch: Batch,
    user_ids: np.ndarray,
    *,
    levels: Sequence[Level] = LEVELS,
    definitions: Sequence[Definition] = DEFINITIONS,
) -> pl.DataFrame:
    """One row per user, layer, level and definition, so that any mean over them can be taken.

    ``ratios`` as from ``mixing_ratios`` for the same ``levels`` and ``definitions``; ``user_ids``
    ``(n_sequences,)``. Columns: ``user_id``, ``layer`` (from 1), ``level``, ``definition``;
    ``sum_over_positions`` and ``n_positions``, whose totals' quotient is the mean over all real
    positions; ``at_first``, the ratio at the oldest position, to leave that one out; ``at_L``,
    ``at_L1`` and ``at_L2``, the ratios at the three newest positions, null where there is none.
    """
    lengths = batch.lengths.cpu().numpy()
    ends = lengths.cumsum()
    values = ratios.cpu().numpy().astype(np.float64)
    sums = np.add.reduceat(values, ends - lengths, axis=-1)
    n_layers = len(sums)

    def at(offset: int) -> pl.Series:
        exists = lengths > offset
        found = values[..., np.where(exists, ends - 1 - offset, 0)]
        mask = pl.Series(np.broadcast_to(exists, found.shape).ravel())
        return pl.select(pl.when(mask).then(pl.Series(found.ravel()))).to_series()

    names = pl.DataFrame({"layer": pl.int_range(1, n_layers + 1, dtype=pl.Int32, eager=True)})
    names = names.join(pl.DataFrame({"level": levels}), how="cross", maintain_order="left_right")
    names = names.join(
        pl.DataFrame({"definition": definitions}), how="cross", maintain_order="left_right"
    )
    users = pl.DataFrame({"user_id": user_ids, "n_positions": lengths.astype(np.int32)})
    return names.join(users, how="cross", maintain_order="left_right").select(
        "user_id",
        "layer",
        "level",
        "definition",
        pl.Series("sum_over_positions", sums.ravel()),
        "n_positions",
        pl.Series("at_first", values[..., ends - lengths].ravel()),
        at(0).alias("at_L"),
        at(1).alias("at_L1"),
        at(2).alias("at_L2"),
    )


@dataclass(frozen=True)
class Heatmaps:
    """Sums over sequences of what the most recent positions read from one another.

    ``sums (n_layers, n_maps, recent, recent)`` float64 and ``counts (recent, recent)``, how many
    sequences have both positions. Indices are offsets from the newest position, 0 for L; output
    first, then input. ``names (n_maps,)``: ``weights``, then levels. Add those of several batches.
    """

    names: tuple[str, ...]
    sums: np.ndarray
    counts: np.ndarray

    def __add__(self, other: Heatmaps) -> Heatmaps:
        return Heatmaps(self.names, self.sums + other.sums, self.counts + other.counts)

    def to_frame(self) -> pl.DataFrame:
        """One row per layer (from 1), ``map``, ``output_offset`` and ``input_offset``.

        With the ``mean`` over the ``n_sequences`` that have both positions, null where none has.
        """
        layer, name, output_offset, input_offset = (
            index.ravel() for index in np.indices(self.sums.shape)
        )
        frame = pl.DataFrame(
            {
                "layer": (layer + 1).astype(np.int32),
                "map": np.array(self.names)[name],
                "output_offset": output_offset.astype(np.int32),
                "input_offset": input_offset.astype(np.int32),
                "n_sequences": np.broadcast_to(self.counts, self.sums.shape).ravel(),
                "mean": self.sums.ravel(),
            }
        )
        reached = pl.col("n_sequences") > 0
        return frame.with_columns(pl.when(reached).then(pl.col("mean") / pl.col("n_sequences")))


@torch.inference_mode()
def recent_heatmaps(
    model: Recommender,
    batch: Batch,
    *,
    residual_scale: float | Tensor = 1.0,
    recent: int = RECENT_POSITIONS,
    levels: Sequence[Level] = LEVELS,
) -> Heatmaps:
    """Who reads from whom among the ``recent`` newest positions of every sequence.

    Map ``weights`` holds attention weights averaged over heads (of BSARec those of its attention
    branch); those of the levels hold the share |F_i(x_j)| / sum_j' |F_i(x_j')|, where j' runs over
    the whole sequence: a row sums to 1 only where the sequence is no longer than ``recent``. Raises
    as ``encode_and_decompose``.
    """
    _, layers = encode_layers(model, batch, residual_scale)
    return _recent_heatmaps(layers, batch, recent, levels)


def _recent_heatmaps(
    layers: Sequence[Sequence[Branch]], batch: Batch, recent: int, levels: Sequence[Level]
) -> Heatmaps:
    names = ("weights", *levels)
    sums = np.zeros((len(layers), len(names), recent, recent))
    for of_layer, branches in zip(sums, layers, strict=True):
        for chunk, weights, norms in contribution_norms(branches, batch, levels):
            of_layer[0] += _recent_sums(weights, chunk.lengths, recent)
            for of_level, level in zip(of_layer[1:], levels, strict=True):
                total = norms[level].sum(dim=-1, keepdim=True)
                share = norms[level] / total.clamp_min(torch.finfo(total.dtype).tiny)
                of_level += _recent_sums(share, chunk.lengths, recent)
    newest = np.arange(recent)
    needed = np.maximum(newest[:, None], newest)
    return Heatmaps(names, sums, (batch.lengths.cpu().numpy() > needed[..., None]).sum(axis=-1))


def _recent_sums(maps: Tensor, lengths: Tensor, recent: int) -> np.ndarray:
    """``maps (count, width, width)`` aligned at their newest positions and added up over ``count``,
    ``(recent, recent)`` float64; a position that a sequence lacks adds nothing."""
    places = lengths[:, None] - 1 - torch.arange(recent, device=lengths.device)
    exists = places >= 0
    places = places.clamp_min(0)
    sequence = torch.arange(len(lengths), device=lengths.device)[:, None, None]
    aligned = maps[sequence, places[:, :, None], places[:, None, :]]
    aligned = aligned.where(exists[:, :, None] & exists[:, None, :], 0)
    return aligned.sum(dim=0, dtype=torch.float64).cpu().numpy()


@torch.inference_mode()
def decompose_all(
    model: Recommender,
    inputs: Sequences,
    *,
    recent: int = RECENT_POSITIONS,
    progress: str | None = None,
) -> tuple[pl.DataFrame, Heatmaps]:
    """``user_mixing_ratios`` and ``recent_heatmaps`` over all ``inputs``, sorted by user.

    Of each input the newest items that the model can read. ``progress`` labels a progress bar.
    """
    window = inputs.window(keep=model.max_input_length)
    users: list[pl.DataFrame] = []
    heatmaps: Heatmaps | None = None
    with tqdm(total=len(window.items), desc=progress, unit=" tokens", unit_scale=True,
              disable=progress is None) as bar:  # fmt: skip
        for indices in like_lengths(window):
            batch = Batch.of(window.take(indices)).to(model.item_vectors().device)
            _, layers = encode_layers(model, batch, residual_scale=1.0)
            ratios = layer_mixing_ratios(layers, batch, LEVELS, DEFINITIONS)
            users.append(user_mixing_ratios(ratios, batch, window.user_ids[indices]))
            found = _recent_heatmaps(layers, batch, recent, LEVELS)
            heatmaps = found if heatmaps is None else heatmaps + found
            bar.update(batch.n_tokens)
    return pl.concat(users).sort("user_id", maintain_order=True), heatmaps


def decompose_observations(users: pl.DataFrame) -> pl.DataFrame:
    """Observations of every mean of ``user_mixing_ratios``, of all sequences.

    Metrics: ``mixing_ratio/<definition>/<level>`` over all real positions and layers;
    ``without_first_position/…`` without each sequence's oldest position;
    ``by_layer/layer<n>/<definition>/<level>/{all, L, L-1, L-2}``.
    """
    parts = []
    cells = users.partition_by("definition", "level", as_dict=True, maintain_order=True)
    for (definition, level), rows in cells.items():
        total, positions = pl.col("sum_over_positions"), pl.col("n_positions")
        overall = {
            f"mixing_ratio/{definition}/{level}": (total, positions),
            f"without_first_position/{definition}/{level}": (
                total - pl.col("at_first"),
                positions - 1,
            ),
        }
        parts.append(observe(rows, overall))
        for (layer,), of_layer in rows.partition_by("layer", as_dict=True).items():
            means = {"all": (total, positions), "L": pl.col("at_L"), "L-1": pl.col("at_L1"),
                     "L-2": pl.col("at_L2")}  # fmt: skip
            path = f"by_layer/layer{layer}/{definition}/{level}"
            parts.append(under(path, observe(of_layer, means)))
    return pl.concat(parts)
