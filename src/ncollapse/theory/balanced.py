"""Closed forms for classes of equal size (bce-vs-ce, all-losses, mse-landscape, corrected)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from ncollapse.losses import SeparableForm, Transition
from ncollapse.losses.mse import QuadraticSlopes
from ncollapse.theory.cost import cost_of
from ncollapse.theory.optimum import Optimum, complete, refuse, require_dim
from ncollapse.theory.problem import Problem
from ncollapse.theory.separable import State, find_collapse, find_critical_bias_decay, solve_separable


class Symmetric(NamedTuple):
    """A symmetric optimum with what is needed to differentiate it."""

    state: State
    rank: int
    form: SeparableForm | None = None


def predict_balanced(problem: Problem) -> Optimum:
    """The optimum of a balanced problem; a ValueError where no closed form is known."""
    k, dim = problem.num_classes, problem.dim
    if problem.loss.contrastive:
        return _predict_contrastive(problem)
    form = problem.loss.separable_form(k)
    if form is None:
        raise refuse(problem, "(a loss without a separable or contrastive form)")
    if is_plain_square(form) and problem.features == "free" and dim is not None and dim < k:
        return _predict_thin_mse(problem, form, dim)
    decay = problem.bias_decay if problem.bias else None
    relu = problem.features == "relu"
    state = solve_separable(form, k, problem.mu, decay, relu)
    separation, collapse = find_collapse(form, k, decay, relu)
    critical = find_critical_bias_decay(form, k, problem.mu, relu)
    notes: tuple[str, ...] = ()
    if state.phase == "saturated" and decay is not None and problem.loss.name == "bce":
        notes = (
            f"bias_decay is above its critical value {critical:.6g}: W keeps a mean, its ETF is no longer optimal",
        )
    symmetric = Symmetric(state, _find_rank(state, k), form)
    return require_dim(_finish(problem, symmetric, critical, separation, collapse, notes))


def make_phase_finder(problem: Problem) -> Callable[[float, float], str]:
    """A function from mu and the bias decay to the phase of the optimum, for a balanced problem with d >= K.

    It finds the phase that `predict_balanced` finds, in a third of the time, for maps of thousands of points.
    """
    k, loss, relu = problem.num_classes, problem.loss, problem.features == "relu"
    if loss.contrastive:
        gaps, factor = loss.contrastive_form(k), relu_factor(problem)
        if gaps is None:
            raise refuse(problem, "(a loss without a contrastive form)")
        return lambda mu, bias_decay: _name_gap(gaps.gap(mu * factor), relu)
    form = loss.separable_form(k)
    if form is None:
        raise refuse(problem, "(a loss without a separable or contrastive form)")
    return lambda mu, bias_decay: solve_separable(form, k, mu, bias_decay if problem.bias else None, relu).phase


def is_plain_square(form: SeparableForm | None) -> bool:
    """Whether the loss is a multiple of |z - goal y|^2, for which the optimum is known in every dimension."""
    return isinstance(form, QuadraticSlopes) and form.a == form.c


def relu_factor(problem: Problem) -> float:
    """The ratio of the cost of a gap with non-negative features to that with free ones, at c = 0."""
    k = problem.num_classes
    return math.sqrt(k / (k - 1)) if problem.features == "relu" else 1.0


def _predict_contrastive(problem: Problem) -> Optimum:
    k, factor = problem.num_classes, relu_factor(problem)
    form = problem.loss.contrastive_form(k)
    if form is None:
        raise refuse(problem, "(a loss without a contrastive form)")
    mu, transition, notes = problem.mu * factor, form.transition, []
    gap, limit = form.gap(mu), form.collapse_mu / factor
    if transition is not None:
        if transition.mu_lo < mu < transition.mu_c:
            notes.append("W = H = 0 is a spurious local minimum here: training from small weights may stay there")
        if transition.mu_c <= mu < transition.mu_hi:
            notes.append("separated classes are a local minimum here, but not the global one")
        low, middle, high = (level / factor for level in (transition.mu_lo, transition.mu_c, transition.mu_hi))
        transition = Transition(low, middle, high, transition.first_order)
    if problem.bias and problem.bias_decay == 0:
        notes.append("any common bias is optimal; the smallest, 0, is reported")
    state = State(_name_gap(gap, problem.features == "relu"), gap, 0.0, 0.0, 0.0)
    symmetric = Symmetric(state, _find_rank(state, k))
    return require_dim(_finish(problem, symmetric, math.inf, limit, limit, tuple(notes), transition))


def _name_gap(gap: float, relu: bool) -> str:
    """The phase of a contrastive loss with this gap between the logits."""
    return "collapsed" if gap == 0 else "orthogonal-frame" if relu else "centred"


def _predict_thin_mse(problem: Problem, form: SeparableForm, dim: int) -> Optimum:
    """c/2 |z - goal y|^2 with d < K: a = goal - K mu/c in d of the K-1 directions.

    mse-landscape Theorem 3.1 has it for c = goal = 1; its Eq. 15 lacks a factor 1/2.
    """
    assert isinstance(form, QuadraticSlopes)
    k, notes = problem.num_classes, []
    a = max(0.0, form.goal - k * problem.mu / form.c)
    b = -form.goal / (k * (1 + problem.bias_decay / form.c)) if problem.bias else 0.0
    rank = dim if a > 0 else 0
    if dim < k - 1 and a > 0:
        notes.append(f"d = {dim} < K - 1: any {dim} of the K - 1 directions are optimal, scores are class averages")
    if not problem.bias and a > 0:
        notes.append("without a bias the mean of W is not unique for d < K; 0 is reported")
    state = State("centred" if a > 0 else "collapsed", a, 0.0, b, problem.bias_decay * b)
    limit = form.c * form.goal / k
    return _finish(problem, Symmetric(state, rank, form), math.inf, limit, limit, tuple(notes))


def _finish(
    problem: Problem,
    symmetric: Symmetric,
    critical: float,
    separation: float,
    collapse: float,
    notes: tuple[str, ...],
    transition: Transition | None = None,
) -> Optimum:
    k, state = problem.num_classes, symmetric.state
    directions = min(symmetric.rank, k - 1) if state.a > 0 else k - 1
    cost = cost_of(state.a, state.c, k, problem.features == "relu", directions)
    positive = (directions * state.a + state.c) / k
    negative = (state.c - directions * state.a / (k - 1)) / k
    loss = float(problem.loss.at(positive - state.b, negative - state.b, k).value)
    if directions < k - 1:  # scores vary: only the mean square error is known, from the singular values
        assert isinstance(symmetric.form, QuadraticSlopes)
        goal = symmetric.form.goal
        squares = directions * (state.a - goal) ** 2 + (k - 1 - directions) * goal**2 + (k * state.b + goal) ** 2
        loss = symmetric.form.c * squares / (2 * k)
    unique = not (k == 2 and problem.features == "relu" and problem.bias and problem.bias_decay == 0 and state.a > 0)
    if not unique:
        notes += (f"not unique: the biases may move by (s, -s), |s| <= {state.a / 2:.6g}, and one class shrink",)
    values = {
        "unique": unique,
        "phase": state.phase,
        "positive_score": positive,
        "negative_score": negative,
        "bias": state.b,
        "objective": loss + problem.mu * cost + k * problem.bias_decay * state.b**2 / 2,
        "gap": state.a,
        "mean_component": state.c,
        "rank": symmetric.rank,
        "critical_bias_decay": critical,
        "separation_mu": separation,
        "collapse_mu": collapse,
        "transition": transition,
        "_detail": symmetric,
    }
    return complete(problem, values, cost, notes)


def _find_rank(state: State, k: int) -> int:
    if state.phase == "orthogonal-frame":
        return k  # the rank of H: non-negative orthogonal features need K dimensions, whatever the rank of W
    return (k - 1 if state.a > 0 else 0) + (1 if state.c != 0 else 0)
