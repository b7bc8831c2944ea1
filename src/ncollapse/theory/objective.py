"""The objective of a problem as a function of one vector, for numerical minimisation."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ncollapse.losses.forms import unreduced
from ncollapse.theory.problem import Problem

Array = NDArray[np.float64]


class ScaledObjective:
    """f in scaled variables: W = t U, h_g = V_g sqrt(n/n_g) / t, b = s beta, so that U and V cost mu/2 |.|^2 each.

    A point is the concatenation of U [K, d], V [G, d] and beta [K] (empty without a bias). The scale s keeps a large
    bias decay from slowing the descent.
    """

    def __init__(self, problem: Problem, dim: int) -> None:
        self.problem, self.dim = problem, dim
        groups = problem.groups
        self.k, self.g = problem.num_classes, len(groups.counts)
        self.shares = groups.shares
        self.reach = np.sqrt(problem.per_class / groups.counts)[:, None]
        self.loss = unreduced(problem.loss)
        plain = groups.labels is not None
        self.targets = torch.from_numpy(groups.labels if plain else groups.targets)
        self.offset = np.array(problem.logit_offset or (0.0,) * self.k)
        self.relu = problem.features == "relu"
        self.bias_scale = 1.0 / math.sqrt(1.0 + 10.0 * problem.bias_decay)

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.k * self.dim, self.g * self.dim, self.k if self.problem.bias else 0

    def split(self, point: Array) -> tuple[Array, Array, Array]:
        """U, V and the bias b."""
        first, second, _ = self.sizes
        u, v = point[:first].reshape(self.k, -1), point[first : first + second].reshape(self.g, -1)
        return u, v, point[first + second :] * self.bias_scale

    def join(self, u: Array, v: Array, bias: Array) -> Array:
        """The point of U, V and b."""
        return np.concatenate([u.ravel(), v.ravel(), bias / self.bias_scale])

    def evaluate(self, point: Array) -> tuple[float, Array]:
        """The objective and its gradient."""
        u, v, bias = self.split(point)
        problem, mu = self.problem, self.problem.mu
        logits = self.reach * (v @ u.T) + self.offset
        if problem.bias:
            logits = logits - bias
        losses, gradient = self.loss.value_and_gradient(torch.from_numpy(logits), self.targets)
        pull = self.shares[:, None] * gradient.numpy()
        value = float(self.shares @ losses.numpy())
        value += mu / 2 * (float(u.ravel() @ u.ravel()) + float(v.ravel() @ v.ravel()))
        value += problem.bias_decay / 2 * float(bias @ bias)
        scaled = self.reach * pull
        parts = [(scaled.T @ v + mu * u).ravel(), (scaled @ u + mu * v).ravel()]
        if problem.bias:
            parts.append((problem.bias_decay * bias - pull.sum(axis=0)) * self.bias_scale)
        return value, np.concatenate(parts)

    def descend(
        self, point: Array, iterations: int, tolerance: float = 1e-13, deadline: float = math.inf
    ) -> tuple[float, Array]:
        """Minimise from a point with L-BFGS, bounded for V >= 0, until the processor time is past `deadline`."""
        from scipy.optimize import Bounds, minimize

        def stop_late(xk: Any) -> None:
            if time.process_time() > deadline:
                raise StopIteration

        first, second, _ = self.sizes
        bounds = None
        if self.relu:
            low = np.full(len(point), -np.inf)
            low[first : first + second] = 0.0
            bounds = Bounds(low)
        options: Any = {"maxiter": iterations, "maxfun": 2 * iterations, "ftol": 0.0, "gtol": tolerance, "maxcor": 30}
        value = math.inf
        for _ in range(10):  # a failed line search at rounding level ends a run: a fresh memory goes on
            result = minimize(
                self.evaluate, point, jac=True, method="L-BFGS-B", bounds=bounds, options=options, callback=stop_late
            )
            before, value, point = value, float(result.fun), np.asarray(result.x)
            iterations -= int(result.nit)
            late = time.process_time() > deadline
            if late or iterations <= 0 or not value < before - 1e-15 * abs(before):
                break
        return value, point

    def slope(self, point: Array) -> float:
        """The largest entry of the gradient; for V >= 0 of the projected step, which is small next to the bound too."""
        gradient = self.evaluate(point)[1]
        if self.relu:
            first, second, _ = self.sizes
            part = slice(first, first + second)
            gradient[part] = point[part] - np.maximum(point[part] - gradient[part], 0.0)
        return float(np.abs(gradient).max())

    def start(self, index: int, generator: np.random.Generator) -> Array:
        """The first start is a noisy orthogonal frame, the others are random at several scales."""
        if index == 0:
            u, v = np.eye(self.k, self.dim) - 1 / self.k, self.problem.groups.targets @ np.eye(self.k, self.dim)
            noise = 0.05
        else:
            u, v = np.zeros((self.k, self.dim)), np.zeros((self.g, self.dim))
            noise = (1.0, 0.2, 3.0)[index % 3]
        u = u + noise * generator.standard_normal(u.shape) / math.sqrt(self.dim)
        v = v + noise * generator.standard_normal(v.shape) / math.sqrt(self.dim)
        return self.join(u, np.abs(v) if self.relu else v, np.zeros(self.sizes[2]))

    def add_atom(self, point: Array, u: Array, v: Array) -> tuple[ScaledObjective, Array]:
        """The objective with one more column, and the point with (u, v) in it, v in units of the scaled V."""
        wider = ScaledObjective(self.problem, self.dim + 1)
        old_u, old_v, bias = self.split(point)
        return wider, wider.join(np.column_stack([old_u, u]), np.column_stack([old_v, v]), bias)

    def compress(self, point: Array, tolerance: float = 1e-9) -> tuple[ScaledObjective, Array]:
        """The objective and the point with as few columns as the same logits need, at no greater cost.

        Free features: a singular value decomposition of the scores. Non-negative ones: columns with parallel v are
        added up, which keeps the scores and does not raise the cost, and empty columns are dropped. `tolerance` is the
        distance of a cosine from 1 at which columns count as parallel.
        """
        u, v, bias = self.split(point)
        if self.relu:
            u, v = _merge_parallel(u, v, tolerance)
        else:
            left, values, right = np.linalg.svd(u @ v.T, full_matrices=False)
            kept = values > 1e-9 * max(values[0], 1e-300)
            root = np.sqrt(values[kept])
            u, v = left[:, kept] * root, right[kept].T * root
        if u.shape[1] == 0:
            u, v = np.zeros((self.k, 1)), np.zeros((self.g, 1))
        smaller = ScaledObjective(self.problem, u.shape[1])
        return smaller, smaller.join(u, v, bias)

    def polar(self, point: Array) -> tuple[ScaledObjective, Array]:
        """The objective and the point with V = |S|^(1/2) for the scores S = V U^T, clipped at 0 for V >= 0."""
        u, v, bias = self.split(point)
        left, values, right = np.linalg.svd(v @ u.T, full_matrices=False)
        root = np.sqrt(values)
        new_v, new_u = (left * root) @ left.T, (right.T * root) @ left.T
        smaller = ScaledObjective(self.problem, new_v.shape[1])
        return smaller, smaller.join(new_u, np.maximum(new_v, 0.0) if self.relu else new_v, bias)

    def pad(self, point: Array, dim: int) -> Array:
        """The point with columns of zeros added, in `dim` columns."""
        u, v, bias = self.split(point)
        wider = ScaledObjective(self.problem, dim)
        more = ((0, 0), (0, dim - self.dim))
        return wider.join(np.pad(u, more), np.pad(v, more), bias)

    def read(self, point: Array) -> tuple[Array, Array, Array | None]:
        """Features, weight and bias in the problem's own scale."""
        u, v, bias = self.split(point)
        t = math.sqrt(self.problem.balance)
        if self.problem.loss.contrastive and self.problem.bias_decay == 0 and len(bias):
            bias = bias - bias.mean()
        return v * self.reach / t, u * t, bias if self.problem.bias else None


def _merge_parallel(u: Array, v: Array, tolerance: float) -> tuple[Array, Array]:
    """Add up the columns of u that belong to parallel columns of v, and balance the norms of the pairs."""
    sizes = np.linalg.norm(u, axis=0) * np.linalg.norm(v, axis=0)
    order = np.argsort(-sizes)
    order = order[sizes[order] > 1e-12 * max(float(sizes.max()), 1e-300)]
    directions: list[Array] = []
    weights: list[Array] = []
    for j in order:
        length = float(np.linalg.norm(v[:, j]))
        direction = v[:, j] / length
        for index, known in enumerate(directions):
            if float(known @ direction) > 1 - tolerance:
                weights[index] = weights[index] + length * u[:, j]
                break
        else:
            directions.append(direction)
            weights.append(length * u[:, j])
    if not directions:
        return np.zeros((len(u), 0)), np.zeros((len(v), 0))
    roots = [math.sqrt(float(np.linalg.norm(weight))) for weight in weights]
    kept = [index for index, root in enumerate(roots) if root > 0]
    new_u = np.column_stack([weights[i] / roots[i] for i in kept])
    return new_u, np.column_stack([directions[i] * roots[i] for i in kept])
