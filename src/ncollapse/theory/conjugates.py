"""The convex losses as the dual bound needs them: responses, mean gradients, conjugates, optimal bias.

A convex loss of the logits z of a sample of class k is written with a *response* r(z), the part of its gradient that
does not depend on the class:

    cross-entropy, label smoothing   r = softmax(z)   q = r - t_k           L*(q) = sum r log r
    binary cross-entropy             r = sigmoid(z)   q = r - t_k           L*(q) = sum r log r + (1 - r) log(1 - r)
    squared error                    r = z            q = w_k (r - t_k)     L*(q) = sum q^2 / (2 w_k) + t_k q

with q the gradient and t_k the (smoothed) target. The gradient is affine in the response, so mean responses give mean
gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit, log_softmax, logit, xlogy
from torch import Tensor

from ncollapse.losses import BCELoss, BinaryLoss, Loss, MSELoss

Array = npt.NDArray[np.float64]
_TINY = 1e-300
_NEAR_ONE = 1.0 - 2.0**-53


class ConvexLoss(ABC):
    """One convex loss for K classes. `targets` and `weights` [K, K] hold t_k and w_k in row k (w_k = 1 but for MSE)."""

    targets: Array
    weights: Array

    @abstractmethod
    def evaluate(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The loss [B] and the response [B, K] of a batch of logits [B, K]."""

    @abstractmethod
    def conjugate(self, gradient: Array) -> Array:
        """L*_k(q_k) for the rows q_k of a [K, K] matrix."""

    @abstractmethod
    def prototypes(self, response: Array) -> Array:
        """The logits [K, K] whose responses are the rows of `response`."""

    @abstractmethod
    def curve(self, prototypes: Array, shares: Array) -> tuple[float, Array, Array]:
        """sum_k share_k L_k(z_k), the responses of the rows z_k, and the mean Hessian in z ([K, K] or its diagonal)."""

    def gradient(self, response: Array, labels: npt.NDArray[np.int64] | None = None) -> Array:
        """The gradients q of samples with these (mean) responses: row k of class k, or of the class `labels` gives."""
        rows = slice(None) if labels is None else labels
        return self.weights[rows] * (response - self.targets[rows])

    @abstractmethod
    def balance(self, gradient: Array, shares: Array) -> Array:
        """Change the rows q_k, inside the conjugate's domain, until sum_k share_k q_k = 0."""


class SoftmaxLoss(ConvexLoss):
    """Cross-entropy with targets (1 - alpha) e_k + alpha / K."""

    def __init__(self, num_classes: int, alpha: float) -> None:
        self.alpha = alpha
        self.targets = (1.0 - alpha) * np.eye(num_classes) + alpha / num_classes
        self.weights = np.ones((num_classes, 1))

    def evaluate(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax(logits, dim=1)
        value = -(1.0 - self.alpha) * _pick(log_p, labels)
        if self.alpha:
            value = value - self.alpha * log_p.mean(dim=1)
        return value, log_p.exp()

    def conjugate(self, gradient: Array) -> Array:
        p = np.maximum(gradient + self.targets, 0.0)
        return np.asarray(xlogy(p, p).sum(axis=1))

    def prototypes(self, response: Array) -> Array:
        return np.log(np.maximum(response, _TINY))

    def curve(self, prototypes: Array, shares: Array) -> tuple[float, Array, Array]:
        log_p = log_softmax(prototypes, axis=1)
        p = np.exp(log_p)
        value = -float(shares @ (self.targets * log_p).sum(axis=1))
        return value, p, np.diag(shares @ p) - (p.T * shares) @ p

    def balance(self, gradient: Array, shares: Array) -> Array:
        excess = shares @ gradient
        wanted = shares @ self.targets
        # Mix in one common row that carries the opposite excess; it stays a distribution for this much mixing and more.
        mixed = _mixing(excess, wanted, np.full_like(wanted, np.inf))
        theta = float(mixed.max())
        if theta == 0.0:
            return gradient
        row = wanted - (1.0 - theta) / theta * excess
        return (1.0 - theta) * gradient + theta * (row - self.targets)


class SigmoidLoss(ConvexLoss):
    """Binary cross-entropy summed over the classes, with targets in [0, 1]."""

    def __init__(self, num_classes: int, smoothing: float) -> None:
        self.smoothing = smoothing
        self.targets = (1.0 - smoothing) * np.eye(num_classes) + smoothing / num_classes
        self.weights = np.ones((num_classes, 1))

    def evaluate(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        value = -torch.nn.functional.logsigmoid(-logits).sum(dim=1) - (1.0 - self.smoothing) * _pick(logits, labels)
        if self.smoothing:
            value = value - self.smoothing * logits.mean(dim=1)
        return value, torch.sigmoid(logits)

    def conjugate(self, gradient: Array) -> Array:
        s = np.clip(gradient + self.targets, 0.0, 1.0)
        return np.asarray((xlogy(s, s) + xlogy(1.0 - s, 1.0 - s)).sum(axis=1))

    def prototypes(self, response: Array) -> Array:
        return np.asarray(logit(np.clip(response, _TINY, _NEAR_ONE)))

    def curve(self, prototypes: Array, shares: Array) -> tuple[float, Array, Array]:
        s = np.asarray(expit(prototypes))
        value = float(shares @ (np.logaddexp(0.0, prototypes) - self.targets * prototypes).sum(axis=1))
        return value, s, shares @ (s * (1.0 - s))

    def balance(self, gradient: Array, shares: Array) -> Array:
        excess = shares @ gradient
        wanted = shares @ self.targets
        theta = _mixing(excess, wanted, 1.0 - wanted)
        safe = np.where(theta > 0.0, theta, 1.0)
        row = wanted - np.where(theta > 0.0, (1.0 - theta) / safe, 0.0) * excess
        return (1.0 - theta) * gradient + theta * (row - self.targets)


class SquaredLoss(ConvexLoss):
    """A/2 (z_k - B)^2 + C/2 sum_{l != k} z_l^2."""

    def __init__(self, num_classes: int, target_weight: float, target: float, other_weight: float) -> None:
        eye = np.eye(num_classes)
        self.target_weight, self.target, self.other_weight = target_weight, target, other_weight
        self.targets = target * eye
        self.weights = (target_weight - other_weight) * eye + other_weight

    def evaluate(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        picked = _pick(logits, labels)
        value = self.other_weight * (logits.square().sum(dim=1) - picked.square())
        return 0.5 * (value + self.target_weight * (picked - self.target).square()), logits

    def conjugate(self, gradient: Array) -> Array:
        return np.asarray((gradient**2 / (2.0 * self.weights) + self.targets * gradient).sum(axis=1))

    def prototypes(self, response: Array) -> Array:
        return response

    def curve(self, prototypes: Array, shares: Array) -> tuple[float, Array, Array]:
        value = 0.5 * float(shares @ (self.weights * (prototypes - self.targets) ** 2).sum(axis=1))
        return value, prototypes, shares @ self.weights

    def balance(self, gradient: Array, shares: Array) -> Array:
        return gradient - shares @ gradient


def convex_loss(loss: Loss, num_classes: int) -> ConvexLoss:
    """The dual side of a loss, or ValueError where it has none (focal is not convex)."""
    if not loss.convex or isinstance(loss, BinaryLoss):
        raise ValueError(
            f"loss {loss.name!r} has no dual bound here; the convex losses 'ce', 'bce', 'ls' and 'mse' have one"
        )
    if isinstance(loss, MSELoss):
        return SquaredLoss(num_classes, *loss.scale)
    if isinstance(loss, BCELoss):
        return SigmoidLoss(num_classes, loss.label_smoothing)
    return SoftmaxLoss(num_classes, getattr(loss, "alpha", 0.0) or getattr(loss, "label_smoothing", 0.0))


def recentre(loss: ConvexLoss, response: Array, shares: Array, bias: Array, bias_decay: float) -> Array:
    """The responses of the class prototypes after minimising over the bias.

    Minimises sum_k share_k L_k(z_k - delta) + bias_decay / 2 |b + delta|^2 over delta by Newton's method, z_k the
    logits whose responses are the class means. For a collapsed point this is the exact minimum of the objective over b.
    """
    z = loss.prototypes(response)
    eye = np.eye(len(bias))

    def curve(delta: Array) -> tuple[float, Array, Array, Array]:
        value, r, hessian = loss.curve(z - delta, shares)
        shifted = bias + delta
        slope = bias_decay * shifted - shares @ loss.gradient(r)
        return value + 0.5 * bias_decay * float(shifted @ shifted), slope, hessian, r

    delta = np.zeros_like(bias)
    value, slope, hessian, r = curve(delta)
    for _ in range(60):
        if np.abs(slope).max() * len(bias) < 1e-15:
            break
        if hessian.ndim == 1:
            step = -slope / np.maximum(hessian + bias_decay, _TINY)
        else:
            # Adding a constant to every logit leaves a softmax as it is: without bias decay that direction is fixed.
            fixed = hessian.trace() / len(bias) if bias_decay == 0.0 else 0.0
            ridge = bias_decay + 1e-15 * hessian.trace()
            step = -np.linalg.solve(hessian + ridge * eye + fixed, slope)
        step *= min(1.0, 4.0 / max(float(np.abs(step).max()), _TINY))
        decrease = float(slope @ step)
        for halvings in range(40):
            trial = delta + 0.5**halvings * step
            new, new_slope, new_hessian, new_r = curve(trial)
            # The last digits of the value carry no information; the slope then decides.
            if new <= value + 1e-4 * 0.5**halvings * decrease + 4e-16 * abs(value):
                break
        if np.abs(new_slope).max() >= 0.5 * np.abs(slope).max() and not new < value:
            break
        delta, value, slope, hessian, r = trial, new, new_slope, new_hessian, new_r
    return r


def _mixing(excess: Array, below: Array, above: Array) -> Array:
    """Per entry, the least theta in [0, 1] with -above <= (1 - theta) / theta * excess <= below."""
    room = np.where(excess > 0.0, below, above)
    with np.errstate(divide="ignore", invalid="ignore"):
        theta = np.abs(excess) / (np.abs(excess) + room)
    return np.where(excess == 0.0, 0.0, np.nan_to_num(theta, nan=1.0))


def _pick(values: Tensor, labels: Tensor) -> Tensor:
    # Labels out of range are found, and refused, at the end of the pass.
    return values.gather(1, labels.clamp(0, values.shape[1] - 1)[:, None])[:, 0]
