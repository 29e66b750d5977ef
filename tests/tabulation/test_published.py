"""The typed numbers against each other: a slip of the pen breaks an identity."""

import pytest

from lastclick.tabulation.published import load_published, look_up

PUBLISHED = load_published()


@pytest.mark.parametrize("dataset", PUBLISHED.data_sets.values)
def test_average_length_and_density_follow_from_the_counts(dataset):
    row = PUBLISHED.data_sets.values[dataset]

    assert row["average_length"] == pytest.approx(row["interactions"] / row["users"], abs=0.051)
    density = 100 * row["interactions"] / (row["users"] * row["items"])
    assert row["density_percent"] == pytest.approx(density, abs=0.0051)


@pytest.mark.parametrize("dataset", PUBLISHED.splits.values)
def test_splits_are_parts_of_their_data_sets(dataset):
    whole, split = PUBLISHED.data_sets.values[dataset], PUBLISHED.splits.values[dataset]

    # Nine tenths of all interactions lie before the cut, nine tenths of those before the next.
    assert 0.79 < split["train_interactions"] / whole["interactions"] < 0.82
    assert split["validation_users"] < split["train_users"] < whole["users"]
    assert split["test_users"] < whole["users"]


@pytest.mark.parametrize(
    ("dataset", "model"),
    [(d, m) for d, models in PUBLISHED.mixing_ratio.values.items() for m in models],
)
def test_the_residual_lowers_the_mixing_ratio_and_the_norm_hardly_changes_it(dataset, model):
    levels = PUBLISHED.mixing_ratio.values[dataset][model]

    assert levels["attn"] > 2 * levels["attn_res"]
    assert levels["attn_res"] - 0.01 <= levels["attn_res_ln"] <= levels["attn_res"]


def test_sasrec_lies_in_the_printed_ranges():
    for level, bounds in PUBLISHED.mixing_ratio_ranges.values.items():
        for dataset in bounds.data_sets:
            value = look_up(PUBLISHED.mixing_ratio.values, dataset, "sasrec", level)
            assert value is None or bounds.lowest <= value <= bounds.highest


def test_layers_average_to_about_the_overall_mixing_ratio():
    for dataset, layers in PUBLISHED.mixing_ratio_by_layer.values.items():
        mean = sum(sum(row.values()) / 3 for row in layers.values()) / len(layers)
        overall = PUBLISHED.mixing_ratio.values[dataset]["sasrec"]["attn_res_ln"]
        # The three newest positions against all of them.
        assert mean == pytest.approx(overall, abs=0.02)


def test_non_final_hits_are_rarer_than_hits():
    for row in PUBLISHED.non_final_hits.values.values():
        assert set(row) == {"L", "L-1", "L-2", "L-3"}
        assert max(row["L-1"], row["L-2"], row["L-3"]) < row["L"]


def test_accuracies_are_in_the_order_that_their_definitions_force():
    rows = [
        row
        for models in PUBLISHED.accuracy.values.values()
        for of_model in models.values()
        for row in of_model
    ]

    assert len(rows) == 7
    for row in rows:
        assert row["HR@1"] < row["MRR@10"] < row["NDCG@10"] < row["HR@10"]


def test_the_best_printed_dropout_is_that_of_the_highest_ndcg():
    assert PUBLISHED.best_accuracy("beauty", "sasrec")["dropout"] == 0.5
    assert PUBLISHED.best_accuracy("beauty", "bert4rec")["HR@10"] == 0.0242
    assert PUBLISHED.best_accuracy("beauty", "gru4rec")["HR@10"] == 0.0195
    assert PUBLISHED.best_accuracy("toys", "sasrec") == {}


def test_sources_are_named():
    blocks = (
        PUBLISHED.data_sets, PUBLISHED.splits, PUBLISHED.mixing_ratio, PUBLISHED.accuracy,
        PUBLISHED.mixing_ratio_by_layer, PUBLISHED.non_final_hits, PUBLISHED.recovery,
        PUBLISHED.mixing_ratio_ranges,
    )  # fmt: skip

    assert {block.source for block in blocks} == set(PUBLISHED.sources)
    assert all(block.location and block.setting for block in blocks)


def test_look_up_stops_at_the_first_absent_key():
    assert look_up({"a": {1: 2.5}}, "a", 1) == 2.5
    assert look_up({"a": {1: 2.5}}, "b", 1) is None
    assert look_up(None, "a") is None
