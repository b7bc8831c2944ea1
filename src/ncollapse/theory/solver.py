"""`solve`: numerical minimisation, for problems with and without a closed form."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ncollapse.losses.forms import unreduced
from ncollapse.one_thread import one_thread
from ncollapse.theory.certificate import Certificate, certify_point
from ncollapse.theory.escape import steepest_atom
from ncollapse.theory.objective import ScaledObjective
from ncollapse.theory.point import Point, point_of_groups
from ncollapse.theory.problem import Problem

Array = NDArray[np.float64]
Progress = Callable[[int, float], None]
CLOSED = 1e-9  # a certified gap, relative to an objective in [0.1, 1], at which no more atoms are added
TIGHT = 3e-8  # a certified gap, relative to an objective in [0.1, 1], at which no further start is tried
LEAST, MOST, AGREE = 16, 128, 4  # starts where the search is not global, and how many must reach the best value
ROUNDS = 30  # atoms added at most
SMALL = 10**6  # K times groups times dimensions up to which one thread is faster than several
FAR = 45.0  # a logit this far below the others costs e^-45


@dataclass(frozen=True, eq=False)
class Solution:
    """The best point found.

    features [G, d]: one feature for each group of equal targets (each class that has samples). labels [G]: their
    classes, None for soft targets. weight [K, d]; bias [K], a threshold, None without one.
    objectives: the value reached from each start. reached: how many of them reached the best value.
    slope: the largest entry of the (projected, scaled) gradient.
    """

    problem: Problem
    features: Tensor
    labels: Tensor | None
    weight: Tensor
    bias: Tensor | None
    objective: float
    objectives: tuple[float, ...]
    slope: float

    @property
    def reached(self) -> int:
        """How many starts reached the best value, to 1e-7 of it."""
        return sum(value <= self.objective + 1e-7 * (1e-3 + abs(self.objective)) for value in self.objectives)

    @cached_property
    def certificate(self) -> Certificate | None:
        """A bound on the distance from the global minimum; None for losses that are not convex in the logits."""
        point = point_of_groups(self.problem, self.features, self.weight, self.bias)
        return None if point is None else certify_point(point)


def solve(
    problem: Problem,
    *,
    restarts: int | None = None,
    seed: int = 0,
    max_iterations: int = 20_000,
    time_limit: float | None = 10.0,
    progress: Progress | None = None,
) -> Solution:
    """Minimise over W, H and b in float64 with L-BFGS (bounded for H >= 0).

    All samples with the same target share their feature: for given W and b each minimises the same function.

    For a convex loss and dim=None (or at least K), the search is global: it descends in more dimensions than needed,
    asks the dual bound for the direction in which the objective can still fall, adds it as a new dimension and repeats
    until the certified gap closes; then it removes the dimensions not needed. Otherwise it keeps the best of many
    random starts: at least 16, and up to 128 until four have reached the best value and few local minima seem to be
    left unseen. After `time_limit` seconds of processor time (None: no limit) the search ends with the best point so
    far, whose certificate says how far it may be from the minimum. `restarts` fixes their number instead.
    `progress(starts, best)` is called after each start.

    >>> solution = solve(Problem("ce", 3, per_class=1, weight_decay=0.05, feature_decay=0.05))
    >>> round(solution.objective, 8), solution.certificate.gap < 1e-8
    (0.39439769, True)
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem: expected a Problem, got {problem!r}; Problem(loss, num_classes, ...) makes one")
    if restarts is not None and restarts < 1:
        raise ValueError(f"restarts: expected at least 1, got {restarts}")
    reduced = _drop_empty(problem)
    if reduced is not None:
        inner = solve(
            reduced,
            restarts=restarts,
            seed=seed,
            max_iterations=max_iterations,
            time_limit=time_limit,
            progress=progress,
        )
        return _restore_empty(problem, inner)
    search = _Search(problem, seed, max_iterations, progress)
    with _one_thread_if_small(problem):
        search.deadline = math.inf if time_limit is None or restarts else time.process_time() + time_limit
        if problem.dim is None or problem.dim >= problem.num_classes:
            search.descend_globally(restarts)
            if problem.features == "relu":
                search.simplify()
        if problem.dim is not None:
            search.try_starts(restarts)
        return search.result()


def _one_thread_if_small(problem: Problem) -> AbstractContextManager[object]:
    """One thread for matrices so small that several threads mostly wait for each other, above all on a busy machine."""
    k, groups = problem.num_classes, len(problem.groups.counts)
    if k * groups * (problem.dim or k) > SMALL:
        return nullcontext()
    return one_thread()


class _Search:
    """The best point so far, and what each start reached."""

    def __init__(self, problem: Problem, seed: int, iterations: int, progress: Progress | None) -> None:
        self.problem, self.iterations, self.progress = problem, iterations, progress
        self.generator = np.random.default_rng(seed)
        self.values: list[float] = []
        self.best: tuple[float, ScaledObjective, Array] | None = None
        self.deadline = self.gap = math.inf

    def descend_globally(self, restarts: int | None) -> None:
        """Descend in spare dimensions, add atoms until the bound closes, compress; several starts if it does not."""
        k, g = self.problem.num_classes, len(self.problem.groups.counts)
        wide = max(2 * max(k, g), k + 2) if self.problem.features == "relu" else max(k, min(k, g))
        for index in range(restarts or 6):
            model = ScaledObjective(self.problem, wide)
            value, x = self._descend(model, model.start(index, self.generator))
            model, x, value, gap = self._add_atoms(model, x, value)
            self._offer(model, x, value, gap)
            tight = gap <= TIGHT * _scale(value)
            if restarts is None and (tight or self._is_late() or (math.isfinite(gap) and index >= 2)):
                return

    def _add_atoms(self, model: ScaledObjective, x: Array, value: float) -> tuple[ScaledObjective, Array, float, float]:
        gap = math.inf
        for _ in range(ROUNDS):
            small, y = model.compress(x)
            polished, y = self._descend(small, y)
            if polished <= value + 1e-13 * abs(value):
                model, x, value = small, y, min(polished, value)
            point = _point_at(model, x)
            if point is None:
                break
            gap = certify_point(point).gap
            if gap <= CLOSED * _scale(value) or self._is_late():
                break
            u, v, norm = steepest_atom(point)
            if norm <= point.tau * (1 + 1e-9):
                break
            # in scaled variables: V_g = v_g sqrt(n_g / n) up to a common factor, U = -u; the best length by trial
            scaled_v = v * np.sqrt(self.problem.groups.counts)
            scaled_v /= np.linalg.norm(scaled_v)
            lengths = 2.0 ** np.arange(-12, 4)
            trials = [model.add_atom(x, -length * u, length * scaled_v) for length in lengths]
            wider, start = min(trials, key=lambda trial: trial[0].evaluate(trial[1])[0])
            new, start = self._descend(wider, start)
            if not new < value - 1e-15 * abs(value):
                break
            model, x, value = wider, start, new
        return model, x, value, gap

    def try_starts(self, restarts: int | None) -> None:
        """The best of several starts in the problem's own dimension."""
        assert self.problem.dim is not None
        model = ScaledObjective(self.problem, self.problem.dim)
        if self.best is not None:
            value, found, x = self.best
            if found.dim <= model.dim:  # the optimum of d >= K fits
                self.best = (value, model, found.pad(x, model.dim))
                if self._is_closed():
                    return
            else:
                self.best, self.values = None, []
        least, most = (restarts, restarts) if restarts else (LEAST, MOST)
        for index in range(most):
            perturb = index % 8 == 7 and self.best is not None
            start = self._perturb(model) if perturb else model.start(index, self.generator)
            value, x = model.descend(start, 300, 1e-7, self.deadline)
            near = self.best is None or value < self.best[0] * (1 + 1e-2) + 1e-6
            if near:
                value, x = self._descend(model, x)
            self._offer(model, x, value)
            if restarts is None and (self._is_late() or (index + 1 >= least and self._is_settled())):
                break

    def _descend(self, model: ScaledObjective, point: Array) -> tuple[float, Array]:
        return model.descend(point, self.iterations, deadline=self.deadline)

    def _is_late(self) -> bool:
        return time.process_time() > self.deadline

    def _perturb(self, model: ScaledObjective) -> Array:
        assert self.best is not None
        x = self.best[2]
        noise = self.generator.standard_normal(x.shape) * np.abs(x).mean() * self.generator.choice([0.3, 1.0])
        first, second, _ = model.sizes
        moved = x + noise
        if model.relu:
            moved[first : first + second] = np.abs(moved[first : first + second])
        return np.asarray(moved)

    def _offer(self, model: ScaledObjective, x: Array, value: float, gap: float = math.inf) -> None:
        """Keep the point if it is lower, or as low with a smaller certified gap."""
        self.values.append(value)
        margin = 0.0 if self.best is None else 1e-12 * abs(self.best[0])
        if self.best is None or value < self.best[0] - margin or (value <= self.best[0] + margin and gap < self.gap):
            self.best, self.gap = (value, model, x), gap
        if self.progress is not None:
            self.progress(len(self.values), self.best[0])

    def _is_closed(self) -> bool:
        """Whether the bound of d >= K proves the best point optimal, to what descent can resolve."""
        assert self.best is not None
        point = _point_at(self.best[1], self.best[2])
        return point is not None and certify_point(point).gap <= 1e-7

    def _is_settled(self) -> bool:
        """Whether the best value was reached several times and the expected number of unseen minima is below one.

        With w distinct minima in n starts that expectation is w (w + 1) / (n - w - 2) (Boender and Rinnooy Kan, 1987).
        """
        assert self.best is not None
        tolerance = 1e-8 * (1e-3 + abs(self.best[0]))
        if sum(value <= self.best[0] + tolerance for value in self.values) < AGREE:
            return False
        distinct = 1 + int((np.diff(np.sort(self.values)) > 100 * tolerance).sum())
        return distinct * (distinct + 1) < len(self.values) - distinct - 2

    def simplify(self) -> None:
        """Use fewer columns, if the objective then descends to the same value again.

        The polar factors of the scores use G columns and cost their nuclear norm; they serve where they are
        non-negative. Otherwise columns that are nearly parallel are merged.
        """
        assert self.best is not None
        value, model, x = self.best
        for smaller, y in (model.polar(x), *(model.compress(x, tolerance) for tolerance in (1e-2, 1e-4, 1e-6))):
            if smaller.dim < model.dim:
                new, y = self._descend(smaller, y)
                if new <= value + 1e-12 * abs(value):
                    self.best = (new, smaller, y)
                    return

    def result(self) -> Solution:
        assert self.best is not None
        value, model, x = self.best
        if self.problem.dim is None and model.dim < self.problem.num_classes:
            x, model = model.pad(x, self.problem.num_classes), ScaledObjective(self.problem, self.problem.num_classes)
        features, weight, bias = model.read(x)
        labels = self.problem.groups.labels
        return Solution(
            problem=self.problem,
            features=torch.from_numpy(features),
            labels=None if labels is None else torch.from_numpy(labels),
            weight=torch.from_numpy(weight),
            bias=None if bias is None else torch.from_numpy(bias),
            objective=value,
            objectives=tuple(self.values),
            slope=model.slope(x),
        )


def _scale(value: float) -> float:
    return min(1.0, max(0.1, abs(value)))


def _point_at(model: ScaledObjective, x: Array) -> Point | None:
    features, weight, bias = model.read(x)
    return point_of_groups(
        model.problem,
        torch.from_numpy(features),
        torch.from_numpy(weight),
        None if bias is None else torch.from_numpy(bias),
    )


def _drop_empty(problem: Problem) -> Problem | None:
    """The problem without its empty classes, where their logits go to minus infinity at no cost; else None."""
    if problem.targets is not None or not problem.bias or problem.bias_decay > 0 or min(problem.counts) > 0:
        return None
    kept = np.flatnonzero(problem.counts)
    z = torch.zeros(1, problem.num_classes, dtype=torch.float64)
    z[0, -1] = -FAR
    slope = unreduced(problem.loss).value_and_gradient(z, torch.zeros(1, dtype=torch.long))[1][0, -1]
    if len(kept) < 2 or not slope > 0:  # the loss wants a finite logit: MSE, label smoothing
        return None
    loss = copy.deepcopy(problem.loss)
    if loss.weight is not None:
        loss.weight = loss.weight[torch.from_numpy(kept)]
    offset = None if problem.logit_offset is None else np.array(problem.logit_offset)[kept]
    counts = np.array(problem.counts)[kept]
    changes = {"num_classes": len(kept), "loss": loss, "logit_offset": offset, "class_counts": counts}
    return problem.replace(**changes)


def _restore_empty(problem: Problem, inner: Solution) -> Solution:
    """Put the empty classes back, with weight 0 and a threshold that no feature reaches."""
    kept = torch.from_numpy(np.flatnonzero(problem.counts))
    assert inner.bias is not None
    offset = torch.tensor(inner.problem.logit_offset or [0.0] * len(kept), dtype=torch.float64)
    logits = inner.features @ inner.weight.T - inner.bias + offset
    outer = torch.tensor(problem.logit_offset or [0.0] * problem.num_classes, dtype=torch.float64)
    bias = FAR - min(0.0, float(logits.max(dim=1).values.min())) + math.log(problem.num_classes) + outer.clamp_min(0)
    weight = torch.zeros(problem.num_classes, inner.weight.shape[1], dtype=torch.float64)
    bias[kept], weight[kept] = inner.bias, inner.weight
    spare = 0 if problem.dim is not None else max(0, problem.num_classes - weight.shape[1])
    weight, features = (torch.nn.functional.pad(part, (0, spare)) for part in (weight, inner.features))
    return Solution(
        problem=problem,
        features=features,
        labels=kept,
        weight=weight,
        bias=bias,
        objective=inner.objective,
        objectives=inner.objectives,
        slope=inner.slope,
    )
