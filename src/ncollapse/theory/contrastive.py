"""Losses of logit differences alone: cross-entropy, label smoothing, focal. Bias and mean of W do no work there.

With t = -(K-1) a the sum of all logit differences, the optimum minimises phi(t) + mu |t| (all-losses Def. 1; its
Lemma 8 prints a wrong factor at mu). With H >= 0 the price of a rises by sqrt(K/(K-1)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ncollapse.theory.roots import find_root


@dataclass(frozen=True)
class Transition:
    """Where focal loss stops separating the classes as mu grows.

    `mu_c` is where W = H = 0 becomes the global minimum. `first_order` transitions jump: between `mu_lo` and `mu_c`
    W = H = 0 is a spurious local minimum, between `mu_c` and `mu_hi` the separated state is one.
    """

    mu_lo: float
    mu_c: float
    mu_hi: float
    first_order: bool


def find_smoothed_gap(mu: float, alpha: float, num_classes: int) -> float:
    """The logit gap under cross-entropy with label smoothing alpha: e^a = 1/(mu + alpha/K) - (K-1), or 0."""
    x = mu + alpha / num_classes
    return math.log1p(max(0.0, 1 - alpha - num_classes * mu) / x)


def differentiate_smoothed_gap(mu: float, alpha: float, num_classes: int) -> float:
    """da/dmu of `find_smoothed_gap` where it is positive."""
    x = mu + alpha / num_classes
    return -1 / (x * (1 - (num_classes - 1) * x))


def find_focal_gap(mu: float, gamma: float, num_classes: int, transition: Transition) -> float:
    """The logit gap under focal loss: the largest root of R(a) = (K-1) mu, or 0 from the transition on."""
    if mu >= transition.mu_c:
        return 0.0
    k = num_classes
    target = math.log(k - 1) + math.log(mu)
    low = _find_peak(gamma, k) if transition.first_order else 0.0
    high = math.log(k - 1) - (target - math.log1p(gamma)) / (gamma + 1)

    def excess(a: float) -> float:
        return _log_pull(a, gamma, k) - target

    if excess(low) <= 0:
        return low
    # the bound is an equality in the limit of large a, where rounding may leave it on the wrong side
    return find_root(excess, low, high + 1e-9 * (1 + abs(high)))


def differentiate_focal_gap(a: float, gamma: float, num_classes: int) -> float:
    """da/dmu at a root of R(a) = (K-1) mu."""
    q, p, log_p = _sides(a, num_classes)
    slope = gamma * log_p * (gamma * p - q) - q * (1 + 2 * gamma)
    return float((num_classes - 1) / (q**gamma * p * slope))


def find_transition(gamma: float, num_classes: int) -> Transition:
    """The values of mu between which focal loss stops separating the classes (free features).

    >>> find_transition(2.0, 100).first_order, round(find_transition(2.0, 100).mu_c, 8)
    (True, 0.01115652)
    """
    k = num_classes
    mu_lo = math.exp(_log_pull(0.0, gamma, k)) / (k - 1)
    if gamma == 0 or _theta(math.log(k), gamma) >= 0:
        return Transition(mu_lo, mu_lo, mu_lo, False)
    peak = _find_peak(gamma, k)
    mu_hi = math.exp(_log_pull(peak, gamma, k)) / (k - 1)
    start = _focal(0.0, gamma, k)

    def advantage(a: float) -> float:
        return _focal(a, gamma, k) + math.exp(_log_pull(a, gamma, k)) * a - start

    high = math.log(k - 1) - (math.log(k - 1) + math.log(mu_lo) - math.log1p(gamma)) / (gamma + 1)
    mu_c = math.exp(_log_pull(find_root(advantage, peak, high), gamma, k)) / (k - 1)
    return Transition(mu_lo, mu_c, mu_hi, True)


def _sides(a: float, num_classes: int) -> tuple[float, float, float]:
    """(1 - p, p, log p) for the softmax probability p of the target, each accurate near 0."""
    x = math.log(num_classes - 1) - a
    tail = math.exp(-abs(x))
    small, large = tail / (1 + tail), 1 / (1 + tail)
    return (small, large, math.log1p(-small)) if x < 0 else (large, small, math.log(small))


def _focal(a: float, gamma: float, num_classes: int) -> float:
    q, _, log_p = _sides(a, num_classes)
    return float(-(q**gamma) * log_p)


def _log_pull(a: float, gamma: float, num_classes: int) -> float:
    """log of R(a) = -dL/da = q^gamma (q - gamma p log p), q = 1 - p."""
    q, p, log_p = _sides(a, num_classes)
    return gamma * math.log(q) + math.log(q - gamma * p * log_p)


def _theta(log_xi: float, gamma: float) -> float:
    """R peaks where theta(1/p) = 0 (all-losses B.2, whose constant gamma + 1 + 1/gamma should read 2 + 1/gamma)."""
    return -log_xi + gamma * log_xi / math.expm1(log_xi) + 2 + 1 / gamma


def _find_peak(gamma: float, num_classes: int) -> float:
    """The gap a at which R is largest, in a first-order problem."""
    log_xi = find_root(lambda x: _theta(x, gamma), 1e-9, math.log(num_classes))
    return math.log(num_classes - 1) - math.log(math.expm1(log_xi))
