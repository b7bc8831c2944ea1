"""How predicted numbers move with the decays: implicit differentiation of the scalar equations."""

from __future__ import annotations

import math

from ncollapse.theory.balanced import Optimum, smoothing, stretch
from ncollapse.theory.contrastive import differentiate_focal_gap, differentiate_smoothed_gap
from ncollapse.theory.gauge import differentiate_gauge
from ncollapse.theory.imbalanced import find_prices
from ncollapse.theory.prediction import Prediction
from ncollapse.theory.separable import Quadratic, differentiate_separable

DECAYS = ("weight_decay", "feature_decay", "bias_decay")


def differentiate(prediction: Prediction) -> dict[str, dict[str, float]]:
    """d(number)/d(decay) for every number; of a numerical prediction only the objective's (the envelope theorem)."""
    problem = prediction.problem
    names = DECAYS if problem.bias else DECAYS[:2]
    total = problem.per_class * problem.num_classes
    envelope = {
        "weight_decay": prediction.weight_energy / 2,
        "feature_decay": total * prediction.feature_energy / 2,
        "bias_decay": _bias_energy(prediction) / 2,
    }
    result = {"objective": {name: envelope[name] for name in names}}
    if prediction.method != "closed":
        return result
    for name in names:
        for field, value in _vary(prediction, name).items():
            result.setdefault(field, {})[name] = value + 0.0  # no negative zero
    return result


def _bias_energy(prediction: Prediction) -> float:
    """|b|^2; only a numerical optimum may have unequal biases."""
    if prediction.solution is not None and prediction.solution.bias is not None:
        return float(prediction.solution.bias.square().sum())
    return prediction.problem.num_classes * prediction.bias**2


def _vary(prediction: Prediction, name: str) -> dict[str, float]:
    problem = prediction.problem
    dmu = 0.0 if name == "bias_decay" else problem.mu / (2 * getattr(problem, name))
    dlog_balance = {"weight_decay": -0.5, "feature_decay": 0.5, "bias_decay": 0.0}[name]
    dlog_balance /= getattr(problem, name) if dlog_balance else 1.0
    if prediction.class_gaps is not None:
        changes, dgauge = _vary_classes(prediction, dmu)
    else:
        changes, dgauge = _vary_symmetric(prediction, dmu, float(name == "bias_decay"))
    k = problem.num_classes
    changes["weight_energy"] = problem.balance * dgauge + prediction.weight_energy * dlog_balance
    changes["feature_energy"] = dgauge / problem.balance / k - prediction.feature_energy * dlog_balance
    return changes


def _vary_symmetric(prediction: Prediction, dmu: float, ddecay: float) -> tuple[dict[str, float], float]:
    problem, optimum = prediction.problem, prediction._detail
    assert isinstance(optimum, Optimum)
    k, state, relu = problem.num_classes, optimum.state, problem.features == "relu"
    da = dc = db = 0.0
    directions = min(optimum.rank, k - 1) if state.a > 0 else k - 1
    if optimum.scalar is None:
        if state.a > 0:
            mu, factor = problem.mu * stretch(problem), stretch(problem)
            if problem.loss.name == "focal":
                da = differentiate_focal_gap(state.a, problem.loss.params()["gamma"], k) * factor * dmu
            else:
                da = differentiate_smoothed_gap(mu, smoothing(problem.loss), k) * factor * dmu
    elif problem.dim is not None and problem.dim < k and optimum.scalar == Quadratic() and not relu:
        da = -k * dmu if state.a > 0 else 0.0
        db = ddecay / (k * (1 + problem.bias_decay) ** 2) if problem.bias else 0.0
    else:
        decay = problem.bias_decay if problem.bias else None
        da, dc, db = differentiate_separable(optimum.scalar, k, problem.mu, decay, relu, state, dmu, ddecay)
    changes = {
        "positive_score": (directions * da + dc) / k,
        "negative_score": (dc - directions * da / (k - 1)) / k,
        "bias": db,
        "gap": da,
        "mean_component": dc,
    }
    if state.a == state.c == 0:
        return changes, 0.0
    return changes, differentiate_gauge(state.a, state.c, da, dc, k, relu, directions)


def _vary_classes(prediction: Prediction, dmu: float) -> tuple[dict[str, float], float]:
    problem = prediction.problem
    k, counts = problem.num_classes, problem.counts
    slopes = []
    for price, gap in zip(find_prices(problem).tolist(), prediction.class_gaps or (), strict=True):
        slope = differentiate_smoothed_gap(price, smoothing(problem.loss), k) * price / problem.mu * dmu
        slopes.append(slope if gap > 0 else 0.0)
    mean = sum(count * slope for count, slope in zip(counts, slopes, strict=True)) / sum(counts)
    price_change = sum(math.sqrt(count) * slope for count, slope in zip(counts, slopes, strict=True))
    changes = {"positive_score": (k - 1) / k * mean, "negative_score": -mean / k, "bias": 0.0}
    return changes, math.sqrt((k - 1) / k) * price_change / math.sqrt(problem.per_class)
