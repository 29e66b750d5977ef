"""Bootstrap intervals: exact cases, known spreads, and what must not change them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lastclick import bootstrap
from lastclick.bootstrap import Interval, ratio_intervals
from lastclick.errors import UserError


def intervals(numerator, weight=None, *, draws=500, seed=17, confidence=0.95):
    """Of ``numerator (n_seeds, n_users, n_metrics)`` or shorter shapes of one seed, one metric."""
    numerator = np.asarray(numerator, dtype=np.float64)
    if numerator.ndim == 1:
        numerator = numerator[None, :, None]
    weight = np.ones_like(numerator) if weight is None else np.asarray(weight, dtype=np.float64)
    return ratio_intervals(
        numerator, weight.reshape(numerator.shape), draws=draws, seed=seed, confidence=confidence
    )


def test_share_has_the_normal_interval_of_a_large_sample():
    n, share = 5_003, 0.2
    hits = np.arange(n) < share * n
    [found] = intervals(hits, draws=2_000)
    half_width = 1.96 * math.sqrt(share * (1 - share) / n)
    assert found.value == pytest.approx(share, abs=1e-3)
    # 2,000 draws place a 2.5% quantile within about 0.07 standard errors.
    assert found.low == pytest.approx(found.value - half_width, abs=0.15 * half_width)
    assert found.high == pytest.approx(found.value + half_width, abs=0.15 * half_width)


def test_interval_covers_the_true_share_as_often_as_it_says():
    rng = np.random.default_rng(3)
    truth, n_samples, n_users = 0.3, 400, 101
    samples = (rng.random((1, n_users, n_samples)) < truth).astype(np.float64)
    covered = np.mean([found.low <= truth <= found.high for found in intervals(samples)])
    # Expected 0.93 to 0.95 for 101 users; the standard error of 400 samples is 0.011.
    assert 0.89 < covered < 0.985


def test_every_metric_gets_the_interval_that_it_has_alone():
    rng = np.random.default_rng(5)
    numerator = rng.random((2, 31, 3))
    weight = rng.integers(1, 3, (2, 31, 3)).astype(np.float64)
    together = intervals(numerator, weight)
    for metric, found in enumerate(together):
        [alone] = intervals(numerator[:, :, metric : metric + 1], weight[:, :, [metric]])
        assert (found.value, found.low, found.high) == pytest.approx(
            (alone.value, alone.low, alone.high), rel=1e-12
        )


def test_one_draw_resamples_whole_users():
    # Equal columns must stay equal under every draw: b = 1 - a, so their intervals mirror.
    hits = np.arange(37) % 3 == 0
    first, second = intervals(np.stack((hits, ~hits), axis=1)[None])
    assert (first.low, first.high) == pytest.approx((1 - second.high, 1 - second.low))


def test_paired_difference_is_narrower_than_what_it_is_taken_from():
    rng = np.random.default_rng(7)
    base = rng.normal(0, 1, 211)
    better = base + 0.1 + rng.normal(0, 0.01, 211)
    [difference], [plain] = intervals(better - base), intervals(better)
    assert 0.09 < difference.low < difference.value < difference.high < 0.11
    assert plain.high - plain.low > 20 * (difference.high - difference.low)


def test_conditional_share_resamples_its_base():
    # 100 users, 50 in the base set, 20 of these recovered: the value is a share of the base.
    base = np.arange(100) < 50
    recovered = np.arange(100) < 20
    [found] = intervals(recovered, base, draws=2_000)
    half_width = 1.96 * math.sqrt(0.4 * 0.6 / 50)
    assert found.value == pytest.approx(0.4)
    assert found.high - found.low == pytest.approx(2 * half_width, rel=0.15)


def test_too_few_draws_are_refused():
    hits, base = np.zeros((1, 50, 1)), np.zeros((1, 50, 1))
    base[0, 7] = 1
    with pytest.raises(UserError, match=r"none of the 1 .* raise evaluation.bootstrap_draws"):
        intervals(hits, base, draws=1, seed=0)  # a draw without user 7


def test_draws_without_the_base_are_left_out():
    # One of five users is in the base; a third of the draws miss it (0.8 ** 5 = 0.33).
    assert intervals([1, 0, 0, 0, 0], [1, 0, 0, 0, 0]) == [Interval(1.0, 1.0, 1.0)]


def test_an_empty_base_has_no_interval():
    numerator = np.zeros((2, 5, 2))
    weight = np.ones((2, 5, 2))
    weight[1, :, 0] = 0  # nobody under the second training seed
    assert intervals(numerator, weight) == [None, Interval(0.0, 0.0, 0.0)]


def test_value_is_the_mean_over_training_seeds():
    # Shares 1/2 and 2/3 with different bases: the mean of the ratios, not the ratio of the sums.
    numerator = [[[1], [0], [0]], [[1], [1], [0]]]
    weight = [[[1], [1], [0]], [[1], [1], [1]]]
    [found] = intervals(numerator, weight)
    assert found.value == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert found.low <= found.value <= found.high


@given(
    arrays(np.float64, st.integers(1, 13), elements=st.floats(0, 1)),
    st.integers(0, 2**32 - 1),
)
def test_interval_lies_within_the_data(values, seed):
    [found] = intervals(values, draws=50, seed=seed)
    slack = 1e-12
    assert values.min() - slack <= found.low <= found.high <= values.max() + slack
    assert values.min() - slack <= found.value <= values.max() + slack


def test_same_seed_same_interval_whatever_the_chunk(monkeypatch):
    values = np.random.default_rng(11).random(43)
    [whole] = intervals(values)
    monkeypatch.setattr(bootstrap, "_CHUNK_ELEMENTS", 43 * 7)
    [chunked] = intervals(values)
    [other_seed] = intervals(values, seed=18)
    assert (whole.low, whole.high) == pytest.approx((chunked.low, chunked.high), rel=1e-12)
    assert (whole.low, whole.high) != pytest.approx((other_seed.low, other_seed.high), rel=1e-6)


def test_wider_confidence_gives_a_wider_interval():
    values = np.random.default_rng(13).random(41)
    [narrow], [wide] = (intervals(values, confidence=confidence) for confidence in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_nobody_to_evaluate_is_an_error_not_a_nan():
    with pytest.raises(UserError, match="nobody"):
        intervals(np.empty((1, 0, 1)))
