"""The three forms of the squared error, as one."""

from __future__ import annotations

from typing import NamedTuple

from ncollapse.losses.inputs import check_positive


class Rescaling(NamedTuple):
    """Coefficients of positive/2 (z_k - goal)^2 + negative/2 sum_{l != k} z_l^2."""

    positive: float
    goal: float
    negative: float


def rescaling(
    *, kappa: float | None = None, beta: float | None = None, alpha: float | None = None, M: float | None = None
) -> Rescaling:
    """Return the coefficients that the papers' parameters stand for.

    >>> rescaling(kappa=1.0, beta=15.0)
    Rescaling(positive=2.0, goal=15.0, negative=2.0)
    """
    given = {"kappa": kappa, "beta": beta, "alpha": alpha, "M": M}
    values = {name: check_positive(name, value) for name, value in given.items() if value is not None}
    if not values:
        return Rescaling(1.0, 1.0, 1.0)
    if values.keys() == {"alpha", "M"}:
        return Rescaling(values["alpha"], values["M"], 1.0)
    if values.keys() == {"kappa", "beta"}:
        return Rescaling(2.0 * values["kappa"], values["beta"], 2.0)
    raise ValueError(f"mse takes no parameter, alpha and M, or kappa and beta; got {', '.join(values)}")
