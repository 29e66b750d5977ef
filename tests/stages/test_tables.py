"""The stage ``tables`` on a made-up run: numbers recomputed from the cells they come from."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lastclick import tables
from lastclick.errors import UserError
from lastclick.plotting.data import SCHEMAS
from lastclick.tabulation.contents import TABLES
from lastclick.tabulation.layout import MEASURES
from stages import tables as stage
from tests.conftest import MODELS, SEEDS, SMALL

ALPHAS = ("0", "0.05", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.8", "1", "1.25", "1.5", "2")


def table(root: Path, name: str) -> pl.DataFrame:
    return tables.read_csv(root / "tables" / f"{name}.csv", TABLES[name][0].schema)


def one(root: Path, name: str, **keys: str) -> dict[str, Any]:
    (row,) = table(root, name).filter(**keys).to_dicts()
    return row


def mean_over_seeds(root: Path, diagnostic: str, model: str, metric: str) -> float:
    """Computed anew from the observations of data set toys."""
    values = []
    for seed in SEEDS:
        path = root / "results" / diagnostic / "toys" / model / f"{seed}.parquet"
        rows = pl.read_parquet(path).filter(metric=metric)
        values.append(rows["numerator"].sum() / rows["weight"].sum())
    return sum(values) / len(values)


@pytest.mark.parametrize(
    ("name", "keys", "diagnostic", "metric"),
    [
        ("table2", {"definition": "sum_of_norms", "level": "attn_res_ln"}, "decompose",
         "mixing_ratio/sum_of_norms/attn_res_ln"),
        ("table3", {"layer": "2", "definition": "norm_of_sum", "position": "L-1"}, "decompose",
         "by_layer/layer2/norm_of_sum/attn_res_ln/L-1"),
        ("table4", {"row": "hit at L-3, miss at L"}, "non_final", "HR@10/L-3_miss_L"),
        ("accuracy", {"metric": "NDCG@10"}, "shuffle", "chronological/NDCG@10"),
        ("accuracy", {"metric": "MRR@10"}, "shuffle", "chronological/MRR@10"),
        ("accuracy_by_k", {"K": "20", "metric": "MRR@K"}, "shuffle", "chronological/MRR@20"),
        ("accuracy_by_k", {"K": "50", "metric": "HR@K"}, "shuffle", "chronological/HR@50"),
        ("shuffle", {"metric": "HR@10", "order": "full change"}, "shuffle",
         "full_minus_chronological/HR@10"),
        ("last_item", {"metric": "HRLI@10 − HRL2I@10"}, "last_item", "HRLI@10_minus_HRL2I@10"),
        ("last_item_by_k", {"K": "5", "metric": "HRL2I@K"}, "last_item", "HRL2I@5"),
        ("scaling", {"layers": "layer1", "alpha": "0.05", "metric": "HRLI@1"}, "scale",
         "layer1/alpha=0.05/HRLI@1"),
        ("scaling", {"layers": "all", "alpha": "2", "metric": "HR@10 − alpha 1"}, "scale",
         "all/alpha=2/HR@10_minus_alpha_1"),
        ("recovery", {"layers": "all", "alpha": "0.1", "metric": "recovery"}, "recover",
         "all/alpha=0.1/recovery"),
        ("selection", {"epsilon": "0.5", "quantity": "delta_HR@10", "chosen on": "test"}, "select",
         "epsilon=0.5/oracle_delta_HR@10"),
        ("decomposition", {"positions": "all but the oldest", "definition": "norm_of_sum",
                           "level": "attn"}, "decompose",
         "without_first_position/norm_of_sum/attn"),
    ],
)  # fmt: skip
def test_a_cell_is_the_mean_over_seeds_of_its_metric(tabulated, name, keys, diagnostic, metric):
    row = one(tabulated, name, dataset="toys", model="sasrec", **keys)

    expected = mean_over_seeds(tabulated, diagnostic, "sasrec", metric)
    assert row["value"] == pytest.approx(expected, abs=1e-12)
    assert row["low"] <= row["value"] <= row["high"]
    assert row["n_seeds"] == len(SEEDS)
    assert row["spread"] >= 0


def test_the_share_kept_is_the_ratio_of_the_accuracies(tabulated):
    per_seed = []
    for seed in SEEDS:
        path = tabulated / "results/shuffle/toys/gru4rec" / f"{seed}.parquet"
        frame = pl.read_parquet(path)
        partial, chronological = (
            frame.filter(metric=f"{order}/HR@10")["numerator"].sum()
            for order in ("partial", "chronological")
        )
        per_seed.append(partial / chronological)

    keys = {"dataset": "toys", "model": "gru4rec", "metric": "HR@10", "order": "partial share"}
    assert one(tabulated, "shuffle", **keys)["value"] == pytest.approx(sum(per_seed) / 2)


def test_published_values_stand_beside_those_of_the_same_data_set_model_and_level(tabulated):
    row = one(
        tabulated,
        "table2",
        dataset="toys",
        model="sasrec",
        definition="norm_of_sum",
        level="attn_res",
    )
    assert row["published"] == 0.123
    assert row["difference"] == pytest.approx(row["value"] - 0.123)
    assert row["published_within_interval"] == (row["low"] <= 0.123 <= row["high"])

    row = one(
        tabulated, "table3", dataset="toys", model="sasrec", layer="2", definition="norm_of_sum",
        position="L-2",
    )  # fmt: skip
    assert row["published"] == 0.1135
    row = one(tabulated, "table4", dataset="toys", model="sasrec", row="hit at L-1, miss at L")
    assert row["published"] == 0.0185
    assert one(tabulated, "table1", dataset="toys", quantity="users")["published"] == 19412
    assert one(tabulated, "table1", dataset="toys", quantity="rows_rejected")["value"] == 11
    # ML-100K is in none of the papers.
    for name in ("table1", "table2", "table3", "table4", "accuracy", "splits"):
        assert table(tabulated, name).filter(dataset="ml-100k")["published"].null_count() > 0
        assert table(tabulated, name).filter(dataset="ml-100k")["published"].drop_nulls().is_empty()


@pytest.mark.parametrize(
    "name", ["table2", "table3", "table4", "decomposition", "scaling", "recovery", "selection"]
)
def test_models_without_an_item_in_their_residual_are_named_with_the_reason(tabulated, name):
    frame = table(tabulated, name)
    assert frame["model"].unique(maintain_order=True).to_list() == list(MODELS)
    for model, word in (("gru4rec", "recurrent"), ("bert4rec", "mask token")):
        rows = frame.filter(model=model)
        assert rows["value"].null_count() == rows.height > 0
        assert rows["note"].str.contains("not applicable").all()
        assert rows["note"].str.contains(word).all()


def test_the_alpha_grid_is_whole_for_all_layers_and_each(tabulated):
    frame = table(tabulated, "scaling").filter(model="sasrec", dataset="toys", metric="HR@10")

    for layers in ("all", "layer1", "layer2"):
        assert tuple(frame.filter(layers=layers)["alpha"]) == ALPHAS


def test_recovery_stands_beside_the_size_of_its_base_set(tabulated):
    sizes = [
        json.loads((tabulated / f"results/recover/toys/sasrec/{seed}.json").read_text())["facts"]
        for seed in SEEDS
    ]
    keys = {"dataset": "toys", "model": "sasrec", "layers": "all", "alpha": "0.2"}

    base = one(tabulated, "recovery", **keys, metric="base set")["value"]
    assert base == sum(size["base_set"] for size in sizes) / 2
    assert one(tabulated, "recovery", **keys, metric="sequences")["value"] == SMALL["toys"].n_users
    at_one = one(tabulated, "recovery", **keys | {"alpha": "1"}, metric="recovery")
    assert at_one["value"] == at_one["high"] == 0


def test_every_permutation_is_listed(tabulated):
    facts = [
        json.loads((tabulated / f"results/shuffle/toys/bert4rec/{seed}.json").read_text())["facts"]
        for seed in SEEDS
    ]
    expected = sum(cell["by_order_seed"]["full"]["3"]["NDCG@10"] for cell in facts) / 2

    keys = {"dataset": "toys", "model": "bert4rec", "order": "full", "metric": "NDCG@10"}
    assert one(tabulated, "permutations", **keys, permutation="3")["value"] == expected
    assert table(tabulated, "permutations").filter(**keys).height == 5


def test_the_dropout_grid_is_shown_where_dropout_was_chosen(tabulated):
    frame = table(tabulated, "dropout")

    assert frame["model"].unique().to_list() == ["sasrec"]
    assert frame.filter(dataset="toys")["dropout"].to_list() == ["0.1", "0.3", "0.5"]
    assert one(tabulated, "dropout", dataset="toys", dropout="0.3")["value"] == 0.031


def test_every_pair_of_models_is_compared(tabulated):
    frame = table(tabulated, "comparisons").filter(dataset="ml-100k", metric="HRLI@1")

    pairs = ["bert4rec − gru4rec", "sasrec − gru4rec", "sasrec − bert4rec"]
    assert frame["pair"].to_list() == pairs
    values = {
        model: one(tabulated, "last_item", dataset="ml-100k", model=model, metric="HRLI@1")["value"]
        for model in MODELS
    }
    assert frame["value"][1] == pytest.approx(values["sasrec"] - values["gru4rec"])


def test_markdown_and_csv_of_every_table_hold_the_same_rows(tabulated):
    for name, (layout, _) in TABLES.items():
        text = (tabulated / "tables" / f"{name}.md").read_text(encoding="utf-8")
        rows = table(tabulated, name).select(layout.side).unique().height
        assert text.startswith(f"# {layout.title}\n")
        grid_lines = [line for line in text.splitlines() if line.startswith("| ")]
        assert len(grid_lines) == (rows + 2 if rows else 0)


def test_no_cell_is_empty_without_a_reason(tabulated):
    for name in TABLES:
        frame = table(tabulated, name)
        assert frame.filter(pl.col("value").is_null() & pl.col("note").is_null()).is_empty(), name
        assert frame.columns[-len(MEASURES) :] == list(MEASURES)


def leaves(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def test_metric_files_hold_finite_numbers_only_and_each_estimate_its_interval(tabulated):
    paths = sorted((tabulated / "metrics").glob("*.json"))
    assert [path.stem for path in paths] == [
        "accuracy", "comparisons", "data", "decompose", "last_item", "non_final", "recover",
        "scale", "select", "shuffle", "training",
    ]  # fmt: skip
    for path in paths:
        found = dict(leaves(json.loads(path.read_text(encoding="utf-8"))))
        assert found, path.name
        for key, value in found.items():
            assert type(value) in (int, float)
            assert math.isfinite(value), (path.name, key)
            low, high = ((*key[:-1], f"{key[-1]}_{end}") for end in ("low", "high"))
            if low in found:
                assert found[low] <= value <= found[high]


def test_metric_names_are_those_that_others_rely_on(tabulated):
    def metrics(name: str) -> dict[str, Any]:
        return json.loads((tabulated / "metrics" / f"{name}.json").read_text(encoding="utf-8"))

    assert metrics("decompose")["toys"]["sasrec"]["mixing_ratio"]["norm_of_sum"]["attn_res_ln_low"]
    assert set(metrics("decompose")["toys"]) == {"sasrec"}
    assert set(metrics("last_item")["ml-100k"]) == set(MODELS)
    assert metrics("shuffle")["toys"]["bert4rec"]["partial"]["HR@10_high"]
    assert metrics("scale")["toys"]["sasrec"]["all"]["alpha=0.1"]["mixing_ratio"]["norm_of_sum"]
    accuracy = metrics("accuracy")["toys"]["sasrec"]
    assert {"HR@10", "HR@10_low", "NDCG@100", "MRR", "MRR@10", "coverage@20"} <= set(accuracy)
    assert metrics("data")["toys"]["split"]["n_test_users"] == SMALL["toys"].n_users
    assert metrics("training")["toys"]["gru4rec"]["seed_19"]["dropout"] == 0.3
    assert "sasrec_minus_gru4rec" in metrics("comparisons")["toys"]


def test_plot_data_have_one_row_per_mark(tabulated):
    keys = {
        "shuffle": ["dataset", "model", "metric", "order"],
        "last_item": ["dataset", "model", "k", "item"],
        "heatmaps": ["dataset", "model", "layer", "map", "output_offset", "input_offset"],
        "scaling": ["dataset", "model", "layers", "alpha", "metric"],
        "recovery": ["dataset", "model", "layers", "alpha"],
        "selection": ["dataset", "model", "epsilon", "chosen_on", "metric"],
        "training": ["dataset", "model", "seed", "epoch"],
    }
    assert set(keys) == set(SCHEMAS)
    for name, schema in SCHEMAS.items():
        frame = tables.read_csv(tabulated / "plots/data" / f"{name}.csv", schema)
        assert frame.height > 0
        assert frame.select(keys[name]).is_duplicated().sum() == 0
        if "low" in frame.columns:
            assert frame.filter(pl.col("low") > pl.col("value")).is_empty()
            assert frame.filter(pl.col("value") > pl.col("high")).is_empty()


def test_heatmaps_are_means_over_seeds(tabulated):
    frames = [
        pl.read_parquet(tabulated / f"results/decompose/toys/sasrec/{seed}.heatmaps.parquet")
        for seed in SEEDS
    ]
    where = {"layer": 1, "map": "attn_res", "output_offset": 3, "input_offset": 5}
    expected = sum(frame.filter(**where)["mean"].item() for frame in frames) / len(frames)

    marks = tables.read_csv(tabulated / "plots/data/heatmaps.csv", SCHEMAS["heatmaps"])
    found = marks.filter(dataset="toys", model="sasrec", **where)["mean"].item()
    assert found == pytest.approx(expected)


def test_running_again_writes_the_same_bytes(tabulated, tmp_path, monkeypatch):
    for name in ("params.yaml", "results", "data", "models", "tuning"):
        (tmp_path / name).symlink_to(tabulated / name)
    monkeypatch.chdir(tmp_path)

    stage.main()

    for folder in ("tables", "metrics", "plots/data"):
        for path in sorted((tmp_path / folder).iterdir()):
            assert path.read_bytes() == (tabulated / folder / path.name).read_bytes(), path.name


def test_a_missing_cell_is_named(results, tmp_path, monkeypatch):
    (tmp_path / "params.yaml").symlink_to(results / "params.yaml")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UserError, match=r"results/shuffle/toys/gru4rec/17\.parquet.*dvc repro"):
        stage.main()
