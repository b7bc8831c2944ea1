"""The fields that need the decays of the training problem."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .collapse import Moments, distance_of_directions


def measure_bias_residual(problem: Any, energy: float, bias: float, num_classes: int) -> dict[str, float]:
    """alpha(b) of bce-vs-ce Eq. 57 at the mean bias, with its last term and, as the tables print it, without.

        alpha(b) = -(K-1)/K sigma(-b - g/(K-1)) + 1/K sigma(b - g) + lambda_b b,   g = sqrt(lambda_W/(n lambda_H)) rho/K

    with n the samples a class that the feature decay sees (batch size / K in training by batches).
    """
    check_problem(problem, num_classes)
    scale = math.sqrt(problem.weight_decay / (problem.per_class * problem.feature_decay))
    gap = scale * energy / num_classes
    if num_classes < 2:
        return {"bias_residual": math.nan, "bias_residual_printed": math.nan}
    negative = (num_classes - 1) / num_classes * _sigmoid(-bias - gap / (num_classes - 1))
    positive = _sigmoid(bias - gap) / num_classes
    printed = positive - negative
    return {"bias_residual": printed + problem.bias_decay * bias, "bias_residual_printed": printed}


def measure_relu_logits(problem: Any, weight: Tensor, moments: Moments) -> float:
    """imbalanced-relu Eq. 21: the logits W h_k of the class means against the optimal ones, both at unit norm.

    The samples of each class are the problem's (scaled to what its feature decay sees), or the measured shares of them.
    """
    classes = len(weight)
    check_problem(problem, classes)
    given = getattr(problem, "class_counts", None)
    shares = moments.counts if given is None else torch.tensor(given).to(moments.counts)
    total = problem.per_class * classes
    counts = shares / shares.sum() * total
    root = math.sqrt((classes - 1) / classes * problem.weight_decay * problem.feature_decay)
    heights = torch.log(((classes - 1) * (counts.sqrt() / (total * root) - 1)).clamp_min(1.0))
    target = (torch.eye(classes).to(weight) - 1.0 / classes) * heights
    return float(distance_of_directions(weight @ moments.means.T, target))


def check_problem(problem: Any, num_classes: int) -> None:
    """Raise unless the problem is about as many classes, with positive decays."""
    if problem.num_classes != num_classes:
        raise ValueError(f"problem: about {problem.num_classes} classes, but {num_classes} are measured")
    for name in ("weight_decay", "feature_decay", "per_class"):
        if not getattr(problem, name) > 0:
            raise ValueError(
                f"problem: {name} must be positive for the fields that need it, got {getattr(problem, name)}"
            )


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
