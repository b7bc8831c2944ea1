"""Closed forms for classes of equal size (bce-vs-ce, all-losses, mse-landscape, corrected)."""

from __future__ import annotations

import math
from typing import NamedTuple

from ncollapse.losses import Loss
from ncollapse.theory.contrastive import (
    Transition,
    find_focal_gap,
    find_smoothed_gap,
    find_transition,
)
from ncollapse.theory.gauge import measure_gauge
from ncollapse.theory.prediction import Prediction, require_dim, summarise
from ncollapse.theory.problem import Problem
from ncollapse.theory.separable import (
    Bernoulli,
    Quadratic,
    SeparableLoss,
    State,
    find_collapse,
    find_critical_bias_decay,
    solve_separable,
)


class Optimum(NamedTuple):
    """A state with what it takes to differentiate it."""

    state: State
    rank: int
    scalar: SeparableLoss | None = None


def predict_balanced(problem: Problem) -> Prediction:
    """The optimum of a balanced problem; a ValueError where no closed form is known."""
    if problem.loss.contrastive:
        return _predict_contrastive(problem)
    scalar = describe(problem.loss, problem.num_classes)
    k, dim = problem.num_classes, problem.dim
    if scalar == Quadratic() and problem.features == "free" and dim is not None and dim < k:
        return _predict_thin_mse(problem, scalar, dim)
    decay = problem.bias_decay if problem.bias else None
    relu = problem.features == "relu"
    state = solve_separable(scalar, k, problem.mu, decay, relu)
    separation, collapse = find_collapse(scalar, k, decay, relu)
    critical = find_critical_bias_decay(scalar, k, problem.mu, relu)
    notes: tuple[str, ...] = ()
    if state.phase == "saturated" and decay is not None and problem.loss.name == "bce":
        notes = (
            f"bias_decay is above its critical value {critical:.6g}: W keeps a mean, its ETF is no longer optimal",
        )
    optimum = Optimum(state, _find_rank(state, k), scalar)
    return require_dim(_finish(problem, optimum, critical, separation, collapse, notes))


def describe(loss: Loss, num_classes: int) -> SeparableLoss:
    """Read the two slopes of a BCE or MSE loss off its derivatives at (0, 0) and (1, 1)."""
    _, d_pos, d_neg = loss.at(0.0, 0.0, num_classes)
    if loss.name == "bce":
        return Bernoulli(short=float(0.5 + d_pos), floor=float(0.5 - d_neg / (num_classes - 1)))
    _, d_pos_1, d_neg_1 = loss.at(1.0, 1.0, num_classes)
    a = float(d_pos_1 - d_pos)
    return Quadratic(a, float(-d_pos) / a, float(d_neg_1) / (num_classes - 1))


def smoothing(loss: Loss) -> float:
    """The label smoothing of a cross-entropy."""
    params = loss.params()
    return params.get("alpha", params.get("label_smoothing", 0.0))


def stretch(problem: Problem) -> float:
    """How much dearer a gap is with non-negative features than with free ones, at c = 0."""
    k = problem.num_classes
    return math.sqrt(k / (k - 1)) if problem.features == "relu" else 1.0


def _predict_contrastive(problem: Problem) -> Prediction:
    k, relu = problem.num_classes, problem.features == "relu"
    factor = stretch(problem)
    mu, transition, notes = problem.mu * factor, None, []
    if problem.loss.name == "focal":
        gamma = problem.loss.params()["gamma"]
        reach = find_transition(gamma, k)
        gap = find_focal_gap(mu, gamma, k, reach)
        limit = reach.mu_c / factor
        transition = Transition(reach.mu_lo / factor, limit, reach.mu_hi / factor, reach.first_order)
        if reach.mu_lo < mu < reach.mu_c:
            notes.append("W = H = 0 is a spurious local minimum here: training from small weights may stay there")
        if reach.mu_c <= mu < reach.mu_hi:
            notes.append("separated classes are a local minimum here, but not the global one")
    else:
        alpha = smoothing(problem.loss)
        gap = find_smoothed_gap(mu, alpha, k)
        limit = (1 - alpha) / k / factor
    if problem.bias and problem.bias_decay == 0:
        notes.append("any common bias is optimal; the smallest, 0, is reported")
    phase = "collapsed" if gap == 0 else "orthogonal-frame" if relu else "centred"
    state = State(phase, gap, 0.0, 0.0, 0.0)
    optimum = Optimum(state, _find_rank(state, k))
    return require_dim(_finish(problem, optimum, math.inf, limit, limit, tuple(notes), transition))


def _predict_thin_mse(problem: Problem, scalar: Quadratic, dim: int) -> Prediction:
    """MSE with d < K: a = 1 - K mu in d of the K-1 directions (mse-landscape Thm 3.1; its Eq. 15 lacks a 1/2)."""
    k, notes = problem.num_classes, []
    a = max(0.0, 1 - k * problem.mu)
    b = -1 / (k * (1 + problem.bias_decay)) if problem.bias else 0.0
    rank = dim if a > 0 else 0
    if dim < k - 1 and a > 0:
        notes.append(f"d = {dim} < K - 1: any {dim} of the K - 1 directions will do, scores are means over the classes")
    if not problem.bias and a > 0:
        notes.append("without a bias the mean of W is not unique for d < K; 0 is reported")
    state = State("centred" if a > 0 else "collapsed", a, 0.0, b, problem.bias_decay * b)
    return _finish(problem, Optimum(state, rank, scalar), math.inf, 1 / k, 1 / k, tuple(notes))


def _finish(
    problem: Problem,
    optimum: Optimum,
    critical: float,
    separation: float,
    collapse: float,
    notes: tuple[str, ...],
    transition: Transition | None = None,
) -> Prediction:
    k, state = problem.num_classes, optimum.state
    directions = min(optimum.rank, k - 1) if state.a > 0 else k - 1
    gauge = measure_gauge(state.a, state.c, k, problem.features == "relu", directions)
    positive = (directions * state.a + state.c) / k
    negative = (state.c - directions * state.a / (k - 1)) / k
    loss = float(problem.loss.at(positive - state.b, negative - state.b, k).value)
    if directions < k - 1:  # scores vary: only the mean square error is known, from the singular values
        loss = (directions * (state.a - 1) ** 2 + (k - 1 - directions) + (k * state.b + 1) ** 2) / (2 * k)
    values = {
        "phase": state.phase,
        "positive_score": positive,
        "negative_score": negative,
        "bias": state.b,
        "objective": loss + problem.mu * gauge + k * problem.bias_decay * state.b**2 / 2,
        "gap": state.a,
        "mean_component": state.c,
        "rank": optimum.rank,
        "critical_bias_decay": critical,
        "separation_mu": separation,
        "collapse_mu": collapse,
        "transition": transition,
        "_detail": optimum,
    }
    return summarise(problem, values, gauge, notes)


def _find_rank(state: State, k: int) -> int:
    if state.phase == "orthogonal-frame":
        return k  # the rank of H: non-negative orthogonal features need K dimensions, whatever the rank of W
    return (k - 1 if state.a > 0 else 0) + (1 if state.c != 0 else 0)
