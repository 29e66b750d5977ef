"""One pass over evaluation sequences: the vectors that rank the catalogue, and their ranks.

This is the only place, beside training and decomposition, where a model is run. What it returns
are rows of ranks; everything that is concluded from them is a query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from torch import Tensor
from tqdm import tqdm

from lastclick.data.sequences import Batch, Sequences, like_lengths
from lastclick.errors import UserError
from lastclick.mixing import DEFINITIONS, encode_and_decompose
from lastclick.models.base import Recommender
from lastclick.ranking import NonFiniteScoresError, Ranks, SeenItems, ranks_of, top_k


@dataclass(frozen=True)
class Evaluation:
    """Evaluation sequences of one partition, each cut into the input and the target.

    ``inputs`` whole, oldest item first; ``targets (n_sequences,)`` and ``target_index
    (n_sequences,)`` as in the evaluation table; ``partition``: "validation" or "test".
    """

    partition: str
    inputs: Sequences
    targets: np.ndarray
    target_index: np.ndarray

    @classmethod
    def from_frame(cls, frame: pl.DataFrame, partition: str) -> Evaluation:
        """Read the rows of an evaluation table; raises UserError when there are none."""
        if frame.is_empty():
            raise UserError(
                f"the {partition} partition is empty: nobody can be evaluated. "
                "Lower split.quantile, or use more data"
            )
        whole = Sequences.from_evaluation(frame)
        return cls(
            partition,
            inputs=whole.window(drop_last=1),
            targets=whole.recent_item(0),
            target_index=frame["target_index"].to_numpy()[whole.offsets[:-1]],
        )

    def seen(self, device: torch.device) -> SeenItems:
        """The distinct items of every whole input."""
        items = torch.from_numpy(self.inputs.items.astype(np.int64))
        offsets = torch.from_numpy(self.inputs.offsets)
        return SeenItems.from_sequences(items.to(device), offsets.to(device))

    def keys(self) -> pl.DataFrame:
        """The columns that name a sequence in every score table."""
        n = len(self.inputs)
        return pl.DataFrame(
            {
                "partition": [self.partition] * n,
                "user_id": self.inputs.user_ids,
                "target_index": self.target_index,
                "input_length": self.inputs.lengths.astype(np.int32),
            },
            schema={"partition": pl.String, "user_id": pl.Int32, "target_index": pl.Int32,
                    "input_length": pl.Int32},
        )  # fmt: skip


@torch.inference_mode()
def encode_all(
    model: Recommender,
    inputs: Sequences,
    *,
    offsets: Sequence[int] = (0,),
    residual_scale: float | Tensor = 1.0,
    encode: Callable[[np.ndarray, Batch], Tensor] | None = None,
    progress: str | None = None,
) -> dict[int, Tensor]:
    """The ranking vector of every input, and of the input without its 1, 2, … newest items.

    For a causal model all ``offsets`` come from one pass: the output at L-k has seen nothing
    later. For the others the shortened inputs are encoded on their own, within the same window of
    the newest items. ``encode``, where given, replaces ``model.encode`` for whole inputs; it gets
    the indices of the sequences and their batch, and may look into the model on the way. A
    decomposable model is encoded whole without it, too, so that its outputs are the same bit for
    bit in every table of scores.

    Returns offset -> ``(n_sequences, hidden_size)`` on the model's device, rows of zeros where the
    position does not exist.
    """
    if model.training:
        raise ValueError("a model is scored in evaluation mode only: call model.eval() first")
    vectors = model.item_vectors()
    window = inputs.window(keep=model.max_input_length)
    states = {
        offset: torch.zeros(len(inputs), vectors.shape[1], device=vectors.device)
        for offset in offsets
    }
    if encode is None and (model.causal or model.decomposable):

        def encode(_: np.ndarray, batch: Batch) -> Tensor:
            return model.encode(batch, residual_scale=residual_scale)

    passes = [0] if model.causal else list(offsets)
    with tqdm(
        total=int(window.lengths.sum()) * len(passes), desc=progress, unit=" tokens",
        unit_scale=True, disable=progress is None, leave=False, mininterval=0.5,
    ) as bar:  # fmt: skip
        for dropped in passes:
            shortened = window.window(drop_last=dropped)
            for indices in like_lengths(shortened):
                batch = Batch.of(shortened.take(indices)).to(vectors.device)
                rows = torch.from_numpy(indices).to(vectors.device)
                if encode is None or dropped > 0:
                    states[dropped][rows] = model.final_states(batch, residual_scale=residual_scale)
                else:
                    reached = offsets if model.causal else (0,)
                    _put_outputs(states, encode(indices, batch), batch, rows, reached)
                bar.update(batch.n_tokens)
    return states


def _put_outputs(
    states: dict[int, Tensor], encoded: Tensor, batch: Batch, rows: Tensor, offsets: Sequence[int]
) -> None:
    for offset in offsets:
        exists = batch.lengths > offset
        states[offset][rows[exists]] = encoded[batch.last[exists] - offset]


@torch.inference_mode()
def rank_all(
    model: Recommender,
    states: Tensor,
    wanted: np.ndarray,
    user_ids: np.ndarray,
    seen: SeenItems | None,
    present: np.ndarray | None = None,
) -> Ranks:
    """Ranks of the ``wanted (n_sequences, k)`` items, the target first; see ``ranks_of``.

    ``present (n_sequences,)`` bool: where False, every rank is 0 (no such position). Raises
    UserError naming the user whose scores are not finite.
    """
    device = states.device
    asked = torch.from_numpy(wanted.astype(np.int64)).to(device)
    if present is not None:
        asked = asked * torch.from_numpy(present).to(device)[:, None]
    try:
        return ranks_of(states, model.item_vectors().detach(), asked, seen)
    except NonFiniteScoresError as error:
        raise UserError(
            f"the scores of user {user_ids[error.row]} are not finite: the model's weights are "
            "damaged or its training diverged; train it again with a lower train.learning_rate"
        ) from None


def rank_columns(
    ranks: Ranks, *, target_filtered: bool, with_input_items: bool
) -> dict[str, pl.Series]:
    """The rank columns of a score table; a rank of 0 (no such position) becomes null."""

    def column(values: Tensor) -> pl.Series:
        series = pl.Series(values.cpu().numpy(), dtype=pl.Int32)
        return pl.select(pl.when(series != 0).then(series)).to_series()

    nothing = pl.repeat(None, len(ranks.filtered), dtype=pl.Int32, eager=True)
    target = ranks.unfiltered[:, 0]
    return {
        "target_rank": column(ranks.filtered if target_filtered else target),
        "target_rank_unfiltered": column(target),
        "last_item_rank": column(ranks.unfiltered[:, 1]) if with_input_items else nothing,
        "second_last_item_rank": column(ranks.unfiltered[:, 2]) if with_input_items else nothing,
    }


@torch.inference_mode()
def best_places(model: Recommender, states: Tensor, k: int, seen: SeenItems | None) -> Tensor:
    """The best place that each item has in any of the top ``k`` lists, ``(n_items + 1,)``; 0: none.

    Coverage at every cut-off up to ``k`` follows from it.
    """
    lists = top_k(states, model.item_vectors(), k, seen)
    best = torch.full((model.n_items + 1,), k + 1, device=states.device)
    places = torch.arange(1, k + 1, device=states.device).expand_as(lists)
    best.scatter_reduce_(0, lists.flatten(), places.flatten(), "amin")
    best[0] = k + 1
    return torch.where(best > k, 0, best)


def permuted(sequences: Sequences, *, order: str, seed: int) -> Sequences:
    """Each sequence with its items in random order.

    ``order`` "partial" keeps the newest item in its place and permutes all before it; "full"
    permutes all. The permutation depends on the seed and on the sequences' layout alone.
    """
    if order not in ("partial", "full"):
        raise ValueError(f"order must be 'partial' or 'full', not {order!r}")
    keys = np.random.default_rng(seed).random(len(sequences.items))
    if order == "partial":
        keys[sequences.offsets[1:][sequences.lengths > 0] - 1] = 2.0
    sequence = np.repeat(np.arange(len(sequences)), sequences.lengths)
    return Sequences(sequences.user_ids, sequences.items[np.lexsort((keys, sequence))],
                     sequences.offsets)  # fmt: skip


def score_shuffles(
    model: Recommender,
    evaluation: Evaluation,
    *,
    seeds: Sequence[int],
    filter_seen: bool,
    progress: str | None = None,
) -> pl.DataFrame:
    """Rows of SHUFFLES: the chronological input once, partial and full orders under each seed.

    What is permuted is the window that the model reads (the newest ``max_input_length`` items), so
    that the orders differ in order alone. Ranks of input items are those of the chronologically
    last and second-last one under every order.
    """
    seen = evaluation.seen(model.item_vectors().device)
    window = evaluation.inputs.window(keep=model.max_input_length)
    wanted = _wanted(evaluation)
    conditions = [("chronological", None)]
    conditions += [(order, seed) for order in ("partial", "full") for seed in seeds]
    parts = []
    for order, seed in tqdm(conditions, desc=progress, unit="order", disable=progress is None):
        inputs = window if seed is None else permuted(window, order=order, seed=seed)
        states = encode_all(model, inputs)[0]
        ranks = rank_all(model, states, wanted, evaluation.inputs.user_ids, seen)
        parts.append(
            evaluation.keys().with_columns(
                pl.lit(order).alias("order"),
                pl.lit(seed, dtype=pl.Int32).alias("order_seed"),
                pl.lit(0, dtype=pl.Int32).alias("offset"),
                **rank_columns(ranks, target_filtered=filter_seen, with_input_items=True),
            )
        )
    return pl.concat(parts)


def score_scales(
    model: Recommender,
    evaluations: Sequence[Evaluation],
    *,
    alphas: Sequence[float],
    one_layer_at_a_time: bool,
    offsets: Sequence[int],
    filter_seen: bool,
    progress: str | None = None,
) -> pl.DataFrame:
    """Rows of SCALES: every alpha for all layers at once and, where asked, for each layer alone.

    ``offsets``: the positions before L whose outputs are ranked too, at alpha = 1.
    """
    n_layers = len(model.encoder.blocks)
    conditions = [("all", alpha) for alpha in alphas]
    if one_layer_at_a_time:
        conditions += [
            (str(layer), alpha)
            for layer in range(1, n_layers + 1)
            for alpha in alphas
            if alpha != 1
        ]
    prepared = [
        (evaluation, evaluation.seen(model.item_vectors().device), _wanted(evaluation))
        for evaluation in evaluations
    ]
    parts = []
    for layers, alpha in tqdm(conditions, desc=progress, unit="scale", disable=progress is None):
        scale = torch.ones(n_layers)
        scale[slice(None) if layers == "all" else int(layers) - 1] = alpha
        reached = (0, *offsets) if (layers, alpha) == ("all", 1.0) else (0,)
        for evaluation, seen, wanted in prepared:
            mixing = _MixingRatios(model, len(evaluation.inputs), scale)
            states = encode_all(
                model, evaluation.inputs, offsets=reached, residual_scale=scale,
                encode=mixing.encode,
            )  # fmt: skip
            for offset in reached:
                window = np.minimum(evaluation.inputs.lengths, model.max_input_length)
                present = window > offset
                ranks = rank_all(
                    model, states[offset], wanted if offset == 0 else wanted[:, :1],
                    evaluation.inputs.user_ids, seen, present,
                )  # fmt: skip
                columns = rank_columns(
                    ranks, target_filtered=filter_seen, with_input_items=offset == 0
                )
                parts.append(
                    evaluation.keys().with_columns(
                        pl.lit(alpha, dtype=pl.Float64).alias("alpha"),
                        pl.lit(layers).alias("layers"),
                        pl.lit(offset, dtype=pl.Int32).alias("offset"),
                        **columns,
                        **mixing.columns(empty=offset != 0),
                    )
                )
    return pl.concat(parts)


class _MixingRatios:
    """Collects the mixing ratios of level attn_res_ln while sequences are encoded."""

    def __init__(self, model: Recommender, n_sequences: int, residual_scale: Tensor):
        self.model = model
        self.residual_scale = residual_scale
        self.n_positions = np.zeros(n_sequences, dtype=np.int32)
        self.means = np.zeros((len(DEFINITIONS), n_sequences))

    def encode(self, indices: np.ndarray, batch: Batch) -> Tensor:
        encoded, ratios = encode_and_decompose(
            self.model, batch, residual_scale=self.residual_scale, levels=("attn_res_ln",)
        )  # ratios (n_layers, 1, n_definitions, n_tokens)
        per_token = ratios.mean(dim=(0, 1), dtype=torch.float64)
        sums = per_token.new_zeros(len(DEFINITIONS), batch.n_sequences)
        sums.index_add_(1, batch.sequence, per_token)
        self.n_positions[indices] = batch.lengths.cpu().numpy()
        self.means[:, indices] = (sums / batch.lengths).cpu().numpy()
        return encoded

    def columns(self, *, empty: bool) -> dict[str, pl.Series]:
        found = {
            "n_positions": pl.Series(self.n_positions, dtype=pl.Int32),
            **{f"mixing_ratio_{definition}": pl.Series(values, dtype=pl.Float64)
               for definition, values in zip(DEFINITIONS, self.means, strict=True)},
        }  # fmt: skip
        return {name: column.clear(len(column)) if empty else column
                for name, column in found.items()}  # fmt: skip


def _wanted(evaluation: Evaluation) -> np.ndarray:
    """Target, last and second-last input item of every sequence, ``(n_sequences, 3)``; 0: none."""
    inputs = evaluation.inputs
    return np.stack((evaluation.targets, inputs.recent_item(0), inputs.recent_item(1)), axis=1)


def coverage(
    model: Recommender, evaluation: Evaluation, *, ks: Sequence[int], filter_seen: bool
) -> dict[str, float]:
    """Share of the catalogue that stands in somebody's top K, for every K."""
    states = encode_all(model, evaluation.inputs)[0]
    k = min(max(ks), model.n_items)
    best = best_places(
        model, states, k, evaluation.seen(model.item_vectors().device) if filter_seen else None
    )
    return {str(k): int(((best > 0) & (best <= k)).sum()) / model.n_items for k in ks}
