"""The fields that look at single samples: decisions, scores, margins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from .distribution import Distribution
from .presence import Presence
from .sample_scores import ScoreNeeds
from .scores import finish_spread, finish_uniform, rank_intervals, rank_values

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


def measure_scores(scores: Scores, presence: Presence, *, has_directions: bool) -> dict[str, Any]:
    """Decisions, margins and the spreads of the scores; `has_directions`: the features are not all one point."""
    found = rank_scores(scores, len(presence.counts))
    return finish_scores(found, scores, presence, has_directions=has_directions)


def rank_scores(scores: Scores, num_classes: int) -> dict[str, Tensor]:
    """What these fields are made of: a few numbers each, where the scores are; nothing is read from there."""
    needs, found = scores.needs, dict[str, Tensor]()
    if needs.own:
        found["positive_score"] = rank_values(scores.positive)
    if needs.decisions:
        right = (scores.decision == scores.labels).to(torch.float64)
        found["right"] = right.new_zeros(num_classes).index_add_(0, scores.labels, right)
    if num_classes < 2:
        return found
    if needs.logits:
        found["uniform"] = rank_intervals(scores.own_logit, scores.other_logit)
    if needs.margins:
        found["cosine_margin"] = rank_values(scores.margin)
    if scores.negatives is not None:
        found["negative_score"] = scores.negatives.rank()
    return found


def finish_scores(
    found: Mapping[str, Tensor], scores: Scores, presence: Presence, *, has_directions: bool
) -> dict[str, Any]:
    """The fields, from what `rank_scores` found."""
    values: dict[str, Any] = {}
    numbers, samples = {name: tensor.tolist() for name, tensor in found.items()}, len(scores.labels)
    if "positive_score" in numbers:
        values["positive_score"] = finish_spread(numbers["positive_score"], samples)
    if "right" in numbers:
        values["accuracy"] = sum(numbers["right"]) / samples
        counts = presence.counts.tolist()
        values["class_accuracy"] = tuple(
            right / count if count else math.nan for right, count in zip(numbers["right"], counts)
        )
    if "uniform" in numbers:
        names = ("uniform_accuracy", "uniform_threshold", "uniform_accuracy_grid")
        values |= dict(zip(names, finish_uniform(numbers["uniform"], samples)))
    if "cosine_margin" in numbers and has_directions:
        values["cosine_margin"] = finish_spread(numbers["cosine_margin"], samples)
    if scores.negatives is not None and "negative_score" in numbers:
        values["negative_score"] = scores.negatives.finish(numbers["negative_score"])
        deviations = values["positive_score"].std, values["negative_score"].std
        values["scores_concentrated"] = max(deviations) <= CONCENTRATED_STD
    return values


def rank_nearest(nearest: Tensor, labels: Tensor, scores: Scores | None) -> dict[str, Tensor]:
    """How many samples are nearest to the mean of their own class, and how many are decided for the nearest one."""
    found = {"nearest_mean_accuracy": (nearest == labels).sum()}
    if scores is not None and scores.needs.decisions:
        found["nc4"] = (scores.decision == nearest).sum()
    return found


def finish_nearest(found: Mapping[str, Tensor], samples: int) -> dict[str, Any]:
    """`nearest_mean_accuracy` and, with the classifier's decisions, `nc4`."""
    return {name: int(found[name]) / samples for name in ("nearest_mean_accuracy", "nc4") if name in found}
