"""A last layer that attains a predicted optimum."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from ncollapse.frames import low_rank_etf
from ncollapse.theory.optimum import Optimum
from ncollapse.theory.problem import Problem, check_dim

FINEST = 10_000  # the largest denominator of a fractional class count
MOST_ROWS = 100_000  # of a configuration


class Configuration(NamedTuple):
    """A last layer that attains the optimum, for `measure(*configuration)`; `bias` is the threshold of W h - b."""

    features: Tensor
    labels: Tensor
    weight: Tensor
    bias: Tensor


def configure(optimum: Optimum, dim: int | None = None) -> Configuration:
    """Factors W, H of the optimal logits, of least cost, with a common bias."""
    problem = optimum.problem
    k = problem.num_classes
    made_for = None if optimum.solution is None else int(optimum.solution.weight.shape[1])
    wanted = dim if dim is not None else problem.dim or max(k, made_for or k)
    wanted = check_dim(wanted, max(1, optimum.rank), " for this optimum")
    if problem.loss.name == "mse" and problem.features == "free" and problem.dim is not None and problem.dim < k:
        made_for = problem.dim  # the optimum of few dimensions is not that of more
    if made_for is not None and wanted != made_for and not (optimum.solution and wanted > made_for):
        raise ValueError(f"dim is {wanted}, but the prediction was made for dim={made_for}")
    bias = torch.full((k,), optimum.bias, dtype=torch.float64)
    if optimum.solution is not None and optimum.solution.bias is not None:
        bias = optimum.solution.bias
    features, weight = factor(optimum, wanted)
    if problem.mixing is not None:  # the features of unmixed images
        return Configuration(_pad(features, wanted), torch.arange(k), _pad(weight, wanted), bias)
    labels = problem.groups.labels
    if labels is None:
        raise ValueError("targets: expected class counts; samples with soft targets have no labels to configure")
    present = torch.from_numpy(labels)
    rows = torch.repeat_interleave(torch.arange(len(present)), torch.tensor(_repeat(problem)))
    if len(features) != len(present):
        features = features[present]
    return Configuration(_pad(features, wanted)[rows], present[rows], _pad(weight, wanted), bias)


def factor(optimum: Optimum, dim: int | None = None) -> tuple[Tensor, Tensor]:
    """One feature a class [K, r] and the weight [K, r], r <= `dim` (default: the problem's, or K)."""
    problem = optimum.problem
    if problem.mixing is not None and optimum.solution is None:
        return _expand(optimum)
    if optimum.solution is not None:
        return optimum.solution.features, optimum.solution.weight
    if optimum.class_gaps is not None:
        return _frame(_fan(optimum.class_gaps), problem)
    if optimum.phase == "orthogonal-frame":
        return _frame(_mix(optimum.gap, optimum.mean_component, problem.num_classes), problem)
    return _split(optimum, dim or problem.dim or problem.num_classes)


def _expand(optimum: Optimum) -> tuple[Tensor, Tensor]:
    """The features of unmixed images and the weight of a symmetric optimum with mixed targets."""
    k, found = optimum.problem.num_classes, optimum._detail
    own, _, other = found.features[0].tolist()
    features = (own - other) * torch.eye(k, dtype=torch.float64) + other
    simplex, mean = found.weight
    return features, _mix(simplex, mean, k)


def _split(optimum: Optimum, dim: int) -> tuple[Tensor, Tensor]:
    """|Z|^(1/2) on both sides, its sign on W, so that H >= 0 wherever the optimum allows it."""
    k, t = optimum.problem.num_classes, math.sqrt(optimum.problem.balance)
    gap, mean = math.sqrt(optimum.gap), math.sqrt(abs(optimum.mean_component))
    sign = math.copysign(1.0, optimum.mean_component)
    if dim >= k and optimum.rank >= k - 1:
        return _mix(gap, mean, k) / t, _mix(gap, sign * mean, k) * t
    if optimum.phase == "mean-only":
        column = torch.full((k, 1), mean / math.sqrt(k), dtype=torch.float64)
        return column / t, sign * column * t
    if optimum.rank == 0:
        return torch.zeros(k, 0, dtype=torch.float64), torch.zeros(k, 0, dtype=torch.float64)
    basis = low_rank_etf(k, optimum.rank) * (gap * math.sqrt((k - 1) / k))
    return basis / t, basis * t


def _frame(logits: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """Orthogonal features, one axis a class; `logits` holds those of class k in column k."""
    counts = torch.tensor(problem.counts, dtype=torch.float64)
    norms = logits.norm(dim=0)
    reach = (problem.weight_decay / problem.feature_decay / counts.clamp_min(1e-300)).sqrt()
    lengths = (norms * torch.where(counts > 0, reach, 0.0)).sqrt()
    active = lengths > 0
    features = torch.diag(lengths)[:, active]
    return features, logits[:, active] / lengths[active]


def _mix(a: float, c: float, k: int) -> Tensor:
    """a (I - J/K) + c J/K."""
    return a * torch.eye(k, dtype=torch.float64) + (c - a) / k


def _fan(gaps: tuple[float, ...]) -> Tensor:
    """Columns M_k (e_k - 1/K)."""
    margins = torch.tensor(gaps, dtype=torch.float64)
    return torch.diag(margins) - margins / len(gaps)


def _repeat(problem: Problem) -> list[int]:
    """How often the feature of each class with samples is repeated, so that means over samples are right.

    These are the counts in lowest terms where that gives few enough rows, else the nearest whole numbers that do.
    """
    counts = [count for count in problem.class_counts or problem.counts if count > 0]
    if problem.class_counts is None:
        return [1] * len(counts)
    # the simplest fractions near the counts: 0.1 is meant as 1/10, not as the double next to it
    fractions = [Fraction(count).limit_denominator(FINEST) for count in counts]
    unit = math.lcm(*(fraction.denominator for fraction in fractions))
    whole = [int(fraction * unit) for fraction in fractions]
    divisor = math.gcd(*whole)
    if min(whole) > 0 and sum(whole) // divisor <= MOST_ROWS:
        return [count // divisor for count in whole]
    return [max(1, round(count / sum(counts) * MOST_ROWS)) for count in counts]


def _pad(matrix: Tensor, dim: int) -> Tensor:
    return torch.nn.functional.pad(matrix, (0, dim - matrix.shape[1]))
