"""Cross-entropy over the softmax, to one-hot, soft or smoothed targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ncollapse.losses.base import Loss, register
from ncollapse.losses.forms import TINY, ContrastiveForm, ConvexForm, least_probability, mixing
from ncollapse.losses.inputs import (
    check_smoothing,
    check_weight,
    is_index,
    mean_factor,
    one_hot,
    read_logits,
    reduce,
)
from ncollapse.losses.log_sigmoid import log_sigmoid_and_slope
from ncollapse.losses.softmax import group_leads, lead_of, log_probabilities, sigmoid
from ncollapse.losses.special import log_expit, xlog1py, xlogy

Array = NDArray[np.float64]
Weight = Tensor | Sequence[float] | None


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Cross-entropy, -sum_k y_k log p_k with p = softmax(z): bce-vs-ce Eq. 1, all-losses Eq. 3.

    `label_smoothing` replaces y by (1 - alpha) y + alpha/K, as `LabelSmoothingLoss` does.

    >>> import torch
    >>> cross_entropy(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.1269)
    """
    alpha = check_smoothing("label_smoothing", label_smoothing)
    return smoothed_cross_entropy(logits, target, alpha, weight, reduction)


def smoothed_cross_entropy(
    logits: Tensor, target: Tensor, alpha: float, weight: Tensor | None, reduction: str
) -> Tensor:
    """Cross-entropy to the targets (1 - alpha) y + alpha/K."""
    z = read_logits(logits)
    check_weight(weight, z.shape[1])
    index = is_index(target, *z.shape)
    if index and not alpha:
        lead, _ = lead_of(z, target.long().unsqueeze(1))
        values = -F.logsigmoid(lead).squeeze(1)
    else:
        y = one_hot(target, z) if index else target.to(z.dtype)
        log_p, _ = log_probabilities(z)
        values = -(((1.0 - alpha) * y + alpha / z.shape[1]) * log_p).sum(1)
    return reduce(values, target, index, weight, reduction)


class SoftmaxLoss(Loss):
    """What cross-entropy and label smoothing share: all of it but the name of the smoothing parameter."""

    contrastive = True
    smoothing: float

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return smoothed_cross_entropy(logits, target, self.smoothing, self.weight, self.reduction)

    def value_and_gradient(self, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        z = read_logits(logits.detach())
        if self.smoothing or self.weight is not None or not is_index(target, *z.shape):
            return super().value_and_gradient(logits, target)
        index = target.long().unsqueeze(1)
        rest = z.scatter(1, index, torch.finfo(z.dtype).min)
        top = rest.amax(1, keepdim=True)
        others = rest.sub_(top).logsumexp(1, keepdim=True)
        log_p, slope = log_sigmoid_and_slope(z.gather(1, index) - top - others, -mean_factor(self.reduction, len(z)))
        gradient = (rest - others).exp_().mul_(-slope).scatter_(1, index, slope)
        return reduce(-log_p.squeeze(1), target, True, None, self.reduction), gradient.to(logits.dtype)

    def evaluate_groups(self, z: Array, sizes: Array) -> tuple[Array, Array]:
        lead, shares = group_leads(z, sizes)
        share = self.smoothing / sizes.sum()
        value = -log_expit(lead) + share * (sizes * (z[..., :1] - z)).sum(axis=-1)
        slopes = sigmoid(-lead)[..., None] * shares - share * sizes
        slopes[..., 0] += self.smoothing
        return value, slopes

    def evaluate_labels(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if self.smoothing:
            return super().evaluate_labels(logits, labels)
        # with a the lead of the own class over the others: L = -log sigmoid(a), and dL/da = -sigmoid(-a)
        own = labels[:, None]
        others = logits.scatter(1, own, -torch.inf)
        top = others.amax(dim=1, keepdim=True)
        terms = others.sub_(top).exp_()
        total = terms.sum(dim=1, keepdim=True)
        lead = logits.gather(1, own) - top - total.log()
        miss = torch.sigmoid(-lead)
        return -F.logsigmoid(lead).squeeze(1), terms.mul_(miss / total).scatter_(1, own, -miss)

    def convex_form(self, targets: Array) -> ConvexForm:
        return SoftmaxForm(self, targets)

    def contrastive_form(self, num_classes: int) -> ContrastiveForm:
        return SmoothedGap(self, num_classes)


@register("ce")
class CELoss(SoftmaxLoss):
    """Cross-entropy (bce-vs-ce Eq. 1), optionally to smoothed labels.

    >>> import torch
    >>> CELoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.1269)
    """

    def __init__(self, label_smoothing: float = 0.0, *, weight: Weight = None, reduction: str = "mean") -> None:
        super().__init__(weight=weight, reduction=reduction)
        self.label_smoothing = self.smoothing = check_smoothing("label_smoothing", label_smoothing)

    def params(self) -> dict[str, Any]:
        return {"label_smoothing": self.label_smoothing} if self.label_smoothing else {}


class SoftmaxForm(ConvexForm):
    """L*(q) = sum r log r with r = q + t >= 0, sum r = 1, for the (smoothed) target t."""

    def __init__(self, loss: SoftmaxLoss, targets: Array) -> None:
        super().__init__(loss, targets)
        if not np.allclose(targets.sum(axis=1), 1.0, atol=1e-9):
            raise ValueError(f"targets: expected rows that sum to 1 for {loss.name}, got {targets.sum(axis=1)}")
        self.goals = (1.0 - loss.smoothing) * targets + loss.smoothing / targets.shape[1]

    def conjugate(self, gradient: Array) -> Array:
        rest = np.maximum(gradient + self.goals, 0.0)
        # where t = 1, r = 1 + q loses the digits of q
        near = np.where(self.goals == 1.0, np.clip(gradient, -1.0, 0.0), 0.0)
        return np.asarray(np.where(self.goals == 1.0, xlog1py(1.0 + near, near), xlogy(rest, rest)).sum(axis=1))

    def invert(self, gradient: Array) -> Array:
        logits = np.log(np.maximum(gradient + self.goals, TINY))
        near = np.where((self.goals == 1.0) & (gradient > -0.5), gradient, 0.0)
        return np.asarray(np.where(near != 0.0, np.log1p(near), logits))

    def confusion_cost(self, gradient: Array) -> Array:
        """min KL(r || p) over p with p_k = p_j: both become the mean of r_k and r_j."""
        r = np.maximum(gradient + self.goals, 0.0)
        own, rows = self.targets.argmax(axis=1), np.arange(len(r))
        mine = r[rows, own][:, None]
        mean = (mine + r) / 2
        cost = xlogy(mine, mine) + xlogy(r, r) - 2 * xlogy(mean, mean)
        cost[rows, own] = np.inf
        return np.asarray(np.where(mine > r, cost, np.where(np.isinf(cost), cost, 0.0)).min(axis=1))

    def least_curvature(self, gradient: Array, budget: float) -> float:
        """The least probability: on centred x the Hessian diag(p) - p p^T is at least min p times |x|^2."""
        values = np.unique(np.maximum(gradient + self.goals, 0.0))
        return min(least_probability(min(float(r), 1.0), budget) for r in values)

    def hessian(self, logits: Array, shares: Array, classes: NDArray[np.int64] | None = None) -> Array:
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        if classes is not None:
            p = np.stack([np.bincount(classes, row) for row in p])
        return np.asarray(np.diag(shares @ p) - (p.T * shares) @ p)

    def balance(self, gradient: Array, shares: Array) -> Array:
        wanted = shares @ self.goals
        if (absent := wanted == 0.0).any():  # no target: the only probability that balances such a class is 0
            kept = np.where(absent, 0.0, np.maximum(gradient + self.goals, 0.0))
            gradient = kept / kept.sum(axis=1, keepdims=True) - self.goals
        excess = shares @ gradient
        # Mix in one common row that carries the opposite excess; it stays a distribution for this much mixing and more.
        theta = float(mixing(excess, wanted, np.full_like(wanted, np.inf)).max())
        if theta == 0.0:
            return gradient
        row = wanted - (1.0 - theta) / theta * excess
        return np.asarray((1.0 - theta) * gradient + theta * (row - self.goals))


class SmoothedGap(ContrastiveForm):
    """e^a = 1/(mu + alpha/K) - (K-1), or a = 0 where that has no positive root."""

    loss: SoftmaxLoss

    @property
    def collapse_mu(self) -> float:
        return (1 - self.loss.smoothing) / self.num_classes

    def gap(self, mu: float) -> float:
        k, alpha = self.num_classes, self.loss.smoothing
        return math.log1p(max(0.0, 1 - alpha - k * mu) / (mu + alpha / k))

    def d_gap(self, mu: float, gap: float) -> float:
        x = mu + self.loss.smoothing / self.num_classes
        return -1 / (x * (1 - (self.num_classes - 1) * x))
