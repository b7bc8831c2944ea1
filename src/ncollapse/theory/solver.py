"""The numerical minimiser, for every problem, closed form or not."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import Bounds, minimize
from torch import Tensor

from ncollapse.theory.certificate import Certificate, certify
from ncollapse.theory.problem import Problem

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Solution:
    """The best point found: features [K, d] (one a class), weight [K, d] and bias [K] (a threshold; None without one).

    `objectives` are those of all restarts, `slope` is the largest entry of the (projected, scaled) gradient.
    """

    problem: Problem
    features: Tensor
    labels: Tensor
    weight: Tensor
    bias: Tensor | None
    objective: float
    objectives: tuple[float, ...]
    slope: float

    @cached_property
    def certificate(self) -> Certificate | None:
        """How far from the global minimum this is at most; None for losses that are not convex in the logits."""
        if not self.problem.loss.convex:
            return None
        counted = self.problem.replace(class_counts=self.problem.counts)
        return certify(self.features, self.labels, self.weight, self.bias, counted)


def solve(problem: Problem, *, restarts: int = 6, seed: int = 0, max_iterations: int = 20_000) -> Solution:
    """Minimise over W, H and b with L-BFGS (bounded for H >= 0) in float64, keeping the best of several starts.

    All samples of a class share their feature: for given W and b each minimises the same function. `dim=None` takes
    d = K, which loses nothing. The first start is a noisy orthogonal frame, the others are random at several scales.

    >>> solution = solve(Problem("ce", 3, per_class=1, weight_decay=0.05, feature_decay=0.05))
    >>> round(solution.objective, 8), solution.certificate.gap < 1e-8
    (0.39439769, True)
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a Problem, not {problem!r}; Problem(loss, num_classes, ...) makes one")
    if restarts < 1:
        raise ValueError(f"restarts must be at least 1, not {restarts}")
    model = _Model(problem)
    generator = np.random.default_rng(seed)
    found = [model.descend(model.start(index, generator), max_iterations) for index in range(restarts)]
    objectives = tuple(objective for objective, _, _ in found)
    objective, point, slope = min(found, key=lambda item: item[0])
    features, weight, bias = model.read(point)
    return Solution(
        problem=problem,
        features=torch.from_numpy(features),
        labels=torch.arange(problem.num_classes),
        weight=torch.from_numpy(weight),
        bias=None if bias is None else torch.from_numpy(bias),
        objective=objective,
        objectives=objectives,
        slope=slope,
    )


class _Model:
    """The objective in scaled factors: W = t U, h_k = V_k sqrt(n/n_k) / t, so that both cost mu/2 |.|^2."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.k, self.d = problem.num_classes, problem.dim or problem.num_classes
        counts = np.asarray(problem.counts)
        self.shares = counts / counts.sum()
        self.reach = np.sqrt(problem.per_class / counts)[:, None]
        self.loss = copy.deepcopy(problem.loss)
        self.loss.reduction = "none"
        self.targets = torch.arange(self.k)
        self.relu = problem.features == "relu"

    def start(self, index: int, generator: np.random.Generator) -> Array:
        shape = (self.k, self.d)
        if index == 0:
            u, v = np.eye(*shape) - 1 / self.k, np.eye(*shape)
            noise = 0.05
        else:
            u, v = np.zeros(shape), np.zeros(shape)
            noise = (1.0, 0.2, 3.0)[index % 3]
        u = u + noise * generator.standard_normal(shape) / math.sqrt(self.d)
        v = v + noise * generator.standard_normal(shape) / math.sqrt(self.d)
        bias = np.zeros(self.k if self.problem.bias else 0)
        return np.concatenate([u.ravel(), (np.abs(v) if self.relu else v).ravel(), bias])

    def split(self, point: Array) -> tuple[Array, Array, Array]:
        size = self.k * self.d
        return point[:size].reshape(self.k, -1), point[size : 2 * size].reshape(self.k, -1), point[2 * size :]

    def evaluate(self, point: Array) -> tuple[float, Array]:
        """The objective and its gradient."""
        u, v, bias = self.split(point)
        problem, mu = self.problem, self.problem.mu
        scores = self.reach * (v @ u.T)
        logits = torch.from_numpy(scores - bias if problem.bias else scores).requires_grad_()
        losses = self.loss(logits, self.targets)
        losses.backward(torch.from_numpy(self.shares))
        assert logits.grad is not None
        pull = logits.grad.numpy()
        value = float(self.shares @ losses.detach().numpy())
        value += mu / 2 * (float(u.ravel() @ u.ravel()) + float(v.ravel() @ v.ravel()))
        value += problem.bias_decay / 2 * float(bias @ bias)
        scaled = self.reach * pull
        gradient = [(scaled.T @ v + mu * u).ravel(), (scaled @ u + mu * v).ravel()]
        if problem.bias:
            gradient.append(problem.bias_decay * bias - pull.sum(axis=0))
        return value, np.concatenate(gradient)

    def descend(self, point: Array, max_iterations: int) -> tuple[float, Array, float]:
        size = self.k * self.d
        bounds = None
        if self.relu:
            low = np.full(len(point), -np.inf)
            low[size : 2 * size] = 0.0
            bounds = Bounds(low)
        options: Any = {
            "maxiter": max_iterations,
            "maxfun": 2 * max_iterations,
            "ftol": 0.0,
            "gtol": 1e-13,
            "maxcor": 30,
        }
        value = math.inf
        for _ in range(10):  # a failed line search at rounding level ends a run: a fresh memory goes on
            result = minimize(self.evaluate, point, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
            before, value, point = value, float(result.fun), np.asarray(result.x)
            if not value < before:
                break
        gradient = self.evaluate(point)[1]
        if self.relu:
            part = slice(size, 2 * size)
            gradient[part] = np.where(point[part] > 0, gradient[part], np.minimum(gradient[part], 0.0))
        return value, point, float(np.abs(gradient).max())

    def read(self, point: Array) -> tuple[Array, Array, Array | None]:
        """Features, weight and bias in the problem's own scale."""
        u, v, bias = self.split(point)
        t = math.sqrt(self.problem.balance)
        if self.problem.loss.contrastive and self.problem.bias_decay == 0:
            bias = bias - bias.mean() if len(bias) else bias
        return v * self.reach / t, u * t, bias if self.problem.bias else None
