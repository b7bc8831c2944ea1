"""The fields that need the decays of the training problem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from .collapse import Moments, norm_of_product
from .rows import Rows, split_range

TILE = 2048  # classes a side of the tables that are compared


class Decays(Protocol):
    """What these fields need to know of a training problem; `ncollapse.Problem` has it."""

    @property
    def num_classes(self) -> int:
        """K."""

    @property
    def weight_decay(self) -> float:
        """lambda_W."""

    @property
    def feature_decay(self) -> float:
        """lambda_H."""

    @property
    def bias_decay(self) -> float:
        """lambda_b."""

    @property
    def per_class(self) -> float:
        """Samples a class that the feature decay sees (batch size / K in training by batches)."""

    @property
    def class_counts(self) -> Sequence[float] | None:
        """Samples of each class, where they differ."""


def measure_bias_residual(problem: Decays, energy: float, bias: float, num_classes: int) -> dict[str, float]:
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


def measure_relu_logits(problem: Decays, weight: Rows, moments: Moments) -> float:
    """imbalanced-relu Eq. 21: the logits W h_k of the class means against the optimal ones, both at unit norm.

    The samples of each class are the problem's (scaled to what its feature decay sees), or the measured shares of them.
    The two tables [K, K] are compared a block of classes at a time.
    """
    classes = len(weight)
    check_problem(problem, classes)
    given = problem.class_counts
    shares = moments.counts if given is None else torch.tensor(given).to(moments.counts)
    total = problem.per_class * classes
    counts = shares / shares.sum() * total
    root = math.sqrt((classes - 1) / classes * problem.weight_decay * problem.feature_decay)
    heights = torch.log(((classes - 1) * (counts.sqrt() / (total * root) - 1)).clamp_min(1.0))
    means = moments.means()
    size = norm_of_product(weight, means)
    target_size = math.sqrt(float(heights.square().sum()) * (1 - 1 / classes))
    if size == 0 or target_size == 0:
        return math.nan
    square = torch.zeros((), dtype=torch.float64, device=heights.device)
    for left in split_range(classes, TILE):
        rows = weight.block(left)
        for right in split_range(classes, TILE):
            target = (heights[right] * (-1 / classes / target_size)).expand(len(rows), -1).clone()
            if left == right:
                target.diagonal().add_(heights[right] / target_size)
            square += (rows @ means.block(right).T / size - target).square().sum()
    return float(square.sqrt())


def require_problem(problem: Any) -> None:
    """Refuse what has no decays, such as the name of a loss."""
    if problem is not None and not hasattr(problem, "num_classes"):
        raise TypeError(f"problem: expected a Problem, such as ncollapse.Problem('bce', ...), got {problem!r}")


def check_problem(problem: Decays, num_classes: int) -> None:
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
