"""Binary cross-entropy over K sigmoids, summed over the classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ncollapse.losses.base import Loss, register
from ncollapse.losses.forms import TINY, ConvexForm, SeparableForm, least_probability, mixing
from ncollapse.losses.inputs import (
    check_most,
    check_smoothing,
    check_weight,
    is_index,
    mean_factor,
    one_hot,
    read_logits,
    reduce,
)
from ncollapse.losses.log_sigmoid import log_sigmoid_and_slope
from ncollapse.losses.softmax import sigmoid
from ncollapse.losses.special import expit, log_expit, xlog1py, xlogy

Array = NDArray[np.float64]
FAR = 1e18  # stands for an infinite logit, so that signs can still be compared


def binary_cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Binary cross-entropy over K sigmoids, summed: -sum_k y_k log s(z_k) + (1 - y_k) log s(-z_k), bce-vs-ce Eq. 2.

    torch.nn.BCEWithLogitsLoss averages over the K classes too, a factor K in every decay. `label_smoothing` replaces y
    by (1 - alpha) y + alpha/K. The entries of a soft target lie in [0, 1]; several may be 1.

    >>> import torch
    >>> binary_cross_entropy(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.8201)
    """
    alpha = check_smoothing("label_smoothing", label_smoothing)
    z = read_logits(logits)
    check_weight(weight, z.shape[1])
    index = is_index(target, *z.shape)
    y = one_hot(target, z) if index else target.to(z.dtype)
    if index and not alpha:
        terms = F.logsigmoid(torch.where(y.bool(), z, -z))
    else:
        if not index:
            check_most(target, 1.0)
        y = (1.0 - alpha) * y + alpha / z.shape[1]
        terms = y * F.logsigmoid(z) + (1.0 - y) * F.logsigmoid(-z)
    return reduce(-terms.sum(1), target, index, weight, reduction)


@register("bce")
class BCELoss(Loss):
    """Binary cross-entropy over K sigmoids, summed over the classes (bce-vs-ce Eq. 2).

    >>> import torch
    >>> BCELoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.8201)
    """

    contrastive = False

    def __init__(
        self,
        label_smoothing: float = 0.0,
        *,
        weight: Tensor | Sequence[float] | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight=weight, reduction=reduction)
        self.label_smoothing = check_smoothing("label_smoothing", label_smoothing)

    def params(self) -> dict[str, Any]:
        return {"label_smoothing": self.label_smoothing} if self.label_smoothing else {}

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return binary_cross_entropy(
            logits, target, label_smoothing=self.label_smoothing, weight=self.weight, reduction=self.reduction
        )

    def value_and_gradient(self, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        z = read_logits(logits.detach())
        if self.label_smoothing or self.weight is not None or not is_index(target, *z.shape):
            return super().value_and_gradient(logits, target)
        index = target.long().unsqueeze(1)
        signed = (-z).scatter_(1, index, z.gather(1, index))
        terms, slopes = log_sigmoid_and_slope(signed, -mean_factor(self.reduction, len(z)))
        gradient = (-slopes).scatter_(1, index, slopes.gather(1, index))
        return reduce(-terms.sum(1), target, True, None, self.reduction), gradient.to(logits.dtype)

    def evaluate_groups(self, z: Array, sizes: Array) -> tuple[Array, Array]:
        goal = np.full(len(sizes), self.label_smoothing / sizes.sum())
        goal[0] += 1.0 - self.label_smoothing
        value = -(sizes * (goal * log_expit(z) + (1.0 - goal) * log_expit(-z))).sum(axis=-1)
        return value, sizes * ((1.0 - goal) * sigmoid(z) - goal * sigmoid(-z))

    def evaluate_labels(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if self.label_smoothing:
            return super().evaluate_labels(logits, labels)
        own = labels[:, None]
        z = logits.scatter(1, own, -logits.gather(1, own))  # the loss is sum_l log(1 + e^z_l) in these
        slope = torch.sigmoid(z)
        return -F.logsigmoid(z.neg_()).sum(dim=1), slope.scatter_(1, own, -slope.gather(1, own))

    def convex_form(self, targets: Array) -> ConvexForm:
        return SigmoidForm(self, targets)

    def separable_form(self, num_classes: int) -> SeparableForm:
        floor = self.label_smoothing / num_classes
        return SigmoidSlopes(short=self.label_smoothing - floor, floor=floor)


class SigmoidForm(ConvexForm):
    """L*(q) = sum r log r + (1 - r) log(1 - r) with r = q + t in [0, 1], for the (smoothed) target t."""

    def __init__(self, loss: BCELoss, targets: Array) -> None:
        super().__init__(loss, targets)
        self.goals = (1.0 - loss.label_smoothing) * targets + loss.label_smoothing / targets.shape[1]

    def conjugate(self, gradient: Array) -> Array:
        # The entropy is the same for r and 1 - r: the one that is |q| where t is 0 or 1 keeps the digits of q.
        near = np.where(self.goals > 0.5, (1.0 - self.goals) - gradient, self.goals + gradient)
        near = np.clip(near, 0.0, 1.0)
        return np.asarray((xlogy(near, near) + xlog1py(1.0 - near, -near)).sum(axis=1))

    def invert(self, gradient: Array) -> Array:
        near = np.where(self.goals > 0.5, (1.0 - self.goals) - gradient, self.goals + gradient)
        near = np.clip(near, TINY, 1.0 - 2.0**-53)
        logit = np.log(near) - np.log1p(-near)
        return np.asarray(np.where(self.goals > 0.5, -logit, logit))

    def confusion_cost(self, gradient: Array) -> Array:
        """min KL over two equal logits k, j: both probabilities become the mean of r_k and r_j."""
        r = np.clip(gradient + self.goals, 0.0, 1.0)
        own, rows = self.targets.argmax(axis=1), np.arange(len(r))
        mine = r[rows, own][:, None]
        cost = _negative_entropy(mine) + _negative_entropy(r) - 2 * _negative_entropy((mine + r) / 2)
        cost = np.where(mine > r, cost, 0.0)
        cost[rows, own] = np.inf
        return np.asarray(cost.min(axis=1))

    def threshold_cost(self, gradient: Array, threshold: float) -> Array:
        """KL of the probabilities r to sigmoid(threshold), the least over the logits; 0 if r is on the wrong side."""
        r = np.clip(gradient + self.goals, 0.0, 1.0)
        cost = _negative_entropy(r) - r * log_expit(threshold) - (1.0 - r) * log_expit(-threshold)
        own = self.targets == self.targets.max(axis=1, keepdims=True)
        return np.asarray(np.where((r > expit(threshold)) == own, cost, 0.0).min(axis=1))

    def least_curvature(self, gradient: Array, budget: float) -> float:
        """p (1 - p) at the least p and at the least 1 - p: in between it is larger."""
        values = np.unique(np.clip(gradient + self.goals, 0.0, 1.0))
        ends = [least_probability(float(r), budget) for r in (*values, *(1.0 - values))]
        return min(p * (1.0 - p) for p in ends)

    def hessian(self, logits: Array, shares: Array, classes: NDArray[np.int64] | None = None) -> Array:
        diagonal = shares @ (expit(logits) * expit(-logits))
        return np.asarray(diagonal if classes is None else np.bincount(classes, diagonal))

    def balance(self, gradient: Array, shares: Array) -> Array:
        excess = shares @ gradient
        wanted = shares @ self.goals
        theta = mixing(excess, wanted, 1.0 - wanted)
        safe = np.where(theta > 0.0, theta, 1.0)
        row = wanted - np.where(theta > 0.0, (1.0 - theta) / safe, 0.0) * excess
        return np.asarray((1.0 - theta) * gradient + theta * (row - self.goals))


def _negative_entropy(r: Array) -> Array:
    return np.asarray(xlogy(r, r) + xlog1py(1.0 - r, -r))


@dataclass(frozen=True)
class SigmoidSlopes:
    """BCE whose target is 1 - `short` at the class and `floor` elsewhere (both 0 without label smoothing)."""

    short: float = 0.0
    floor: float = 0.0

    def positive(self, p: float) -> float:
        return -_logit(p + self.short)

    def negative(self, q: float) -> float:
        return _logit(q + self.floor)

    def gap(self, p: float, q: float) -> float:
        p, q = p + self.short, q + self.floor
        if p <= 0 or q <= 0:
            return FAR
        if p + q >= 1:
            return 0.0
        if min(p, q) < 1e-100:  # the quotient below may overflow
            return math.log1p(-p - q) - math.log(p) - math.log(q)
        return math.log1p((1 - p - q) / p / q)

    def d_positive(self, p: float) -> float:
        p += self.short
        return -1 / (p * (1 - p))

    def d_negative(self, q: float) -> float:
        q += self.floor
        return 1 / (q * (1 - q))

    def level(self, beta: float, num_classes: int) -> float:
        return _logit(beta + self._mean(num_classes))

    def d_level(self, beta: float, num_classes: int) -> float:
        x = beta + self._mean(num_classes)
        return 1 / (x * (1 - x))

    def total(self, t: float) -> float:
        return 1 - self.short - self.floor

    def _mean(self, num_classes: int) -> float:
        return (1 - self.short + (num_classes - 1) * self.floor) / num_classes


def _logit(x: float) -> float:
    if x <= 0:
        return -FAR
    if x >= 1:
        return FAR
    return math.log(x) - math.log1p(-x)
