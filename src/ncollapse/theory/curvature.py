"""The way down from a strict saddle of the last layer's objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ncollapse.heads import Head
from ncollapse.losses import Loss
from ncollapse.metrics.batches import open_source
from ncollapse.theory.certificate import Setting, read_setting
from ncollapse.theory.responses import Summary

_RANK_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Escape:
    """A direction (dW, dH, db = 0) along which the objective bends down.

    weight [K, d]: the change of W. features [K, d]: its row k is added to every feature of class k.
    slope, curvature: the first and second derivative of t -> f(W + t dW, H + t dH, b) at t = 0. At a critical point the
    slope is 0 and the curvature is -2 (|G|_2 - sqrt(lW lH)), with G the gradient of the loss in the logits.
    """

    weight: Tensor
    features: Tensor
    slope: float
    curvature: float


def escape(
    features: Any,
    labels: Any = None,
    weight: Any = None,
    bias: Any = None,
    loss: str | Loss = "bce",
    *,
    weight_decay: float,
    feature_decay: float,
    bias_decay: float = 0.0,
    batch_size: float | None = None,
    head: Any = None,
    class_counts: Any = None,
    **loss_params: Any,
) -> Escape | None:
    """Find the direction that leads down from a critical point that is not a global minimum, or None without one.

    The arguments are those of `certify`. With (u, v) the top singular pair of the class-averaged gradient G, and
    W alpha = 0, |alpha| = 1:

        dW = (lH/lW)^(1/4) u alpha^T        dH = -(lW/lH)^(1/4) alpha v^T

    None if |G|_2 <= sqrt(lW lH), where a critical point is globally optimal, or if W has rank d, so that no alpha
    exists. The slope and curvature are computed at the point as it is, critical or not.

    >>> import torch
    >>> zero = torch.zeros(3, 3)
    >>> e = escape(zero, torch.arange(3), zero, None, "ce", weight_decay=0.01, feature_decay=0.01)
    >>> round(e.curvature, 6)  # -2 (1/3 * 1 - 0.01): the gradient at the origin is (1/3 - I) / 3
    -0.646667
    """
    decays = {"weight_decay": weight_decay, "feature_decay": feature_decay, "bias_decay": bias_decay}
    point = read_setting(features, labels, weight, bias, loss, decays, batch_size, head, class_counts, loss_params)
    u, v, norm = _top_pair(point)
    alpha = _null_vector(point.head)
    if norm <= point.decays.tau or alpha is None:
        return None
    ratio = (point.decays.feature / point.decays.weight) ** 0.25
    d_weight = ratio * torch.outer(torch.from_numpy(u), alpha)
    d_features = -torch.outer(torch.from_numpy(v), alpha) / ratio
    slope, curvature = _derivatives(features, labels, point, d_weight, d_features)
    return Escape(d_weight, d_features, slope, curvature)


def _top_pair(point: Setting) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], float]:
    """The top singular pair of the averaged gradient: u [K], and v given by its one value in each class [K]."""
    summary = point.summary
    roots = np.sqrt(np.where(summary.counts > 0, summary.counts, 1.0))
    columns = (point.loss.gradient(summary.responses) * (summary.shares / roots)[:, None]).T
    left, values, right = np.linalg.svd(columns)
    return left[:, 0], right[0] / roots, float(values[0])


def _null_vector(head: Head) -> Tensor | None:
    weight = head.weight.detach().cpu().double()
    _, values, rows = torch.linalg.svd(weight, full_matrices=True)
    rank = int((values > _RANK_TOLERANCE * values.max()).sum()) if bool(values.max() > 0) else 0
    return rows[-1] if rank < weight.shape[1] else None


def _derivatives(
    features: Any, labels: Any, point: Setting, d_weight: Tensor, d_features: Tensor
) -> tuple[float, float]:
    source = open_source(features, labels)
    summary, decays = point.summary, point.decays
    given = np.where(summary.given > 0, summary.given, 1.0)
    device = source.device
    sample_weight = torch.from_numpy(summary.shares / given).to(device)
    spread = torch.from_numpy(summary.counts / given).to(device)
    w, dw, dh = (part.detach().to(device, torch.float64) for part in (point.head.weight, d_weight, d_features))
    b = None if point.head.bias is None else point.head.bias.detach().to(device, torch.float64)
    first = decays.weight * float((w * dw).sum())
    second = decays.weight * float(dw.square().sum()) + decays.feature * _energy(summary, d_features)
    for x, y in source.read(source.rows(len(w))):
        logits = x @ w.T if b is None else torch.addmm(-b, x, w.T)
        step = dh[y]
        turn, bend = x @ dw.T + step @ w.T, step @ dw.T
        with torch.enable_grad():
            t = torch.zeros((), dtype=torch.float64, device=device, requires_grad=True)
            value = sample_weight[y] @ point.loss.evaluate(logits + t * turn + t * t * bend, y)[0]
            (slope,) = torch.autograd.grad(value, t, create_graph=True)
            (curvature,) = torch.autograd.grad(slope, t)
        first += float(slope.detach()) + decays.feature * float(spread[y] @ torch.linalg.vecdot(x, step))
        second += float(curvature)
    return first, second


def _energy(summary: Summary, rows: Tensor) -> float:
    return float(torch.from_numpy(summary.counts) @ rows.square().sum(dim=1))
