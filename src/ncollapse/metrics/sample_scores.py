"""What the second pass keeps of the scores: a few numbers a sample, and the distribution of the negative scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .classifier import Classifier
from .collapse import Moments
from .distribution import Distribution, choose_scale
from .products import Products
from .rows import Rows
from .second_pass import Chunk
from .transfer import copy_together


@dataclass(frozen=True)
class ScoreNeeds:
    """Which parts of the scores are wanted."""

    own: bool = True  # each sample's own score
    decisions: bool = True  # the class with the largest logit
    logits: bool = True  # own logit and the largest of the others
    margins: bool = True
    negatives: bool = True

    @property
    def every_score(self) -> bool:
        """Whether all N K scores are needed."""
        return self.decisions or self.logits or self.margins or self.negatives

    @property
    def decisions_only(self) -> bool:
        """Whether the class with the largest logit is all that other classes' scores are needed for."""
        return self.decisions and not (self.logits or self.margins or self.negatives)


class SampleScores:
    """Own scores [N] and room for what every score is needed for, on the device of the samples."""

    def __init__(self, classifier: Classifier, moments: Moments, needs: ScoreNeeds, device: torch.device) -> None:
        num_samples, rows = int(moments.num_samples), classifier.rows()
        self.anchor_scores = rows.times(moments.anchor)  # W h = W x + these
        decided, with_margin = num_samples if needs.decisions else 0, num_samples if needs.margins else 0
        with_own, with_logits = num_samples if needs.own else 0, num_samples if needs.logits else 0
        self.needs, self.bias = needs, classifier.bias
        options: dict[str, Any] = {"dtype": torch.float64, "device": device}
        self.labels = torch.empty(num_samples, dtype=torch.int64, device=device)
        self.positive = torch.empty(with_own, **options)  # own score, without bias
        self.own_logit = torch.empty(with_logits, **options)  # with bias
        self.other_logit = torch.empty(with_logits, **options)  # the largest of the others
        self.decision = torch.empty(decided, dtype=torch.int64, device=device)  # the class with the largest logit
        self.margin = torch.empty(with_margin, **options)  # cosine margin
        self.negatives: Distribution | None = None

    def add(self, chunk: Chunk) -> None:
        """Take some samples."""
        self.labels[chunk.start : chunk.start + len(chunk.labels)] = chunk.labels

    def put_logits(self, place: slice, own: Tensor, other: Tensor, index: Tensor) -> None:
        """Note own logits, the largest others and, where these are not smaller, their class.

        The first of equal logits decides.
        """
        labels = self.labels[place]
        if self.needs.logits:
            self.own_logit[place], self.other_logit[place] = own, other
        wins = (own > other) | ((own == other) & (labels < index))
        self.decision[place] = torch.where(wins, labels, index)

    def finish(self, moments: Moments) -> None:
        """Complete what needs the within-class scatter."""


class OwnScores(SampleScores):
    """Own scores alone, product by product."""

    def __init__(self, classifier: Classifier, moments: Moments, needs: ScoreNeeds, device: torch.device) -> None:
        super().__init__(classifier, moments, needs, device)
        weight, offset = copy_together([classifier.weight, self.anchor_scores], device)
        self.scores = Products(Rows(weight), offset=offset)

    def add(self, chunk: Chunk) -> None:
        """Take some samples."""
        super().add(chunk)
        if self.needs.own:
            place = slice(chunk.start, chunk.start + len(chunk.labels))
            self.positive[place] = self.scores.at(chunk.x, chunk.labels).masked_fill_(chunk.zero, 0.0)


def open_negatives(
    classifier: Classifier, moments: Moments, classes: Tensor | None, feature_energy: float, device: torch.device
) -> Distribution:
    """An empty distribution of the negative scores, with their mean, which the class means determine."""
    samples, num_classes = int(moments.num_samples), len(classifier.weight)
    _, others = sum_scores(classifier, moments, classes)
    pairs = samples * (num_classes - 1)
    largest = math.sqrt(feature_energy * samples) * float(classifier.rows().norms().max())
    return Distribution(
        pairs,
        others / pairs if pairs else 0.0,
        device,
        scale=choose_scale(largest),
        parked=samples,
    )


def sum_scores(classifier: Classifier, moments: Moments, classes: Tensor | None) -> tuple[float, float]:
    """The sums of all positive and of all negative scores, from the class means."""
    rows, means = classifier.rows(classes), moments.means()
    total = torch.zeros_like(moments.anchor[0])
    for part in rows.parts():
        total += moments.counts[part] @ torch.linalg.vecdot(means.block(part), rows.block(part))
    own, every = float(rows.add_up(total)), classifier.rows()
    everything = float(moments.global_mean @ every.mean()) * moments.num_samples
    return own, everything * len(every) - own
