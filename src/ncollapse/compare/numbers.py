"""Numbers as sentences, tables and the page write them: few digits, real minus signs, powers of ten in words."""

from __future__ import annotations

import math

from ncollapse.compare.seeds import Difference, Estimate

MISSING = "–"
SMALLEST = 1e-300


def show(value: float, digits: int = 4, percent: bool = False, sign: bool = False) -> str:
    """A number for people.

    >>> show(-0.00001234), show(0.98765, percent=True), show(12345.6), show(float("nan"))
    ('−1.23·10⁻⁵', '98.77 %', '12346', '–')
    """
    if not math.isfinite(value):
        return MISSING
    plus = "+" if sign and value else ""
    if percent:
        text = f"{100 * value:{plus}.2f} %"
    elif value == 0 or 1e-3 <= abs(value) < 1e5:
        text = f"{value:{plus}.{digits}g}"
        if "e" in text:
            text = f"{value:{plus}.0f}"
    else:
        mantissa, exponent = f"{value:{plus}.{max(0, digits - 2)}e}".split("e")
        text = f"{mantissa}·10{_raise(int(exponent))}"
    return text.replace("-", "−")


def show_points(share: float) -> str:
    """The size of a difference of two rates.

    >>> show_points(-0.0931), show_points(0.01)
    ('9.3 points', '1 point')
    """
    size = show(100 * abs(share), 2)
    return f"{size} point{'' if size == '1' else 's'}"


def show_estimate(value: Estimate, percent: bool = False) -> str:
    """Mean and standard deviation to the digits the deviation allows; the mean alone for one seed.

    >>> show_estimate(Estimate(0.9, 0.01, 3), percent=True), show_estimate(Estimate(1.234e-5, 5.6e-7, 3))
    ('90.00 ± 1.00 %', '(1.23 ± 0.06)·10⁻⁵')
    """
    if value.n == 0:
        return MISSING
    if value.n == 1:
        return show(value.mean, percent=percent)
    if percent:
        return f"{100 * value.mean:.2f} ± {100 * value.std:.2f} %"
    return show_with_error(value.mean, value.std)


def show_with_error(value: float, error: float, sign: bool = False) -> str:
    """A value and its error, the error to one digit (two below 3), with one power of ten where both are small.

    >>> show_with_error(3.77741, 0.00051), show_with_error(0.000221, 0.00005, sign=True), show_with_error(4, 0)
    ('3.7774 ± 0.0005', '(+2.2 ± 0.5)·10⁻⁴', '4 ± 0')
    """
    largest = max(abs(value), error)
    if error <= 1e-12 * largest:
        return f"{show(value, sign=sign)} ± 0"
    if error < 1e-6 * largest or largest < SMALLEST:
        return f"{show(value, sign=sign)} ± {show(error, 1)}"
    exponent = 0 if 1e-3 <= largest < 1e5 and error >= 1e-5 else math.floor(math.log10(largest))
    value, error = value / 10.0**exponent, error / 10.0**exponent
    text = f"{_fix(value, error, sign)} ± {_fix(error, error)}"
    return f"({text})·10{_raise(exponent)}" if exponent else text


def show_difference(value: Difference, percent: bool = False) -> tuple[str, str]:
    """A difference and its interval; says so where one seed gives none. Rates are in percentage points.

    >>> show_difference(Difference(0.0019, -0.0087, 0.0125, 0.5, 3), percent=True)
    ('+0.19', '[−0.87, +1.25]')
    """
    scale = 100 if percent else 1
    if value.n == 0:
        return MISSING, ""
    mean, low, high = (scale * v for v in (value.mean, value.low, value.high))
    if value.n == 1:
        return show(mean, 3, sign=True), "one seed: no interval"
    if not value.has_interval:
        return show(mean, 3, sign=True), f"the same in {name_all(value.n)}"
    reach, largest = (high - low) / 2, max(abs(low), abs(high))
    if value.excludes_zero:
        reach = min(reach, 5 * min(abs(low), abs(high)))  # so that no limit is shown as 0
    exponent = 0 if largest >= 1e-3 or largest < SMALLEST else math.floor(math.log10(largest))
    power = f"·10{_raise(exponent)}" if exponent else ""
    centre, left, right = (_fix(v / 10.0**exponent, reach / 5 / 10.0**exponent, True) for v in (mean, low, high))
    return centre + power, f"[{left}, {right}]{power}"


def show_ratio(value: Difference, digits: int = 3) -> tuple[str, str]:
    """A ratio and its interval, from the paired difference of natural logarithms; an interval without 1 shows none.

    >>> show_ratio(Difference(math.log(1.5), math.log(1.2), math.log(1.875), 0.01, 3))
    ('×1.5', '[×1.2, ×1.88]')
    """
    if value.n == 0:
        return MISSING, ""
    if value.excludes_zero:
        near = math.expm1(min(abs(value.low), abs(value.high), 1.0))
        digits = min(7, max(digits, 1 - math.floor(math.log10(near)))) if near > 1e-6 else digits
    head = f"×{show_factor(value.mean, digits)}"
    if value.n == 1:
        return head, "one seed: no interval"
    if not value.has_interval:
        return head, f"the same in {name_all(value.n)}"
    return head, f"[×{show_factor(value.low, digits)}, ×{show_factor(value.high, digits)}]"


def show_factor(logarithm: float, digits: int = 3) -> str:
    """A factor from its natural logarithm.

    >>> show_factor(math.log(0.25)), show_factor(math.log(1234.4))
    ('0.25', '1234')
    """
    return show(math.exp(min(700.0, logarithm)), digits)


def show_images(value: Difference) -> str:
    """A difference of rates as a number of samples, nothing where the rate does not count samples.

    >>> show_images(Difference(0.01, -0.01, 0.03, 0.5, 3, resolution=1 / 360))
    '3.6 images'
    """
    if not math.isfinite(value.steps):
        return ""
    size = f"{abs(value.steps):.1f}".removesuffix(".0")
    return f"{size} image" if size == "1" else f"{size} images"


def name_all(seeds: int) -> str:
    """All of some seeds, in words."""
    return "both seeds" if seeds == 2 else f"all {seeds} seeds"


def _fix(value: float, error: float, sign: bool = False) -> str:
    error = max(error, SMALLEST)
    places = -math.floor(math.log10(error))
    if round(error * 10.0**places) < 3:
        places += 1
    places = min(7, max(0, places))
    if round(value, places) == 0:
        value, sign = 0.0, False
    return f"{value:{'+' if sign else ''}.{places}f}".replace("-", "−")


def _raise(exponent: int) -> str:
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def deviation(value: float, reference: float) -> float:
    """Relative deviation (value - reference) / |reference|; NaN where the reference is 0."""
    return (value - reference) / abs(reference) if reference else math.nan
