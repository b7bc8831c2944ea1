"""Derivatives of the predicted numbers with respect to the decays, by implicit differentiation."""

from __future__ import annotations

import math

from ncollapse.theory.balanced import Symmetric, relu_factor
from ncollapse.theory.cost import differentiate_cost
from ncollapse.theory.imbalanced import find_prices
from ncollapse.theory.optimum import Optimum
from ncollapse.theory.separable import differentiate_separable

DECAYS = ("weight_decay", "feature_decay", "bias_decay")


def differentiate(optimum: Optimum) -> dict[str, dict[str, float]]:
    """d(number)/d(decay) for every number; of a numerical optimum only the objective's (the envelope theorem)."""
    problem = optimum.problem
    names = DECAYS if problem.bias else DECAYS[:2]
    total = problem.per_class * problem.num_classes
    mixed = optimum._detail.mean_energy if problem.mixing is not None else None
    envelope = {
        "weight_decay": optimum.weight_energy / 2,
        "feature_decay": total * (optimum.feature_energy if mixed is None else mixed) / 2,
        "bias_decay": _bias_energy(optimum) / 2,
    }
    result = {"objective": {name: envelope[name] for name in names}}
    if optimum.method != "closed":
        return result
    for name in names:
        for field, value in _vary(optimum, name).items():
            result.setdefault(field, {})[name] = value + 0.0  # no negative zero
    return result


def _bias_energy(optimum: Optimum) -> float:
    """|b|^2; only a numerical optimum may have unequal biases."""
    if optimum.solution is not None and optimum.solution.bias is not None:
        return float(optimum.solution.bias.square().sum())
    return optimum.problem.num_classes * optimum.bias**2


def _vary(optimum: Optimum, name: str) -> dict[str, float]:
    problem = optimum.problem
    dmu = 0.0 if name == "bias_decay" else problem.mu / (2 * getattr(problem, name))
    dlog_balance = {"weight_decay": -0.5, "feature_decay": 0.5, "bias_decay": 0.0}[name]
    dlog_balance /= getattr(problem, name) if dlog_balance else 1.0
    if optimum.class_gaps is not None:
        changes, dcost = _vary_classes(optimum, dmu)
    else:
        changes, dcost = _vary_symmetric(optimum, dmu, float(name == "bias_decay"))
    k = problem.num_classes
    changes["weight_energy"] = problem.balance * dcost + optimum.weight_energy * dlog_balance
    changes["feature_energy"] = dcost / problem.balance / k - optimum.feature_energy * dlog_balance
    return changes


def _vary_symmetric(optimum: Optimum, dmu: float, ddecay: float) -> tuple[dict[str, float], float]:
    problem, symmetric = optimum.problem, optimum._detail
    assert isinstance(symmetric, Symmetric)
    k, state, relu = problem.num_classes, symmetric.state, problem.features == "relu"
    da = dc = db = 0.0
    directions = min(symmetric.rank, k - 1) if state.a > 0 else k - 1
    if symmetric.form is None:
        form, factor = problem.loss.contrastive_form(k), relu_factor(problem)
        if form is not None and state.a > 0:
            da = form.d_gap(problem.mu * factor, state.a) * factor * dmu
    else:
        decay = problem.bias_decay if problem.bias else None
        da, dc, db = differentiate_separable(symmetric.form, k, problem.mu, decay, relu, state, dmu, ddecay)
    changes = {
        "positive_score": (directions * da + dc) / k,
        "negative_score": (dc - directions * da / (k - 1)) / k,
        "bias": db,
        "gap": da,
        "mean_component": dc,
    }
    if state.a == state.c == 0:
        return changes, 0.0
    return changes, differentiate_cost(state.a, state.c, da, dc, k, relu, directions)


def _vary_classes(optimum: Optimum, dmu: float) -> tuple[dict[str, float], float]:
    problem = optimum.problem
    k, counts = problem.num_classes, problem.counts
    form = problem.loss.contrastive_form(k)
    assert form is not None
    slopes = [
        form.d_gap(price, gap) * price / problem.mu * dmu if gap > 0 else 0.0
        for price, gap in zip(find_prices(problem).tolist(), optimum.class_gaps or (), strict=True)
    ]
    mean = sum(count * slope for count, slope in zip(counts, slopes, strict=True)) / sum(counts)
    cost_change = sum(math.sqrt(count) * slope for count, slope in zip(counts, slopes, strict=True))
    changes = {"positive_score": (k - 1) / k * mean, "negative_score": -mean / k, "bias": 0.0}
    return changes, math.sqrt((k - 1) / k) * cost_change / math.sqrt(problem.per_class)
