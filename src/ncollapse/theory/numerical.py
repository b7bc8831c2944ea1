"""The optimum found by the numerical minimiser, in the fields of a closed form."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ncollapse.theory.optimum import Optimum
from ncollapse.theory.problem import Problem
from ncollapse.theory.solver import solve

SYMMETRY = 1e-4  # logits this close to a (I - J/K) + c J/K, relative to their size, are of that form


def minimise_numerically(problem: Problem, *, restarts: int = 6, seed: int = 0) -> Optimum:
    """Minimise, and name what was found."""
    solution = solve(problem, restarts=restarts, seed=seed)
    k = problem.num_classes
    scores = solution.features @ solution.weight.T
    shares = torch.tensor(problem.counts, dtype=torch.float64) / sum(problem.counts)
    own = scores.diagonal()
    others = (scores.sum(dim=1) - own) / (k - 1)
    positive, negative = float(shares @ own), float(shares @ others)
    bias = 0.0 if solution.bias is None else float(solution.bias.mean())
    gap, mean = positive - negative, positive + (k - 1) * negative
    phase = _name_phase(problem, scores, solution.bias, gap, mean)
    symmetric = phase != "asymmetric"
    certificate = solution.certificate
    spread = max(solution.objectives) - min(solution.objectives)
    notes = [f"found numerically; the objectives of {len(solution.objectives)} starts spread over {spread:.2g}"]
    if certificate is not None:
        bound = "" if problem.dim is None or problem.dim >= k else " (a bound for d >= K, so it may not be reached)"
        notes.append(f"certified: the global minimum is at most {certificate.gap:.2g} below{bound}")
    return Optimum(
        problem=problem,
        method="numerical",
        phase=phase,
        positive_score=positive,
        negative_score=negative,
        bias=bias,
        weight_energy=float(solution.weight.square().sum()),
        feature_energy=float(shares @ solution.features.square().sum(dim=1)),
        objective=solution.objective,
        gap=gap if symmetric else math.nan,
        mean_component=mean if symmetric else math.nan,
        rank=int(torch.linalg.matrix_rank(solution.weight, rtol=1e-5)) if phase != "collapsed" else 0,
        separates=_separates(scores, solution.bias),
        notes=tuple(notes),
        solution=solution,
    )


def _separates(scores: Tensor, bias: Tensor | None) -> bool:
    """Whether every class's threshold lies below its own scores and above those of all other classes' samples."""
    logits = scores if bias is None else scores - bias
    own = torch.eye(len(scores), dtype=torch.bool)
    return bool((logits[own] > 0).all() and (logits[~own] < 0).all())


def _name_phase(problem: Problem, scores: Tensor, bias: Tensor | None, gap: float, mean: float) -> str:
    k, size = problem.num_classes, float(scores.abs().max())
    if size < SYMMETRY:
        return "collapsed"
    shape = gap * torch.eye(k, dtype=torch.float64) + (mean - gap) / k
    uneven = 0.0 if bias is None else float(bias.max() - bias.min())
    if float((scores - shape).abs().max()) > SYMMETRY * size or uneven > SYMMETRY * size:
        return "asymmetric"
    if gap < SYMMETRY * size:
        return "mean-only"
    if problem.features == "relu" and abs(mean) < gap:
        return "orthogonal-frame"
    return "saturated" if abs(mean) > SYMMETRY * size else "centred"
