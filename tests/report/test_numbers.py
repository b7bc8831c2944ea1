"""How numbers are written, for people and for the page's scripts."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncollapse.compare.numbers import deviation, show, show_difference, show_estimate, show_images
from ncollapse.compare.seeds import Difference, Estimate
from ncollapse.report.encoding import compact, compact_matrix, embed


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (12.3456, "12.35"), (-0.5, "−0.5"), (1.234e-5, "1.23·10⁻⁵"), (-2.5e7, "−2.50·10⁷"), (math.inf, "–")]
    + [(12345.6, "12346"), (-9999.5, "−10000"), (99999.0, "99999"), (1e5, "1.00·10⁵"), (9999.4, "9999")],
)
def test_show(value, text):
    assert show(value) == text


def test_estimates_share_one_power_of_ten_and_no_more_digits_than_the_error():
    assert show_estimate(Estimate(2.934e-4, 4.8e-6, 3)) == "(2.93 ± 0.05)·10⁻⁴"
    assert show_estimate(Estimate(100.372, 0.053, 3)) == "100.37 ± 0.05"
    assert show_estimate(Estimate(0.0059, 0.0009, 3)) == "0.0059 ± 0.0009"
    assert show_estimate(Estimate(0.02, 1e-7, 3)) == "(2.000000 ± 0.000010)·10⁻²"
    assert show_estimate(Estimate(0.98765, 0.00123, 3), percent=True) == "98.77 ± 0.12 %"
    assert show_estimate(Estimate(0.5, math.nan, 1)) == "0.5"
    assert show_estimate(Estimate(math.nan, math.nan, 0)) == "–"


def test_differences_keep_their_power_of_ten_on_both_lines():
    assert show_difference(Difference(2.18e-4, 1.67e-4, 2.68e-4, 0.01, 3)) == ("+2.18·10⁻⁴", "[+1.67, +2.68]·10⁻⁴")
    assert show_difference(Difference(0.5, math.nan, math.nan, math.nan, 1)) == ("+0.5", "one seed: no interval")
    assert show_difference(Difference(0.0, math.nan, math.nan, math.nan, 3)) == ("0", "the same in all 3 seeds")
    assert show_difference(Difference(-1.0, math.nan, math.nan, math.nan, 2)) == ("−1", "the same in both seeds")


def test_few_digits_bring_no_exponent():
    assert show(123.0, 2, sign=True) == "+123"
    assert show(263.2, 2, sign=True) == "+263"
    assert show(12.3, 2) == "12"


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_any_estimate_and_difference_can_be_written(mean, spread):
    assert "nan" not in show_estimate(Estimate(mean, spread, 3))
    head, interval = show_difference(Difference(mean, mean - spread, mean + spread, 0.5, 3))
    assert head
    assert interval.startswith("[") or mean - spread == mean + spread


def test_compact_rounds_and_blanks():
    assert compact([1.0, 123456.789, math.nan, math.inf, None]) == [1, 123460, None, None, None]
    assert compact_matrix(np.array([[0.12345, np.nan]])) == [[0.123, None]]


def test_deviation():
    assert deviation(1.1, -1.0) == pytest.approx(2.1)
    assert math.isnan(deviation(1.0, 0.0))


def test_embedded_json_cannot_leave_its_script():
    value = {"name": "</script><script>alert(1)</script><!--\u2028&"}
    text = embed(value)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == value


@pytest.mark.parametrize(("images", "said"), [(1, "1 image"), (-1, "1 image"), (2, "2 images"), (0.5, "0.5 images")])
def test_one_image_is_singular(images, said):
    difference = Difference(images / 250, -0.1, 0.1, 0.5, 3, resolution=1 / 250)
    assert show_images(difference) == said
    assert show_images(Difference(0.1, -0.1, 0.3, 0.5, 3)) == ""
