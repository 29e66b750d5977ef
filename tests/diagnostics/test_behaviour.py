"""Shuffle, last item, scale, non-final hits, recovery and selection on rows written by hand."""

from __future__ import annotations

import math

import polars as pl
import pytest

from lastclick.diagnostics.last_item import last_item_observations
from lastclick.diagnostics.non_final import non_final_observations
from lastclick.diagnostics.recover import base_set_size, recover_observations
from lastclick.diagnostics.scale import scale_observations
from lastclick.diagnostics.select import choose, curve, select_observations
from lastclick.diagnostics.shuffle import accuracy_by_order_seed, shuffle_observations

from .score_rows import MISS, scales, shuffles, values


def test_shuffled_accuracy_is_a_users_mean_over_permutations():
    scores = shuffles(
        [
            (1, "chronological", None, 1, 1, 2),
            (2, "chronological", None, 3, 1, 2),
            (1, "partial", 0, 11, 1, 2),
            (1, "partial", 1, 10, 1, 2),
            (2, "partial", 0, 3, 1, 2),
            (2, "partial", 1, MISS, 1, 2),
            (1, "full", 0, MISS, 1, 2),
            (1, "full", 1, MISS, 1, 2),
            (2, "full", 0, MISS, 1, 2),
            (2, "full", 1, 1, 1, 2),
        ]
    )
    found = values(shuffle_observations(scores, ks=[1, 10]))
    assert found["chronological/HR@1"] == 0.5
    assert found["chronological/HR@10"] == 1
    assert found["chronological/NDCG@10"] == pytest.approx((1 + 0.5) / 2)
    assert found["chronological/MRR"] == pytest.approx((1 + 1 / 3) / 2)
    assert found["chronological/MRR@1"] == 0.5
    assert found["chronological/MRR@10"] == pytest.approx((1 + 1 / 3) / 2)
    assert not any("MRR@" in metric for metric in found if not metric.startswith("chronological/"))
    assert found["partial/HR@10"] == 0.5
    assert found["partial/NDCG@10"] == pytest.approx((1 / math.log2(11) / 2 + 0.5 / 2) / 2)
    assert found["full/HR@10"] == 0.25
    assert found["partial_minus_chronological/HR@10"] == -0.5
    assert found["full_minus_chronological/HR@10"] == -0.75
    by_seed = accuracy_by_order_seed(scores)
    assert by_seed["partial"]["0"]["HR@10"] == 0.5
    assert by_seed["partial"]["1"]["HR@10"] == 0.5
    assert by_seed["full"]["0"]["HR@10"] == 0
    assert by_seed["full"]["1"]["HR@10"] == 0.5


def test_last_item_rates_read_the_chronological_input_only():
    scores = shuffles(
        [
            (1, "chronological", None, 5, 1, 2),
            (2, "chronological", None, 5, 2, 1),
            (3, "chronological", None, 5, 1, 11),
            (4, "chronological", None, 5, 11, None),
            (1, "full", 0, 5, MISS, MISS),
        ]
    )
    found = values(last_item_observations(scores, ks=[1, 10]))
    assert found["HRLI@1"] == 2 / 4
    assert found["HRLI@10"] == 3 / 4
    # User 4 has no second-last item.
    assert found["HRL2I@1"] == 1 / 3
    assert found["HRL2I@10"] == 2 / 3
    assert found["HRLI@1_minus_HRL2I@1"] == pytest.approx(1 / 3)


ALL = {
    # user         1     2     3     4     5     6
    ("all", 1.0, 0): [1, MISS, MISS, MISS, MISS, MISS],
    ("all", 1.0, 1): [MISS, 2, MISS, MISS, MISS, None],
    ("all", 1.0, 2): [2, MISS, 10, 4, MISS, None],
    ("all", 1.0, 3): [MISS, MISS, MISS, 11, 1, None],
    ("all", 0.1, 0): [MISS, 3, MISS, 5, MISS, 1],
    ("1", 0.1, 0): [1, MISS, MISS, MISS, 5, MISS],
}


def test_non_final_hits_are_shares_of_all_sequences_row_by_row():
    found = values(non_final_observations(scales(ALL)))
    assert found == {
        "HR@10/L": 1 / 6,
        "HR@10/L-1_miss_L": 1 / 6,
        "HR@10/L-2_miss_L": 2 / 6,  # users 3 and 4; user 1 hits at L already
        "HR@10/L-3_miss_L": 1 / 6,
    }


def test_recovery_keeps_the_trained_models_base_set():
    scores = scales(ALL)
    found = values(recover_observations(scores))
    assert base_set_size(scores) == {"base_set": 4, "n_sequences": 6}  # users 2, 3, 4, 5
    assert found["base_share"] == 4 / 6
    assert found["all/alpha=1/recovery"] == 0
    assert found["all/alpha=0.1/recovery"] == 2 / 4  # users 2 and 4; user 6 is not in the base set
    assert found["layer1/alpha=0.1/recovery"] == 1 / 4


def test_nothing_recoverable_leaves_recovery_out():
    scores = scales({("all", 1.0, 0): [1, 2], ("all", 1.0, 1): [1, 2], ("all", 0.5, 0): [1, 1]})
    found = values(recover_observations(scores))
    assert found == {"base_share": 0.0}


def test_scaling_weighs_mixing_by_positions_and_pairs_users():
    scores = scales(ALL, mixing=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6], n_positions=[1, 2, 3, 4, 5, 6])
    validation = scales({("all", 1.0, 0): [1] * 6}, partition="validation")
    found = values(scale_observations(pl.concat([scores, validation])))
    assert found["all/alpha=1/HR@10"] == 1 / 6
    assert found["all/alpha=0.1/HR@10"] == 3 / 6
    assert found["all/alpha=0.1/HR@10_minus_alpha_1"] == pytest.approx(2 / 6)
    assert found["all/alpha=1/HR@10_minus_alpha_1"] == 0
    assert found["all/alpha=0.1/HRLI@1"] == 1
    assert found["all/alpha=0.1/mixing_ratio/norm_of_sum"] == pytest.approx(9.1 / 21)
    assert found["layer1/alpha=0.1/HR@10"] == 2 / 6


def selection_rows(partition: str, hits: dict[float, list[int]]) -> pl.DataFrame:
    """Ten users; the trained model hits 1..5, users 6..10 are recoverable (hit at L-1)."""
    ranks = {("all", alpha, 0): [1 if u in of else MISS for u in range(1, 11)]
             for alpha, of in hits.items()}  # fmt: skip
    ranks[("all", 1.0, 1)] = [MISS] * 5 + [1] * 5
    return scales(ranks, partition=partition)


VALIDATION = {
    1.0: [1, 2, 3, 4, 5],
    0.5: [1, 2, 3, 4, 6],  # HR 0.5, recovery 0.2
    0.2: [1, 2, 6, 7],  # HR 0.4, recovery 0.4
    0.0: [6, 7, 8],  # HR 0.3, recovery 0.6
}


@pytest.mark.parametrize(
    ("epsilon", "alpha"), [(0.0, 0.5), (0.19, 0.5), (0.2, 0.2), (0.39, 0.2), (0.4, 0.0), (1.0, 0.0)]
)
def test_alpha_is_the_best_recovery_within_the_allowed_loss(epsilon, alpha):
    assert choose(selection_rows("validation", VALIDATION), [epsilon]) == {epsilon: alpha}


def test_among_equals_the_alpha_nearest_to_the_trained_model_is_chosen():
    hits = {1.0: [1, 2, 3, 4, 5], 0.5: [1, 2, 3, 4, 6], 0.8: [1, 2, 3, 5, 6], 0.1: [1, 2, 3, 5, 6]}
    assert choose(selection_rows("validation", hits), [0.0]) == {0.0: 0.8}


def test_without_anything_to_recover_the_trained_model_is_kept():
    rows = scales({("all", 1.0, 0): [1, 2], ("all", 1.0, 1): [1, 1], ("all", 0.5, 0): [1, 1]})
    assert choose(rows, [0.0, 0.5]) == {0.0: 1.0, 0.5: 1.0}
    assert curve(rows).recovery == (None, None)


def test_the_curve_is_in_order_of_alpha():
    found = curve(selection_rows("validation", VALIDATION))
    assert found.alphas == (0.0, 0.2, 0.5, 1.0)
    assert found.hit_rate == pytest.approx((0.3, 0.4, 0.5, 0.5))
    assert found.recovery == pytest.approx((0.6, 0.4, 0.2, 0.0))


def test_a_planted_effect_on_test_does_not_move_the_choice():
    # On test alpha 0.2 recovers everybody at no cost; validation knows nothing of it.
    test = {**VALIDATION, 0.2: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}
    validation_rows, test_rows = (
        selection_rows("validation", VALIDATION),
        selection_rows("test", test),
    )
    chosen = choose(validation_rows, [0.0])
    oracle = choose(test_rows, [0.0])
    assert chosen == {0.0: 0.5}
    assert oracle == {0.0: 0.2}
    found = values(select_observations(test_rows, chosen, oracle))
    assert found["epsilon=0/delta_HR@10"] == 0
    assert found["epsilon=0/recovery"] == pytest.approx(0.2)
    assert found["epsilon=0/oracle_delta_HR@10"] == pytest.approx(0.5)
    assert found["epsilon=0/oracle_recovery"] == 1


@pytest.mark.parametrize(("trained", "epsilon"), [(10, 0.1), (20, 0.1), (5, 0.2), (40, 0.2)])
def test_a_loss_of_exactly_epsilon_is_allowed_and_one_hit_more_is_not(trained, epsilon):
    # With so many users, all of these come out wrong where rounded hit rates are compared.
    n_users, allowed = 101, trained - round(trained * epsilon)
    recoverable = n_users  # the one user whom a smaller alpha wins
    for n_hits, alpha in ((allowed, 0.5), (allowed - 1, 1.0)):
        hits = {1.0: range(1, trained + 1), 0.5: [*range(1, n_hits), recoverable]}
        ranks = {
            ("all", at, 0): [1 if user in of else MISS for user in range(1, n_users + 1)]
            for at, of in hits.items()
        }
        ranks[("all", 1.0, 1)] = [MISS] * (n_users - 1) + [1]
        assert choose(scales(ranks, partition="validation"), [epsilon]) == {epsilon: alpha}
