"""The face that every loss shows: to a training loop a Module, to the theory a function of two scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from ncollapse.losses.inputs import check_reduction

Scalar = float | NDArray[np.float64]


class ScalarLoss(NamedTuple):
    """A loss at (positive logit, common negative logit), with its two derivatives; floats, or arrays of one shape."""

    value: Scalar
    d_pos: Scalar
    d_neg: Scalar


class Loss(nn.Module):
    """Base of the losses: `loss(logits, target)` with the target as class indices [B] or soft [B, K].

    Args:
        weight: a weight for each class, [K]; a sample weighs sum_k y_k weight_k.
        reduction: "mean" (over the samples, weighted), "sum" or "none".
    """

    name: ClassVar[str]
    contrastive: ClassVar[bool]
    weight: Tensor | None

    def __init__(self, *, weight: Tensor | Sequence[float] | None = None, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = check_reduction(reduction)
        if weight is not None:
            weight = torch.as_tensor(weight, dtype=torch.get_default_dtype())
            if weight.ndim != 1 or not bool((weight.isfinite() & (weight >= 0)).all()) or not bool(weight.any()):
                raise ValueError(f"weight must hold one finite number >= 0 a class, not all 0, got {weight.tolist()}")
        self.register_buffer("weight", weight)

    @property
    def convex(self) -> bool:
        """Whether the loss is convex in the logits."""
        return True

    def params(self) -> dict[str, float]:
        """Return the parameters that distinguish this loss from others of its name."""
        return {}

    def at(self, pos: ArrayLike, neg: ArrayLike, num_classes: int) -> ScalarLoss:
        """Return the loss of one sample whose target logit is `pos` and whose K - 1 other logits all equal `neg`.

        The derivatives are those of the value as a function of the two numbers: `d_neg` is the total derivative, the
        sum over the K - 1 negative logits. Computed in float64; arrays broadcast. Class weights do not enter.
        """
        if num_classes < 2:
            raise ValueError(f"num_classes must be at least 2, got {num_classes}")
        p, n = np.broadcast_arrays(np.asarray(pos, dtype=np.float64), np.asarray(neg, dtype=np.float64))
        parts = self._at(p, n, num_classes)
        return ScalarLoss(*(float(part) if p.ndim == 0 else np.asarray(part) for part in parts))

    def _at(self, pos: NDArray[np.float64], neg: NDArray[np.float64], num_classes: int) -> tuple[Any, Any, Any]:
        raise NotImplementedError

    def phi(self, t: ArrayLike, num_classes: int) -> Scalar:
        """Return the contrastive bound phi of all-losses Def. 1.

        L(z, y_k) >= phi(t) with t = sum_{j != k} (z_j - z_k), and equality only where all z_j, j != k, are equal.

        On such z the loss is a function of t alone, so phi(t) is the loss at pos - neg = -t/(K - 1).
        """
        if not self.contrastive:
            raise NotImplementedError(
                f"{self.name} has no contrastive bound: it depends on more than score differences"
            )
        return self.at(-np.asarray(t, dtype=np.float64) / (num_classes - 1), 0.0, num_classes).value

    def extra_repr(self) -> str:
        """Show the parameters, and what differs from the defaults."""
        shown = [f"{name}={value:g}" for name, value in self.params().items()]
        if self.weight is not None:
            shown.append(f"weight={self.weight.tolist()}")
        if self.reduction != "mean":
            shown.append(f"reduction={self.reduction!r}")
        return ", ".join(shown)
