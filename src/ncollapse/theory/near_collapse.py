"""Bounds on the geometry of a last layer from its certified gap: near-optimal implies near-collapsed.

With the dual point Y of the certificate the gap is a sum of terms that are not negative (docs/theory.md, section 5):

    gap = sum_i share_i FY(z_i, q_k)  +  1/2 |A + Y B / tau|^2  +  1/2 (|B|^2 - |Y B|^2 / tau^2)  +  bias term

with A = sqrt(lW) W, B = sqrt(lH) H [N, d] and FY the Fenchel-Young loss of a sample of class k. So each is at most the
gap. Y has equal columns within a class, so the deviations from the class means add lH/2 sum_i |h_i - mean_k|^2 to the
third term.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ncollapse.theory.dual import DualBound
from ncollapse.theory.point import Point


class NearCollapse(NamedTuple):
    """What a certified gap implies.

    within_class: an upper bound on the mean of |h_i - mean_k|^2 over the samples.
    duality: an upper bound on |W - W'|_F / |W|_F, W' = -sum_k n_k y_k mean_k^T sqrt(lH/lW) / tau a fixed linear image
        of the class means (their centred means, scaled, at a balanced optimum).
    accuracy, uniform_accuracy: lower bounds on the share of samples classified correctly, and with one threshold for
        all classes; NaN where the loss gives none.
    nc1, nc2, nc3: upper bounds on these metrics for equal classes; NaN for unequal ones, and where there is none.
    """

    within_class: float
    duality: float
    accuracy: float
    uniform_accuracy: float
    nc1: float = math.nan
    nc2: float = math.nan
    nc3: float = math.nan


def bound_geometry(point: Point, bound: DualBound, gap: float) -> NearCollapse:
    """The bounds that follow from a gap between the objective at `point` and the value of `bound`."""
    gap = max(gap, 0.0)
    size = float(point.head.weight.detach().double().square().sum().sqrt())
    duality = math.sqrt(2 * gap / point.problem.weight_decay) / size if size > 0 else math.nan
    accuracy = uniform = math.nan
    if not point.soft:
        q = bound.gradients
        accuracy = _share_left(point, point.form.confusion_cost(q), gap)
        z = point.form.invert(q)
        own = point.form.targets > 0
        threshold = (float(z[own].min()) + float(z[~own].max())) / 2
        uniform = _share_left(point, point.form.threshold_cost(q, threshold), gap)
    within = 2 * gap / (point.feature_decay * float(point.counts.sum()))
    return NearCollapse(within, duality, accuracy, uniform, *_bound_metrics(point, bound, gap))


def _bound_metrics(point: Point, bound: DualBound, gap: float) -> tuple[float, float, float]:
    """Bounds on nc1, nc2 and nc3 from a dual point that treats all classes alike (docs/theory.md, section 5).

    With A = sqrt(lW) W and B = sqrt(n lH) M for the class means M, both centred, and epsilon^2 = 2 gap:
    |A - t B| <= epsilon, t a number of the dual point, and |Z - a E| <= delta for the centred class logits
    Z = A B^T / (tau sqrt(n)) and the simplex E = I - J/K.
    """
    unknown = (math.nan,) * 3
    if point.symmetry is None or len(point.symmetry.sizes) > 1:
        return unknown
    k, q = point.problem.num_classes, bound.gradients
    n = float(point.counts.sum()) / k
    own, other = float(q[0, point.labels[0]]), float(q[0, (point.labels[0] + 1) % k])
    z = point.form.invert(q)[0]
    spread = float(z[point.labels[0]] - z[(point.labels[0] + 1) % k])
    t = (other - own) / (k * math.sqrt(n) * point.tau)
    curvature = point.form.least_curvature(q, k * gap)
    if curvature is None or not (curvature > 0.0 and spread > 0.0 and t > 0.0):
        return unknown
    epsilon, delta = math.sqrt(2 * gap), math.sqrt(2 * k * gap / curvature)
    scale, size = point.tau * math.sqrt(n), spread * math.sqrt(k - 1)
    weight = math.sqrt(point.problem.weight_decay) * float(point.head.weight.detach().double().square().sum().sqrt())
    features = math.sqrt(point.feature_decay * float(point.counts @ point.energies))
    floor = (scale * (spread - delta) - epsilon * features) / t  # of the eigenvalues of B B^T
    drift = epsilon * features / scale if point.problem.loss.contrastive else 0.0  # the mean of W is not in the loss
    return (
        2 * gap / (k * floor) if floor > 0 else math.inf,
        min(2.0, 2 * (delta + epsilon * weight / (t * scale)) / size),
        min(2.0, 2 * math.hypot(delta, drift) / size),
    )


def _share_left(point: Point, costs: np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None, gap: float) -> float:
    """At least this share of the samples is right: each wrong one of group g costs share_g costs_g / n_g of the gap.

    The cheapest groups may be wrong first, so the worst case fills them in the order of their cost a sample.
    """
    if costs is None:
        return math.nan
    price = costs * point.shares / point.counts  # of one sample of the group, in units of the objective
    left, wrong = gap, 0.0
    for g in np.argsort(price):
        affordable = point.counts[g] if price[g] * point.counts[g] <= left else left / price[g]
        wrong += affordable
        left -= affordable * price[g]
    return max(0.0, 1.0 - float(wrong) / float(point.counts.sum()))
