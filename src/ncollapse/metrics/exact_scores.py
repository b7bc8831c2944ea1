"""Decisions, margins and negative scores with every score in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from .classifier import Classifier
from .collapse import Moments
from .rows import split_range
from .sample_scores import SampleScores, ScoreNeeds, open_negatives
from .second_pass import Chunk

FEW_SCORES = 1 << 20  # so many scores are found in float64 at once, more of them in float32 first
CPU_SCORES = 1 << 19  # scores a tile: 4 MB
CUDA_SCORES = 1 << 26


def tile_rows(num_classes: int, device: torch.device) -> int:
    """Samples a tile of float64 scores."""
    return max(64, (CUDA_SCORES if device.type == "cuda" else CPU_SCORES) // num_classes)


class ExactScores(SampleScores):
    """Every score in float64."""

    def __init__(
        self, classifier: Classifier, moments: Moments, classes: Tensor | None, needs: ScoreNeeds, energy: float
    ) -> None:
        super().__init__(classifier, moments, needs)
        self.weight = classifier.weight.to(torch.float64)
        centred = self.weight - self.weight.mean(0)
        norms = torch.linalg.vector_norm(centred, dim=1)
        self.inverse = torch.where(norms > 0, 1 / norms, 0.0)
        self.offset = centred @ moments.global_mean
        self.negatives = open_negatives(classifier, moments, classes, energy) if needs.negatives else None

    def add(self, chunk: Chunk) -> None:
        """Take some samples."""
        for part in split_range(len(chunk.labels), tile_rows(len(self.weight), self.weight.device)):
            place = slice(chunk.start + part.start, chunk.start + part.stop)
            self.labels[place] = chunk.labels[part]
            scores = torch.addmm(self.anchor_scores, chunk.x[part], self.weight.T)
            self._add_scores(place, scores, chunk.distances[part] if self.needs.margins else None)

    def _add_scores(self, place: slice, scores: Tensor, distances: Tensor | None) -> None:
        own = self.labels[place][:, None]
        if self.needs.own:
            self.positive[place] = scores.gather(1, own).squeeze(1)
        if self.needs.decisions and not self.needs.logits:
            self.decision[place] = (scores - self.bias).argmax(1)
        if self.needs.logits:
            logits = scores - self.bias
            own_logit = logits.gather(1, own).squeeze(1)
            other, index = logits.scatter_(1, own, -torch.inf).max(1)
            self.put_logits(place, own_logit, other, index)
        if distances is not None:
            cosines = (scores - scores.mean(1, keepdim=True)).sub_(self.offset).mul_(self.inverse)
            own_cosine = cosines.gather(1, own).squeeze(1)
            margin = own_cosine - cosines.scatter_(1, own, -torch.inf).amax(1)
            self.margin[place] = torch.where(distances > 0, margin / distances, 0.0)
        if self.negatives is not None:
            self.negatives.add_other_scores(scores, own)
