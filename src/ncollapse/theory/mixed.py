"""The optimum under targets that are mixed but treat all classes alike (mixup, CutMix), by symmetry.

The problem does not change when the classes are permuted, so for a convex loss there is an optimum that does not
change either: W = s (I - J/K) + m J/K in K dimensions, a feature with three values (own, partner, other) for each level
of mixing, and a common bias. That leaves 3 L + 3 numbers for L levels, for any K. The dual point has the same symmetry,
and its norm is that of two numbers. For free features both are exact. For non-negative ones the minimum is one over
features of this form in K dimensions, and the bound is that of free features, so the two enclose the true minimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ncollapse.losses import ConvexForm
from ncollapse.theory.optimum import Optimum, refuse, require_dim
from ncollapse.theory.problem import Problem

Array = NDArray[np.float64]
EPS = 2.0**-52
ROUNDS = 8  # of L-BFGS, each with a fresh memory


@dataclass(frozen=True)
class MixedOptimum:
    """The numbers of a symmetric optimum.

    weight: s and m of W = s (I - J/K) + m J/K. features [L, 3]: the entries of a feature at the own class, the partner
    and the others, in the basis in which W is symmetric. scores [L, 3]: those of W h, likewise. bias: the threshold.
    mean_energy: the mean of |h|^2 over all levels.
    """

    weight: tuple[float, float]
    features: Array
    scores: Array
    bias: float
    objective: float
    data_loss: float
    lower_bound: float
    mean_energy: float


class _Reduced:
    """The objective as a function of one vector: s, m, the bias, and the features."""

    def __init__(self, problem: Problem) -> None:
        mixing = problem.mixing
        assert mixing is not None
        form = problem.loss.convex_form(mixing.rows)
        if form is None:
            raise refuse(problem, "with mixed targets (a loss without a convex form)")
        self.problem, self.form, self.k = problem, form, problem.num_classes
        self.weights = np.array(mixing.probabilities)
        if problem.loss.weight is not None:
            raise refuse(problem, "with mixed targets and class weights")
        self.samples = problem.per_class * self.k
        # U = W / t and V = t h cost the same: t^4 = N feature_decay / weight_decay
        self.t = (self.samples * problem.feature_decay / problem.weight_decay) ** 0.25
        self.cost = math.sqrt(self.samples) * math.sqrt(problem.weight_decay) * math.sqrt(problem.feature_decay)
        self.sizes = np.array([1.0, 1.0, self.k - 2.0])
        self.bias_scale = 1.0 / math.sqrt(1.0 + 10.0 * problem.bias_decay)

    def scores(self, s: float, m: float, v: Array) -> Array:
        mean = (v @ self.sizes)[:, None] / self.k
        return np.asarray(s * (v - mean) + m * mean)

    def losses(self, scores: Array, bias: float) -> tuple[Array, Array]:
        """The losses of the levels [L] and their total slopes in the three kinds of logits [L, 3]."""
        z = np.repeat(scores[:, 2:] - bias, self.k, axis=1)
        z[:, 0], z[:, 1] = scores[:, 0] - bias, scores[:, 1] - bias
        values, slopes = self.form.evaluate(torch.from_numpy(z), torch.arange(len(z)))
        g = slopes.numpy()
        return values.numpy(), np.stack([g[:, 0], g[:, 1], g[:, 2:].sum(axis=1)], axis=1)

    def evaluate(self, point: Array) -> tuple[float, Array]:
        s, m, bias = point[0], point[1], point[2] * self.bias_scale
        v = point[3:].reshape(-1, 3)
        problem, k = self.problem, self.k
        if not problem.bias:
            bias = 0.0
        values, slopes = self.losses(self.scores(s, m, v), bias)
        mean = (v @ self.sizes)[:, None] / k
        pull = slopes * self.weights[:, None]
        total = pull.sum(axis=1, keepdims=True) / k
        # d(scores)/dv = s (I - J/K) + m J/K, in terms of sums over each kind of class
        back = s * (pull - total * self.sizes) + m * total * self.sizes
        ds, dm = float((pull * (v - mean)).sum()), float((pull.sum(axis=1) * mean[:, 0]).sum())
        energy = self.weights @ ((v * v) @ self.sizes)
        value = float(self.weights @ values)
        value += self.cost / 2 * ((k - 1) * s * s + m * m + energy) + k * problem.bias_decay / 2 * bias * bias
        gradient = np.concatenate(
            [
                [ds + self.cost * (k - 1) * s, dm + self.cost * m],
                [(k * problem.bias_decay * bias - float(pull.sum())) * self.bias_scale if problem.bias else 0.0],
                (back + self.cost * self.weights[:, None] * self.sizes * v).ravel(),
            ]
        )
        return value, gradient

    def start(self) -> Array:
        own = np.array([[1.0, 0.0, 0.0]] * len(self.weights)) + 0.1
        own[:, 1] = 1.0 - self.form.targets[:, 0] + 0.1
        return np.concatenate([[3.0, 0.5, 0.5], own.ravel()])


def minimise_mixed(problem: Problem) -> MixedOptimum:
    """The symmetric optimum of a problem with `mixing`, and a lower bound on the global minimum."""
    from scipy.optimize import Bounds, minimize

    model = _Reduced(problem)
    low = np.full(3 + 3 * len(model.weights), -np.inf)
    if problem.features == "relu":
        low[3:] = 0.0
    best: tuple[float, Array] | None = None
    for sign in (1.0, -1.0):  # for non-negative features the sign of the mean of W matters
        point = model.start()
        point[1] *= sign
        value = math.inf
        for _ in range(ROUNDS):
            found = minimize(
                model.evaluate,
                point,
                jac=True,
                method="L-BFGS-B",
                bounds=Bounds(low),
                options={"maxiter": 5000, "maxfun": 10_000, "ftol": 0.0, "gtol": 1e-12, "maxcor": 40},
            )
            before, value, point = value, float(found.fun), np.asarray(found.x)
            if not value < before - 1e-15 * abs(before):
                break
        if best is None or value < best[0]:
            best = value, point
        if problem.features == "free":
            break
    assert best is not None
    return _describe(model, *best)


def _describe(model: _Reduced, value: float, point: Array) -> MixedOptimum:
    s, m, v = float(point[0]), float(point[1]), point[3:].reshape(-1, 3).copy()
    v[0, 1:] = v[0, 1:] @ model.sizes[1:] / (model.k - 1)  # an unmixed image has no partner
    bias = float(point[2]) * model.bias_scale if model.problem.bias else 0.0
    scores = model.scores(s, m, v)
    values, slopes = model.losses(scores, bias)
    return MixedOptimum(
        weight=(s * model.t, m * model.t),
        features=v / model.t,
        scores=scores,
        bias=0.0 if model.problem.leaves_bias_free else bias,
        objective=value,
        data_loss=float(model.weights @ values),
        lower_bound=_bound(model, slopes),
        mean_energy=float(model.weights @ ((v / model.t) ** 2 @ model.sizes)),
    )


def _bound(model: _Reduced, slopes: Array) -> float:
    """The dual bound of the gradients, [L, 3] in total slopes, made feasible."""
    problem, form, k = model.problem, model.form, model.k
    entries = slopes / np.where(model.sizes > 0, model.sizes, 1.0)
    q = np.repeat(entries[:, 2:], k, axis=1)
    q[:, :2] = entries[:, :2]
    candidates = [q]
    if problem.bias:
        balanced = _balance(form, q, model.weights)
        candidates = [balanced] if problem.bias_decay == 0 else [q, balanced]
    return max(_evaluate_dual(model, candidate, candidate is not q) for candidate in candidates)


def _balance(form: ConvexForm, q: Array, weights: Array) -> Array:
    """Gradients whose total over all classes is 0, inside the domain of the conjugate.

    The cyclic shifts of the rows have a total that is the same for each class, as the whole law has.
    """
    k, levels = q.shape[1], len(q)
    shifted = np.concatenate([np.roll(q, shift, axis=1) for shift in range(k)])
    targets = np.concatenate([np.roll(form.targets, shift, axis=1) for shift in range(k)])
    whole = form.loss.convex_form(targets)
    assert whole is not None
    return np.asarray(whole.balance(shifted, np.tile(weights, k) / k))[:levels]


def _evaluate_dual(model: _Reduced, q: Array, balanced: bool) -> float:
    """D(s Y) at the largest feasible s, rounded down. Y Y^T is a number times I - J/K plus a number times J/K."""
    problem, k, weights = model.problem, model.k, model.weights
    mean = q.mean(axis=1)
    spread = float(weights @ ((q - mean[:, None]) ** 2).sum(axis=1)) / (k - 1)
    along = k * float(weights @ mean**2)
    norm = math.sqrt(max(spread, along) / model.samples)
    tau = math.sqrt(problem.weight_decay) * math.sqrt(problem.feature_decay)
    rounding = 4.0 * (k + 8) * EPS
    scale = min(1.0, tau / norm) * (1.0 - rounding) if norm > 0 else 1.0
    total = float(weights @ mean)
    penalty = 0.0 if balanced or not problem.bias else k * total * total / (2.0 * problem.bias_decay)
    terms = float(weights @ model.form.conjugate(scale * q))
    size = float(weights @ np.abs(q).sum(axis=1))
    return -terms - scale * scale * penalty - rounding * (abs(terms) + size + penalty)


def predict_mixed(problem: Problem) -> Optimum:
    """The optimum of a problem with `mixing`; scores and energies are those of unmixed images."""
    found = minimise_mixed(problem)
    k = problem.num_classes
    own, _, other = found.scores[0]
    s, m = found.weight
    gap, mean = float(own - other), float(own + (k - 1) * other)
    sizes = np.array([1.0, 1.0, k - 2.0])
    tolerance = 1e-4 * max(1.0, abs(gap))
    phase = "saturated" if abs(mean) > tolerance else "centred"
    if max(abs(gap), abs(mean)) < 1e-4:
        phase = "collapsed"
    elif gap < tolerance:
        phase = "mean-only"
    elif problem.features == "relu" and abs(mean) < gap:
        phase = "orthogonal-frame"
    rank = 0 if phase == "collapsed" else k if abs(m) > 1e-6 * abs(s) or problem.features == "relu" else k - 1
    enclosed = f"certified: the global minimum is at most {found.objective - found.lower_bound:.2g} below"
    optimum = Optimum(
        problem=problem,
        method="symmetric",
        phase=phase,
        positive_score=float(own),
        negative_score=float(other),
        bias=found.bias,
        weight_energy=(k - 1) * s * s + m * m,
        feature_energy=float(found.features[0] ** 2 @ sizes),
        objective=found.objective,
        lower_bound=found.lower_bound,
        gap=gap,
        mean_component=mean,
        rank=rank,
        separates=other < found.bias < own,
        notes=("mixed targets: scores and feature energy are those of unmixed images", enclosed),
        _detail=found,
    )
    return require_dim(optimum)
