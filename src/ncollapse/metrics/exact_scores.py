"""Decisions, margins and negative scores with every score in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from .classifier import Classifier
from .collapse import Moments
from .rows import invert, split_range
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
        self.columns = [values[:, None] for values in (self.anchor_scores, self.bias)]
        centred = classifier.rows().centre()
        self.shifts = torch.cat([block @ moments.shift for block in centred.blocks()])[:, None]
        self.inverse = invert(centred.norms())[:, None]
        self.negatives = open_negatives(classifier, moments, classes, energy) if needs.negatives else None

    def add(self, chunk: Chunk) -> None:
        """Take some samples; scores are [K, c], a class a row."""
        for part in split_range(len(chunk.labels), tile_rows(len(self.weight), self.weight.device)):
            place = slice(chunk.start + part.start, chunk.start + part.stop)
            self.labels[place] = chunk.labels[part]
            size = len(self.weight), part.stop - part.start
            scores, other = chunk.room.take("scores", *size), chunk.room.take("other scores", *size)
            torch.mm(self.weight, chunk.x[part].T, out=scores)
            if self.needs.margins:
                self._add_margins(place, scores, chunk.distances[part], other)
            self._add_scores(place, scores.add_(self.columns[0]), other)

    def _add_margins(self, place: slice, products: Tensor, distances: Tensor, room: Tensor) -> None:
        """The cosine margins, from the products W x: the centred classifier gives W x minus its mean over classes."""
        own = self.labels[place][None]
        cosines = torch.sub(products, products.mean(0), out=room).sub_(self.shifts).mul_(self.inverse)
        margin = cosines.gather(0, own) - cosines.scatter_(0, own, -torch.inf).amax(0)
        self.margin[place] = torch.where(distances > 0, margin[0] / distances, 0.0)

    def _add_scores(self, place: slice, scores: Tensor, room: Tensor) -> None:
        labels = self.labels[place]
        own = labels[None]
        positive = scores.gather(0, own)[0]
        if self.needs.own:
            self.positive[place] = positive
        if self.needs.decisions:
            logits = torch.sub(scores, self.columns[1], out=room)
            own_logit = positive - self.bias[labels]
            other = logits.scatter_(0, own, -torch.inf).amax(0)
            index = torch.zeros_like(labels)
            left = (other >= own_logit).nonzero().flatten()
            index[left] = logits[:, left].argmax(0)
            self.put_logits(place, own_logit, other, index)
        if self.negatives is not None:
            self.negatives.add_other_scores(scores, own)
