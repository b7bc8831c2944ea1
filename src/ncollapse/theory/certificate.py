"""`certify`: how far a last layer (W, H, b) is from the global minimum of its regularised objective."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ncollapse.console import clean
from ncollapse.heads import Head
from ncollapse.losses import Loss
from ncollapse.metrics.batches import Array, Batches, Labels
from ncollapse.metrics.classifier import HeadLike
from ncollapse.metrics.equality import NanEqual
from ncollapse.theory.dual import lower_bound
from ncollapse.theory.near_collapse import bound_geometry
from ncollapse.theory.point import Point, read_point, symmetrise
from ncollapse.theory.problem import Problem


@dataclass(frozen=True, eq=False)
class Certificate(NanEqual):
    """The result of `certify`. The objective of every (W, H, b) of the model lies above `lower_bound`.

    objective: f at the given point; data_loss: its first term, the mean loss.
    lower_bound: the dual bound; gap = objective - lower_bound >= objective - global minimum.
    dual_norm: the norm of the loss gradient over sqrt(lW lH). At a critical point, at most 1 means globally optimal and
        more than 1, with W of rank below d, a strict saddle (see `escape`). With more than 400 classes it is that of
        the gradient averaged over classes with equal counts, which may be smaller.
    features: the kind of features the bound is for, "free" or "relu".

    What the gap implies for the geometry (near-optimal implies near-collapsed):
    within_class_bound: the mean of |h - class mean|^2 over the samples is at most this.
    duality_bound: |W - W'|_F / |W|_F is at most this, W' a fixed linear image of the class means.
    accuracy_bound, uniform_accuracy_bound: these shares of the samples at least are classified correctly, and with one
        threshold for all classes; NaN where the loss gives no such bound.
    nc1_bound, nc2_bound, nc3_bound: `measure` finds no larger nc1, nc2 and nc3 at this point; for classes of equal
        count and weight, NaN otherwise.
    """

    objective: float
    data_loss: float
    lower_bound: float
    gap: float
    relative_gap: float
    dual_norm: float
    features: str
    num_samples: int
    within_class_bound: float = math.nan
    duality_bound: float = math.nan
    accuracy_bound: float = math.nan
    uniform_accuracy_bound: float = math.nan
    nc1_bound: float = math.nan
    nc2_bound: float = math.nan
    nc3_bound: float = math.nan

    @property
    def features_model(self) -> str:
        """The old name of `features`."""
        warnings.warn("Certificate.features_model is deprecated: use .features", DeprecationWarning, stacklevel=2)
        return self.features

    def to_dict(self) -> dict[str, Any]:
        """The fields as a plain dictionary."""
        return asdict(self)

    def to_json(self) -> str:
        """One JSON object; NaN is null."""
        return json.dumps(clean(self.to_dict()), allow_nan=False)


def certify(
    features: Array | Batches,
    labels: Labels | None = None,
    weight: Array | None = None,
    bias: Array | None = None,
    problem: Problem | str | Loss | None = None,
    *,
    head: HeadLike | None = None,
    **arguments: Any,
) -> Certificate:
    """Compute a lower bound on the objective of every (W, H, b), and how far this one lies above it.

    Args:
        features: [N, d] array or tensor on any device; or, with labels left out, a re-iterable of (features, labels).
        labels: [N] class indices, or soft targets [N, K] (mixup, distillation) with a problem given by batch_size.
        weight: [K, d].
        bias: [K], the threshold of z = W h - b; None for a classifier without one.
        head: instead of weight and bias, a `torch.nn.Linear` or any head.
        problem: the objective: loss, decays, kind of features and number of samples. A feature decay that acted on
            batches, lH/2 |H_batch|^2, is a problem with batch_size; it counts as lH * batch_size / N on the whole set.
            With class_counts or per_class each class counts as so many samples, equally spread over the ones given.
            With features="relu" the bound is for non-negative features only, which is tighter; the bound for "free"
            holds for every feature.
        arguments: instead of a `Problem`, the arguments that make one, as for `predict`: loss ("bce" by default),
            weight_decay, feature_decay, bias_decay, batch_size, class_counts, and the loss's own parameters. Without
            batch_size and class_counts the feature decay acts on all samples given.

    All sums are in float64, and the bound is rounded downward, so it is a bound in spite of rounding.

    >>> import torch
    >>> w = torch.eye(3) - 1 / 3
    >>> problem = Problem("ce", 3, per_class=1, weight_decay=0.01, feature_decay=0.01)
    >>> c = certify(3 * w, torch.arange(3), 3 * w, None, problem)
    >>> c.lower_bound < c.objective
    True
    """
    return certify_point(read_point(features, labels, weight, bias, problem, head, arguments))


def certify_point(point: Point) -> Certificate:
    """The certificate of a point that is averaged over its groups."""
    data_loss, objective = evaluate_objective(point)
    bound = lower_bound(point)
    norm = bound.norm
    averaged = symmetrise(point)
    if averaged is not None and (other := lower_bound(averaged)).value >= bound.value:
        point, bound = averaged, other
    gap = objective - bound.value
    implied = bound_geometry(point, bound, gap)
    return Certificate(
        objective=objective,
        data_loss=data_loss,
        lower_bound=bound.value + 0.0,  # no negative zero
        gap=gap,
        relative_gap=gap / objective if objective else math.nan,
        dual_norm=norm,
        features=point.problem.features,
        num_samples=point.num_samples,
        **{f"{name}_bound": value for name, value in implied._asdict().items()},
    )


def certify_if_known(features: Tensor, labels: Tensor, head: Any, problem: Problem | None) -> Certificate | None:
    """The certificate; None without a problem, for a loss without a bound, or if a class it counts was not measured."""
    if problem is None or problem.soft:
        return None
    if problem.loss.convex_form(np.eye(problem.num_classes)) is None:
        return None
    measured = problem.batch_size is not None and problem.class_counts is None
    if not measured:
        given = torch.bincount(labels, minlength=problem.num_classes)
        if bool(((given == 0) & (torch.tensor(problem.counts, device=given.device) > 0)).any()):
            return None
    return certify(features, labels, head=Head.of(head), problem=problem)


def evaluate_objective(point: Point) -> tuple[float, float]:
    """The mean loss, and the objective with the decays."""
    w = point.head.weight.detach().cpu().double()
    data_loss = float(point.shares @ point.losses)
    decays = point.problem.weight_decay * float(w.square().sum())
    decays += point.feature_decay * float(point.counts @ point.energies)
    if point.bias is not None:
        decays += point.problem.bias_decay * float(point.bias @ point.bias)
    return data_loss, data_loss + 0.5 * decays
