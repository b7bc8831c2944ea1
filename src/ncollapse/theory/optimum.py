"""The fields of a predicted optimum, filled in by the closed forms or by the numerical minimiser."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ncollapse.losses import Transition
from ncollapse.metrics.equality import NanEqual
from ncollapse.theory.problem import Problem
from ncollapse.theory.solver import Solution

PHASES = ("collapsed", "mean-only", "centred", "saturated", "orthogonal-frame")


@dataclass(frozen=True, kw_only=True, eq=False)
class Optimum(NanEqual):
    """The global minimum of a problem. See `Prediction`, which adds what can be computed from these fields."""

    problem: Problem
    method: str = "closed"
    phase: str
    positive_score: float
    negative_score: float
    bias: float
    weight_energy: float
    feature_energy: float
    objective: float
    lower_bound: float = field(default=math.nan, compare=False)
    gap: float = math.nan
    mean_component: float = math.nan
    rank: int
    separates: bool
    unique: bool = True
    critical_bias_decay: float = math.nan
    separation_mu: float = math.nan
    collapse_mu: float = math.nan
    transition: Transition | None = None
    class_gaps: tuple[float, ...] | None = None
    collapse_count: float | None = None
    collapse_ratio: float | None = None
    notes: tuple[str, ...] = ()
    solution: Solution | None = field(default=None, repr=False, compare=False)
    _detail: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for item in fields(self):
            if isinstance(value := getattr(self, item.name), float):
                object.__setattr__(self, item.name, value + 0.0)  # no negative zero


class NoClosedFormError(ValueError):
    """No closed form of the optimum is known for a problem."""


def refuse(problem: Problem, why: str) -> NoClosedFormError:
    """The error for a problem without a closed form."""
    return NoClosedFormError(
        f"no closed form is known for {problem.loss.name} {why}; method='numerical' minimises instead"
    )


def require_dim(optimum: Optimum) -> Optimum:
    """The optimum, if it fits: an optimum of low rank among d >= K is also the optimum in fewer dimensions."""
    problem = optimum.problem
    if problem.dim is not None and problem.dim < optimum.rank:
        raise refuse(problem, f"with dim={problem.dim} here, where the optimum for d >= K needs {optimum.rank}")
    return optimum


def complete(problem: Problem, values: Mapping[str, Any], cost: float, notes: tuple[str, ...] = ()) -> Optimum:
    """Add the fields that follow from the scores and from the cost of the logits."""
    return Optimum(
        problem=problem,
        weight_energy=problem.balance * cost,
        feature_energy=cost / problem.balance / problem.num_classes,
        notes=notes,
        **{"separates": values["negative_score"] < values["bias"] < values["positive_score"], **values},
    )
