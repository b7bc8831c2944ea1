"""Focal loss over the softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ncollapse.losses.base import Loss, register
from ncollapse.losses.cross_entropy import CELoss
from ncollapse.losses.forms import ContrastiveForm, ConvexForm, Transition
from ncollapse.losses.inputs import check_gamma, check_weight, is_index, read_logits, reduce
from ncollapse.losses.rootfinding import find_root
from ncollapse.losses.softmax import group_leads, lead_of, log_probabilities
from ncollapse.losses.special import log_expit

Array = NDArray[np.float64]


def focal(
    logits: Tensor, target: Tensor, *, gamma: float = 3.0, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Focal loss over the softmax, -sum_k y_k (1 - p_k)^gamma log p_k: all-losses Eq. 4.

    (1 - p)^gamma is exp(gamma log(1 - p)) with log(1 - p) taken from the logits, so that neither the value nor the
    gradient is NaN at p = 1 for any gamma >= 0.

    >>> import torch
    >>> focal(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), gamma=0.5)
    tensor(0.0438)
    """
    gamma = check_gamma(gamma)
    z = read_logits(logits)
    check_weight(weight, z.shape[1])
    index = is_index(target, *z.shape)
    if index:
        lead, _ = lead_of(z, target.long().unsqueeze(1))
        values = -((gamma * F.logsigmoid(-lead)).exp() * F.logsigmoid(lead)).squeeze(1)
    else:
        log_p, log_rest = log_probabilities(z)
        values = -(target.to(z.dtype) * (gamma * log_rest).exp() * log_p).sum(1)
    return reduce(values, target, index, weight, reduction)


@register("focal")
class FocalLoss(Loss):
    """Softmax focal loss, (1 - p_k)^gamma (-log p_k) (all-losses Eq. 4).

    Not convex in the logits for gamma > 0, but convex where p_k >= `CONVEX_FROM`, for every gamma: see
    `in_convex_region`. all-losses (proof of Theorem 2) has 0.21; docs/theory.md, section 3, proves the sharp value.

    >>> import torch
    >>> FocalLoss(gamma=0.5)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.0438)
    """

    contrastive = True
    CONVEX_FROM = 0.05845

    def __init__(
        self, gamma: float = 3.0, *, weight: Tensor | Sequence[float] | None = None, reduction: str = "mean"
    ) -> None:
        super().__init__(weight=weight, reduction=reduction)
        self.gamma = check_gamma(gamma)

    @property
    def convex(self) -> bool:
        return self.gamma == 0.0

    def params(self) -> dict[str, Any]:
        return {"gamma": self.gamma}

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return focal(logits, target, gamma=self.gamma, weight=self.weight, reduction=self.reduction)

    def in_convex_region(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return for each sample [B] whether the probability of its class (indices [B]) is in the convex region.

        >>> import torch
        >>> FocalLoss().in_convex_region(torch.tensor([[2.0, 0.0], [-3.0, 0.0]]), torch.tensor([0, 0]))
        tensor([ True, False])
        """
        z = read_logits(logits)
        if not is_index(target, *z.shape):
            raise ValueError(
                "target: expected class indices [B], since the convex region is that of one class a sample"
            )
        return z.softmax(1).gather(1, target.long().unsqueeze(1)).squeeze(1) >= self.CONVEX_FROM

    def evaluate_groups(self, z: Array, sizes: Array) -> tuple[Array, Array]:
        lead, shares = group_leads(z, sizes)
        log_p, log_q = log_expit(lead), log_expit(-lead)
        factor = np.exp(self.gamma * log_q)
        slope = factor * (self.gamma * np.exp(log_p) * log_p - np.exp(log_q))
        return -factor * log_p, -slope[..., None] * shares

    def convex_form(self, targets: Array) -> ConvexForm | None:
        return CELoss().convex_form(targets) if self.convex else None

    def contrastive_form(self, num_classes: int) -> ContrastiveForm:
        return FocalGap(self, num_classes)


class FocalGap(ContrastiveForm):
    """The largest root of R(a) = (K - 1) mu with R = -dL/da = q^gamma (q - gamma p log p), q = 1 - p, or 0.

    R has a maximum at a positive gap if theta(K) < 0 (`_theta`); the gap then jumps to 0 at `transition.mu_c`.
    """

    loss: FocalLoss

    @property
    def collapse_mu(self) -> float:
        return self.transition.mu_c

    def gap(self, mu: float) -> float:
        k, gamma = self.num_classes, self.loss.gamma
        if mu >= self.transition.mu_c:
            return 0.0
        target = math.log(k - 1) + math.log(mu)
        low = self._peak if self.transition.first_order else 0.0
        high = math.log(k - 1) - (target - math.log1p(gamma)) / (gamma + 1)

        def excess(a: float) -> float:
            return self._log_pull(a) - target

        if excess(low) <= 0:
            return low
        # the bound is an equality in the limit of large a, where rounding may leave it on the wrong side
        return find_root(excess, low, high + 1e-9 * (1 + abs(high)))

    def d_gap(self, mu: float, gap: float) -> float:
        gamma = self.loss.gamma
        q, p, log_p = self._probabilities(gap)
        slope = gamma * log_p * (gamma * p - q) - q * (1 + 2 * gamma)
        return float((self.num_classes - 1) / (q**gamma * p * slope))

    @cached_property
    def transition(self) -> Transition:  # type: ignore[override]
        """The values of mu between which focal loss stops separating the classes (free features).

        >>> transition = FocalGap(FocalLoss(2.0), 100).transition
        >>> transition.first_order, round(transition.mu_c, 8)
        (True, 0.01115652)
        """
        k, gamma = self.num_classes, self.loss.gamma
        mu_lo = math.exp(self._log_pull(0.0)) / (k - 1)
        if gamma == 0 or _theta(math.log(k), gamma) >= 0:
            return Transition(mu_lo, mu_lo, mu_lo, False)
        peak = self._peak
        mu_hi = math.exp(self._log_pull(peak)) / (k - 1)
        start = self._value(0.0)

        def advantage(a: float) -> float:
            return self._value(a) + math.exp(self._log_pull(a)) * a - start

        high = math.log(k - 1) - (math.log(k - 1) + math.log(mu_lo) - math.log1p(gamma)) / (gamma + 1)
        mu_c = math.exp(self._log_pull(find_root(advantage, peak, high))) / (k - 1)
        return Transition(mu_lo, mu_c, mu_hi, True)

    @cached_property
    def _peak(self) -> float:
        """The gap a at which R is largest, in a first-order problem."""
        log_xi = find_root(lambda x: _theta(x, self.loss.gamma), 1e-9, math.log(self.num_classes))
        return math.log(self.num_classes - 1) - math.log(math.expm1(log_xi))

    def _probabilities(self, a: float) -> tuple[float, float, float]:
        """(1 - p, p, log p) for the softmax probability p of the target, each accurate near 0."""
        x = math.log(self.num_classes - 1) - a
        tail = math.exp(-abs(x))
        small, large = tail / (1 + tail), 1 / (1 + tail)
        return (small, large, math.log1p(-small)) if x < 0 else (large, small, math.log(small))

    def _value(self, a: float) -> float:
        q, _, log_p = self._probabilities(a)
        return float(-(q**self.loss.gamma) * log_p)

    def _log_pull(self, a: float) -> float:
        q, p, log_p = self._probabilities(a)
        return self.loss.gamma * math.log(q) + math.log(q - self.loss.gamma * p * log_p)


def _theta(log_xi: float, gamma: float) -> float:
    """R peaks where theta(1/p) = 0 (all-losses B.2, whose constant gamma + 1 + 1/gamma should read 2 + 1/gamma)."""
    return -log_xi + gamma * log_xi / math.expm1(log_xi) + 2 + 1 / gamma
