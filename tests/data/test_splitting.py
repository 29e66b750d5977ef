"""Every split against a naive reading of its definition, and the cases that people reported."""

from __future__ import annotations

import os
from fractions import Fraction
from math import ceil, floor
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastclick.data.filtering import preprocess
from lastclick.data.hashing import seeded_hash
from lastclick.data.splitting import Split, split_interactions, time_quantile
from lastclick.errors import UserError
from lastclick.tables import EVALUATION, INTERACTIONS

A, B, C = 1, 2, 3


def interactions(*rows: tuple[int, int, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=dict(INTERACTIONS), orient="row")


def histories(frame: pl.LazyFrame) -> dict[int, list[int]]:
    """User -> items of a table with one sequence a user."""
    found: dict[int, list[int]] = {}
    for user, item in frame.select("user_id", "item_id").collect().iter_rows():
        found.setdefault(user, []).append(item)
    return found


def cases(frame: pl.LazyFrame) -> dict[tuple[int, int], list[int]]:
    """(user, target index) -> items, input then target."""
    found: dict[tuple[int, int], list[int]] = {}
    for user, item, index in (
        frame.collect().select("user_id", "item_id", "target_index").iter_rows()
    ):
        found.setdefault((user, index), []).append(item)
    return found


# --- reported cases ---------------------------------------------------------------------------


def test_the_quantile_interpolates():  # C07
    frame = interactions((A, 1, 10), (A, 2, 30), (A, 3, 50), (B, 4, 20), (B, 5, 40))
    split = split_interactions(frame, quantile=0.9)
    assert split.report.t_test == 46.0
    assert split.report.t_validation == 37.0
    assert histories(split.train) == {A: [1, 2]}
    assert cases(split.validation) == {(B, 0): [4, 5]}
    assert cases(split.test) == {(A, 0): [1, 2, 3]}
    assert split.report.as_dict() == {
        "n_items": 5, "t_test": 46.0, "t_validation": 37.0,
        "n_train_interactions": 2, "n_train_users": 1,
        "n_validation_users": 1, "n_validation_targets": 1, "n_validation_skipped": 0,
        "mean_validation_holdout": 1.0,
        "n_test_users": 1, "n_test_targets": 1, "n_test_skipped": 0, "mean_test_holdout": 1.0,
    }  # fmt: skip


def test_one_row_users_are_skipped_and_nobody_left_is_an_error():  # C08
    frame = interactions((A, 1, 1), (B, 2, 2), (B, 3, 3), (C, 4, 10))
    with pytest.raises(UserError) as refused:
        split_interactions(frame, quantile=0.9)
    assert "users with interactions after T_test = 7.9: 1" in str(refused.value)
    assert "(skipped): 1" in str(refused.value)


def test_a_skipped_user_is_counted_and_kept_out_of_every_table():  # C08
    rows = [(A, item, item) for item in range(1, 8)] + [(B, 2, 3), (B, 3, 5), (B, 4, 6)]
    frame = interactions(*rows, (C, 9, 8))
    split = split_interactions(frame, quantile=0.8)
    assert split.report.t_test == 6.0
    assert (split.report.n_test_users, split.report.n_test_skipped) == (1, 1)
    assert split.report.n_items == 9
    for table in (split.train, split.validation, split.test):
        assert C not in histories(table)


def test_threshold_of_recognised_milliseconds():  # C03
    times = [1_700_000_000 + 86_400 * day for day in range(5)]
    frame = interactions(*[(A, item, time) for item, time in enumerate(times, 1)])
    split = split_interactions(frame, quantile=0.9)
    assert split.report.t_test == 1_700_311_040.0
    assert cases(split.test) == {(A, 0): [1, 2, 3, 4, 5]}


def test_an_interaction_on_the_threshold_is_not_after_it():
    # In floating point the position is 56.99999999999999, the threshold falls just short of 57,
    # and the interaction at 57 lands in the test period.
    assert 0.57 * 100 < 57
    assert time_quantile(np.arange(101), 0.57) == 57
    for n in range(2, 59):
        for quantile in (0.1, 0.3, 0.55, 0.7, 0.9, 0.95):
            exact = Fraction(str(quantile)) * (n - 1)
            assert time_quantile(np.arange(n)[::-1].copy(), quantile) == exact


TIMES = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3) | st.integers(10**9, 10**9 + 10**6)


@given(
    st.lists(TIMES, min_size=1, max_size=41),
    st.sampled_from([0.001, 0.25, 0.5, 0.9]),
    st.booleans(),
)
def test_quantiles_of_any_integers(times, quantile, in_parts):
    place = Fraction(str(quantile)) * (len(times) - 1)
    below, above = (sorted(times)[bound] for bound in (floor(place), ceil(place)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lastclick.data.parts.PART_ROWS", 5 if in_parts else 2**18)
        found = time_quantile(np.array(times), quantile)
    assert found == below + (place - floor(place)) * (above - below)


# --- every option, against the definitions ----------------------------------------------------


def naive_split(
    frame: pl.DataFrame,
    *,
    protocol: str = "global_time",
    quantile: float = 0.9,
    target: str = "last",
    validation: str = "global_time",
    validation_users: int = 1024,
    seed: int = 17,
) -> tuple[dict, dict, dict, int]:
    """(train, validation, test, skipped), users as dictionaries of lists, from the definitions."""
    users: dict[int, list[tuple[int, int]]] = {}
    for user, item, time in frame.iter_rows():
        users.setdefault(user, []).append((item, time))

    def quantile_of(times: list[int]) -> Fraction:
        times = sorted(times)
        position = Fraction(str(quantile)) * (len(times) - 1)
        below = floor(position)
        above = min(below + 1, len(times) - 1)
        return times[below] + (position - below) * (times[above] - times[below])

    def split_at(users: dict, threshold: Fraction) -> tuple[dict, dict]:
        """Those who stay at or before the threshold; and, of those who go on, how far."""
        before = {u: [row for row in rows if row[1] <= threshold] for u, rows in users.items()}
        evaluated = {u: len(before[u]) for u in users if len(before[u]) < len(users[u])}
        return {u: rows for u, rows in before.items() if len(rows) >= 2}, evaluated

    def evaluation(users: dict, known: dict) -> tuple[dict, int]:
        found, skipped = {}, 0
        for user, n_known in known.items():
            items = [item for item, _ in users[user]]
            places = [place for place in range(n_known, len(items)) if place > 0]
            if not places:
                skipped += 1
                continue
            draw = int(seeded_hash(np.array([user]), seed)[0]) % len(places)
            chosen = {
                "last": places[-1:],
                "first": places[:1],
                "random": [places[draw]],
            }.get(target, places)
            for index, place in enumerate(chosen):
                known_items = items[: places[0]] if target == "all" else items[:place]
                found[user, index] = [*known_items, items[place]]
        return found, skipped

    def items_of(users: dict) -> dict:
        return {user: [item for item, _ in rows] for user, rows in users.items()}

    if protocol == "leave_one_out":
        test, skipped = evaluation(users, {u: len(rows) - 1 for u, rows in users.items()})
        pool = {u: rows[:-1] for u, rows in users.items() if len(rows) > 1}
        found, _ = evaluation(pool, {u: len(rows) - 1 for u, rows in pool.items()})
        return items_of({u: r[:-1] for u, r in pool.items() if len(r) > 2}), found, test, skipped

    pool, known = split_at(users, quantile_of([row[1] for rows in users.values() for row in rows]))
    test, skipped = evaluation(users, known)
    if not pool:
        return {}, {}, test, skipped
    if validation == "global_time":
        times = [row[1] for rows in pool.values() for row in rows]
        train, known = split_at(pool, quantile_of(times))
    elif validation == "last_train_item":
        known = {u: len(rows) - 1 for u, rows in pool.items()}
        train = {u: rows[:-1] for u, rows in pool.items() if len(rows) > 2}
    else:
        hashes = {user: int(seeded_hash(np.array([user]), seed)[0]) for user in pool}
        chosen = sorted(pool, key=hashes.__getitem__)[:validation_users]
        known = {u: len(pool[u]) - 1 for u in chosen}
        train = {u: rows for u, rows in pool.items() if u not in chosen}
    found, _ = evaluation(pool, known)
    return items_of(train), found, test, skipped


INTERACTIONS_OF_A_FEW = st.lists(
    st.tuples(st.integers(1, 7), st.integers(1, 11), st.integers(0, 23)), min_size=1, max_size=53
).map(lambda rows: interactions(*sorted(rows, key=lambda row: (row[0], row[2]))))

OPTIONS = st.fixed_dictionaries(
    {
        "protocol": st.sampled_from(["global_time", "global_time", "leave_one_out"]),
        "quantile": st.sampled_from([0.3, 0.5, 0.75, 0.9]),
        "target": st.sampled_from(["last", "first", "random", "successive", "all"]),
        "validation": st.sampled_from(["global_time", "last_train_item", "by_user"]),
        "validation_users": st.integers(1, 2),
        "seed": st.integers(0, 2**31),
    }
)


@settings(max_examples=400)
@given(INTERACTIONS_OF_A_FEW, OPTIONS)
def test_every_option_gives_what_its_definition_says(frame, options):
    train, validation, test, skipped = naive_split(frame, **options)
    if not (train and validation and test):
        with pytest.raises(UserError):
            split_interactions(frame, **options)
        return
    split = split_interactions(frame, **options)
    assert histories(split.train) == train
    assert cases(split.validation) == validation
    assert cases(split.test) == test
    report = split.report
    assert report.n_train_interactions == sum(map(len, train.values()))
    assert report.n_train_users == len(train)
    assert report.n_validation_users == len({user for user, _ in validation})
    assert report.n_validation_targets == len(validation)
    assert report.n_test_users == len({user for user, _ in test})
    assert report.n_test_targets == len(test)
    assert report.n_test_skipped == skipped


@given(INTERACTIONS_OF_A_FEW, st.integers(1, 11))
def test_working_in_parts_changes_nothing(frame, part_rows):
    try:
        whole = split_interactions(frame, quantile=0.75)
    except UserError:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lastclick.data.parts.PART_ROWS", part_rows)
        parts = split_interactions(frame, quantile=0.75)
    assert parts.report == whole.report
    for name in ("train", "validation", "test"):
        assert getattr(parts, name).collect().equals(getattr(whole, name).collect())


@settings(max_examples=200)
@given(INTERACTIONS_OF_A_FEW, st.sampled_from([0.5, 0.75, 0.9]))
def test_time_separates_training_from_targets(frame, quantile):
    try:
        split = split_interactions(frame, quantile=quantile)
    except UserError:
        return
    t_test, t_validation = split.report.t_test, split.report.t_validation
    train, validation, test = (
        table.collect() for table in (split.train, split.validation, split.test)
    )
    assert train["timestamp"].max() <= t_validation <= t_test
    assert train.group_by("user_id").len()["len"].min() >= 2
    assert validation["timestamp"].max() <= t_test
    last_of = pl.col("timestamp").last()
    assert validation.group_by("user_id").agg(last_of)["timestamp"].min() > t_validation
    assert test.group_by("user_id").agg(last_of)["timestamp"].min() > t_test


def test_tables_have_the_schemas_and_the_order_of_the_interactions():
    rows = [(user, 1 + place, 100 * place + user) for user in (1, 2, 3, 5) for place in range(13)]
    for target in ("last", "successive"):
        split = split_interactions(interactions(*rows), target=target)
        assert split.train.collect_schema() == pl.Schema(INTERACTIONS)
        for table in (split.validation, split.test):
            frame = table.collect()
            assert frame.schema == pl.Schema(EVALUATION)
            assert frame.equals(frame.sort("user_id", "target_index", maintain_order=True))


def test_by_user_sets_aside_whole_users_and_the_seed_says_which():
    rows = [(user, 1 + place, place) for user in range(1, 102) for place in range(11)]
    chosen = []
    for seed in (17, 18):
        split = split_interactions(
            interactions(*rows), validation="by_user", validation_users=23, seed=seed
        )
        aside = set(histories(split.validation))
        assert len(aside) == 23
        assert aside.isdisjoint(histories(split.train))
        assert split.report.t_validation is None
        assert "t_validation" not in split.report.as_dict()
        chosen.append(aside)
    assert chosen[0] != chosen[1]


# --- what cannot be split ---------------------------------------------------------------------


def test_too_few_users_for_by_user():
    rows = [(user, 1 + place, place) for user in (1, 2, 3) for place in range(11)]
    with pytest.raises(UserError, match=r"asks for 3 users, but only 3 have"):
        split_interactions(interactions(*rows), validation="by_user", validation_users=3)


def test_equal_times_leave_nothing_after_the_threshold():
    rows = [(user, item, 5) for user in (1, 2) for item in range(1, 8)]
    with pytest.raises(UserError, match=r"test set is empty: users .* after T_test = 5.0: 0"):
        split_interactions(interactions(*rows))
    assert split_interactions(interactions(*rows), protocol="leave_one_out").report.t_test is None


def test_nothing_to_train_on():
    rows = [(user, 1, user) for user in range(1, 8)] + [(8, 1, 8), (8, 2, 9)]
    with pytest.raises(UserError, match=r"nothing to train on: .* T_test = 5.0.*split.quantile"):
        split_interactions(interactions(*rows), quantile=0.5)


def test_no_validation_user():
    rows = [(A, 1, 1), (A, 2, 1), (A, 3, 1), (A, 4, 9)]
    with pytest.raises(UserError, match=r"validation set is empty: .*T_validation = 1.0"):
        split_interactions(interactions(*rows), quantile=0.7)


def test_nobody_left_to_train():
    rows = [(A, 1, 1), (A, 2, 8), (A, 3, 9)]
    with pytest.raises(UserError, match=r"training set is empty: .*T_validation"):
        split_interactions(interactions(*rows), quantile=0.5)


def test_evaluation_sequences_that_would_not_fit(monkeypatch):
    monkeypatch.setattr("lastclick.data.splitting.MAX_EVALUATION_ROWS", 100)
    rows = [(user, 1 + place, place) for user in (1, 2, 3) for place in range(31)]
    with pytest.raises(UserError, match=r"successive would make \d+ rows"):
        split_interactions(interactions(*rows), target="successive", quantile=0.5)


def test_mistakes_of_the_caller():
    frame = interactions((A, 1, 1), (B, 2, 2), (A, 3, 3))
    with pytest.raises(ValueError, match="order of user_id"):
        split_interactions(frame)
    for option in ("protocol", "target", "validation"):
        rows = [(user, 1 + place, place) for user in (1, 2, 3) for place in range(11)]
        with pytest.raises(ValueError, match=f"unknown {option} 'x'"):
            split_interactions(interactions(*rows), **{option: "x"})


# --- published numbers ------------------------------------------------------------------------

INCOMING = Path(os.environ.get("INCOMING_DIR", "data/incoming"))
PUBLISHED = {
    # data set: users, items, interactions, train interactions, train users, validation, test,
    # mean holdout
    "beauty": (22_363, 12_101, 198_502, 160_178, 20_341, 6_263, 6_110, 3.25),
    "toys": (19_412, 11_924, 167_597, 135_524, 17_406, 5_202, 5_609, None),
}


@pytest.mark.slow
@pytest.mark.parametrize("dataset", PUBLISHED)
def test_published_counts(dataset):
    path = INCOMING / f"{dataset}.parquet"
    if not path.exists():
        pytest.skip(f"needs the {dataset} interactions (not ours to distribute) at {path}")
    result = preprocess(pl.scan_parquet(path), k_core=5)
    split: Split = split_interactions(result.interactions)
    report = split.report
    counts = (
        result.report.n_users, result.report.n_items, result.report.n_interactions,
        report.n_train_interactions, report.n_train_users, report.n_validation_users,
        report.n_test_users,
    )  # fmt: skip
    assert counts == PUBLISHED[dataset][:7]
    if mean_holdout := PUBLISHED[dataset][7]:
        assert round(report.mean_test_holdout, 2) == mean_holdout
