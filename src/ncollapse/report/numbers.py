"""Numbers as the page writes them: few digits, real minus signs, and compact arrays for the figures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ncollapse.experiments.statistics import Difference, Estimate

MISSING = "–"


def show(value: float, digits: int = 4, percent: bool = False, sign: bool = False) -> str:
    """A number for people.

    >>> show(-0.00001234), show(0.98765, percent=True), show(float("nan"))
    ('−1.23·10⁻⁵', '98.77 %', '–')
    """
    if not math.isfinite(value):
        return MISSING
    plus = "+" if sign and value else ""
    if percent:
        text = f"{100 * value:{plus}.2f} %"
    elif value == 0 or 1e-3 <= abs(value) < 1e5:
        text = f"{value:{plus}.{digits}g}"
    else:
        mantissa, exponent = f"{value:{plus}.{max(0, digits - 2)}e}".split("e")
        text = f"{mantissa}·10{_raise(int(exponent))}"
    return text.replace("-", "−")


def show_estimate(value: Estimate, percent: bool = False) -> str:
    """Mean and standard deviation to the digits the deviation allows; the mean alone for one seed.

    >>> show_estimate(Estimate(0.9, 0.01, 3), percent=True), show_estimate(Estimate(1.234e-5, 5.6e-7, 3))
    ('90.00 ± 1.00 %', '(1.234 ± 0.056)·10⁻⁵')
    """
    if value.n == 0:
        return MISSING
    if value.n == 1:
        return show(value.mean, percent=percent)
    if percent:
        return f"{100 * value.mean:.2f} ± {100 * value.std:.2f} %"
    largest = max(abs(value.mean), value.std)
    if largest == 0 or 1e-2 <= largest < 1e5:
        return _pair(value.mean, value.std)
    exponent = math.floor(math.log10(largest))
    return f"({_pair(value.mean / 10.0**exponent, value.std / 10.0**exponent)})·10{_raise(exponent)}"


def _pair(mean: float, std: float) -> str:
    places = 3 if std == 0 else min(6, max(0, 1 - math.floor(math.log10(std))))
    return f"{mean:.{places}f} ± {std:.{places}f}".replace("-", "−")


def _raise(exponent: int) -> str:
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def show_interval(value: Difference, percent: bool = False) -> str:
    """A difference and its interval; says so where one seed gives none."""
    scale = 100 if percent else 1
    if value.n == 0:
        return MISSING
    if value.n == 1:
        return f"{show(scale * value.mean, 3, sign=True)} (one seed: no interval)"
    low, high = (show(scale * v, 3, sign=True) for v in (value.low, value.high))
    return f"{show(scale * value.mean, 3, sign=True)} [{low}, {high}]"


def deviation(value: float, reference: float) -> float:
    """Relative deviation (value - reference) / |reference|; NaN where the reference is 0."""
    return (value - reference) / abs(reference) if reference else math.nan


def compact(values: Iterable[Any], digits: int = 5) -> list[float | int | None]:
    """Numbers rounded to some significant digits for the page's JSON, None where not finite.

    >>> compact([1.0, 0.123456789, float("nan")])
    [1, 0.12346, None]
    """
    rounded: list[float | int | None] = []
    for value in values:
        if value is None or not math.isfinite(value):
            rounded.append(None)
            continue
        short = float(f"{value:.{digits}g}")
        rounded.append(int(short) if short.is_integer() and abs(short) < 1e15 else short)
    return rounded


def compact_matrix(matrix: np.ndarray, digits: int = 3) -> list[list[float | int | None]]:
    """A matrix rounded likewise."""
    return [compact(row, digits) for row in np.asarray(matrix, dtype=np.float64).tolist()]


def embed(value: Any) -> str:
    """JSON that may stand inside a script element: no "<", ">", "&" nor line separators can end or open anything."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
