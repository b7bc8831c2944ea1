"""The optimum as bce-vs-ce Theorems 3.1 and 3.2 print it: a centred ETF for every bias decay, with free features."""

from __future__ import annotations

import math
from typing import Any

from ncollapse.losses.binary_cross_entropy import SigmoidSlopes
from ncollapse.losses.rootfinding import find_root
from ncollapse.theory.balanced import predict_balanced
from ncollapse.theory.optimum import Optimum
from ncollapse.theory.problem import Problem

FIELDS = ("positive_score", "negative_score", "bias", "weight_energy", "objective")


def published_optimum(optimum: Optimum) -> dict[str, Any] | None:
    """The printed optimum of this problem, where the theorem covers it and differs from the optimum."""
    problem = optimum.problem
    k, mu = problem.num_classes, problem.mu
    if not problem.balanced or (problem.dim is not None and problem.dim < k - 1):
        return None
    if problem.loss.name == "bce" and not problem.loss.params():
        if not problem.bias or k * mu >= 1:
            return None
        theorem, said = "bce-vs-ce Theorem 3.2", _centre(problem)
    elif problem.loss.contrastive:
        free = predict_balanced(problem.replace(features="free", dim=None))
        theorem, said = "bce-vs-ce Theorem 3.1", {name: getattr(free, name) for name in FIELDS}
    else:
        return None
    same = all(math.isclose(said[name], getattr(optimum, name), rel_tol=1e-9, abs_tol=1e-9) for name in FIELDS)
    return None if same else {"theorem": theorem, **said}


def _centre(problem: Problem) -> dict[str, float]:
    """Eq. 12 with P + Q = K mu, which the paper leaves out: solved for log P, since P may be tiny."""
    k, mu, decay, scalar = problem.num_classes, problem.mu, problem.bias_decay, SigmoidSlopes()

    def bias(log_p: float) -> float:
        p = math.exp(log_p)
        return (-(k - 1) * scalar.negative(k * mu - p) - (math.log1p(-p) - log_p)) / k

    top = math.log(k - 1) + math.log(mu)
    log_p = top
    if decay > 0 and k > 2:
        # at the bottom the bias has turned negative, at the top it is not yet held back by its decay
        bottom = min(top, -(k - 1) * abs(scalar.negative(k * mu))) - 1
        log_p = find_root(lambda x: -(k - 1) * mu * math.expm1(x - top) - decay * bias(x), bottom, top)
    p = math.exp(log_p)
    b = bias(log_p)
    gap = math.log1p(-p) - log_p - scalar.negative(k * mu - p)
    positive, negative = (k - 1) * gap / k, -gap / k
    loss = float(problem.loss.at(positive - b, negative - b, k).value)
    return {
        "positive_score": positive,
        "negative_score": negative,
        "bias": b,
        "weight_energy": problem.balance * (k - 1) * gap,
        "objective": loss + mu * (k - 1) * gap + k * decay * b**2 / 2,
    }
