"""Cells, their arrangement and their Markdown, by hand."""

import pytest

from lastclick.tabulation.layout import (
    NOBODY,
    Layout,
    arrange,
    as_printed,
    counted,
    markdown,
    measured,
    number,
)

LAYOUT = Layout(
    name="example",
    title="An example",
    side=("dataset", "model"),
    across=("metric",),
    shows="It shows.",
    does_not_show="It does not show.",
    digits={"users": 0},
    published="a paper",
)
FINDING = {
    "value": 0.125, "low": 0.1, "high": 0.15, "n_users": 7, "by_seed": [0.12, 0.13],
    "spread": 0.0071,
}  # fmt: skip


def test_numbers_are_grouped_rounded_and_have_a_true_minus():
    assert number(22363, 0) == "22,363"
    assert number(-0.01234, 3) == "−0.012"
    assert number(0.01234, 3, sign=True) == "+0.012"
    # What rounds to nothing has no direction.
    assert number(-0.0001, 3, sign=True) == "0.000"


def test_published_values_keep_the_digits_that_they_were_printed_with():
    assert as_printed(0.1278) == "0.1278"
    assert as_printed(8087953.0) == "8,087,953"
    assert as_printed(-8.9) == "−8.9"


@pytest.mark.parametrize(
    ("published", "inside"), [(0.1, True), (0.15, True), (0.0999, False), (0.1501, False)]
)
def test_a_published_value_is_inside_up_to_the_ends_of_the_interval(published, inside):
    row = measured(FINDING, published)

    assert row["published_within_interval"] is inside
    assert row["difference"] == pytest.approx(0.125 - published)
    assert (row["n_seeds"], row["n_users"], row["spread"]) == (2, 7, 0.0071)


def test_without_a_published_value_there_is_nothing_to_compare():
    assert not {"published", "difference", "published_within_interval"} & set(measured(FINDING))


def test_a_metric_that_nobody_has_says_why_it_is_empty():
    assert measured(None, 0.3) == {"published": 0.3, "note": NOBODY}


def test_counts_have_no_interval():
    assert counted(12, 10.0) == {"value": 12, "published": 10.0, "difference": 2.0}
    assert counted(None)["note"] == "not recorded"


def test_rows_and_columns_keep_their_order_and_holes_stay_holes():
    frame = LAYOUT.frame(
        [
            {"dataset": "toys", "model": "sasrec", "metric": "HR", "value": 0.5},
            {"dataset": "toys", "model": "gru4rec", "metric": "users", "value": 3.0},
            {"dataset": "toys", "model": "gru4rec", "metric": "HR", "note": "no HR"},
        ]
    )

    grid = arrange(LAYOUT, frame)

    assert grid.rows == (("toys", "sasrec"), ("toys", "gru4rec"))
    assert grid.columns == (("HR",), ("users",))
    assert grid.cells[0][0]["value"] == 0.5
    assert grid.cells[0][1] is None
    assert grid.notes == ("no HR",)


def test_markdown_shows_value_interval_spread_published_value_and_reason():
    keys = {"dataset": "toys", "model": "a|b"}
    frame = LAYOUT.frame(
        [
            {**keys, "metric": "HR", **measured(FINDING, 0.2)},
            {**keys, "metric": "users", **counted(5609, 5610.0)},
            {**keys, "metric": "ratio", "note": "not applicable: no attention"},
        ]
    )

    lines = markdown(LAYOUT, frame).splitlines()

    assert lines[0] == "# An example"
    assert lines[2] == "| dataset | model | HR | users | ratio |"
    assert lines[4] == (
        "| toys | a\\|b "
        "| 0.1250 [0.1000, 0.1500]; seeds ± 0.0071; published 0.2 (−0.0750, outside) "
        "| 5,609; published 5,610 (−1) | n/a (1) |"
    )
    assert "1. not applicable: no attention" in lines
    assert lines[-3:] == ["It does not show.", "", "Published values: a paper."]


def test_a_table_without_rows_says_so():
    assert "Nothing in this run has such numbers." in markdown(LAYOUT, LAYOUT.frame([]))
