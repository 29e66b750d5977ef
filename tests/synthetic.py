"""A made-up run: score tables with the shape of real ones, taken through the real diagnostics.

Everything is drawn from one seed. The numbers imitate what the paper reports (order of magnitude,
direction of every effect), so that figures and the report can be looked at without training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from lastclick import tables
from lastclick.diagnostics.decompose import decompose_observations
from lastclick.diagnostics.last_item import last_item_observations
from lastclick.diagnostics.non_final import non_final_observations
from lastclick.diagnostics.recover import base_set_size, recover_observations
from lastclick.diagnostics.scale import scale_observations
from lastclick.diagnostics.select import choose, select_observations
from lastclick.diagnostics.shuffle import accuracy_by_order_seed, shuffle_observations

KS = (1, 5, 10, 20, 50, 100)
ALPHAS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0)
EPSILONS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
N_LAYERS = 2
RECENT = 15


@dataclass(frozen=True)
class DataSet:
    """What is made up of one data set: how accurate models are, how much they mix and depend."""

    n_users: int
    accuracy: float
    mixing: float
    tie_share: float
    mean_length: float


DATA_SETS = {
    "beauty": DataSet(1531, accuracy=-0.6, mixing=0.12, tie_share=0.44, mean_length=8.9),
    "toys": DataSet(1409, accuracy=-0.3, mixing=0.12, tie_share=0.47, mean_length=8.6),
    "ml-100k": DataSet(166, accuracy=0.3, mixing=0.33, tie_share=0.21, mean_length=105.3),
    "ml-1m": DataSet(1209, accuracy=0.5, mixing=0.39, tie_share=0.32, mean_length=165.5),
}
RELIANCE = {"gru4rec": 0.06, "bert4rec": 0.10, "sasrec": 0.83, "duorec": 0.79, "bsarec": 0.71}
LAYERED = ("sasrec", "duorec", "bsarec")


def write_run(
    root: Path,
    datasets: Sequence[str] = ("toys", "ml-100k"),
    models: Sequence[str] = ("gru4rec", "sasrec"),
    seeds: Sequence[int] = (17,),
    bootstrap_draws: int = 200,
    formats: Sequence[str] = ("svg", "png"),
    made_up: Mapping[str, DataSet] = DATA_SETS,
) -> None:
    """Write params.yaml and everything that the stage ``tables`` reads, under ``root``."""
    attention_models = [model for model in models if model in LAYERED]
    settings = parameters(datasets, models, attention_models, seeds, bootstrap_draws)
    settings["plots"]["formats"] = list(formats)
    (root / "params.yaml").write_text(yaml.safe_dump(settings))
    for dataset in datasets:
        _write_counts(root, dataset, made_up[dataset])
        for model in models:
            tables.write_json(
                _choice_of_dropout(chosen=model in LAYERED),
                root / "tuning" / dataset / f"{model}.json",
            )
            for seed in seeds:
                _write_cell(root, dataset, made_up[dataset], model, seed)


def parameters(
    datasets: Sequence[str],
    models: Sequence[str],
    attention_models: Sequence[str],
    seeds: Sequence[int],
    bootstrap_draws: int,
) -> dict[str, Any]:
    """The repository's params.yaml with another run."""
    settings = yaml.safe_load((Path(__file__).parents[1] / "params.yaml").read_text("utf-8"))
    settings["run"] = {
        "datasets": list(datasets),
        "models": list(models),
        "attention_models": list(attention_models),
        "seeds": list(seeds),
    }
    settings["evaluation"] |= {"ks": list(KS), "bootstrap_draws": bootstrap_draws}
    return settings


def _write_counts(root: Path, dataset: str, made_up: DataSet) -> None:
    users, items = made_up.n_users * 4, made_up.n_users * 2 + 7
    interactions = round(users * made_up.mean_length)
    tables.write_json(
        {
            "n_rows_read": interactions + 5,
            "n_rows_rejected": 11,
            "n_users": users,
            "n_items": items,
            "n_interactions": interactions,
            "average_length": interactions / users,
            "density": interactions / users / items,
            "days": 5108,
            "tie_share": made_up.tie_share,
        },
        root / "data/interactions" / f"{dataset}.json",
    )
    tables.write_json(
        {
            "t_test": 1.39e9,
            "t_validation": 1.37e9,
            "n_train_interactions": round(interactions * 0.8),
            "n_train_users": round(users * 0.9),
            "n_validation_users": made_up.n_users,
            "n_test_users": made_up.n_users,
            "n_test_skipped": 3,
            "mean_test_holdout": 3.25,
        },
        root / "data/splits" / dataset / "split.json",
    )


def _write_cell(root: Path, dataset: str, made_up: DataSet, model: str, seed: int) -> None:
    entropy = [*f"{dataset} {model}".encode(), seed]
    rng = np.random.default_rng(entropy)
    # The same users are easy for every model and seed, which is what pairing exploits.
    easy = np.random.default_rng([*dataset.encode()]).normal(size=2 * made_up.n_users)
    place = Path(dataset) / model / str(seed)
    _write_training(root / "models" / place, model, seed, rng)

    shuffles = shuffle_scores(made_up, model, easy, rng)
    facts = {
        "by_order_seed": accuracy_by_order_seed(shuffles),
        "coverage": {str(k): 1 - float(np.exp(-k / 61)) for k in KS},
    }
    _write_results(root, "shuffle", place, shuffle_observations(shuffles, KS), facts)
    _write_results(root, "last_item", place, last_item_observations(shuffles, KS), {})
    if model not in LAYERED:
        return

    scales = scale_scores(made_up, model, easy, rng)
    _write_results(root, "scale", place, scale_observations(scales), {})
    _write_results(root, "non_final", place, non_final_observations(scales), {})
    _write_results(root, "recover", place, recover_observations(scales), base_set_size(scales))
    validation = scales.filter(pl.col("partition") == "validation")
    test = scales.filter(pl.col("partition") == "test")
    chosen, oracle = choose(validation, EPSILONS), choose(test, EPSILONS)
    choices = {
        f"{epsilon:g}": {"alpha": chosen[epsilon], "alpha_oracle": oracle[epsilon]}
        for epsilon in EPSILONS
    }
    _write_results(
        root, "select", place, select_observations(test, chosen, oracle), {"choices": choices}
    )
    ratios = decompose_observations(mixing_ratio_rows(made_up, rng))
    _write_results(root, "decompose", place, ratios, {})
    path = root / "results/decompose" / place.with_suffix(".heatmaps.parquet")
    tables.write_table(heatmap_rows(made_up), path, tables.HEATMAPS)


def _choice_of_dropout(*, chosen: bool) -> dict[str, Any]:
    if not chosen:
        return {"dropout": 0.3, "chosen_on_validation": False}
    grid = {"0.1": 0.021, "0.3": 0.031, "0.5": 0.029}
    return {
        "dropout": 0.3,
        "chosen_on_validation": True,
        "seed": 17,
        "grid": {
            dropout: {"validation_NDCG@10": ndcg, "best_epoch": 31}
            for dropout, ndcg in grid.items()
        },
    }


def _write_results(
    root: Path, diagnostic: str, place: Path, observations: pl.DataFrame, facts: dict[str, Any]
) -> None:
    path = root / "results" / diagnostic / place
    tables.write_table(observations, path.with_suffix(".parquet"), tables.OBSERVATIONS)
    tables.write_json({"values": {}, "facts": facts}, path.with_suffix(".json"))


def _write_training(folder: Path, model: str, seed: int, rng: np.random.Generator) -> None:
    epochs = np.arange(1, 42)
    ndcg = 0.03 * (1 - np.exp(-epochs / 11)) + rng.normal(scale=0.0004, size=epochs.size)
    history = pl.DataFrame(
        {
            "epoch": epochs,
            "loss": 9.1 - 2.3 * (1 - np.exp(-epochs / 13)),
            "validation_NDCG@10": ndcg,
        }
    )
    tables.write_csv(history, folder / "history.csv")
    config = {"dropout": 0.3, "max_length": 128}
    if model in LAYERED:
        config |= {"block": "post_ln", "n_layers": N_LAYERS, "hidden_size": 64}
    tables.write_json(
        {
            "model": model,
            "config": config,
            "n_items": 1009,
            "seed": seed,
            "best_epoch": int(ndcg.argmax()) + 1,
            "n_epochs": int(epochs.size),
            "validation_NDCG@10": float(ndcg.max()),
            "versions": {"torch": "0.0.0"},
        },
        folder / "config.json",
    )


def shuffle_scores(
    made_up: DataSet, model: str, easy: np.ndarray, rng: np.random.Generator
) -> pl.DataFrame:
    """Rows of SHUFFLES: the order of earlier items matters little to attention models."""
    easy = easy[: made_up.n_users]
    taste = rng.normal(size=easy.size)
    reliance = RELIANCE[model]
    loss = {
        "chronological": 0.0,
        "partial": 0.08 if model in LAYERED else 0.16,
        "full": 0.5 if model in LAYERED else 0.3,
    }
    parts = []
    for order, order_seeds in (
        ("chronological", (None,)),
        ("partial", range(5)),
        ("full", range(5)),
    ):
        for order_seed in order_seeds:
            noise = 0.3 * rng.normal(size=easy.size)
            ability = 0.8 * easy + 0.5 * taste + made_up.accuracy - loss[order] + noise
            parts.append(
                _evaluated("test", easy.size, made_up).with_columns(
                    pl.lit(order).alias("order"),
                    pl.lit(order_seed, dtype=pl.Int32).alias("order_seed"),
                    pl.lit(0, dtype=pl.Int32).alias("offset"),
                    pl.Series("target_rank", _rank(ability)),
                    pl.Series("target_rank_unfiltered", _rank(ability)),
                    pl.Series("last_item_rank", _input_rank(reliance, easy.size, rng)),
                    pl.Series("second_last_item_rank", _input_rank(0.05, easy.size, rng)),
                )
            )
    return pl.concat(_conform(part, tables.SHUFFLES) for part in parts)


def scale_scores(
    made_up: DataSet, model: str, easy: np.ndarray, rng: np.random.Generator
) -> pl.DataFrame:
    """Rows of SCALES: a smaller residual mixes more, relies less on the last item, costs hits."""
    parts = []
    for partition, users in (
        ("validation", easy[made_up.n_users :]),
        ("test", easy[: made_up.n_users]),
    ):
        n = users.size
        focus, context = rng.normal(size=(2, n))
        for layers in ("all", *map(str, range(1, N_LAYERS + 1))):
            reach = 1.0 if layers == "all" else 0.5
            for alpha in ALPHAS:
                departure = reach * (1 - alpha)
                weight = np.clip(1 - departure, 0.0, 1.6)
                blend = 0.8 * users + 0.5 * weight * focus + 0.7 * max(departure, 0) * context
                spread = np.sqrt(0.64 + 0.25 * weight**2 + 0.49 * max(departure, 0) ** 2) / 0.94
                ability = blend / spread + made_up.accuracy - 0.35 * abs(departure) ** 1.5
                reliance = RELIANCE[model] * (0.35 + 0.65 * weight / (0.3 + weight) * 1.3)
                ratio = made_up.mixing / (made_up.mixing + (1 - made_up.mixing) * max(weight, 0.02))
                wobble = rng.uniform(0.9, 1, size=n)
                parts.append(
                    _scaled(partition, n, made_up, alpha, layers, 0).with_columns(
                        pl.Series("target_rank", _rank(ability)),
                        pl.Series("target_rank_unfiltered", _rank(ability)),
                        pl.Series("last_item_rank", _input_rank(min(reliance, 0.97), n, rng)),
                        pl.Series("second_last_item_rank", _input_rank(0.05, n, rng)),
                        pl.Series("mixing_ratio_norm_of_sum", ratio * wobble),
                        pl.Series("mixing_ratio_sum_of_norms", ratio**0.85 * wobble),
                    )
                )
        for offset in (1, 2, 3):
            noise = 0.3 * rng.normal(size=n)
            ability = 0.8 * users + 0.7 * context + noise + made_up.accuracy - 0.3
            parts.append(
                _scaled(partition, n, made_up, 1.0, "all", offset).with_columns(
                    pl.Series("target_rank", _rank(ability)),
                    pl.Series("target_rank_unfiltered", _rank(ability)),
                    *(
                        pl.lit(None, dtype=pl.Float64).alias(name)
                        for name in (
                            "last_item_rank", "second_last_item_rank", "mixing_ratio_norm_of_sum",
                            "mixing_ratio_sum_of_norms",
                        )
                    ),
                )
            )  # fmt: skip
    return pl.concat(_conform(part, tables.SCALES) for part in parts)


def mixing_ratio_rows(made_up: DataSet, rng: np.random.Generator) -> pl.DataFrame:
    """Rows as ``lastclick.diagnostics.decompose.user_mixing_ratios`` gives them."""
    n = made_up.n_users
    positions = np.maximum(2, rng.poisson(made_up.mean_length, size=n))
    parts = []
    for layer in range(1, N_LAYERS + 1):
        for level, centre in (
            ("attn", 0.78), ("attn_res", made_up.mixing), ("attn_res_ln", made_up.mixing - 0.002)
        ):  # fmt: skip
            for definition, factor in (("norm_of_sum", 1.0), ("sum_of_norms", 1.05)):
                centre_here = centre * factor - 0.005 * (layer - 1)
                at = np.clip(centre_here + 0.03 * rng.normal(size=(4, n)), 0, 1)
                parts.append(
                    pl.DataFrame(
                        {
                            "user_id": np.arange(n, dtype=np.int32),
                            "layer": np.full(n, layer, dtype=np.int32),
                            "level": [level] * n,
                            "definition": [definition] * n,
                            "sum_over_positions": at[0] * positions,
                            "n_positions": positions,
                            "at_first": np.zeros(n),
                            "at_L": at[1],
                            "at_L1": at[2],
                            "at_L2": pl.Series(np.where(positions > 2, at[3], np.nan)).fill_nan(
                                None
                            ),
                        }
                    )
                )
    return pl.concat(parts)


def heatmap_rows(made_up: DataSet) -> pl.DataFrame:
    """Rows of HEATMAPS: attention spreads over the past, the residual puts it on the diagonal."""
    rows = []
    for layer in range(1, N_LAYERS + 1):
        for level in ("weights", "attn", "attn_res", "attn_res_ln"):
            for output_offset in range(RECENT):
                for input_offset in range(RECENT):
                    distance = input_offset - output_offset
                    value = 0.3 / layer * np.exp(-distance / 3) if distance >= 0 else 0.0
                    if level in ("attn_res", "attn_res_ln"):
                        value = 1 - made_up.mixing if distance == 0 else value * made_up.mixing
                    rows.append(
                        {
                            "layer": layer, "map": level, "output_offset": output_offset,
                            "input_offset": input_offset,
                            "n_sequences": made_up.n_users - max(output_offset, input_offset),
                            "mean": float(value),
                        }
                    )  # fmt: skip
    return pl.DataFrame(rows, schema=dict(tables.HEATMAPS))


def _evaluated(partition: str, n: int, made_up: DataSet) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "partition": [partition] * n,
            "user_id": np.arange(n),
            "target_index": np.zeros(n, dtype=np.int32),
            "input_length": np.full(n, round(made_up.mean_length)),
        }
    )


def _scaled(
    partition: str, n: int, made_up: DataSet, alpha: float, layers: str, offset: int
) -> pl.DataFrame:
    return _evaluated(partition, n, made_up).with_columns(
        pl.lit(alpha).alias("alpha"),
        pl.lit(layers).alias("layers"),
        pl.lit(offset).alias("offset"),
        pl.lit(round(made_up.mean_length)).alias("n_positions"),
    )


def _conform(frame: pl.DataFrame, schema: tables.Schema) -> pl.DataFrame:
    return frame.select(pl.col(name).cast(kind) for name, kind in schema.items())


def _rank(ability: np.ndarray) -> np.ndarray:
    """Ranks in a catalogue of a thousand; rank 10 lies about 1.3 deviations up."""
    return np.clip(np.exp(5.0 - 2.0 * ability), 1, 1009).astype(np.int32)


def _input_rank(first: float, n: int, rng: np.random.Generator) -> np.ndarray:
    """Ranks that are 1 with probability ``first`` and fall off geometrically otherwise."""
    return np.where(rng.random(n) < first, 1, 1 + rng.geometric(0.08, size=n)).astype(np.int32)
