"""Certify how far a last layer (W, H, b) is from the global optimum of its regularised objective.

The objective is f = 1/N sum_i L(W h_i - b, y_i) + lW/2 |W|^2 + lH/2 |H|^2 + lb/2 |b|^2. For a loss that is convex in
the logits, every matrix Y [K, N] of spectral norm at most sqrt(lW lH) bounds it from below at every point, in any
dimension d:

    f(W, H, b) >= D(Y) = -1/N sum_i L*(N y_i) - |Y 1|^2 / (2 lb)     (lb = 0: Y 1 = 0; no bias: the term drops)

The gradient of the loss in the logits, scaled into the ball, is such a matrix, and at a global optimum D = f. Averaging
its columns within each class keeps it feasible and only raises D, so one pass that sums K x K responses is enough, for
any N.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ncollapse.heads import Head
from ncollapse.losses import Loss, make_loss
from ncollapse.theory.conjugates import Array, ConvexLoss, convex_loss, recentre
from ncollapse.theory.problem import FEATURES, check_number, check_range
from ncollapse.theory.responses import Summary, summarise


@dataclass(frozen=True)
class Certificate:
    """What `certify` found. The objective of every (W, H, b) of the model lies above `lower_bound`.

    objective: f at the given point; data_loss: its first term, the mean loss.
    lower_bound: the dual bound; gap = objective - lower_bound >= objective - global minimum.
    dual_norm: the norm of the loss gradient over sqrt(lW lH). At a critical point, at most 1 means globally optimal and
        more than 1, with W of rank below d, a strict saddle (see `escape`).
    """

    objective: float
    data_loss: float
    lower_bound: float
    gap: float
    relative_gap: float
    dual_norm: float
    features_model: str
    num_samples: int

    def to_dict(self) -> dict[str, Any]:
        """The fields as a plain dictionary."""
        return asdict(self)

    def to_json(self) -> str:
        """One JSON object; NaN is null."""
        from ncollapse.console import clean

        return json.dumps(clean(self.to_dict()), allow_nan=False)


@dataclass(frozen=True)
class Decays:
    """The three decays of one objective, the feature decay already per sample of the whole set."""

    weight: float
    feature: float
    bias: float

    @property
    def tau(self) -> float:
        """sqrt(lW lH), the radius of the dual ball."""
        return math.sqrt(self.weight) * math.sqrt(self.feature)  # their product may underflow


@dataclass(frozen=True)
class Setting:
    """A point and its objective: the classifier, the loss, the decays, and what one pass found in the samples."""

    head: Head
    loss: ConvexLoss
    decays: Decays
    summary: Summary


def certify(
    features: Any,
    labels: Any = None,
    weight: Any = None,
    bias: Any = None,
    loss: str | Loss = "bce",
    *,
    weight_decay: float,
    feature_decay: float,
    bias_decay: float = 0.0,
    batch_size: float | None = None,
    features_model: str = "free",
    head: Any = None,
    class_counts: Any = None,
    **loss_params: Any,
) -> Certificate:
    """Bound from below what any (W, H, b) can reach, and say how far this one is above.

    features [N, d] and labels [N] are arrays or tensors on any device; or, with labels left out, a re-iterable of such
    batches. weight [K, d], bias [K] is the threshold of z = W h - b; None means a classifier without one.
    Owners of a `torch.nn.Linear` pass `head=linear`.

    loss: "ce", "bce", "ls" or "mse" with its parameters, or a loss object. weight_decay, feature_decay and bias_decay
    are lW, lH and lb. A feature decay that acted on batches, lH/2 |H_batch|^2, is lH * batch_size / N on the whole set:
    pass batch_size. features_model="relu" bounds non-negative features only, which is tighter; the default "free" holds
    for every feature, ReLU ones included. class_counts [K]: each class stands for so many samples, equally spread over
    the ones given (the few rows of a configuration for a large set).

    All sums are in float64. Rounding in them moves the dual point, never the validity of its bound.

    >>> import torch
    >>> w = torch.eye(3) - 1 / 3
    >>> c = certify(3 * w, torch.arange(3), 3 * w, None, "ce", weight_decay=0.01, feature_decay=0.01)
    >>> c.lower_bound < c.objective
    True
    """
    if features_model not in FEATURES:
        raise ValueError(f"features_model is {features_model!r}; it is 'free' or 'relu'")
    relu = features_model == "relu"
    given = {"weight_decay": weight_decay, "feature_decay": feature_decay, "bias_decay": bias_decay}
    point = read_setting(features, labels, weight, bias, loss, given, batch_size, head, class_counts, loss_params, relu)
    summary, decays, head = point.summary, point.decays, point.head

    w = head.weight.detach().cpu().double()
    b = np.zeros(len(w)) if head.bias is None else head.bias.detach().double().cpu().numpy()
    data_loss = float(summary.shares @ summary.losses)
    energy = float(summary.counts @ summary.energies)
    objective = data_loss + 0.5 * (
        decays.weight * float(w.square().sum()) + decays.feature * energy + decays.bias * float(b @ b)
    )
    bound, norm = lower_bound(point.loss, summary, None if head.bias is None else b, decays, features_model)
    gap = objective - bound
    return Certificate(
        objective=objective,
        data_loss=data_loss,
        lower_bound=bound + 0.0,  # no negative zero
        gap=gap,
        relative_gap=gap / objective if objective else math.nan,
        dual_norm=norm,
        features_model=features_model,
        num_samples=int(summary.given.sum()),
    )


def lower_bound(
    loss: ConvexLoss, summary: Summary, bias: Array | None, decays: Decays, features_model: str = "free"
) -> tuple[float, float]:
    """The best dual bound found from the mean responses, and the norm of their gradient over sqrt(lW lH)."""
    shares = summary.shares
    plain = loss.gradient(summary.responses)
    norm = dual_norm(plain, summary, features_model)
    if bias is None:
        return _dual_value(loss, plain, norm, summary, bias, decays), norm / decays.tau
    # A bias still on its way would spoil the bound: its optimum for these class means is a better dual point.
    candidates = [plain, loss.gradient(recentre(loss, summary.responses, shares, bias, decays.bias))]
    if decays.bias == 0.0:
        candidates = [loss.balance(candidate, shares) for candidate in candidates]
    norms = [norm if q is plain else dual_norm(q, summary, features_model) for q in candidates]
    values = [_dual_value(loss, q, size, summary, bias, decays) for q, size in zip(candidates, norms)]
    return max(values), norm / decays.tau


def dual_norm(gradient: Array, summary: Summary, features_model: str = "free") -> float:
    """The norm of the class-averaged dual matrix Y, whose n_k columns of class k are q_k / N.

    free: |Y|_2, from the K x K Gram matrix M = (sqrt(n_k n_l) q_k.q_l / N^2). relu: max |Y v| over unit v >= 0 is at
    most the root of the largest eigenvalue of M, and of M with its negative off-diagonal entries set to 0; the smaller
    of the two is taken.
    """
    # share_k / n_k instead of 1 / N: the same, and right with class weights too.
    scaled = gradient * (summary.shares / np.sqrt(np.where(summary.counts > 0, summary.counts, 1.0)))[:, None]
    gram = scaled @ scaled.T
    matrices = [gram]
    if features_model == "relu":
        positive = np.maximum(gram, 0.0)
        # Eigenvalues are dear: a diagonal matrix has its own, which no other with that diagonal falls below.
        diagonal = positive.diagonal()
        if np.count_nonzero(positive) == np.count_nonzero(diagonal):
            return math.sqrt(diagonal.max())
        matrices = [positive] if (positive == gram).all() else [gram, positive]
    return math.sqrt(max(0.0, min(float(np.linalg.eigvalsh(matrix)[-1]) for matrix in matrices)))


def _dual_value(
    loss: ConvexLoss,
    q: Array,
    norm: float,
    summary: Summary,
    bias: Array | None,
    decays: Decays,
) -> float:
    """max over s in [0, s_max] of D(s Y), where s_max brings Y, of that norm, into the ball and the domain of L*."""
    shares = summary.shares
    total = shares @ q
    penalty = float(total @ total) / (2.0 * decays.bias) if bias is not None and decays.bias > 0.0 else 0.0
    largest = min(1.0, decays.tau / norm) if norm > 0.0 else 1.0

    def value(s: float) -> float:
        return -float(shares @ loss.conjugate(s * q)) - s * s * penalty

    best = value(largest)
    if value(largest * (1.0 - 1e-6)) > best:
        from scipy.optimize import minimize_scalar

        found = minimize_scalar(lambda s: -value(s), bounds=(0.0, largest), method="bounded", options={"xatol": 1e-9})
        best = max(best, value(0.0), -float(found.fun))
    return best


def read_setting(
    features: Any,
    labels: Any,
    weight: Any,
    bias: Any,
    loss: str | Loss,
    decays: dict[str, float],
    batch_size: float | None,
    head: Any,
    class_counts: Any,
    loss_params: dict[str, Any],
    non_negative: bool = False,
) -> Setting:
    """Check the arguments of `certify`, and go through the samples once."""
    if (head is None) == (weight is None):
        raise ValueError("the classifier is missing: give weight [K, d] and bias [K], or head, and not both")
    head = Head.of(head if head is not None else (weight, bias))
    known = _check_decays(**decays)
    made = make_loss(loss, **loss_params)
    convex = convex_loss(made, head.num_classes)
    summary = summarise(features, labels, head, convex, class_counts=class_counts, non_negative=non_negative)
    if made.weight is not None:
        if len(made.weight) != head.num_classes:
            raise ValueError(f"loss has {len(made.weight)} class weights; weight has {head.num_classes} rows")
        summary = replace(summary, weights=made.weight.detach().double().cpu().numpy())
    return Setting(head, convex, _spread(known, batch_size, float(summary.counts.sum())), summary)


def _check_decays(weight_decay: float, feature_decay: float, bias_decay: float) -> Decays:
    for name, value in (("weight_decay", weight_decay), ("feature_decay", feature_decay)):
        if not (math.isfinite(check_number(name, value)) and value > 0.0):
            raise ValueError(
                f"{name} is {value}; it must be positive: without it the objective has no minimum to certify"
            )
        check_range(name, value)
    if not (math.isfinite(check_number("bias_decay", bias_decay)) and bias_decay >= 0.0):
        raise ValueError(f"bias_decay is {bias_decay}; it must be at least 0")
    check_range("bias_decay", bias_decay)
    return Decays(float(weight_decay), float(feature_decay), float(bias_decay))


def _spread(decays: Decays, batch_size: float | None, num_samples: float) -> Decays:
    """Spread a feature decay that acted on batches over the whole set: lH * batch_size / N."""
    if batch_size is None:
        return decays
    if not (math.isfinite(check_number("batch_size", batch_size)) and batch_size > 0):
        raise ValueError(f"batch_size is {batch_size}; it must be positive")
    return replace(decays, feature=decays.feature * float(batch_size) / num_samples)
