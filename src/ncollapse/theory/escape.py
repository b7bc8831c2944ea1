"""`escape`: a direction of descent at a strict saddle of the last layer's objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ncollapse.heads import Head
from ncollapse.losses import Loss
from ncollapse.metrics.batches import open_source
from ncollapse.theory.copositive import maximise_on_cone
from ncollapse.theory.dual import dual_columns
from ncollapse.theory.point import Point, read_point
from ncollapse.theory.problem import Problem

Array = NDArray[np.float64]
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
    problem: Problem | str | Loss | None = None,
    *,
    head: Any = None,
    **arguments: Any,
) -> Escape | None:
    """Find a direction of negative curvature at a critical point that is not a global minimum; None if there is none.

    The arguments are those of `certify`. With (u, v) the pair of unit vectors that maximises u^T G v for the
    class-averaged gradient G, and W alpha = 0, |alpha| = 1:

        dW = -(lH/lW)^(1/4) u alpha^T        dH = (lW/lH)^(1/4) alpha v^T

    For features="relu", v >= 0 and alpha is the axis of a unit whose features and weights are 0, so that H + t dH >= 0.
    None if |G v| <= sqrt(lW lH) for all such v, where a critical point is globally optimal, or if there is no alpha (W
    has rank d, or no unit is dead). Slope and curvature are computed at the point as it is, critical or not.

    >>> import torch
    >>> zero = torch.zeros(3, 3)
    >>> problem = Problem("ce", 3, per_class=1, weight_decay=0.01, feature_decay=0.01)
    >>> e = escape(zero, torch.arange(3), zero, None, problem)
    >>> round(e.curvature, 6)  # -2 (1/3 * 1 - 0.01): the gradient at the origin is (1/3 - I) / 3
    -0.646667
    """
    point = read_point(features, labels, weight, bias, problem, head, arguments, dense=True)
    if point.soft:
        raise ValueError("labels: expected class indices [N], got soft targets")
    u, v, norm = steepest_atom(point)
    alpha = _null_vector(point.head) if point.problem.features == "free" else _dead_unit(features, labels, point)
    if norm <= point.tau or alpha is None:
        return None
    ratio = (point.feature_decay / point.problem.weight_decay) ** 0.25
    by_class = np.zeros(point.problem.num_classes)
    by_class[point.labels] = v
    d_weight = -ratio * torch.outer(torch.from_numpy(u), alpha)
    d_features = torch.outer(torch.from_numpy(by_class), alpha) / ratio
    slope, curvature = _derivatives(features, labels, point, d_weight, d_features)
    return Escape(d_weight, d_features, slope, curvature)


def steepest_atom(point: Point) -> tuple[Array, Array, float]:
    """The pair (u, v) of unit vectors that maximises u^T Y v, v >= 0 for ReLU features, and the maximum.

    v is given by its one value for each sample of a group, [G].
    """
    columns = dual_columns(point.gradients, point)
    if point.problem.features == "relu":
        _, v = maximise_on_cone(columns @ columns.T)
    else:
        v = np.linalg.svd(columns.T)[2][0]
    image = columns.T @ v
    norm = float(np.linalg.norm(image))
    return image / norm if norm > 0 else image, v / np.sqrt(point.counts), norm


def _dead_unit(features: Any, labels: Any, point: Point) -> Tensor | None:
    """The axis of a unit whose features and weights are all 0, None if there is none."""
    source = open_source(features, labels)
    used = point.head.weight.detach().cpu().double().abs().amax(dim=0)
    for x, _ in source.read(source.rows(point.problem.num_classes)):
        used = torch.maximum(used, x.abs().amax(dim=0).cpu())
    dead = torch.nonzero(used == 0).flatten()
    return torch.eye(len(used), dtype=torch.float64)[dead[0]] if len(dead) else None


def _null_vector(head: Head) -> Tensor | None:
    weight = head.weight.detach().cpu().double()
    _, values, rows = torch.linalg.svd(weight, full_matrices=True)
    rank = int((values > _RANK_TOLERANCE * values.max()).sum()) if bool(values.max() > 0) else 0
    return rows[-1] if rank < weight.shape[1] else None


def _derivatives(features: Any, labels: Any, point: Point, d_weight: Tensor, d_features: Tensor) -> tuple[float, float]:
    source = open_source(features, labels)
    weight_decay, feature_decay = point.problem.weight_decay, point.feature_decay
    device = source.device
    present = torch.zeros(point.problem.num_classes, dtype=torch.float64, device=device)
    for _, y in source.read(source.rows(len(present))):
        present += torch.bincount(y, minlength=len(present))
    given = present.cpu().numpy()[point.labels]
    sample_weight, spread = (torch.zeros_like(present) for _ in range(2))
    sample_weight[point.labels] = torch.from_numpy(point.shares / given).to(device)
    spread[point.labels] = torch.from_numpy(point.counts / given).to(device)
    w, dw, dh = (part.detach().to(device, torch.float64) for part in (point.head.weight, d_weight, d_features))
    b = None if point.head.bias is None else point.head.bias.detach().to(device, torch.float64)
    offset = torch.from_numpy(point.offset).to(device)
    first = weight_decay * float((w * dw).sum())
    energy = float(torch.from_numpy(point.counts) @ d_features[point.labels].square().sum(dim=1))
    second = weight_decay * float(dw.square().sum()) + feature_decay * energy
    for x, y in source.read(source.rows(len(w))):
        logits = (x @ w.T if b is None else torch.addmm(-b, x, w.T)) + offset
        step = dh[y]
        turn, bend = x @ dw.T + step @ w.T, step @ dw.T
        with torch.enable_grad():
            t = torch.zeros((), dtype=torch.float64, device=device, requires_grad=True)
            value = sample_weight[y] @ point.form.loss(logits + t * turn + t * t * bend, y)
            (slope,) = torch.autograd.grad(value, t, create_graph=True)
            (curvature,) = torch.autograd.grad(slope, t)
        first += float(slope.detach()) + feature_decay * float(spread[y] @ torch.linalg.vecdot(x, step))
        second += float(curvature)
    return first, second
