"""The fields that look at single samples: decisions, scores, margins."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from .distribution import Distribution
from .presence import Presence
from .sample_scores import ScoreNeeds
from .scores import spread_of, uniform_accuracy, uniform_accuracy_grid

CONCENTRATED_STD = 0.5  # bce-vs-ce App. B.2


class Scores(Protocol):
    """What a pass over the samples found about their scores; each tensor is [N], or empty where it is not needed."""

    needs: ScoreNeeds
    labels: Tensor
    decision: Tensor  # the class with the largest logit
    positive: Tensor  # own score
    own_logit: Tensor
    other_logit: Tensor  # the largest of the others
    margin: Tensor
    negatives: Distribution | None


class Nearest(Protocol):
    """The class with the nearest mean for each sample [N], and how many are nearest to their own."""

    nearest: Tensor
    right: Tensor


def measure_scores(scores: Scores, presence: Presence, *, has_directions: bool) -> dict[str, Any]:
    """Decisions, margins and the spreads of the scores; `has_directions`: the features are not all one point."""
    values: dict[str, Any] = {"positive_score": spread_of(scores.positive)} if scores.needs.own else {}
    counts = presence.counts
    if scores.needs.decisions:
        right = (scores.decision == scores.labels).to(torch.float64)
        by_class = torch.zeros_like(counts).index_add_(0, scores.labels, right) / counts
        values["accuracy"] = float(right.sum()) / len(right)
        values["class_accuracy"] = tuple(by_class.tolist())
    if len(counts) < 2:
        return values
    if scores.needs.logits:
        logits = scores.own_logit, scores.other_logit
        values["uniform_accuracy"], values["uniform_threshold"] = uniform_accuracy(*logits)
        values["uniform_accuracy_grid"] = uniform_accuracy_grid(*logits)
    if scores.needs.margins and has_directions:
        values["cosine_margin"] = spread_of(scores.margin)
    if scores.negatives is not None:
        values["negative_score"] = scores.negatives.spread()
        deviations = values["positive_score"].std, values["negative_score"].std
        values["scores_concentrated"] = max(deviations) <= CONCENTRATED_STD
    return values


def measure_nearest(nearest: Nearest, scores: Scores | None) -> dict[str, Any]:
    """`nearest_mean_accuracy` and, with the classifier's decisions, `nc4`."""
    samples = len(nearest.nearest)
    values: dict[str, Any] = {"nearest_mean_accuracy": int(nearest.right) / samples}
    if scores is not None and scores.needs.decisions:
        values["nc4"] = int((scores.decision == nearest.nearest).sum()) / samples
    return values
