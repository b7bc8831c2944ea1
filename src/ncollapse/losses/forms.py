"""What the theory needs to know about a loss besides its value.

A loss offers up to three forms. Each is optional; what a loss lacks, the functions of `ncollapse.theory` refuse by name
or replace by numerical minimisation.

- `ConvexForm`: the convex conjugate, for `certify`.
- `SeparableForm`: the inverse slopes of L = u(positive logit) + (K - 1) v(negative logit), for `predict`.
- `ContrastiveForm`: the optimal logit gap of a loss of logit differences, for `predict`.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ncollapse.losses.rootfinding import find_root

if TYPE_CHECKING:
    from ncollapse.losses.base import Loss

Array = NDArray[np.float64]
TINY = 1e-300


class ConvexForm(ABC):
    """A loss that is convex in the logits, for the samples of G groups with one target row each.

    targets [G, K]: the target rows y_g, one-hot for plain classes. Gradients q [G, K] are with respect to the logits.
    A subclass states the conjugate L*(q) = sup_z q.z - L(z, y), the inverse of the gradient map, and how to move
    gradients inside the domain of L*. Values and gradients themselves come from the loss's own function.
    """

    def __init__(self, loss: Loss, targets: Array) -> None:
        self.loss, self.targets = unreduced(loss), targets
        plain = bool(((targets == 0) | (targets == 1)).all() and (targets.sum(axis=1) == 1).all())
        self.labels = targets.argmax(axis=1) if plain else None

    @abstractmethod
    def conjugate(self, gradient: Array) -> Array:
        """L*(q_g) [G] of the rows of a [G, K] matrix."""

    @abstractmethod
    def invert(self, gradient: Array) -> Array:
        """The logits [G, K] at which the loss has these gradients."""

    @abstractmethod
    def balance(self, gradient: Array, shares: Array) -> Array:
        """Change the rows q_g, inside the domain of the conjugate, until sum_g share_g q_g = 0."""

    def confusion_cost(self, gradient: Array) -> Array | None:
        """The least Fenchel-Young loss of a sample of each group [G] whose class does not have the largest logit.

        The Fenchel-Young loss L(z) + L*(q_g) - q_g . z is 0 at the prototype z_g = `invert(q)` and positive elsewhere.
        For one-hot targets; None if it is not known.
        """
        return None

    def threshold_cost(self, gradient: Array, threshold: float) -> Array | None:
        """The same for a sample with its own logit below `threshold` or another above it; None if it is not known."""
        return None

    def least_curvature(self, gradient: Array, budget: float) -> float | None:
        """A lower bound on the curvature of the loss at all logits of Fenchel-Young loss at most `budget`.

        So |z - z_g|^2 <= 2 FY / curvature for them, z_g = `invert(q)` (for losses of logit differences: up to a common
        shift of the logits). None if it is not known.
        """
        return None

    def evaluate(self, logits: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
        """The losses [B] and their gradients [B, K] at logits [B, K] of samples of the groups [B]."""
        if self.labels is not None:
            return self.loss.evaluate_labels(logits, torch.from_numpy(self.labels).to(groups.device)[groups])
        return self.loss.value_and_gradient(logits, torch.from_numpy(self.targets).to(logits)[groups])

    def curve(
        self, logits: Array, shares: Array, classes: NDArray[np.int64] | None = None
    ) -> tuple[float, Array, Array]:
        """sum_g share_g L(z_g), the gradients [G, K] at the rows z_g, and the mean Hessian, as `hessian` gives it."""
        value, gradient = self.evaluate(torch.from_numpy(logits), torch.arange(len(logits)))
        return float(shares @ value.numpy()), gradient.numpy(), self.hessian(logits, shares, classes)

    def hessian(self, logits: Array, shares: Array, classes: NDArray[np.int64] | None = None) -> Array:
        """The mean Hessian sum_g share_g L''(z_g), [K, K] or its diagonal [K]; by automatic differentiation.

        With `classes` [K], the group of each class, the Hessian in one common shift of the logits of each group.
        """
        z, weights = torch.from_numpy(logits), torch.from_numpy(shares)
        target = torch.from_numpy(self.targets if self.labels is None else self.labels)
        member = torch.arange(z.shape[1]) if classes is None else torch.from_numpy(classes)

        def total(shift: Tensor) -> Tensor:
            value: Tensor = weights @ self.loss(z + shift[member], target)
            return value

        start = torch.zeros(int(member.max()) + 1, dtype=torch.float64)
        matrix = torch.autograd.functional.hessian(total, start)  # type: ignore[no-untyped-call]
        return np.asarray(matrix)


def unreduced(loss: Loss) -> Loss:
    """A copy of the loss that returns one value a sample, without class weights."""
    if any(True for _ in loss.parameters()) or any(True for _ in loss.buffers()):
        plain = copy.deepcopy(loss).to(torch.float64)
    else:  # there is nothing to convert, and a deep copy takes as long as a small batch
        plain = copy.copy(loss)
        plain._buffers = dict(loss._buffers)
    plain.weight, plain.reduction = None, "none"
    return plain


class SeparableForm(Protocol):
    """The inverses of the two slopes of L = u(pos) + (K - 1) v(neg): P = -u'(pos) and Q = v'(neg).

    positive(P), negative(Q): the logits with these slopes. gap(P, Q) = positive(P) - negative(Q), or 0 if that is not
    positive. d_positive, d_negative: their derivatives. level(beta, K): the common logit t of all classes at which
    beta = ((K - 1) Q - P) / K, and d_level its derivative. total(t): P + Q at the common logit t.
    """

    def positive(self, p: float) -> float: ...
    def negative(self, q: float) -> float: ...
    def gap(self, p: float, q: float) -> float: ...
    def d_positive(self, p: float) -> float: ...
    def d_negative(self, q: float) -> float: ...
    def level(self, beta: float, num_classes: int) -> float: ...
    def d_level(self, beta: float, num_classes: int) -> float: ...
    def total(self, t: float) -> float: ...


@dataclass(frozen=True)
class Transition:
    """Where a loss that is not convex stops separating the classes as mu grows.

    `mu_c` is where W = H = 0 becomes the global minimum. `first_order` transitions jump: between `mu_lo` and `mu_c`
    W = H = 0 is a spurious local minimum, between `mu_c` and `mu_hi` the separated state is one.
    """

    mu_lo: float
    mu_c: float
    mu_hi: float
    first_order: bool


class ContrastiveForm:
    """The minimiser a >= 0 of L(a, 0) + (K - 1) mu a, the logit gap of a loss of logit differences.

    This base class solves -dL/da = (K - 1) mu with the loss's own derivative and serves every convex loss. Losses with
    a formula override it.
    """

    transition: Transition | None = None

    def __init__(self, loss: Loss, num_classes: int) -> None:
        self.loss, self.num_classes = loss, num_classes

    @property
    def collapse_mu(self) -> float:
        """The mu from which on the gap is 0."""
        return self._pull(0.0) / (self.num_classes - 1)

    def gap(self, mu: float) -> float:
        """The optimal gap at the price mu."""
        if mu >= self.collapse_mu:
            return 0.0
        wanted, high = (self.num_classes - 1) * mu, 1.0
        while self._pull(high) > wanted:
            high *= 2
        return find_root(lambda a: self._pull(a) - wanted, 0.0, high)

    def d_gap(self, mu: float, gap: float) -> float:
        """da/dmu where the gap is positive."""
        step = 1e-5 * (1 + gap)
        return 2 * step * (self.num_classes - 1) / (self._pull(gap + step) - self._pull(gap - step))

    def _pull(self, a: float) -> float:
        return -float(self.loss.at(a, 0.0, self.num_classes).d_pos)


def least_probability(r: float, budget: float) -> float:
    """The smallest p with r log(r/p) + (1-r) log((1-r)/(1-p)) <= budget, rounded down."""
    if r <= 0.0:
        return 0.0

    def surplus(exponent: float) -> float:
        p = r * math.exp(exponent)
        rest = 0.0 if r >= 1.0 else (1.0 - r) * (math.log1p(-r) - math.log1p(-p))
        return rest - r * exponent - budget

    low = -1.0
    while surplus(low) < 0.0 and low > -1e6:
        low *= 2.0
    root = find_root(surplus, low, 0.0) if surplus(low) > 0.0 and budget > 0.0 else (0.0 if budget <= 0.0 else low)
    return r * math.exp(min(root, 0.0)) * (1.0 - 1e-9)


def mixing(excess: Array, below: Array, above: Array) -> Array:
    """Per entry, the least theta in [0, 1] with -above <= (1 - theta) / theta * excess <= below."""
    room = np.where(excess > 0.0, below, above)
    with np.errstate(divide="ignore", invalid="ignore"):
        theta = np.abs(excess) / (np.abs(excess) + room)
    return np.where(excess == 0.0, 0.0, np.nan_to_num(theta, nan=1.0))
