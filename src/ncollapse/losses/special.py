"""SciPy's special functions, imported with the first call of one: measuring and most training do without them."""

from __future__ import annotations

from typing import Any


def expit(x: Any) -> Any:
    """1 / (1 + exp(-x)).

    >>> float(expit(0.0))
    0.5
    """
    from scipy import special

    return special.expit(x)


def log_expit(x: Any) -> Any:
    """The logarithm of `expit`."""
    from scipy import special

    return special.log_expit(x)


def xlogy(x: Any, y: Any) -> Any:
    """x log y, and 0 where x is 0."""
    from scipy import special

    return special.xlogy(x, y)


def xlog1py(x: Any, y: Any) -> Any:
    """x log(1 + y), and 0 where x is 0."""
    from scipy import special

    return special.xlog1py(x, y)


def betainc(a: float, b: float, x: Any) -> Any:
    """The distribution function of Beta(a, b)."""
    from scipy import special

    return special.betainc(a, b, x)
