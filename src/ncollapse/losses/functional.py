"""The losses as functions: each sums over the classes and averages over the samples.

    loss(logits [B, K], target [B] of class indices or [B, K] soft, ..., weight=None, reduction="mean")

Half-precision logits are widened to float32 first. Nothing here waits for the device or branches on data, so every
function can be compiled and captured in a CUDA graph.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ncollapse.losses.inputs import (
    check_gamma,
    check_smoothing,
    check_weight,
    is_index,
    one_hot,
    read_logits,
    reduce,
    widen,
)
from ncollapse.losses.rescaling import rescaling


def _lead(z: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return a = z_k - log sum_{j != k} e^{z_j} [B, 1] of the classes k [B, 1], p_k = sigma(a), and their mask [B, K].

    log_softmax rounds p to 1 at a lead of 17 in float32, and with it the loss and its gradient to 0. logsigmoid(a) and
    logsigmoid(-a) keep log p and log(1 - p), and their gradients, to full relative precision.
    """
    mask = torch.zeros_like(z, dtype=torch.bool).scatter(1, index, True)
    # Not -inf: where every z_j is -inf, their logsumexp has the gradient NaN, and the lead is infinite.
    others = z.masked_fill(mask, torch.finfo(z.dtype).min).logsumexp(1, keepdim=True)
    return z.gather(1, index) - others, mask


def _log_softmax(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p and log(1 - p) [B, K] of every class; only the largest p can be near 1, and it has its lead."""
    top = z.argmax(1, keepdim=True)
    lead, mask = _lead(z, top)
    # The 0 is z_max - z_max: as a difference, its gradient 1 - 1 would round away the small rest of the gradient.
    log_p = (z - z.gather(1, top)).masked_fill(mask, 0.0) + F.logsigmoid(lead)
    # The stand-in -1 keeps log1p differentiable where p rounds to 1.
    log_rest = torch.where(mask, F.logsigmoid(-lead), torch.log1p(-log_p.masked_fill(mask, -1.0).exp()))
    return log_p, log_rest


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Cross-entropy, -sum_k y_k log p_k with p = softmax(z): bce-vs-ce Eq. 1, all-losses Eq. 3.

    `label_smoothing` replaces y by (1 - alpha) y + alpha/K, as in `label_smoothing`.

    >>> import torch
    >>> cross_entropy(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.1269)
    """
    alpha = check_smoothing("label_smoothing", label_smoothing)
    return _smoothed_cross_entropy(logits, target, alpha, weight, reduction)


def label_smoothing(
    logits: Tensor, target: Tensor, *, alpha: float = 0.1, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Label smoothing: cross-entropy to (1 - alpha) y + alpha/K, all-losses Eq. 5.

    >>> import torch
    >>> label_smoothing(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), alpha=0.1)
    tensor(0.2269)
    """
    return _smoothed_cross_entropy(logits, target, check_smoothing("alpha", alpha), weight, reduction)


def _smoothed_cross_entropy(
    logits: Tensor, target: Tensor, alpha: float, weight: Tensor | None, reduction: str
) -> Tensor:
    z = read_logits(logits)
    check_weight(weight, z.shape[1])
    index = is_index(target, *z.shape)
    if index and not alpha:
        lead, _ = _lead(z, target.long().unsqueeze(1))
        values = -F.logsigmoid(lead).squeeze(1)
    else:
        y = one_hot(target, z) if index else target.to(z.dtype)
        log_p, _ = _log_softmax(z)
        values = -(((1.0 - alpha) * y + alpha / z.shape[1]) * log_p).sum(1)
    return reduce(values, target, index, weight, reduction)


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
        lead, _ = _lead(z, target.long().unsqueeze(1))
        values = -((gamma * F.logsigmoid(-lead)).exp() * F.logsigmoid(lead)).squeeze(1)
    else:
        log_p, log_rest = _log_softmax(z)
        values = -(target.to(z.dtype) * (gamma * log_rest).exp() * log_p).sum(1)
    return reduce(values, target, index, weight, reduction)


def binary_cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Binary cross-entropy over K sigmoids, summed: -sum_k y_k log s(z_k) + (1 - y_k) log s(-z_k), bce-vs-ce Eq. 2.

    torch.nn.BCEWithLogitsLoss averages over the K classes too, a factor K in every decay. `label_smoothing` replaces y
    by (1 - alpha) y + alpha/K.

    >>> import torch
    >>> binary_cross_entropy(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(0.8201)
    """
    alpha = check_smoothing("label_smoothing", label_smoothing)
    z = read_logits(logits)
    check_weight(weight, z.shape[1])
    index = is_index(target, *z.shape)
    y = one_hot(target, z) if index else target.to(z.dtype)
    if index and not alpha:
        terms = F.logsigmoid(torch.where(y.bool(), z, -z))
    else:
        y = (1.0 - alpha) * y + alpha / z.shape[1]
        terms = y * F.logsigmoid(z) + (1.0 - y) * F.logsigmoid(-z)
    return reduce(-terms.sum(1), target, index, weight, reduction)


def mse(
    logits: Tensor,
    target: Tensor,
    *,
    kappa: float | None = None,
    beta: float | None = None,
    alpha: float | None = None,
    M: float | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Mean squared error in one of three forms, for the target class k:

    - no parameter: 1/2 |z - y|^2, mse-landscape Eq. 3;
    - `alpha`, `M`: alpha/2 (z_k - M)^2 + 1/2 sum_{l != k} z_l^2, mse-landscape Eq. 4;
    - `kappa`, `beta`: kappa (z_k - beta)^2 + sum_{l != k} z_l^2, all-losses Eq. 6.

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
    terms = (scale.negative + (scale.positive - scale.negative) * y) * (z - scale.goal * y).square()
    return reduce(0.5 * terms.sum(1), target, index, weight, reduction)


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
        raise TypeError(f"logits must be a floating-point tensor, got {kind}")
    if logits.ndim != 1 and not (logits.ndim == 2 and logits.shape[1] == 1):
        raise ValueError(f"logits must hold one number a sample, shape [B] or [B, 1], got {list(logits.shape)}")
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
