"""Mean squared error, plain or rescaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ncollapse.losses.base import Loss, register
from ncollapse.losses.forms import ConvexForm, SeparableForm
from ncollapse.losses.inputs import (
    check_class_reduction,
    check_positive,
    check_weight,
    is_index,
    one_hot,
    read_logits,
    reduce,
)

Array = NDArray[np.float64]


class Rescaling(NamedTuple):
    """Coefficients of positive/2 (z_k - goal)^2 + negative/2 sum_{l != k} z_l^2."""

    positive: float
    goal: float
    negative: float

    def coefficients(self, targets: Any) -> Any:
        """The coefficient of each squared error: `positive` where the target is 1, `negative` where it is 0."""
        return self.negative + (self.positive - self.negative) * targets


def rescaling(
    *, kappa: float | None = None, beta: float | None = None, alpha: float | None = None, M: float | None = None
) -> Rescaling:
    """Return the coefficients that the papers' parameters stand for.

    >>> rescaling(kappa=1.0, beta=15.0)
    Rescaling(positive=2.0, goal=15.0, negative=2.0)
    """
    given = {"kappa": kappa, "beta": beta, "alpha": alpha, "M": M}
    values = {name: check_positive(name, value) for name, value in given.items() if value is not None}
    if not values:
        return Rescaling(1.0, 1.0, 1.0)
    if values.keys() == {"alpha", "M"}:
        return Rescaling(values["alpha"], values["M"], 1.0)
    if values.keys() == {"kappa", "beta"}:
        return Rescaling(2.0 * values["kappa"], values["beta"], 2.0)
    raise ValueError(f"mse takes no parameter, alpha and M, or kappa and beta; got {', '.join(values)}")


def mse(
    logits: Tensor,
    target: Tensor,
    *,
    kappa: float | None = None,
    beta: float | None = None,
    alpha: float | None = None,
    M: float | None = None,
    class_reduction: str = "sum",
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Squared error in one of three forms, for the target class k:

    - no parameter: 1/2 |z - y|^2, mse-landscape Eq. 3;
    - `alpha`, `M`: alpha/2 (z_k - M)^2 + 1/2 sum_{l != k} z_l^2, mse-landscape Eq. 4;
    - `kappa`, `beta`: kappa (z_k - beta)^2 + sum_{l != k} z_l^2, all-losses Eq. 6.

    `class_reduction="mean"` divides by the number of classes, as the code of both papers does; their theorems sum.
    A soft target interpolates the coefficient and the goal: class l has goal M y_l and coefficient 1 + (alpha - 1) y_l.

    >>> import torch
    >>> mse(torch.tensor([[2.0, 1.0]]), torch.tensor([0]))
    tensor(1.)
    """
    scale = rescaling(kappa=kappa, beta=beta, alpha=alpha, M=M)
    z = read_logits(logits)
    check_weight(weight, z.shape[1])
    index = is_index(target, *z.shape)
    y = one_hot(target, z) if index else target.to(z.dtype)
    values = 0.5 * (scale.coefficients(y) * (z - scale.goal * y).square()).sum(1)
    if check_class_reduction(class_reduction) == "mean":
        values = values / z.shape[1]
    return reduce(values, target, index, weight, reduction)


@register("mse")
class MSELoss(Loss):
    """Squared error in the three forms of `functional.mse`.

    1/2 |z - y|^2 (mse-landscape Eq. 3); with `alpha`, `M` its Eq. 4; with `kappa`, `beta` all-losses Eq. 6.

    Args:
        class_reduction: "sum" over the classes, as in the theorems, or "mean", as in the code of both papers. The mean
            is the sum divided by K: it has the optimum of the sum at decays K times as large.

    >>> import torch
    >>> MSELoss(kappa=1, beta=15)(torch.tensor([[14.0, 2.0]]), torch.tensor([0]))
    tensor(5.)
    >>> MSELoss(kappa=1, beta=15, class_reduction="mean")(torch.tensor([[14.0, 2.0]]), torch.tensor([0]))
    tensor(2.5000)
    """

    contrastive = False

    def __init__(
        self,
        kappa: float | None = None,
        beta: float | None = None,
        alpha: float | None = None,
        M: float | None = None,
        *,
        class_reduction: str = "sum",
        weight: Tensor | Sequence[float] | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight=weight, reduction=reduction)
        self.scale = rescaling(kappa=kappa, beta=beta, alpha=alpha, M=M)
        self.class_reduction = check_class_reduction(class_reduction)
        given = {"kappa": kappa, "beta": beta, "alpha": alpha, "M": M}.items()
        self._params: dict[str, Any] = {name: float(value) for name, value in given if value is not None}
        if class_reduction == "mean":
            self._params["class_reduction"] = "mean"

    def params(self) -> dict[str, Any]:
        return dict(self._params)

    def scale_for(self, num_classes: float) -> Rescaling:
        """The coefficients after the reduction over K classes."""
        if self.class_reduction == "sum":
            return self.scale
        return Rescaling(self.scale.positive / num_classes, self.scale.goal, self.scale.negative / num_classes)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return mse(logits, target, **self._params, weight=self.weight, reduction=self.reduction)

    def evaluate_groups(self, z: Array, sizes: Array) -> tuple[Array, Array]:
        scale, first = self.scale_for(sizes.sum()), np.arange(len(sizes)) == 0
        weights, error = sizes * scale.coefficients(first), z - scale.goal * first
        return 0.5 * (weights * error**2).sum(axis=-1), weights * error

    def convex_form(self, targets: Array) -> ConvexForm:
        return QuadraticForm(self, targets)

    def separable_form(self, num_classes: int) -> SeparableForm:
        return QuadraticSlopes(*self.scale_for(num_classes))


class QuadraticForm(ConvexForm):
    """L*(q) = sum q^2 / (2 w) + t q, for the coefficients w and goals t of a target row."""

    def __init__(self, loss: MSELoss, targets: Array) -> None:
        super().__init__(loss, targets)
        scale = loss.scale_for(targets.shape[1])
        self.goals, self.weights = scale.goal * targets, scale.coefficients(targets)

    def conjugate(self, gradient: Array) -> Array:
        return np.asarray((gradient**2 / (2.0 * self.weights) + self.goals * gradient).sum(axis=1))

    def invert(self, gradient: Array) -> Array:
        return np.asarray(self.goals + gradient / self.weights)

    def confusion_cost(self, gradient: Array) -> Array:
        """min of the squared distance over two equal logits k, j: w_k w_j / (w_k + w_j) (z_k - z_j)^2 / 2."""
        z, w = self.invert(gradient), self.weights
        own, rows = self.targets.argmax(axis=1), np.arange(len(z))
        gap = z[rows, own][:, None] - z
        cost = np.maximum(gap, 0.0) ** 2 * w * w[rows, own][:, None] / (w + w[rows, own][:, None]) / 2
        cost[rows, own] = np.inf
        return np.asarray(cost.min(axis=1))

    def threshold_cost(self, gradient: Array, threshold: float) -> Array:
        own = self.targets == self.targets.max(axis=1, keepdims=True)
        room = np.where(own, 1.0, -1.0) * (self.invert(gradient) - threshold)
        return np.asarray((self.weights * np.maximum(room, 0.0) ** 2 / 2).min(axis=1))

    def least_curvature(self, gradient: Array, budget: float) -> float:
        return float(self.weights.min())

    def hessian(self, logits: Array, shares: Array, classes: NDArray[np.int64] | None = None) -> Array:
        diagonal = shares @ self.weights
        return np.asarray(diagonal if classes is None else np.bincount(classes, diagonal))

    def balance(self, gradient: Array, shares: Array) -> Array:
        return np.asarray(gradient - shares @ gradient)


@dataclass(frozen=True)
class QuadraticSlopes:
    """a/2 (pos - goal)^2 + c/2 sum neg^2."""

    a: float
    goal: float
    c: float

    def positive(self, p: float) -> float:
        return self.goal - p / self.a

    def negative(self, q: float) -> float:
        return q / self.c

    def gap(self, p: float, q: float) -> float:
        return max(0.0, self.goal - p / self.a - q / self.c)

    def d_positive(self, p: float) -> float:
        return -1 / self.a

    def d_negative(self, q: float) -> float:
        return 1 / self.c

    def level(self, beta: float, num_classes: int) -> float:
        return (num_classes * beta + self.a * self.goal) / ((num_classes - 1) * self.c + self.a)

    def d_level(self, beta: float, num_classes: int) -> float:
        return num_classes / ((num_classes - 1) * self.c + self.a)

    def total(self, t: float) -> float:
        return self.a * (self.goal - t) + self.c * t
