"""Sentences and warnings of the report, from numbers that are known."""

from __future__ import annotations

import copy
from typing import Any

import polars as pl
import pytest

from lastclick.report.answer import Answer, answers, paragraph, short_answer
from lastclick.report.cautions import cautions
from lastclick.report.numbers import Estimate, Numbers, listing, percent, percents, plural
from lastclick.report.readings import (
    data_readings,
    mixing_readings,
    published_readings,
    recovery_readings,
    scaling_readings,
)
from lastclick.tabulation.contents import TABLES
from lastclick.tabulation.layout import counted, measured
from lastclick.tabulation.published import load_published

SETTINGS = {
    "run": {
        "datasets": ["toys"], "models": ["sasrec"], "attention_models": ["sasrec"],
        "seeds": [17, 19],
    },
    "evaluation": {"bootstrap_draws": 2000},
    "preprocess": {"ties": "source"},
    "datasets": {"toys": {"raw": {"kind": "parquet"}}},
    "train": {"batch_size": 256, "batch_size_of": {}, "max_epochs": 300, "patience": 10},
    "models": {"sasrec": {"block": "post_ln"}},
    "split": {
        "protocol": "global_time", "quantile": 0.9, "target": "last", "validation": "global_time"
    },
}  # fmt: skip
PUBLISHED = load_published()


def finding(value: float, half: float = 0.01, n_users: int = 5003) -> dict[str, Any]:
    return {
        "value": value, "low": value - half, "high": value + half, "n_users": n_users,
        "by_seed": [value],
    }  # fmt: skip


def numbers_of(**rows: list[dict[str, Any]]) -> Numbers:
    """All tables, those not given empty."""
    return Numbers({name: layout.frame(rows.get(name, [])) for name, (layout, _) in TABLES.items()})


def estimate(value: float, half: float = 0.01) -> Estimate:
    return Estimate(value, value - half, value + half, 5003)


def answer(
    model: str, gap: float, half: float = 0.01, dataset: str = "toys", **more: Any
) -> Answer:
    fields = {
        "last_item_hit_rate": estimate(gap + 0.05), "second_last_item_hit_rate": estimate(0.05),
        "gap": estimate(gap, half), "kept_by_partial": None, "kept_by_full": None,
        "mixing_ratio_attn": None, "mixing_ratio_attn_res_ln": None,
    }  # fmt: skip
    return Answer(dataset, model, **fields | more)


def test_words_for_numbers():
    assert percent(0.8249) == "82%"
    assert percent(0.0312) == "3.1%"
    assert percent(-0.0312) == "−3.1%"
    assert percent(0.1164, 1) == "11.6%"
    assert percents([0.72, 0.83, 0.8]) == "72% to 83%"
    assert percents([0.721, 0.724]) == "72%"
    assert listing(["a", "b", "c"]) == "a, b and c"
    assert listing(["a"]) == "a"
    assert plural(1, "miss", "misses") == "1 miss"
    assert plural(1209, "user") == "1,209 users"
    assert estimate(-0.012).signed() == "−0.0120 (−0.0220 to −0.0020)"
    assert estimate(0.82).percent() == "82% (81% to 83%)"


@pytest.mark.parametrize(
    ("gap", "half", "word"),
    [
        (0.77, 0.01, "strongly"),
        (0.505, 0.01, "partly"),  # the interval reaches below a half
        (0.3, 0.01, "partly"),
        (0.195, 0.01, "partly"),  # the interval reaches above a fifth
        (0.05, 0.01, "little"),
        (-0.02, 0.01, "little"),
    ],
)
def test_the_word_for_the_gap_goes_by_its_interval_and_not_by_its_value(gap, half, word):
    assert answer("sasrec", gap, half).echo == word


@pytest.mark.parametrize(
    ("partial", "full", "word"),
    [
        (0.95, 0.4, "last item"),
        (0.95, 0.93, "none"),
        (0.6, 0.3, "earlier too"),
        (0.805, 0.4, "unclear"),  # the interval reaches below four fifths
        (0.95, 0.795, "unclear"),  # the interval reaches above them
    ],
)
def test_the_word_for_the_order_goes_by_what_shuffles_keep(partial, full, word):
    kept = {"kept_by_partial": estimate(partial), "kept_by_full": estimate(full)}

    assert answer("sasrec", 0.8, **kept).order == word


LAST = {"kept_by_partial": estimate(0.95), "kept_by_full": estimate(0.4)}
UNCLEAR = {"kept_by_partial": estimate(0.8), "kept_by_full": estimate(0.4)}
NONE = {"kept_by_partial": estimate(0.95), "kept_by_full": estimate(0.95)}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            [answer("sasrec", 0.8, **LAST)],
            [
                "Going by what they recommend, SASRec leans strongly on the last item.",
                "Going by what shuffling the input costs, SASRec needs to know which item is last, "
                "but hardly the order before it.",
            ],
        ),
        (
            [answer("gru4rec", 0.0, **NONE), answer("sasrec", 0.8, **LAST),
             answer("duorec", 0.7, **LAST)],
            [
                "Going by what they recommend, SASRec and DuoRec lean strongly on the last item; "
                "GRU4Rec leans but little on the last item.",
                "Going by what shuffling the input costs, SASRec and DuoRec need to know which "
                "item is last, but hardly the order before it; GRU4Rec hardly needs any order.",
            ],
        ),
        (
            [answer("sasrec", 0.8), answer("duorec", 0.8), answer("duorec", 0.7, dataset="beauty"),
             answer("sasrec", 0.3, dataset="beauty")],
            [
                "Going by what they recommend, SASRec (Toys) and DuoRec lean strongly on the last "
                "item; SASRec (Beauty) leans partly on the last item.",
            ],
        ),
        (
            [answer("sasrec", 0.8, **LAST), answer("sasrec", 0.8, dataset="beauty", **UNCLEAR)],
            [
                "Going by what they recommend, SASRec leans strongly on the last item.",
                "Going by what shuffling the input costs, SASRec (Toys) needs to know which item "
                "is last, but hardly the order before it; the rest is unclear.",
            ],
        ),
        (
            [answer("sasrec", 0.8, **UNCLEAR)],
            [
                "Going by what they recommend, SASRec leans strongly on the last item.",
                "Going by what shuffling the input costs, this run cannot tell.",
            ],
        ),
        (
            [Answer("toys", "sasrec", *[None] * 7)],
            ["This run cannot say: neither diagnostic could be measured."],
        ),
    ],
)  # fmt: skip
def test_the_short_answer(found, expected):
    assert short_answer(found) == expected


FIRST = "its best epoch was the first"
NEAR_CHANCE = "its HR@10 of 0.1060 is not clearly above chance (0.1000)"


def test_a_model_that_may_not_have_learnt_gets_no_word_but_a_doubt():
    unlearnt = answer("gru4rec", 0.0, doubts=(FIRST,), **NONE)

    assert (unlearnt.echo, unlearnt.order) == ("in doubt", "in doubt")
    # What was not measured is not in doubt.
    assert answer("gru4rec", 0.0, doubts=(FIRST,)).order is None


def test_the_short_answer_begins_with_the_models_that_may_not_have_learnt():
    unlearnt = answer("gru4rec", 0.0, doubts=(FIRST, NEAR_CHANCE), **NONE)
    doubt = (
        "GRU4Rec on Toys may not have learnt anything: its best epoch was the first and its HR@10 "
        "of 0.1060 is not clearly above chance (0.1000). No verdict is given for it."
    )

    assert short_answer([unlearnt]) == [doubt]
    assert short_answer([unlearnt, answer("sasrec", 0.8, **LAST)]) == [
        doubt,
        "Going by what they recommend, SASRec leans strongly on the last item.",
        "Going by what shuffling the input costs, SASRec needs to know which item is last, but "
        "hardly the order before it.",
    ]


def test_a_doubt_on_one_data_set_leaves_the_verdict_on_the_other():
    found = [
        answer("sasrec", 0.8),
        answer("sasrec", 0.1, dataset="beauty", doubts=(FIRST,)),
    ]

    assert short_answer(found) == [
        "SASRec on Beauty may not have learnt anything: its best epoch was the first. No verdict "
        "is given for it.",
        "Going by what they recommend, SASRec (Toys) leans strongly on the last item.",
    ]


def test_the_paragraph_gives_the_numbers_of_a_model_in_doubt_without_a_verdict():
    found = [answer("gru4rec", 0.05, doubts=(FIRST,), **NONE)]

    assert paragraph("toys", found) == [
        "GRU4Rec may not have learnt anything; as trained, the last item is itself the first "
        "recommendation for 10% of the test sequences, the item before it for 5.0%. With "
        "everything before the last item shuffled, 95% of HR@10 is kept; with the last item "
        "shuffled along, 95%."
    ]


def test_the_paragraph_says_what_is_kept_and_what_is_mixed():
    found = [
        answer(
            "sasrec", 0.78, kept_by_partial=estimate(0.91), kept_by_full=estimate(0.33),
            mixing_ratio_attn=estimate(0.778), mixing_ratio_attn_res_ln=estimate(0.116),
        )
    ]  # fmt: skip

    assert paragraph("toys", found) == [
        "SASRec leans strongly on the last item: it is itself the first recommendation for 83% of "
        "the test sequences, the item before it for 5.0%. With everything before the last item "
        "shuffled, 91% of HR@10 is kept; with the last item shuffled along, 33%.",
        "Inside SASRec, attention alone takes 78% of its output from other positions; once the "
        "residual is added and normalised, 12% is left (norm of sum, mean over positions and "
        "layers).",
    ]
    assert paragraph("beauty", found) == []


def test_answers_are_read_from_the_tables():
    keys = {"dataset": "toys", "model": "sasrec"}
    numbers = numbers_of(
        last_item=[
            {**keys, "metric": metric, **measured(finding(value))}
            for metric, value in (("HRLI@1", 0.83), ("HRL2I@1", 0.06), ("HRLI@1 − HRL2I@1", 0.77))
        ],
        shuffle=[
            {**keys, "metric": metric, "order": order, **measured(finding(value))}
            for metric, order, value in (
                ("HR@10", "partial share", 0.9), ("NDCG@10", "partial share", 0.8),
                ("HR@10", "full share", 0.4),
            )
        ],
        table2=[{**keys, "definition": "norm_of_sum", "level": "attn", "note": "not applicable"}],
    )  # fmt: skip

    (found,) = answers(numbers, ["toys"], ["sasrec"])

    assert found.last_item_hit_rate.value == 0.83
    assert found.gap.value == 0.77
    assert found.kept_by_partial.value == 0.9
    assert found.kept_by_full.value == 0.4
    assert found.mixing_ratio_attn is None


def training_rows(best_epoch: int, epochs: int, seed: str = "17") -> list[dict[str, Any]]:
    keys = {"dataset": "toys", "model": "sasrec", "seed": seed}
    return [
        {**keys, "quantity": quantity, **counted(value)}
        for quantity, value in (("epochs", epochs), ("best_epoch", best_epoch))
    ]


def accuracy_of(hit_rate: float, items: int) -> dict[str, list[dict[str, Any]]]:
    """Tables with a hit rate, its interval 0.01 to either side, and the size of the catalogue."""
    return {
        "accuracy": [
            {"dataset": "toys", "model": "sasrec", "metric": "HR@10", **measured(finding(hit_rate))}
        ],
        "table1": [{"dataset": "toys", "quantity": "items", **counted(items)}],
    }


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (training_rows(2, 12), ()),
        (training_rows(1, 11), (FIRST,)),
        (training_rows(31, 41) + training_rows(1, 11, "19"), (FIRST + " (seed 19)",)),
        # Given weights were not trained.
        (training_rows(0, 1), ()),
    ],
)
def test_a_best_epoch_that_is_the_first_is_a_doubt(rows, expected):
    (found,) = answers(numbers_of(training=rows), ["toys"], ["sasrec"])

    assert found.doubts == expected


@pytest.mark.parametrize(
    ("hit_rate", "items", "expected"),
    [
        (0.106, 100, (NEAR_CHANCE,)),
        (0.1101, 100, ()),  # the interval begins just above chance
        (0.1099, 200, ()),
        (0.9, 8, ("its HR@10 of 0.9000 is not clearly above chance (1.0000)",)),
    ],
)
def test_a_hit_rate_whose_interval_reaches_down_to_chance_is_a_doubt(hit_rate, items, expected):
    (found,) = answers(numbers_of(**accuracy_of(hit_rate, items)), ["toys"], ["sasrec"])

    assert found.doubts == expected


@pytest.mark.parametrize(
    ("best_epoch", "epochs", "expected"),
    [
        (1, 11, ["no epoch was better than the first in the training of SASRec (seed 17)"]),
        (2, 12, []),
        (300, 300, ["SASRec (seed 17) reached train.max_epochs (300) before train.patience"]),
        (291, 300, ["SASRec (seed 17) reached train.max_epochs (300) before train.patience"]),
        (290, 300, []),  # patience ran out in the last epoch
        (299, 299, []),
        (0, 1, []),
    ],
)
def test_trainings_that_call_for_care(best_epoch, epochs, expected):
    numbers = numbers_of(training=training_rows(best_epoch, epochs))

    found = cautions(numbers, SETTINGS)

    assert len(found) == len(expected)
    assert all(part in caution for part, caution in zip(expected, found, strict=True))


@pytest.mark.parametrize(("sizes", "users"), [({}, 256), ({"toys": 32}, 32), ({"steam": 32}, 256)])
def test_advice_for_a_best_epoch_that_is_the_first_names_the_batch_size_of_the_data_set(
    sizes, users
):
    settings = SETTINGS | {"train": SETTINGS["train"] | {"batch_size_of": sizes}}

    (caution,) = cautions(numbers_of(training=training_rows(1, 11)), settings)

    assert f"train.batch_size_of.toys (now {users} users)" in caution
    assert "Raise train.patience (now 10 epochs)" in caution


def test_a_hit_rate_near_chance_calls_for_care():
    (caution,) = cautions(numbers_of(**accuracy_of(0.106, 100)), SETTINGS)

    assert caution.startswith(
        "HR@10 of SASRec on Toys, 0.1060 (0.0960 to 0.1160), is not clearly above chance (0.1000, "
    )
    assert cautions(numbers_of(**accuracy_of(0.1101, 100)), SETTINGS) == []


@pytest.mark.parametrize(
    ("rows", "advised"),
    [
        (training_rows(6, 16), [True]),
        (training_rows(0, 1), [False]),  # given weights
        (training_rows(1, 11), [True, False]),  # said before, with the best epoch
    ],
)
def test_what_to_do_about_a_hit_rate_near_chance_is_said_once(rows, advised):
    found = cautions(numbers_of(training=rows, **accuracy_of(0.106, 100)), SETTINGS)

    assert ["Raise train.patience" in caution for caution in found] == advised


def rows_of_source(read: int, rejected: int) -> Numbers:
    counts = {"rows_read": read, "rows_rejected": rejected}
    return numbers_of(
        table1=[
            {"dataset": "toys", "quantity": quantity, **counted(count)}
            for quantity, count in counts.items()
        ]
    )


@pytest.mark.parametrize(
    ("read", "rejected", "sentence", "warned"),
    [
        (100, 0, None, False),
        (9_900, 100, "Toys leaves out 100 rejected rows of 10,000 (1.0%; rejects: lenient)", False),
        (9_899, 101, "Toys leaves out 101 rejected rows of 10,000 (1.0%; rejects: lenient)", True),
        (700, 300, "Toys leaves out 300 rejected rows of 1,000 (30%; rejects: lenient)", True),
    ],
)
def test_rejected_rows_are_told_and_many_of_them_call_for_care(read, rejected, sentence, warned):
    numbers = rows_of_source(read, rejected)
    expected = [] if sentence is None else [sentence]

    assert list(data_readings(numbers, SETTINGS)) == [f"{text}." for text in expected]
    found = cautions(numbers, SETTINGS)
    assert [text.partition(". ")[0] for text in found] == (expected if warned else [])


def test_of_sampled_users_the_rows_read_give_no_share():
    raw = {"kind": "parquet", "sample_users": {"users": 20, "seed": 17}}
    settings = SETTINGS | {"datasets": {"toys": {"raw": raw}}}
    numbers = rows_of_source(700, 300)

    assert list(data_readings(numbers, settings)) == [
        "Toys leaves out 300 rejected rows (rejects: lenient)."
    ]
    assert cautions(numbers, settings) == []


def test_a_run_with_nothing_to_warn_of():
    assert cautions(numbers_of(), SETTINGS) == []


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("run", "seeds", [17], "One training seed"),
        ("evaluation", "bootstrap_draws", 999, "only 999 bootstrap draws"),
        ("preprocess", "ties", "shuffled", "random order"),
        ("models", "sasrec", {"block": "classic"}, "classic block"),
        ("split", "target", "first", "differs from the published one in target"),
    ],
)
def test_settings_that_call_for_care(section, key, value, expected):
    settings = copy.deepcopy(SETTINGS)
    settings[section][key] = value

    (caution,) = cautions(numbers_of(), settings)

    assert expected in caution


@pytest.mark.parametrize(
    ("table", "row", "expected"),
    [
        ("splits", {"quantity": "test_users", **counted(166)}, "only 166 test users"),
        ("splits", {"quantity": "test_users", **counted(999)}, "moves a hit rate by 0.0010"),
        ("splits", {"quantity": "test_users", **counted(1000)}, None),
        ("table1", {"quantity": "tie_share", **counted(0.47)}, "47% of neighbouring interactions"),
        ("table1", {"quantity": "tie_share", **counted(0.09)}, None),
        (
            "table1",
            {"quantity": "users", **counted(19411, 19412.0)},
            "users 19,411 (published 19,412)",
        ),
        ("table1", {"quantity": "users", **counted(19412, 19412.0)}, None),
        (
            "shuffle",
            {"model": "sasrec", "metric": "HR@10", "order": "partial share",
             **measured(finding(0.9, n_users=29))},
            "SASRec on Toys (29)",
        ),
        (
            "recovery",
            {"model": "sasrec", "layers": "all", "alpha": "1", "metric": "base set",
             **counted(99.0)},
            "SASRec on Toys (99)",
        ),
        (
            "recovery",
            {"model": "sasrec", "layers": "all", "alpha": "1", "metric": "base set",
             **counted(100.0)},
            None,
        ),
        (
            "recovery",
            {"model": "sasrec", "layers": "all", "alpha": "0", "metric": "recovery",
             **measured(None)},
            "leaves out 1 number",
        ),
    ],
)  # fmt: skip
def test_numbers_that_call_for_care(table, row, expected):
    found = cautions(numbers_of(**{table: [{"dataset": "toys", **row}]}), SETTINGS)

    assert found == [] if expected is None else expected in found[0]


def scaling_rows(metric: str, values: dict[str, float]) -> list[dict[str, Any]]:
    keys = {"dataset": "toys", "model": "sasrec", "layers": "all"}
    return [
        {**keys, "alpha": alpha, "metric": metric, **measured(finding(value))}
        for alpha, value in values.items()
    ]


def test_scaling_is_read_by_alpha_as_a_number_and_step_by_step():
    numbers = numbers_of(
        scaling=[
            # Not in order on purpose: "10" comes before "2" only as text.
            *scaling_rows("norm_of_sum", {"0": 0.9, "10": 0.01, "2": 0.1, "1": 0.2}),
            *scaling_rows("HRLI@1", {"0": 0.3, "1": 0.4, "2": 0.9, "10": 0.85}),
            *scaling_rows("HR@10", {"0": 0.02, "1": 0.03, "2": 0.05, "10": 0.04}),
        ]
    )

    assert list(scaling_readings(numbers)) == [
        "SASRec on Toys: as alpha grows from 0 to 10, the mixing ratio falls at every step (0.900 "
        "to 0.010) and HRLI@1 rises at all but 1 step (30% to 85%); HR@10 is highest at "
        "alpha = 2 (0.0500; 0.0300 at alpha = 1)."
    ]


def test_a_curve_that_stays_level_does_not_rise_and_a_single_point_says_nothing():
    def readings(*alphas):
        return list(
            scaling_readings(
                numbers_of(
                    scaling=[
                        row
                        for metric in ("norm_of_sum", "HRLI@1", "HR@10")
                        for row in scaling_rows(metric, dict.fromkeys(alphas, 0.25))
                    ]
                )
            )
        )

    assert readings("1") == []
    (sentence,) = readings("0", "1")
    assert "does not fall overall" in sentence
    assert "HRLI@1 does not rise overall" in sentence


def test_a_trained_model_that_is_best_is_called_so():
    numbers = numbers_of(
        scaling=[
            *scaling_rows("norm_of_sum", {"0": 0.9, "1": 0.2}),
            *scaling_rows("HRLI@1", {"0": 0.5, "1": 0.4}),
            *scaling_rows("HR@10", {"0": 0.02, "1": 0.05}),
        ]
    )

    (sentence,) = scaling_readings(numbers)
    assert "HRLI@1 does not rise overall (50% to 40%)" in sentence
    assert sentence.endswith("HR@10 is highest at alpha = 1, the trained model.")


def test_recovery_names_its_peak_its_base_set_and_its_price():
    keys = {"dataset": "toys", "model": "sasrec", "layers": "all"}
    numbers = numbers_of(
        recovery=[
            *scaling_rows("recovery", {"0.1": 0.21, "0.2": 0.26, "1": 0.0}),
            {**keys, "alpha": "0.2", "metric": "base set", **counted(211.0)},
        ],
        scaling=scaling_rows("HR@10 − alpha 1", {"0.2": -0.012}),
    )

    assert list(recovery_readings(numbers, PUBLISHED)) == [
        "SASRec on Toys: recovery is highest at alpha = 0.2, where 26% (25% to 27%) of 211 "
        "recoverable misses become hits; over all users HR@10 changes by −0.0120 (−0.0220 to "
        "−0.0020) there.",
        "The published curves peak at alpha 0.1 to 0.3.",
    ]


def test_published_values_inside_and_the_nearer_definition():
    keys = {"dataset": "toys", "model": "sasrec"}
    numbers = numbers_of(
        table2=[
            {**keys, "definition": definition, "level": level,
             **measured(finding(value), printed)}
            for definition, level, value, printed in (
                ("norm_of_sum", "attn", 0.775, 0.772), ("norm_of_sum", "attn_res", 0.15, 0.123),
                ("sum_of_norms", "attn", 0.8, 0.772), ("sum_of_norms", "attn_res", 0.18, 0.123),
            )
        ]
    )  # fmt: skip

    assert list(published_readings(numbers, PUBLISHED)) == [
        "Table 2. Mixing ratios: 1 of 2 published values within the interval of ours.",
        "The printed mixing ratios lie nearer to norm of sum (mean distance 0.0150) than to sum of "
        "norms (0.0425).",
    ]


def test_without_published_values_the_report_says_so():
    (sentence,) = published_readings(numbers_of(), PUBLISHED)

    assert "print no value" in sentence


def test_a_range_is_shown_where_no_value_of_the_data_set_is_printed():
    numbers = numbers_of(
        table2=[
            {"dataset": dataset, "model": "sasrec", "definition": "norm_of_sum", "level": "attn",
             **measured(finding(0.8))}
            for dataset in ("steam", "ml-100k")
        ]
    )  # fmt: skip

    assert list(published_readings(numbers, PUBLISHED)) == [
        "Attn of SASRec on Steam is 0.800 (norm of sum); the printed range is 0.721 to 0.959."
    ]


@pytest.mark.parametrize(("block", "word"), [("post_ln", "own input"), ("classic", "query")])
def test_which_residual_is_meant(block, word):
    settings = SETTINGS | {"models": {"sasrec": {"block": block}}}

    (sentence,) = mixing_readings(settings)

    assert word in sentence


def test_a_bound_of_the_published_peak_is_named():
    keys = {"dataset": "diginetica", "model": "sasrec", "layers": "all", "alpha": "0.2"}
    numbers = numbers_of(
        recovery=[
            {**keys, "metric": "recovery", **measured(finding(0.34))},
            {**keys, "metric": "base set", **counted(211.0)},
        ]
    )

    assert "(published: above 30%)." in next(recovery_readings(numbers, PUBLISHED))


def test_a_cell_without_interval_is_no_estimate():
    numbers = numbers_of(splits=[{"dataset": "toys", "quantity": "test_users", **counted(7)}])

    assert numbers.estimate("splits", dataset="toys", quantity="test_users") is None
    assert numbers.count("splits", dataset="toys", quantity="test_users") == 7
    assert numbers.count("splits", dataset="beauty", quantity="test_users") is None
    assert isinstance(numbers.tables["splits"], pl.DataFrame)
