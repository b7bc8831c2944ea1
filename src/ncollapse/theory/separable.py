"""The balanced optimum of losses that are a sum over the logits, L = u(pos) + (K-1) v(neg): BCE and MSE.

With P = -u'(pos), Q = v'(neg) and beta = ((K-1) Q - P)/K, stationarity reads bias_decay * b = beta, and optimality of
the factors reads |beta| <= mu, P + Q <= S(beta), with equality wherever c or a is not 0. So beta alone is unknown: it
is the zero of an increasing function, or equals +-mu. The latter is the saturated phase, which bce-vs-ce Theorem 3.2
omits and mse-landscape Theorem 3.1 has for MSE.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ncollapse.losses import SeparableForm
from ncollapse.losses.rootfinding import find_root
from ncollapse.theory.cost import differentiate_slope_limit, slope_limit

ROUNDING = 1e-15  # what mu, a product of three roots, is known to


class State(NamedTuple):
    """The scalars of a symmetric optimum: logits a (I - J/K) + c J/K - b."""

    phase: str
    a: float
    c: float
    b: float
    beta: float


class _Point(NamedTuple):
    """The optimum of everything but the mean, at a given beta; the mean is optimal where lift + b = 0."""

    lift: float
    a: float
    c: float
    p: float
    q: float


def solve_separable(loss: SeparableForm, num_classes: int, mu: float, bias_decay: float | None, relu: bool) -> State:
    """Minimise L + mu Gamma(a, c) + K bias_decay b^2 / 2; `bias_decay=None` fixes b = 0."""
    k = num_classes

    def stretch(y: float) -> float:
        lift = _visit(loss, k, mu, y * mu, relu).lift
        if bias_decay is None:
            return lift
        return lift + y * mu / bias_decay if bias_decay > mu else bias_decay / mu * lift + y

    start = _visit(loss, k, mu, 0.0, relu).lift
    if bias_decay == 0 or start == 0:
        return _name(loss, k, mu, 0.0, -start, relu, saturated=False)
    side = -math.copysign(1.0, start)
    if stretch(side) * side < 0:
        bias = 0.0 if bias_decay is None else side * mu / bias_decay
        return _name(loss, k, mu, side * mu, bias, relu, saturated=True)
    beta = mu * find_root(stretch, 0.0, side, floor=1e-16)
    if bias_decay is None:
        bias = 0.0
    elif bias_decay < mu:  # whichever of the two equal expressions is the less sensitive to beta
        bias = -_visit(loss, k, mu, beta, relu).lift
    else:
        bias = beta / bias_decay
    return _name(loss, k, mu, beta, bias, relu, saturated=False)


def find_critical_bias_decay(loss: SeparableForm, num_classes: int, mu: float, relu: bool) -> float:
    """The bias decay above which the bias saturates and W keeps a mean: mu / |lift(+-mu)|, or infinity."""
    k = num_classes
    start = _visit(loss, k, mu, 0.0, relu).lift
    side = -math.copysign(1.0, start)
    point = _visit(loss, k, mu, side * mu, relu)
    end = point.lift
    if relu and point.a > 0:  # c = -side a there; without the terms that cancel, for MSE and for K = 4 all of them
        end = (
            (2 * loss.positive((k - 2) * mu) + (k - 2) * loss.negative(2 * mu)) / k if side > 0 else loss.negative(0.0)
        )
    return mu / abs(end) if end * side < -ROUNDING * abs(start) else math.inf


def find_collapse(loss: SeparableForm, num_classes: int, bias_decay: float | None, relu: bool) -> tuple[float, float]:
    """The mu from which on a = 0, and the mu from which on W = H = 0."""
    k = num_classes
    beta = _find_level_slope(loss, k, bias_decay)
    total = loss.total(loss.level(beta, k))
    bare = math.sqrt(((k - 1) * (total / k) ** 2 + beta**2) / k) if relu else total / k
    if abs(beta) <= bare:
        return bare, bare
    side = math.copysign(1.0, beta)

    def surplus(mu: float) -> float:
        return k * mu - loss.total(loss.level(side * mu, k))

    low = 0.0 if surplus(bare) > 0 else bare
    return find_root(surplus, low, abs(beta)), abs(beta)


def _find_level_slope(loss: SeparableForm, k: int, bias_decay: float | None) -> float:
    """beta at W = H = 0: level(beta) + beta / bias_decay = 0."""
    if bias_decay == 0 or (start := loss.level(0.0, k)) == 0:
        return 0.0

    def balance(beta: float) -> float:
        rest = 0.0 if bias_decay is None else beta / bias_decay
        return loss.level(beta, k) + rest

    side = -math.copysign(1.0, start)
    high = side
    while balance(high) * side < 0:
        high *= 2
    return find_root(balance, 0.0, high)


def differentiate_separable(
    loss: SeparableForm,
    num_classes: int,
    mu: float,
    bias_decay: float | None,
    relu: bool,
    state: State,
    dmu: float,
    ddecay: float,
) -> tuple[float, float, float]:
    """The change of (a, c, b) as mu and the bias decay change, within the state's phase."""
    k, beta = num_classes, state.beta
    saturated = state.phase in ("saturated", "mean-only")
    if saturated:
        side = math.copysign(1.0, beta)
        dbeta = side * dmu
        db = 0.0 if bias_decay is None else side * (dmu - mu / bias_decay * ddecay) / bias_decay
        da, dc, _ = _vary(loss, k, mu, beta, relu, dbeta, dmu, saturated=True, db=db)
        return da, dc, db
    by_beta = _vary(loss, k, mu, beta, relu, 1.0, 0.0)[2]
    by_mu = _vary(loss, k, mu, beta, relu, 0.0, dmu)[2]
    lift = _visit(loss, k, mu, beta, relu).lift
    if bias_decay is None:
        dbeta = -by_mu / by_beta
    else:
        dbeta = -(lift * ddecay + bias_decay * by_mu) / (1 + bias_decay * by_beta)
    da, dc, dlift = _vary(loss, k, mu, beta, relu, dbeta, dmu)
    return da, dc, 0.0 if bias_decay is None else -dlift


def _visit(loss: SeparableForm, k: int, mu: float, beta: float, relu: bool) -> _Point:
    s = slope_limit(beta, mu, k, relu)
    p, q = (k - 1) * s / k - beta, s / k + beta
    a = loss.gap(p, q)
    if a == 0:
        return _Point(loss.level(beta, k), 0.0, 0.0, p, q)
    lift = (loss.positive(p) + (k - 1) * loss.negative(q)) / k
    c = -k * a * beta / s if relu else 0.0
    return _Point(lift - c / k, a, c, p, q)


def _name(loss: SeparableForm, k: int, mu: float, beta: float, bias: float, relu: bool, *, saturated: bool) -> State:
    point = _visit(loss, k, mu, beta, relu)
    if saturated:
        c = k * (point.lift + bias) + point.c
        if relu and point.a > 0 and abs(c) <= point.a * (1 + 1e-13):  # on the border, as MSE without a bias always is
            return State("orthogonal-frame", point.a, c, bias, beta)
        return State("saturated" if point.a > 0 else "mean-only", point.a, c, bias, beta)
    phase = "collapsed" if point.a == 0 else "orthogonal-frame" if relu else "centred"
    return State(phase, point.a, point.c, bias, beta)


def _vary(
    loss: SeparableForm,
    k: int,
    mu: float,
    beta: float,
    relu: bool,
    dbeta: float,
    dmu: float,
    *,
    saturated: bool = False,
    db: float = 0.0,
) -> tuple[float, float, float]:
    """The changes of a, c and lift along (dbeta, dmu)."""
    point = _visit(loss, k, mu, beta, relu)
    if point.a == 0:
        dlift = loss.d_level(beta, k) * dbeta
        return 0.0, k * (dlift + db) if saturated else 0.0, dlift
    s, ds = slope_limit(beta, mu, k, relu), differentiate_slope_limit(beta, mu, dbeta, dmu, k, relu)
    dpos = loss.d_positive(point.p) * ((k - 1) * ds / k - dbeta)
    dneg = loss.d_negative(point.q) * (ds / k + dbeta)
    da, dmean = dpos - dneg, (dpos + (k - 1) * dneg) / k
    if saturated:
        return da, k * (dmean + db), dmean
    dc = -k * ((da * beta + point.a * dbeta) / s - point.a * (beta / s) * (ds / s)) if relu else 0.0
    return da, dc, dmean - dc / k
