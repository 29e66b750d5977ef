"""Observations that are derived from others, by hand."""

import polars as pl
import pytest

from lastclick.tables import OBSERVATIONS
from lastclick.tabulation.further import recovery
from lastclick.tabulation.layout import NOBODY
from lastclick.tabulation.published import load_published
from lastclick.tabulation.study import Study, model_differences, shares_of_chronological


def observations(rows: list[tuple[str, int, float, float]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=dict(OBSERVATIONS), orient="row")


def ratio(frame: pl.DataFrame, metric: str) -> float:
    part = frame.filter(metric=metric)
    return part["numerator"].sum() / part["weight"].sum()


def test_the_share_kept_is_a_ratio_of_accuracies_and_counts_gains_too():
    frame = observations(
        [
            ("chronological/HR@10", 1, 1.0, 1.0),
            ("chronological/HR@10", 2, 1.0, 1.0),
            ("chronological/HR@10", 3, 0.0, 1.0),
            ("partial/HR@10", 1, 0.4, 1.0),
            ("partial/HR@10", 2, 0.8, 1.0),
            ("partial/HR@10", 3, 0.2, 1.0),
            ("partial_minus_chronological/HR@10", 1, -0.6, 1.0),
        ]
    )

    shares = shares_of_chronological(frame)

    assert shares.schema == frame.schema
    assert shares["metric"].unique().to_list() == ["partial_share_of_chronological/HR@10"]
    assert ratio(shares, "partial_share_of_chronological/HR@10") == pytest.approx(1.4 / 2)


def test_models_are_compared_on_the_same_users_later_minus_earlier():
    found = model_differences(
        {
            "a": observations([("HR@10", 2, 1.0, 1.0), ("HR@10", 1, 0.0, 1.0)]),
            "b": observations([("HR@10", 1, 1.0, 1.0), ("HR@10", 2, 1.0, 1.0)]),
            "c": observations([("HR@10", 1, 0.0, 1.0), ("HR@10", 2, 0.0, 1.0)]),
        }
    )

    assert list(found) == ["b_minus_a", "c_minus_a", "c_minus_b"]
    by_user = dict(zip(found["b_minus_a"]["user_id"], found["b_minus_a"]["numerator"], strict=True))
    assert by_user == {1: 1.0, 2: 0.0}
    assert ratio(found["c_minus_a"], "HR@10") == pytest.approx(-0.5)


def test_why_a_model_has_no_structure_to_measure():
    study = Study(
        ("toys",), ("gru4rec", "bert4rec", "sasrec", "mine"), ("sasrec",), (17,), (1, 10),
        published=load_published(),
    )  # fmt: skip

    assert study.why_not("sasrec") is None
    assert "recurrent" in study.why_not("gru4rec")
    assert "mask token" in study.why_not("bert4rec")
    assert "run.attention_models" in study.why_not("mine")


def test_a_recovery_without_a_base_set_is_shown_with_its_size_and_no_number():
    found = {"all/alpha=0.5/HR@10": {}, "all/alpha=1/HR@10": {}}
    cell = ("toys", "sasrec")
    study = Study(
        ("toys",), ("sasrec",), ("sasrec",), (17,), (1, 10), published=load_published(),
        findings={"scale": {cell: found}, "recover": {cell: {}}},
        facts={"recover": {cell: [{"base_set": 0, "n_sequences": 9}]}},
    )  # fmt: skip

    rows = [row for row in recovery(study) if row["alpha"] == "0.5"]

    assert [(row["metric"], row.get("value"), row.get("note")) for row in rows] == [
        ("recovery", None, NOBODY),
        ("base set", 0, None),
        ("sequences", 9, None),
    ]
