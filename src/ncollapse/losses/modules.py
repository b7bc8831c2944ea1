"""The losses as Modules, each with its value and derivatives as a function of (positive, negative) logit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ncollapse.losses import functional
from ncollapse.losses.base import Loss
from ncollapse.losses.inputs import check_gamma, check_smoothing, is_index, read_logits
from ncollapse.losses.rescaling import rescaling

Array = NDArray[np.float64]
Weight = Tensor | Sequence[float] | None


def _log_sigmoid(x: Array) -> Array:
    return np.asarray(-np.logaddexp(0.0, -x))


def _sigmoid(x: Array) -> Array:
    return np.asarray(np.exp(_log_sigmoid(x)))


def _smoothed_ce_at(pos: Array, neg: Array, num_classes: int, alpha: float) -> tuple[Array, Array, Array]:
    """Cross-entropy of (1 - alpha) y + alpha/K: log(1 + (K-1) e^-a) + alpha (K-1)/K a with a = pos - neg."""
    gap = pos - neg
    odds = np.log(num_classes - 1) - gap
    share = alpha * (num_classes - 1) / num_classes
    slope = -_sigmoid(odds) + share
    return -_log_sigmoid(-odds) + share * gap, slope, -slope


class SmoothableLoss(Loss):
    """A loss that can be taken to smoothed labels, (1 - alpha) y + alpha/K, on request."""

    def __init__(self, label_smoothing: float = 0.0, *, weight: Weight = None, reduction: str = "mean") -> None:
        super().__init__(weight=weight, reduction=reduction)
        self.label_smoothing = check_smoothing("label_smoothing", label_smoothing)

    def params(self) -> dict[str, float]:
        return {"label_smoothing": self.label_smoothing} if self.label_smoothing else {}


class CELoss(SmoothableLoss):
    """Cross-entropy (bce-vs-ce Eq. 1), optionally to smoothed labels.

    >>> import torch
    >>> CELoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.1269)
    """

    name = "ce"
    contrastive = True

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(
            logits, target, label_smoothing=self.label_smoothing, weight=self.weight, reduction=self.reduction
        )

    def _at(self, pos: Array, neg: Array, num_classes: int) -> tuple[Any, Any, Any]:
        return _smoothed_ce_at(pos, neg, num_classes, self.label_smoothing)


class LabelSmoothingLoss(Loss):
    """Cross-entropy to (1 - alpha) y + alpha/K (all-losses Eq. 5).

    >>> import torch
    >>> LabelSmoothingLoss(alpha=0.1)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.2269)
    """

    name = "ls"
    contrastive = True

    def __init__(self, alpha: float = 0.1, *, weight: Weight = None, reduction: str = "mean") -> None:
        super().__init__(weight=weight, reduction=reduction)
        self.alpha = check_smoothing("alpha", alpha)

    def params(self) -> dict[str, float]:
        return {"alpha": self.alpha}

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return functional.label_smoothing(
            logits, target, alpha=self.alpha, weight=self.weight, reduction=self.reduction
        )

    def _at(self, pos: Array, neg: Array, num_classes: int) -> tuple[Any, Any, Any]:
        return _smoothed_ce_at(pos, neg, num_classes, self.alpha)


class FocalLoss(Loss):
    """Softmax focal loss, (1 - p_k)^gamma (-log p_k) (all-losses Eq. 4).

    Not convex in the logits for gamma > 0, but convex where p_k >= `CONVEX_FROM`, for every gamma (all-losses, proof of
    Theorem 2): see `in_convex_region`.

    >>> import torch
    >>> FocalLoss(gamma=0.5)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.0438)
    """

    name = "focal"
    contrastive = True
    CONVEX_FROM = 0.21

    def __init__(self, gamma: float = 3.0, *, weight: Weight = None, reduction: str = "mean") -> None:
        super().__init__(weight=weight, reduction=reduction)
        self.gamma = check_gamma(gamma)

    @property
    def convex(self) -> bool:
        return self.gamma == 0.0

    def params(self) -> dict[str, float]:
        return {"gamma": self.gamma}

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return functional.focal(logits, target, gamma=self.gamma, weight=self.weight, reduction=self.reduction)

    def in_convex_region(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return for each sample [B] whether the probability of its class (indices [B]) is at least 0.21.

        >>> import torch
        >>> FocalLoss().in_convex_region(torch.tensor([[2.0, 0.0], [-2.0, 0.0]]), torch.tensor([0, 0]))
        tensor([ True, False])
        """
        z = read_logits(logits)
        if not is_index(target, *z.shape):
            raise ValueError("target must hold class indices [B]: the convex region is that of one class a sample")
        return z.softmax(1).gather(1, target.long().unsqueeze(1)).squeeze(1) >= self.CONVEX_FROM

    def _at(self, pos: Array, neg: Array, num_classes: int) -> tuple[Any, Any, Any]:
        odds = np.log(num_classes - 1) - (pos - neg)
        log_p, log_q = _log_sigmoid(-odds), _log_sigmoid(odds)
        factor = np.exp(self.gamma * log_q)
        slope = factor * (self.gamma * np.exp(log_p) * log_p - np.exp(log_q))
        return -factor * log_p, slope, -slope


class BCELoss(SmoothableLoss):
    """Binary cross-entropy over K sigmoids, summed over the classes (bce-vs-ce Eq. 2).

    >>> import torch
    >>> BCELoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.8201)
    """

    name = "bce"
    contrastive = False

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return functional.binary_cross_entropy(
            logits, target, label_smoothing=self.label_smoothing, weight=self.weight, reduction=self.reduction
        )

    def _at(self, pos: Array, neg: Array, num_classes: int) -> tuple[Any, Any, Any]:
        low = self.label_smoothing / num_classes
        high = 1.0 - self.label_smoothing + low
        rest = num_classes - 1
        value = -(high * _log_sigmoid(pos) + (1.0 - high) * _log_sigmoid(-pos))
        value = value - rest * (low * _log_sigmoid(neg) + (1.0 - low) * _log_sigmoid(-neg))
        d_pos = (1.0 - high) * _sigmoid(pos) - high * _sigmoid(-pos)
        return value, d_pos, rest * ((1.0 - low) * _sigmoid(neg) - low * _sigmoid(-neg))


class MSELoss(Loss):
    """Squared error in the three forms of `functional.mse`.

    1/2 |z - y|^2 (mse-landscape Eq. 3); with `alpha`, `M` its Eq. 4; with `kappa`, `beta` all-losses Eq. 6.

    >>> import torch
    >>> MSELoss(kappa=1, beta=15)(torch.tensor([[14.0, 2.0]]), torch.tensor([0]))
    tensor(5.)
    """

    name = "mse"
    contrastive = False

    def __init__(
        self,
        kappa: float | None = None,
        beta: float | None = None,
        alpha: float | None = None,
        M: float | None = None,
        *,
        weight: Weight = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight=weight, reduction=reduction)
        self.scale = rescaling(kappa=kappa, beta=beta, alpha=alpha, M=M)
        given = {"kappa": kappa, "beta": beta, "alpha": alpha, "M": M}.items()
        self._params = {name: float(value) for name, value in given if value is not None}

    def params(self) -> dict[str, float]:
        return dict(self._params)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return functional.mse(logits, target, **self._params, weight=self.weight, reduction=self.reduction)

    def _at(self, pos: Array, neg: Array, num_classes: int) -> tuple[Any, Any, Any]:
        positive, goal, negative = self.scale
        rest = (num_classes - 1) * negative
        return 0.5 * positive * (pos - goal) ** 2 + 0.5 * rest * neg**2, positive * (pos - goal), rest * neg


class BinaryLoss(Loss):
    """One logit for two classes, z = z_1 - z_0: log(1 + e^-z) for class 1, log(1 + e^z) for class 0 (bce-vs-ce Eq. 22).

    Equal to `CELoss` on (z_0, z_1). `logits` is [B] or [B, 1].

    >>> import torch
    >>> BinaryLoss()(torch.tensor([2.0]), torch.tensor([1]))
    tensor(0.1269)
    """

    name = "binary"
    contrastive = True

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return functional.binary(logits, target, weight=self.weight, reduction=self.reduction)

    def _at(self, pos: Array, neg: Array, num_classes: int) -> tuple[Any, Any, Any]:
        if num_classes != 2:
            raise ValueError(f"num_classes must be 2 for the one-logit loss, got {num_classes}")
        return _smoothed_ce_at(pos, neg, 2, 0.0)


_LOSSES: dict[str, type[Loss]] = {
    "ce": CELoss,
    "bce": BCELoss,
    "focal": FocalLoss,
    "ls": LabelSmoothingLoss,
    "mse": MSELoss,
}
LOSS_NAMES = tuple(_LOSSES)


def make_loss(loss: str | Loss, **params: Any) -> Loss:
    """Return the loss of that name, or the loss object itself; parameters that are None take the loss's default.

    >>> make_loss("focal", gamma=2)
    FocalLoss(gamma=2)
    """
    params = {name: value for name, value in params.items() if value is not None}
    if isinstance(loss, Loss):
        if params:
            raise TypeError(f"a loss object takes no further parameters, got {', '.join(params)}")
        return loss
    if loss not in _LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSS_NAMES)} or a loss object, got {loss!r}")
    try:
        return _LOSSES[loss](**params)
    except TypeError as error:
        raise TypeError(f"loss {loss!r}: {str(error).partition('() ')[2] or error}") from None
