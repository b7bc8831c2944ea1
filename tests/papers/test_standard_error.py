"""Standard errors of accuracies against the spread of drawn ones, and how many samples stand behind them."""

import math

import numpy as np
import pytest

from ncollapse.papers.standard_error import count_measured, error_of_difference, error_of_mean, error_of_rate
from reference.paper_runs import run

FIELD = "test.accuracy"


def pair(ce, bce, samples, more=None):
    return tuple(run(test__accuracy=rate, test__num_samples=n) for rate, n in ((ce, samples), (bce, more or samples)))


@pytest.mark.parametrize(
    ("field", "data", "samples"),
    [
        ("train.accuracy", "mnist", 60_000),
        ("train.uniform_accuracy", "cifar10", 50_000),
        ("train.accuracy", "cifar100", 50_000),
        ("test.accuracy", "mnist", 10_000),
        ("test.uniform_accuracy", "cifar10", 10_000),
    ],
)
def test_the_sets_have_the_sizes_of_their_descriptions(field, data, samples):
    assert count_measured(field, data) == samples


def test_errors_are_the_spread_of_drawn_accuracies():
    rng, draws = np.random.default_rng(0), 200_000
    ce, bce = (rng.binomial(400, rate, draws) / 400 for rate in (0.9, 0.7))
    assert error_of_rate(0.9, 400) == pytest.approx(ce.std(), rel=5e-3)
    assert error_of_difference(*pair(0.9, 0.7, 400), FIELD) == pytest.approx((bce - ce).std(), rel=5e-3)
    further = rng.binomial(100, 0.5, draws) / 100 - rng.binomial(100, 0.6, draws) / 100
    both = [pair(0.9, 0.7, 400), pair(0.6, 0.5, 100)]
    assert error_of_mean(both, FIELD) == pytest.approx(((bce - ce + further) / 2).std(), rel=5e-3)


def test_what_is_no_accuracy_or_was_not_counted_has_no_known_error():
    assert error_of_difference(*pair(0.9, 0.7, 400), "test.nc1") == 0
    assert error_of_difference(run(test__nc1=0.5, test__num_samples=9), run(test__nc1=0.4), "test.nc1") == 0
    assert error_of_difference(run(test__accuracy=0.9), run(test__accuracy=0.7), FIELD) == 0
    assert error_of_difference(*pair(0.9, 0.7, 0, 100), FIELD) == pytest.approx(math.sqrt(0.21 / 100), rel=1e-12)
    assert error_of_rate(1.0 + 1e-16, 100) == error_of_rate(1.0, 100) == 0
