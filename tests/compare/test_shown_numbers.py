"""Numbers as people read them: a limit that excludes 0, or 1 for ratios, is never shown as 0 or 1."""

import math

import pytest

from ncollapse.compare.numbers import show_difference, show_ratio
from ncollapse.compare.seeds import Difference, collapse_speed


@pytest.mark.parametrize("digits", [2, 3])
@pytest.mark.parametrize(("low", "high"), [(1.045, 1.075), (1.0004, 1.0011), (0.983, 0.9991), (1.2, 1.3)])
def test_a_ratio_that_excludes_one_shows_it(low, high, digits):
    mean = math.sqrt(low * high)
    clear = Difference(*(math.log(v) for v in (mean, low, high)), 0.01, 3)
    _, interval = show_ratio(clear, digits)
    shown = [float(part.strip("[]× ")) for part in interval.split(",")]
    assert (shown[0] > 1) == (low > 1)
    assert (shown[1] < 1) == (high < 1)
    assert shown == pytest.approx([low, high], rel=0.05)


def test_a_ratio_around_one_keeps_its_digits():
    assert show_ratio(Difference(0.0, -0.0004, 0.0004, 0.9, 3))[1] == "[×1, ×1]"


@pytest.mark.parametrize(("low", "high"), [(0.0004333, 0.05715), (-0.9, -0.0021)])
def test_a_difference_that_excludes_zero_shows_it(low, high):
    _, interval = show_difference(Difference((low + high) / 2, low, high, 0.04, 3))
    shown = [float(part.strip("[] ").replace("−", "-")) for part in interval.split(",")]
    assert (shown[0] > 0) == (low > 0)
    assert (shown[1] < 0) == (high < 0)
    assert shown == pytest.approx([low, high], rel=0.2)


def test_rounding_has_no_logarithm():
    history = [{"epoch": 1, "train": {"nc1": 1e-16, "nc2": 3e-16, "nc3": 1e-3}}]
    speed = collapse_speed(history)
    assert (speed.log_nc1, speed.log_nc3) == (-16, -3)
    assert math.isnan(speed.log_nc2)
