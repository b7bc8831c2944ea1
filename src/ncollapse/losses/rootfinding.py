"""Roots of scalar equations, to rounding error."""

from __future__ import annotations

from collections.abc import Callable


def find_root(function: Callable[[float], float], low: float, high: float, floor: float = 1e-300) -> float:
    """The zero of `function` between `low` and `high`, to four units in the last place or to `floor`."""
    from scipy.optimize import brentq  # a fifth of a second that many runs do without

    return float(brentq(function, low, high, xtol=floor, rtol=4 * 2.0**-52, maxiter=500))
