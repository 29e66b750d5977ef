"""Order, repeats, k-core and ids, on the cases that people have reported and on random rows."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastclick.data.encoding import encode
from lastclick.data.filtering import (
    Preprocessed,
    _stable_order,
    compare_with_expected,
    drop_consecutive_repeats,
    keep_core,
    preprocess,
    sort_by_user_and_time,
)
from lastclick.data.hashing import seeded_hash
from lastclick.errors import UserError

SCHEMA = {"user_id": pl.String, "item_id": pl.String, "timestamp": pl.Int64}
CODED = {"user_id": pl.UInt32, "item_id": pl.UInt32, "timestamp": pl.Int64}


def raw(*rows: tuple[str, str, int]) -> pl.LazyFrame:
    return pl.LazyFrame(rows, schema=SCHEMA, orient="row")


def sequences(preprocessed: Preprocessed) -> dict[str, list[tuple[str, int]]]:
    """Raw user -> (raw item, timestamp) in order."""
    names = {(kind, number): text for kind, number, text in preprocessed.ids.iter_rows()}
    found: dict[str, list[tuple[str, int]]] = {}
    for user, item, time in preprocessed.interactions.iter_rows():
        found.setdefault(names["user", user], []).append((names["item", item], time))
    return found


def test_big_ids_stay_apart_and_in_order():  # C01
    items = ["9007199254740992", "9007199254740993", "18446744073709551615", "18446744073709551616"]
    rows = [("1", item, 1_700_000_000 + place) for place, item in enumerate(items)]
    result = preprocess(raw(*rows), k_core=0)
    assert sequences(result) == {"1": [(item, time) for _, item, time in rows]}
    assert result.interactions["item_id"].to_list() == [1, 2, 3, 4]


def test_source_order_inside_equal_times():  # C04
    rows = [("u", "9", 100), ("u", "3", 100), ("u", "7", 100), ("u", "5", 200)]
    result = preprocess(raw(*rows), k_core=0)
    assert [item for item, _ in sequences(result)["u"]] == ["9", "3", "7", "5"]
    assert result.report.tie_share == pytest.approx(2 / 3)


def test_consecutive_repeats_go_per_user_and_the_first_stays():  # C05
    rows = [
        ("u1", "a", 1), ("u1", "a", 2), ("u1", "b", 3), ("u1", "c", 4), ("u1", "a", 5),
        ("u1", "d", 6), ("u2", "d", 7), ("u2", "d", 8), ("u2", "e", 9),
    ]  # fmt: skip
    result = preprocess(raw(*rows), k_core=0)
    assert sequences(result) == {
        "u1": [("a", 1), ("b", 3), ("c", 4), ("a", 5), ("d", 6)],
        "u2": [("d", 7), ("e", 9)],
    }
    assert result.report.n_repeats_dropped == 2


def test_another_users_row_between_does_not_hide_a_repeat():  # C05
    result = preprocess(raw(("u1", "a", 1), ("u2", "a", 2), ("u1", "a", 3)), k_core=0)
    assert sequences(result) == {"u1": [("a", 1)], "u2": [("a", 2)]}


def test_core_to_a_fixed_point():  # C06
    histories = {
        **{user: ["i1", "i2", "i3", "i4", "i5"] for user in ("u1", "u2", "u3", "u4", "u5")},
        **{user: ["i1", "i2", "i3", "x", "y"] for user in "FGHJ"},
        "K": ["i1", "i2", "i3", "i4", "y"],
    }
    rows = [
        (user, item, time) for user, items in histories.items() for time, item in enumerate(items)
    ]
    assert len(rows) == 50
    result = preprocess(raw(*rows), k_core=5)
    kept = sequences(result)
    assert sorted(kept) == ["u1", "u2", "u3", "u4", "u5"]
    assert all([item for item, _ in row] == ["i1", "i2", "i3", "i4", "i5"] for row in kept.values())
    assert result.interactions.height == 25
    # x goes; then F, G, H and J, who are left with four; then y; then K.
    assert result.report.n_rounds == 4


def test_removing_an_item_creates_a_repeat_that_counts_no_more():
    # Without x, user u reads a a b: the second a is a repeat, and u has two interactions only.
    rows = [("u", "a", 1), ("u", "x", 2), ("u", "a", 3), ("u", "b", 4)]
    others = [(user, item, 1) for user in ("v", "w", "z") for item in ("a", "b", "c")]
    result = preprocess(raw(*rows, *others), k_core=3)
    assert sorted(sequences(result)) == ["v", "w", "z"]


def brute_force_core(rows: list[tuple[int, int]], k: int) -> list[tuple[int, int]]:
    """The union of all groups of users and items that support each other, from the definition."""

    def restricted(users: set[int], items: set[int]) -> list[tuple[int, int]]:
        kept = [row for row in rows if row[0] in users and row[1] in items]
        return [row for row, before in zip(kept, [None, *kept], strict=False) if row != before]

    def subsets(values: set[int]) -> list[set[int]]:
        sizes = range(len(values) + 1)
        return [set(group) for n in sizes for group in itertools.combinations(sorted(values), n)]

    largest: tuple[set[int], set[int]] = (set(), set())
    for users in subsets({user for user, _ in rows}):
        for items in subsets({item for _, item in rows}):
            kept = restricted(users, items)
            counts = [sum(user == u for u, _ in kept) for user in users]
            counts += [sum(item == i for _, i in kept) for item in items]
            if all(count >= k for count in counts):
                largest = (largest[0] | users, largest[1] | items)
    return restricted(*largest)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=29).map(
        lambda rows: sorted(rows, key=lambda row: row[0])
    ),
    st.integers(0, 3),
)
def test_the_core_is_the_largest_fixed_point(rows, k):
    frame = pl.DataFrame([(u, i, 0) for u, i in rows], schema=CODED, orient="row")
    core, _ = keep_core(drop_consecutive_repeats(frame), k)
    assert list(core.select("user_id", "item_id").iter_rows()) == brute_force_core(rows, k)
    again, n_rounds = keep_core(drop_consecutive_repeats(core), k)
    assert again.equals(core)
    assert n_rounds == 0


ROWS = st.lists(
    st.tuples(st.sampled_from("abcde"), st.sampled_from("pqrstvw"), st.integers(0, 11)), min_size=1
)


@given(ROWS, st.randoms(use_true_random=False))
def test_ids_do_not_depend_on_the_order_of_rows(rows, random):
    shuffled = random.sample(rows, len(rows))
    one, other = preprocess(raw(*rows), k_core=0), preprocess(raw(*shuffled), k_core=0)
    assert one.ids.equals(other.ids)


@given(ROWS)
def test_nothing_is_lost_but_repeats(rows):
    result = preprocess(raw(*rows), k_core=0)
    expected: dict[str, list[tuple[str, int]]] = {}
    for user, item, time in sorted(rows, key=lambda row: row[2]):
        history = expected.setdefault(user, [])
        if not history or history[-1][0] != item:
            history.append((item, time))
    assert sequences(result) == expected
    report = result.report
    assert report.n_rows_read - report.n_repeats_dropped == report.n_interactions
    assert report.n_interactions == sum(map(len, expected.values()))


def test_ids_are_dense_and_in_id_order():
    rows = [("10", "b", 3), ("9", "aa", 1), ("10", "é", 5), ("011", "b", 2)]
    result = preprocess(raw(*rows), k_core=0)
    assert result.ids.rows() == [
        ("user", 1, "9"), ("user", 2, "10"), ("user", 3, "011"),
        ("item", 1, "b"), ("item", 2, "aa"), ("item", 3, "é"),
    ]  # fmt: skip
    assert result.ids.schema == {"kind": pl.String, "id": pl.Int32, "raw_id": pl.String}
    assert result.interactions.schema == {
        "user_id": pl.Int32, "item_id": pl.Int32, "timestamp": pl.Int64
    }  # fmt: skip
    assert result.interactions.rows() == [(1, 2, 1), (2, 1, 3), (2, 3, 5), (3, 1, 2)]


def test_ids_that_do_not_survive_leave_no_gap():
    kept = [(user, item, time) for user in "bd" for time, item in enumerate("xz")]
    result = preprocess(raw(("a", "x", 0), ("c", "y", 0), *kept), k_core=2)
    assert result.ids.rows() == [
        ("user", 1, "b"), ("user", 2, "d"), ("item", 1, "x"), ("item", 2, "z")
    ]  # fmt: skip


def test_integer_ids_are_read_as_their_digits():
    rows = [(10, 2**64 - 1, 3), (9, 7, 1)]
    schema = {"user_id": pl.Int64, "item_id": pl.UInt64, "timestamp": pl.Int64}
    numbers = pl.LazyFrame(rows, schema=schema, orient="row")
    text = raw(*[(str(user), str(item), time) for user, item, time in rows])
    assert preprocess(numbers, k_core=0).ids.equals(preprocess(text, k_core=0).ids)


def test_ticks_order_rows_and_seconds_are_kept():
    rows = [("u", "b", 1_900), ("u", "a", 1_100), ("u", "c", -1), ("u", "d", 86_400_950)]
    result = preprocess(raw(*rows), k_core=0, ticks_per_second=1000)
    assert sequences(result) == {"u": [("c", -1), ("a", 1), ("b", 1), ("d", 86_400)]}
    assert result.report.tie_share == 0
    assert result.report.days == 1


def test_times_too_far_apart_for_one_key_are_sorted_all_the_same():
    rows = [
        ("v", "c", 5), ("u", "a", 2**63 - 1), ("u", "b", -(2**63)), ("u", "d", 0), ("u", "e", 0)
    ]  # fmt: skip
    result = preprocess(raw(*rows), k_core=0)
    assert [item for item, _ in sequences(result)["u"]] == ["b", "d", "e", "a"]
    assert [item for item, _ in sequences(result)["v"]] == ["c"]


def test_shuffled_ties_follow_the_hash_of_the_source_position():
    rows = [("u", item, 100) for item in "abcdefg"] + [("u", "z", 99)]
    result = preprocess(raw(*rows), k_core=0, ties="shuffled", ties_seed=17)
    by_hash = np.argsort(seeded_hash(np.arange(7), 17))
    expected = ["z", *("abcdefg"[place] for place in by_hash)]
    assert [item for item, _ in sequences(result)["u"]] == expected
    assert expected[1:] != sorted(expected[1:])


@given(ROWS, st.integers(0, 2**31))
def test_shuffling_ties_moves_rows_inside_ties_only(rows, seed):
    coded, _, _ = encode(raw(*rows))
    source = sort_by_user_and_time(coded)
    shuffled = sort_by_user_and_time(coded, ties="shuffled", seed=seed)
    assert shuffled.select("user_id", "timestamp").equals(source.select("user_id", "timestamp"))
    everything = ["user_id", "timestamp", "item_id"]
    assert shuffled.sort(everything).equals(source.sort(everything))


@pytest.mark.parametrize("ties", ["source", "shuffled"])
def test_working_in_blocks_and_parts_changes_nothing(monkeypatch, ties):
    rows = seeded_hash(np.arange(1009), 3)
    names = {"user_id": rows % 31, "item_id": rows // 31 % 53, "timestamp": rows // 1643 % 7}
    table = pl.DataFrame(names).cast(pl.Int64)
    whole = preprocess(table, k_core=17, ties=ties)
    assert 0 < whole.report.n_interactions < 1009
    for block_rows, part_rows in ((1, 1), (101, 7)):
        monkeypatch.setattr("lastclick.data.filtering.BLOCK_ROWS", block_rows)
        monkeypatch.setattr("lastclick.data.parts.PART_ROWS", part_rows)
        parts = preprocess(table, k_core=17, ties=ties)
        assert parts.interactions.equals(whole.interactions)
        assert parts.report == whole.report


KEYS = st.integers(1, 31).flatmap(
    lambda n_rows: st.lists(
        # Words of 32 bits, of 64, two keys that fit one by one, one that does not fit.
        st.sampled_from([3, 2**20, 2**40, 2**63 - 1]).flatmap(
            lambda top: st.lists(
                st.integers(-top - 1 if top > 3 else 0, top), min_size=n_rows, max_size=n_rows
            )
        ),
        min_size=1,
        max_size=3,
    )
)


@given(KEYS)
def test_the_order_of_packed_keys_is_that_of_the_keys(keys):
    arrays = [np.array(key, dtype=np.int64) for key in keys]
    assert _stable_order(*arrays).tolist() == np.lexsort(arrays[::-1]).tolist()


def test_an_unknown_rule_for_ties_is_refused():
    with pytest.raises(ValueError, match="ties"):
        preprocess(raw(("u", "a", 1)), k_core=0, ties="random")


def test_report_of_a_table_counted_by_hand():
    day = 86_400
    rows = [
        ("u", "a", 0), ("u", "b", 0), ("u", "b", 7), ("u", "c", 2 * day), ("u", "a", 2 * day),
        ("v", "c", day), ("v", "a", 3 * day - 1), ("v", "b", 3 * day - 1),
        ("w", "a", 9 * day),
    ]  # fmt: skip
    report = preprocess(raw(*rows), k_core=2).report
    assert report.n_rows_read == 9
    assert report.n_repeats_dropped == 1
    assert report.n_rounds == 1
    assert (report.n_users, report.n_items, report.n_interactions) == (2, 3, 7)
    assert report.average_length == 3.5
    assert report.density == pytest.approx(7 / 6)
    assert report.days == 2
    assert report.tie_share == pytest.approx(3 / 5)


def test_expected_counts_are_compared():
    report = preprocess(raw(("u", "a", 1), ("u", "b", 2), ("v", "a", 1)), k_core=0).report
    assert compare_with_expected(report, users=2, items=2, interactions=3) == []
    differences = compare_with_expected(report, users=2, items=3, interactions=1001)
    assert differences == ["2 items instead of 3 (-1)", "3 interactions instead of 1,001 (-998)"]


def test_nothing_read():
    with pytest.raises(UserError, match="no interactions"):
        preprocess(raw(), k_core=0)


def test_everything_filtered_away():
    with pytest.raises(UserError, match=r"2 users and 1 items .* 5 interactions .*k_core"):
        preprocess(raw(("u", "a", 1), ("v", "a", 1)), k_core=5)


@pytest.mark.parametrize("column", ["user_id", "item_id", "timestamp"])
def test_a_gap_is_refused_with_its_row(column):
    frame = raw(("u", "a", 1), ("v", "b", 2), ("v", "c", 3)).with_row_index()
    hole = pl.when(pl.col("index") != 1).then(column).alias(column)
    with pytest.raises(UserError, match=rf"row 2 of 3 has no {column}"):
        preprocess(frame.with_columns(hole).drop("index"), k_core=0)


DIGEST = """
import hashlib, sys
import numpy as np, polars as pl
from lastclick.data.filtering import preprocess
from lastclick.data.hashing import seeded_hash
from lastclick.data.splitting import split_interactions

rows = np.arange(400_009)
def draw(seed, n, prefix):
    numbers = seeded_hash(rows, seed) % np.uint64(n)
    return pl.select(pl.format(prefix + "{}", pl.Series(numbers))).to_series()

raw = pl.DataFrame({
    "user_id": draw(1, 20_011, "user "),
    "item_id": draw(2, 3_001, "item "),
    "timestamp": draw(3, 997, "").cast(pl.Int64),
})
result = preprocess(raw.lazy(), k_core=17, ties="shuffled", ties_seed=5)
split = split_interactions(result.interactions, target="random")
digest = hashlib.sha256()
for frame in (result.interactions, result.ids, split.train.collect(), split.test.collect()):
    for column in frame.iter_columns():
        digest.update("\\n".join(map(str, column.to_list())).encode())
print(pl.thread_pool_size(), digest.hexdigest(), result.report.n_rounds)
"""


def test_bytes_do_not_depend_on_the_number_of_threads():
    outputs = []
    for threads in ("1", "2"):
        environment = {
            **os.environ, "POLARS_MAX_THREADS": threads, "PYTHONPATH": os.pathsep.join(sys.path)
        }  # fmt: skip
        run = subprocess.run(
            [sys.executable, "-W", "error", "-c", DIGEST],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        outputs.append(run.stdout.split())
    assert [output[0] for output in outputs] == ["1", "2"]
    assert outputs[0][1:] == outputs[1][1:]
    assert len(outputs[0][1]) == hashlib.sha256().digest_size * 2
