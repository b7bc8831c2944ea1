"""Lower bounds from convex duality.

The objective is f = sum_i share_i L(W h_i - b, y_i) + lW/2 |W|^2 + lH/2 |H|^2 + lb/2 |b|^2. For a loss that is convex
in the logits, every matrix Y [K, N] with |Y v| <= sqrt(lW lH) for all unit v (all unit v >= 0, for H >= 0) bounds it
from below at every point, in any dimension d:

    f(W, H, b) >= D(Y) = -sum_i share_i L*(y_i / share_i) - |Y 1|^2 / (2 lb)

(lb = 0: Y 1 = 0 is needed; no bias: the last term drops). The gradient of the loss in the logits, scaled into the ball,
is such a matrix, and at a global optimum D = f. Averaging its columns within each class keeps it feasible and only
raises D, so K x K class averages are enough, for any N.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ncollapse.losses.forms import TINY
from ncollapse.theory.class_groups import symmetric_norm
from ncollapse.theory.copositive import maximise_on_cone
from ncollapse.theory.point import Point

Array = NDArray[np.float64]
EPS = 2.0**-52
LARGEST_CONE = 2000  # groups up to which the cone v >= 0 is used; beyond, all v, which is valid but looser


class DualBound(NamedTuple):
    """The best bound found, its dual point as gradients q [G, K] (Y has the columns share_g q_g / n_g), and a norm.

    norm: that of the matrix of the mean gradients, over sqrt(lW lH).
    """

    value: float
    gradients: Array
    norm: float


def lower_bound(point: Point) -> DualBound:
    """The best dual bound found from the mean gradients."""
    form, shares, bias, decay = point.form, point.weights, point.bias, point.problem.bias_decay
    plain = point.gradients
    norm = dual_norm(plain, point)
    if bias is None:
        value, best = _dual_value(point, plain, norm)
        return DualBound(value, best, norm / point.tau)
    # A bias that has not converged spoils the bound: its optimum for these class means gives a better dual point.
    candidates = [plain, recentre(point, plain, bias, decay)]
    # A tiny bias decay amplifies the rounding of Y 1: the points with Y 1 = 0 are candidates at every decay.
    balanced = [form.balance(candidate, shares) for candidate in candidates]
    values = [_dual_value(point, q, dual_norm(q, point), balanced=True) for q in balanced]
    if decay > 0.0:
        values += [_dual_value(point, q, norm if q is plain else dual_norm(q, point)) for q in candidates]
    value, best = max(values, key=lambda pair: pair[0])
    return DualBound(value, best, norm / point.tau)


def dual_norm(gradient: Array, point: Point) -> float:
    """max |Y v| over unit v, or over unit v >= 0 for ReLU features, of the class-averaged dual matrix Y.

    Y has n_k columns share_k q_k / n_k for class k. Averaging v within classes does not lower |Y v|, so the maximum is
    that of the K x K Gram matrix M = (y_k . y_l sqrt(n_k n_l)): its largest eigenvalue, or its maximum on the cone.
    """
    relu = point.problem.features == "relu"
    if point.symmetry is not None:
        sizes = point.symmetry.sizes[point.groups]  # counts and shares are those of all classes of a group
        scales = point.shares / np.sqrt(point.counts * sizes)
        return symmetric_norm(gradient, scales, point.symmetry, point.groups, relu=relu)
    columns = dual_columns(gradient, point)
    if relu and len(columns) <= LARGEST_CONE:
        return math.sqrt(max(0.0, maximise_on_cone(columns @ columns.T)[0]))
    return math.sqrt(max(0.0, float(np.linalg.eigvalsh(columns.T @ columns)[-1])))


def dual_columns(gradient: Array, point: Point) -> Array:
    """Rows sqrt(n_g) y_g of the averaged dual matrix, from the mean gradients q_g: y_g = share_g q_g / n_g."""
    return np.asarray(gradient * (point.shares / np.sqrt(point.counts))[:, None])


def _dual_value(point: Point, q: Array, norm: float, *, balanced: bool = False) -> tuple[float, Array]:
    """max over s in [0, s_max] of D(s Y), and the gradients s q; s_max brings Y into the ball and the domain of L*.

    norm: that of Y. `balanced` says that Y 1 = 0, up to rounding, so that the bias costs nothing. Norm and value are
    rounded outward, so that the result is a lower bound in floating-point arithmetic too.
    """
    shares, decay = point.shares, point.problem.bias_decay
    total = point.weights @ q
    penalty = 0.0 if point.bias is None or balanced else float(total @ total) / (2.0 * decay)
    rounding = 4.0 * (len(total) + 8) * EPS
    largest = min(1.0, point.tau / norm) * (1.0 - rounding) if norm > 0.0 else 1.0
    size = float(shares @ np.abs(q).sum(axis=1)) * (1.0 + float(np.abs(point.offset).max()))
    shift = float(total @ point.offset)

    def value(s: float) -> float:
        terms = float(shares @ point.form.conjugate(s * q))
        slack = rounding * (abs(terms) + s * size + s * s * penalty)
        return s * shift - terms - s * s * penalty - slack

    scale = largest
    if value(largest * (1.0 - 1e-6)) > value(largest):
        from scipy.optimize import minimize_scalar

        found = minimize_scalar(lambda s: -value(s), bounds=(0.0, largest), method="bounded", options={"xatol": 1e-9})
        scale = max((largest, 0.0, float(found.x)), key=value)
    return float(value(scale)), scale * q


def recentre(point: Point, gradient: Array, bias: Array, bias_decay: float) -> Array:
    """The gradients at the class prototypes after minimising over the bias.

    Minimises sum_k share_k L_k(z_k - delta) + bias_decay / 2 |b + delta|^2 over delta by Newton's method, z_k the
    logits whose gradients are the class means. For a collapsed point this is the exact minimum of the objective over b.
    A symmetric point has one delta for each group of classes.
    """
    form, shares, groups = point.form, point.shares, point.symmetry
    z = form.invert(gradient)
    classes = None if groups is None else groups.index
    sizes = np.ones(len(bias)) if groups is None else groups.sizes.astype(np.float64)
    if groups is not None:
        bias = groups.add(bias) / sizes
    eye = np.diag(sizes)

    def curve(delta: Array) -> tuple[float, Array, Array, Array]:
        value, q, hessian = form.curve(z - (delta if classes is None else delta[classes]), shares, classes)
        shifted = bias + delta
        total = shares @ q if groups is None else groups.add(shares @ q)
        slope = bias_decay * sizes * shifted - total
        return value + 0.5 * bias_decay * float(sizes @ shifted**2), slope, hessian, q

    delta = np.zeros_like(bias)
    value, slope, hessian, q = curve(delta)
    for _ in range(60):
        if np.abs(slope).max() * len(bias) < 1e-15:
            break
        if hessian.ndim == 1:
            step = -slope / np.maximum(hessian + bias_decay * sizes, TINY)
        else:
            # Adding a constant to every logit leaves a softmax as it is: without bias decay that direction is fixed.
            fixed = hessian.trace() / len(bias) if bias_decay == 0.0 else 0.0
            ridge = bias_decay + 1e-15 * hessian.trace()
            step = -np.linalg.solve(hessian + ridge * eye + fixed * np.outer(sizes, sizes), slope)
        step *= min(1.0, 4.0 / max(float(np.abs(step).max()), TINY))
        decrease = float(slope @ step)
        for halvings in range(40):
            trial = delta + 0.5**halvings * step
            new, new_slope, new_hessian, new_q = curve(trial)
            # The last digits of the value carry no information; the slope then decides.
            if new <= value + 1e-4 * 0.5**halvings * decrease + 4e-16 * abs(value):
                break
        if np.abs(new_slope).max() >= 0.5 * np.abs(slope).max() and not new < value:
            break
        delta, value, slope, hessian, q = trial, new, new_slope, new_hessian, new_q
    return q
