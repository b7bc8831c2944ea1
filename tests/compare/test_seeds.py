"""The statistics of a comparison against scipy's and against slow loops."""

import math

import numpy as np
import pytest
from scipy import stats

from ncollapse.compare.seeds import (
    Difference,
    collapse_speed,
    estimate,
    mean_interval,
    paired_difference,
    seeds_needed,
)


@pytest.mark.parametrize("n", [2, 3, 5, 30])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_paired_difference_is_scipys_paired_t_test(n, confidence):
    rng = np.random.default_rng(n)
    first, second = rng.normal(1, 0.3, n), rng.normal(1.1, 0.2, n)
    found = paired_difference(first.tolist(), second.tolist(), confidence)
    right = stats.ttest_rel(second, first)
    low, high = right.confidence_interval(confidence)
    assert found.n == n
    np.testing.assert_allclose([found.mean, found.low, found.high], [(second - first).mean(), low, high], rtol=1e-10)
    np.testing.assert_allclose(found.p_value, right.pvalue, rtol=1e-8)


def test_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        sample = rng.normal(0.3, 1.0, 3)
        d = paired_difference([0.0] * 3, sample.tolist(), 0.9)
        covered += d.low <= 0.3 <= d.high
    assert abs(covered / 2000 - 0.9) < 0.02


def test_one_seed_gives_no_interval():
    d = paired_difference([1.0], [1.5])
    assert d.mean == 0.5
    assert d.n == 1
    assert math.isnan(d.low)
    assert math.isnan(d.p_value)
    assert not d.clear
    assert math.isnan(estimate([1.0]).std)


def test_pairs_with_nan_are_left_out_and_no_pair_is_nan():
    d = paired_difference([1.0, math.nan, 3.0], [2.0, 5.0, 3.5])
    assert d.n == 2
    assert d.mean == 0.75
    assert paired_difference([], []).n == 0
    assert math.isnan(paired_difference([], []).mean)


def test_equal_differences_give_a_point_that_claims_nothing():
    d = paired_difference([1.0, 2.0, 0.1], [1.3, 2.3, 0.4])
    assert d.mean == pytest.approx(0.3)
    assert not d.has_interval
    assert not d.clear
    assert math.isnan(d.p_value)
    assert not paired_difference([1.0, 2.0], [1.0, 2.0]).clear


def test_equal_differences_of_counted_samples_have_an_interval_as_wide_as_their_rounding():
    """Two seeds, each one image of 360 better: as if the true values lay anywhere within half an image."""
    image = 1 / 360
    d = paired_difference([0.95, 0.96], [0.95 + image, 0.96 + image], resolution=image)
    reach = stats.t.ppf(0.975, 1) * image / math.sqrt(6) / math.sqrt(2)
    np.testing.assert_allclose([d.low, d.high], [image - reach, image + reach], rtol=1e-10)
    rng = np.random.default_rng(0)
    rounded = rng.uniform(-0.5, 0.5, (100_000, 2)).sum(1)
    assert rounded.std() == pytest.approx(1 / math.sqrt(6), rel=0.01)
    assert d.steps == pytest.approx(1)


@pytest.mark.parametrize(("images", "clear"), [(1, False), (2, False), (3, True), (-2, False), (-3, True)])
def test_one_or_two_images_are_never_a_finding(images, clear):
    image = 1 / 1000
    first = [0.9 + 0.001 * i for i in range(20)]
    d = paired_difference(first, [v + images * image for v in first], resolution=image, smallest=2 * image)
    assert d.low > 0 or d.high < 0, "twenty equal differences exclude zero"
    assert d.clear is clear


def test_seeds_needed_is_where_the_interval_leaves_zero_out():
    d = paired_difference([0.0, 0.0, 0.0], [0.1, 0.5, -0.2])
    needed = seeds_needed(d)
    std = np.std([0.1, 0.5, -0.2], ddof=1)
    reach = [stats.t.ppf(0.975, n - 1) * std / math.sqrt(n) for n in (needed - 1, needed)]
    assert reach[0] >= d.mean > reach[1]
    assert seeds_needed(paired_difference([0.0, 0.0], [1.0, -1.0])) is None
    assert seeds_needed(paired_difference([0.0], [1.0])) is None


def test_interval_of_a_mean_is_scipys():
    values = [0.3, 0.7, 0.1, 2.0]
    low, high = mean_interval(estimate(values))
    right = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    np.testing.assert_allclose([low, high], right, rtol=1e-10)
    low, high = mean_interval(estimate([0.5, 0.5]), resolution=0.01)
    assert high - low == pytest.approx(2 * stats.t.ppf(0.975, 1) * 0.01 / math.sqrt(24))


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="first and second: expected as many"):
        paired_difference([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="confidence"):
        paired_difference([1.0], [1.0], 95)


def test_estimate_is_numpys():
    values = [0.3, 0.7, 0.1, 2.0]
    found = estimate([*values, math.nan])
    np.testing.assert_allclose([found.mean, found.std], [np.mean(values), np.std(values, ddof=1)])
    assert found.n == 4
    assert estimate([]).n == 0


def test_collapse_speed_by_hand():
    def row(epoch, accuracy, uniform, nc1):
        measured = {"accuracy": accuracy, "uniform_accuracy": uniform, "nc1": nc1, "nc2": 0.1, "nc3": None}
        return {"epoch": epoch, "train": measured}

    history = [row(0, 0.1, 0.1, 50.0), row(1, 0.9, 0.5, 1.0), row(2, 1.0, 0.9, 0.1), row(3, 1.0, 1.0, 0.01)]
    history += [{"epoch": 4}, row(25, 0.5, 0.5, 1e-9)]
    speed = collapse_speed(history)
    assert (speed.accuracy_epoch, speed.uniform_accuracy_epoch, speed.nc1_epoch) == (2, 3, 3)
    assert speed.log_nc1 == pytest.approx((0 - 1 - 2) / 3)
    assert speed.log_nc2 == pytest.approx(-1)
    assert math.isnan(speed.log_nc3)
    assert speed.early_epochs == 3


def test_collapse_that_never_happens_is_none():
    speed = collapse_speed([{"epoch": 1, "train": {"accuracy": 0.99, "uniform_accuracy": 0.5, "nc1": 0.2}}])
    assert (speed.accuracy_epoch, speed.uniform_accuracy_epoch, speed.nc1_epoch) == (None, None, None)
    assert collapse_speed([]).accuracy_epoch is None


def test_the_seeds_needed_are_counted_for_any_spread():
    """Against the definition, for means of a tenth to three standard deviations."""
    rng = np.random.default_rng(2)
    for _ in range(40):
        sample = rng.normal(rng.uniform(0.1, 3), 1.0, 4)
        std, mean = np.std(sample, ddof=1), abs(np.mean(sample))
        tried = range(2, 301)
        wanted = next((n for n in tried if stats.t.ppf(0.975, n - 1) * std / math.sqrt(n) < mean), None)
        assert seeds_needed(paired_difference([0.0] * 4, sample.tolist()), most=300) == wanted


def test_infinite_values_are_no_measure_of_rounding():
    d = paired_difference([1.0, 2.0, math.inf, 1.0], [1.5, 2.7, 3.0, math.inf])
    assert (d.n, d.mean) == (2, pytest.approx(0.6))
    assert d.has_interval


def test_no_difference_is_too_small_unless_something_says_so():
    assert Difference(0.05, 0.01, 0.09, 0.01, 3).clear
    assert not Difference(0.05, 0.01, 0.09, 0.01, 3, smallest=0.05).clear
    assert math.isnan(Difference(0.05, 0.01, 0.09, 0.01, 3).steps)


def test_an_nc1_of_exactly_zero_has_no_logarithm():
    history = [{"epoch": e, "train": {"nc1": v, "nc2": v, "nc3": v}} for e, v in ((1, 1e-4), (2, 0.0), (3, 1e-14))]
    speed = collapse_speed(history)
    assert (speed.log_nc1, speed.log_nc2, speed.log_nc3) == pytest.approx((-9, -4, -4))
    assert (speed.nc1_epoch, speed.early_epochs) == (1, 3)
