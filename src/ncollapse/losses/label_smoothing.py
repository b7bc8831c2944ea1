"""Label smoothing: cross-entropy to targets that give every class a small share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ncollapse.losses.base import register
from ncollapse.losses.cross_entropy import SoftmaxLoss, smoothed_cross_entropy
from ncollapse.losses.inputs import check_smoothing


def label_smoothing(
    logits: Tensor, target: Tensor, *, alpha: float = 0.1, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Label smoothing: cross-entropy to (1 - alpha) y + alpha/K, all-losses Eq. 5.

    >>> import torch
    >>> label_smoothing(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), alpha=0.1)
    tensor(0.2269)
    """
    return smoothed_cross_entropy(logits, target, check_smoothing("alpha", alpha), weight, reduction)


@register("ls")
class LabelSmoothingLoss(SoftmaxLoss):
    """Cross-entropy to (1 - alpha) y + alpha/K (all-losses Eq. 5).

    >>> import torch
    >>> LabelSmoothingLoss(alpha=0.1)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.2269)
    """

    def __init__(
        self, alpha: float = 0.1, *, weight: Tensor | Sequence[float] | None = None, reduction: str = "mean"
    ) -> None:
        super().__init__(weight=weight, reduction=reduction)
        self.alpha = self.smoothing = check_smoothing("alpha", alpha)

    def params(self) -> dict[str, Any]:
        return {"alpha": self.alpha}
