"""The certificate, slow and obvious: the whole gradient by autograd, one dual column a sample, nothing averaged."""

from __future__ import annotations

import math

import numpy as np
import torch

from ncollapse.losses import BCELoss, LabelSmoothingLoss, Loss, MSELoss


def objective(h, y, w, b, loss: Loss, lw: float, lh: float, lb: float) -> float:
    """1/N sum L + lW/2 |W|^2 + lH/2 |H|^2 + lb/2 |b|^2, sample by sample."""
    total = 0.0
    for x, label in zip(h, y):
        z = np.array([float(np.dot(row, x)) for row in w]) - (0.0 if b is None else b)
        total += float(loss(torch.tensor(z)[None], torch.tensor([int(label)])))
    bias = 0.0 if b is None else float(np.sum(np.square(b)))
    return total / len(h) + lw / 2 * float(np.sum(np.square(w))) + lh / 2 * float(np.sum(np.square(h))) + lb / 2 * bias


def conjugate(loss: Loss, q: np.ndarray, label: int) -> float:
    """L*(q) = sup_z q.z - L(z, label), from the textbook formulas."""
    k = len(q)
    onehot = np.eye(k)[label]
    if isinstance(loss, MSELoss):
        a, goal, c = loss.scale
        weight = np.where(onehot > 0, a, c)
        return float(np.sum(q**2 / (2 * weight) + goal * onehot * q))
    if isinstance(loss, BCELoss):
        r = np.clip(q + onehot, 0, 1)
        return sum(_xlogx(p) + _xlogx(1 - p) for p in r)
    alpha = loss.alpha if isinstance(loss, LabelSmoothingLoss) else 0.0
    return sum(_xlogx(max(p, 0.0)) for p in q + (1 - alpha) * onehot + alpha / k)


def plain_bound(h, y, w, b, loss: Loss, lw: float, lh: float, lb: float) -> float:
    """D(s G) with G the gradient itself and s = min(1, sqrt(lW lH) / |G|_2). For no bias, or lb > 0."""
    z = torch.tensor(h @ w.T - (0.0 if b is None else b), requires_grad=True)
    loss(z, torch.tensor(y)).backward()
    gradient = z.grad.numpy()
    s = min(1.0, math.sqrt(lw * lh) / np.linalg.norm(gradient, 2))
    value = -sum(conjugate(loss, s * len(y) * gradient[i], int(y[i])) for i in range(len(y))) / len(y)
    if b is not None:
        value -= float(np.sum(np.square(s * gradient.sum(axis=0)))) / (2 * lb)
    return value


def _xlogx(p: float) -> float:
    return 0.0 if p <= 0.0 else p * math.log(p)
