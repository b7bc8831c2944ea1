"""Decisions, margins and negative scores with every score in float64."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from .classifier import Classifier
from .collapse import Moments
from .rows import invert
from .sample_scores import SampleScores, ScoreNeeds, open_negatives
from .second_pass import Chunk
from .transfer import copy_together

FEW_SCORES = 1 << 20  # so many scores are found in float64 at once, more of them in float32 first
CPU_SCORES = 1 << 19  # scores a tile: 4 MB
CUDA_SCORES = 1 << 26


def tile_rows(num_classes: int, device: torch.device) -> int:
    """Samples a tile of float64 scores."""
    return max(64, (CUDA_SCORES if device.type == "cuda" else CPU_SCORES) // num_classes)


class NearestScores(Protocol):
    """What takes the scores of the class means, found in the same product: `nearest_means.NearestMeans`."""

    moments: Moments
    around_anchor: Tensor  # [P] to be added to the products of class means and features around the anchor

    def put(self, place: slice, labels: Tensor, scores: Tensor) -> None:
        """Take the scores [P, c] of some samples."""


class ExactScores(SampleScores):
    """Every score in float64; products of several chunks wait for one look at them all."""

    def __init__(
        self,
        classifier: Classifier,
        moments: Moments,
        classes: Tensor | None,
        needs: ScoreNeeds,
        energy: float,
        device: torch.device,
        nearest: NearestScores | None = None,
    ) -> None:
        super().__init__(classifier, moments, needs, device)
        rows = classifier.rows()
        centred = rows.centre()
        shifts = centred.times(moments.shift)
        weight = rows.matrix if rows.is_small else classifier.weight.to(torch.float64)
        vectors = [self.anchor_scores, classifier.bias, shifts, invert(centred.norms())]
        vectors += [] if nearest is None else [nearest.around_anchor]
        self.weight, *columns = copy_together([weight, *vectors], device)
        self.bias, self.classes, self.nearest = columns[1], len(weight), nearest
        if nearest is not None:
            self.weight = torch.cat([self.weight, nearest.moments.offsets])
            self.around_anchor = columns.pop()[:, None]
        self.anchored, self.thresholds, self.shifts, self.inverse = (column[:, None] for column in columns)
        self.negatives = open_negatives(classifier, moments, classes, energy, device) if needs.negatives else None
        capacity = min(tile_rows(len(self.weight), device), len(self.labels))
        self.products = self.weight.new_empty(len(self.weight), capacity)  # W x, a class a row
        self.other = self.weight.new_empty(self.classes, capacity)
        self.inverse_distances = self.weight.new_empty(capacity if needs.margins else 0)
        self.zero = self.labels.new_empty(capacity, dtype=torch.bool)
        self.waiting = slice(0, 0)  # the samples whose products wait

    def add(self, chunk: Chunk) -> None:
        """Take some samples."""
        super().add(chunk)
        done, capacity = 0, self.products.shape[1]
        while done < len(chunk.labels):
            if self.waiting.stop - self.waiting.start == capacity:
                self.finish_tile()
            start = chunk.start + done
            first = start - self.waiting.start
            count = min(capacity - first, len(chunk.labels) - done)
            part, place = slice(done, done + count), slice(first, first + count)
            torch.mm(self.weight, chunk.x[part].T, out=self.products[:, place])
            self.zero[place] = chunk.zero[part]
            if self.needs.margins:
                self.inverse_distances[place] = chunk.inverse[part]
            self.waiting = slice(self.waiting.start, start + count)
            done += count

    def finish(self, moments: Moments) -> None:
        """Work off the last samples."""
        self.finish_tile()

    def finish_tile(self) -> None:
        """Find what is wanted of the products that wait."""
        place, count = self.waiting, self.waiting.stop - self.waiting.start
        scores, other = self.products[: self.classes, :count], self.other[:, :count]
        if self.nearest is not None:
            means = self.products[self.classes :, :count].add_(self.around_anchor)
            self.nearest.put(place, self.labels[place], means)
        if self.needs.margins:
            self._add_margins(place, scores, self.inverse_distances[:count], other)
        scores.add_(self.anchored)
        if self.zero.device.type != "cpu" or bool(self.zero[:count].any()):
            scores.masked_fill_(self.zero[:count], 0.0)
        self._add_scores(place, scores, other)
        self.waiting = slice(place.stop, place.stop)

    def _add_margins(self, place: slice, products: Tensor, inverse: Tensor, room: Tensor) -> None:
        """The cosine margins, from the products W x: the centred classifier gives W x minus its mean over classes."""
        own = self.labels[place][None]
        cosines = torch.sub(products, products.mean(0), out=room).sub_(self.shifts).mul_(self.inverse)
        margin = cosines.gather(0, own) - cosines.scatter_(0, own, -torch.inf).amax(0)
        self.margin[place] = margin[0] * inverse

    def _add_scores(self, place: slice, scores: Tensor, room: Tensor) -> None:
        labels = self.labels[place]
        own = labels[None]
        positive = scores.gather(0, own)[0]
        if self.needs.own:
            self.positive[place] = positive
        if self.needs.decisions:
            logits = torch.sub(scores, self.thresholds, out=room)
            own_logit = positive - self.bias[labels]
            self.put_logits(place, own_logit, *find_largest(logits.scatter_(0, own, -torch.inf), own_logit))
        if self.negatives is not None:
            self.negatives.add_other_scores(scores, own)


def find_largest(table: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """The largest entry of each column [c] and, where it is no less than `least` [c], its first row; elsewhere any."""
    if table.device.type != "cpu":
        largest, index = table.max(0)
        return largest, index
    largest = table.amax(0)
    index = torch.zeros_like(largest, dtype=torch.int64)
    left = (largest >= least).nonzero().flatten()
    if len(left):
        index[left] = table[:, left].argmax(0)
    return largest, index
