"""The loss of a binary classifier with a single logit."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ncollapse.losses.base import Loss
from ncollapse.losses.cross_entropy import CELoss
from ncollapse.losses.inputs import check_weight, is_index, reduce, widen

Array = NDArray[np.float64]


def binary(logits: Tensor, target: Tensor, *, weight: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """One-logit loss for two classes, log(1 + e^-z) for class 1 and log(1 + e^z) for class 0.

    This is bce-vs-ce Eq. 22 with z = z_1 - z_0, and so equals the cross-entropy of (z_0, z_1); with the printed
    z = z_0 - z_1 its two cases are swapped. `logits` is [B] or [B, 1]; `target` holds indices [B], or floating-point
    probabilities of class 1 [B], or of both classes [B, 2].

    >>> import torch
    >>> binary(torch.tensor([2.0]), torch.tensor([1]))
    tensor(0.1269)
    """
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        kind = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise TypeError(f"logits: expected a floating-point tensor, got {kind}")
    if logits.ndim != 1 and not (logits.ndim == 2 and logits.shape[1] == 1):
        raise ValueError(f"logits: expected one number a sample, shape [B] or [B, 1], got {list(logits.shape)}")
    z = widen(logits).reshape(-1)
    check_weight(weight, 2)
    if isinstance(target, Tensor) and target.shape == z.shape and target.is_floating_point():
        target = torch.stack((1.0 - target, target), dim=1)
    index = is_index(target, len(z), 2)
    if index:
        values = -F.logsigmoid(torch.stack((-z, z), dim=1).gather(1, target.long().unsqueeze(1))).squeeze(1)
    else:
        y = target.to(z.dtype)
        values = -(y[:, 1] * F.logsigmoid(z) + y[:, 0] * F.logsigmoid(-z))
    return reduce(values, target, index, weight, reduction)


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
        return binary(logits, target, weight=self.weight, reduction=self.reduction)

    def evaluate_groups(self, z: Array, sizes: Array) -> tuple[Array, Array]:
        if sizes.sum() != 2:
            raise ValueError(f"num_classes: expected 2 for the one-logit loss, got {sizes.sum():g}")
        return CELoss().evaluate_groups(z, sizes)
