"""Check the contrastive property under which the optimum is a simplex ETF (all-losses Def. 1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ncollapse.losses.base import Loss
from ncollapse.losses.forms import unreduced


class ContrastiveCheck(NamedTuple):
    """The parts of the property, each checked on many points.

    Attributes:
        attained: with equal negative logits the loss depends on t = sum_{j != k} (z_j - z_k) alone; that is phi(t).
        bounded: L(z, y_k) >= phi(t) everywhere (Eq. 9), strictly where the negative logits differ.
        minimised: phi(t) + c|t| has a single minimiser, and it is <= 0, for every c > 0 (Eq. 10).
    """

    attained: bool
    bounded: bool
    minimised: bool

    @property
    def holds(self) -> bool:
        """Whether all parts hold."""
        return self.attained and self.bounded and self.minimised


def check_contrastive(
    loss: Loss, num_classes: int, *, samples: int = 2000, spread: float = 4.0, seed: int = 0
) -> ContrastiveCheck:
    """Check the contrastive property on random logits of the given spread.

    It holds for cross-entropy, focal loss and label smoothing; BCE and MSE depend on more than differences of logits.

    >>> from ncollapse.losses import BCELoss, CELoss
    >>> check_contrastive(CELoss(), 10).holds, check_contrastive(BCELoss(), 10).holds
    (True, False)
    """
    rng = np.random.default_rng(seed)
    logits = spread * rng.standard_normal((samples, num_classes))
    k = rng.integers(num_classes, size=samples)
    positive = logits[np.arange(samples), k]
    t = logits.sum(1) - num_classes * positive
    bound = _bound(loss, t, num_classes)

    shift = spread * rng.standard_normal(samples)
    shifted = np.asarray(loss.at(shift - t / (num_classes - 1), shift, num_classes).value)
    attained = np.allclose(shifted, bound, rtol=1e-9, atol=1e-12)

    values = _values(loss, logits, k)
    slack = values - bound
    # Two logits leave one negative, which cannot differ from itself: there the bound is met everywhere.
    least = -1e-9 * (1.0 + np.abs(bound)) if num_classes == 2 else np.zeros(samples)
    return ContrastiveCheck(attained, bool((slack > least).all()), _has_single_minimiser(loss, num_classes))


def _bound(loss: Loss, t: NDArray[np.float64], num_classes: int) -> NDArray[np.float64]:
    return np.asarray(loss.at(-t / (num_classes - 1), 0.0, num_classes).value)


def _values(loss: Loss, logits: NDArray[np.float64], k: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the losses [B] of logits [B, K] through the loss's own forward, without class weights."""
    z, target = torch.from_numpy(logits), torch.from_numpy(k)
    if loss.name == "binary":
        z = z[:, 1] - z[:, 0]
    return np.asarray(unreduced(loss)(z, target).detach())


def _has_single_minimiser(loss: Loss, num_classes: int) -> bool:
    """Whether phi(t) + c|t| is least in one place, t <= 0, for a range of c; on a grid of gaps a = -t/(K-1)."""
    t = -(num_classes - 1) * np.linspace(-30.0, 60.0, 90_001)
    phi = _bound(loss, t, num_classes)
    steepest = np.abs(np.diff(phi) / np.diff(t)).max()
    for c in steepest * np.geomspace(1e-6, 2.0, 25):
        total = phi + c * np.abs(t)
        near = np.flatnonzero(total <= total.min() + 1e-9 * (1.0 + np.abs(total.min())))
        if t[total.argmin()] > 1e-9 or np.diff(near).max(initial=1) > 1:
            return False
    return True
