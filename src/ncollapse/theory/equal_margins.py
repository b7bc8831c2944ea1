"""Class weights under which an imbalanced optimum has equal margins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncollapse.theory.problem import Problem


def equalising_weights(problem: Problem | Sequence[float]) -> tuple[float, ...]:
    """The class weights, of mean 1, that make all margins equal for ReLU features without a bias: 1/sqrt(n_k).

    Takes a problem, or class counts. By the closed form of unequal classes the margin of class k depends on
    sqrt(n_k)/share_k alone, and share_k is proportional to n_k weight_k. So the margins are equal if and only if
    weight_k is proportional to 1/sqrt(n_k), for every loss of logit differences. For free features no weights make an
    imbalanced optimum a simplex with equal margins (docs/theory.md, section 4).

    >>> [round(weight, 4) for weight in equalising_weights([400, 100, 25])]
    [0.4286, 0.8571, 1.7143]
    """
    counts = np.asarray(problem.counts if isinstance(problem, Problem) else problem, dtype=np.float64)
    if counts.ndim != 1 or not (np.isfinite(counts).all() and (counts > 0).all()):
        raise ValueError(f"class counts: expected positive numbers, one for each class, got {counts.tolist()}")
    weights = 1 / np.sqrt(counts)
    return tuple((weights / weights.mean()).tolist())
