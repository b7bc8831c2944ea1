"""The optimum found by the numerical minimiser, in the fields of a closed form."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ncollapse.theory.balanced import predict_balanced
from ncollapse.theory.certificate import Certificate
from ncollapse.theory.imbalanced import predict_imbalanced
from ncollapse.theory.optimum import NoClosedFormError, Optimum
from ncollapse.theory.problem import Problem
from ncollapse.theory.solver import Progress, solve

BOUND_TIME = 3.0  # seconds of processor time for the minimum in enough dimensions
SYMMETRY = 1e-4  # logits this close to a (I - J/K) + c J/K, relative to their size, are of that form


def minimise_numerically(problem: Problem, *, progress: Progress | None = None) -> Optimum:
    """Minimise, and describe what was found. `progress` is that of `solve`."""
    solution = solve(problem, progress=progress)
    k, groups = problem.num_classes, problem.groups
    scores = solution.features @ solution.weight.T
    counts = torch.from_numpy(groups.counts / groups.counts.sum())
    targets = torch.from_numpy(groups.targets)
    # of a soft target, the mean score weighted by the target, and by what is left of it
    own = (targets * scores).sum(dim=1) / targets.sum(dim=1)
    others = ((1 - targets) * scores).sum(dim=1) / (1 - targets).sum(dim=1)
    positive, negative = float(counts @ own), float(counts @ others)
    bias = 0.0 if solution.bias is None else float(solution.bias.mean())
    gap, mean = positive - negative, positive + (k - 1) * negative
    phase = _name_phase(problem, scores, solution.bias, gap, mean)
    symmetric = phase != "asymmetric"
    certificate = solution.certificate
    bound = find_lower_bound(problem, certificate)
    starts = len(solution.objectives)
    notes = [f"found numerically; {solution.reached} of {starts} starts reached the best value"]
    if math.isfinite(bound):
        few = " (the minimum for d >= K, which fewer dimensions need not reach)" if _is_low(problem) else ""
        distance = max(0.0, solution.objective - bound)
        notes.append(f"certified: the global minimum is at most {distance:.2g} below, above {bound:.9g}{few}")
    return Optimum(
        problem=problem,
        method="numerical",
        phase=phase,
        positive_score=positive,
        negative_score=negative,
        bias=bias,
        weight_energy=float(solution.weight.square().sum()),
        feature_energy=float(counts @ solution.features.square().sum(dim=1)),
        objective=solution.objective,
        lower_bound=bound,
        gap=gap if symmetric else math.nan,
        mean_component=mean if symmetric else math.nan,
        rank=0 if phase == "collapsed" else _count_dimensions(problem, solution.features, solution.weight),
        separates=_separates(scores, targets, solution.bias),
        notes=tuple(notes),
        solution=solution,
    )


def _is_low(problem: Problem) -> bool:
    return problem.dim is not None and problem.dim < problem.num_classes


def find_lower_bound(problem: Problem, certificate: Certificate | None) -> float:
    """A lower bound on the minimum; NaN where none is known.

    In few dimensions the bound that a certificate gives is loose. The minimum for d >= K is a better one: by its closed
    form, less what rounding may add, or by the certificate of its numerical solution.
    """
    bound = math.nan if certificate is None else certificate.lower_bound
    if not _is_low(problem):
        return bound
    wide = problem.replace(dim=None)
    try:
        value = (predict_balanced if wide.balanced else predict_imbalanced)(wide).objective
        better = value - 1e-12 * abs(value)
    except NoClosedFormError:
        found = solve(wide, time_limit=BOUND_TIME).certificate
        better = math.nan if found is None else found.lower_bound
    return max((value for value in (bound, better) if not math.isnan(value)), default=math.nan)


def _count_dimensions(problem: Problem, features: Tensor, weight: Tensor) -> int:
    """How many dimensions the optimum needs: the rank, or for non-negative features the units in use."""
    if problem.features == "relu":
        return int((features.amax(dim=0) > 1e-5 * features.max()).sum())
    return int(torch.linalg.matrix_rank(weight, rtol=1e-5))


def _separates(scores: Tensor, targets: Tensor, bias: Tensor | None) -> bool:
    """Whether every class's threshold lies below its own scores and above those of all other classes' samples."""
    logits = scores if bias is None else scores - bias
    own = targets > 0
    return bool((logits[own] > 0).all() and (logits[~own] < 0).all())


def _name_phase(problem: Problem, scores: Tensor, bias: Tensor | None, gap: float, mean: float) -> str:
    k, size = problem.num_classes, float(scores.abs().max())
    if size < SYMMETRY:
        return "collapsed"
    if len(scores) != k or problem.soft:
        return "asymmetric"
    shape = gap * torch.eye(k, dtype=torch.float64) + (mean - gap) / k
    uneven = 0.0 if bias is None else float(bias.max() - bias.min())
    if float((scores - shape).abs().max()) > SYMMETRY * size or uneven > SYMMETRY * size:
        return "asymmetric"
    if gap < SYMMETRY * size:
        return "mean-only"
    if problem.features == "relu" and abs(mean) < gap:
        return "orthogonal-frame"
    return "saturated" if abs(mean) > SYMMETRY * size else "centred"
