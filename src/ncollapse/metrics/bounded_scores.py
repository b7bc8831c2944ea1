"""Decisions, margins and negative scores of very many scores: float32 tiles, with float64 wherever it counts."""

from __future__ import annotations

import torch
from torch import Tensor

from .classifier import Classifier
from .collapse import Moments
from .products import TINY, UNIT, Float32Rows, Products, bound_error
from .radii import decision_radii, is_worthwhile
from .rows import invert, split_range
from .sample_scores import OwnScores, ScoreNeeds, open_negatives
from .second_pass import Chunk, find_beyond

SCORES = 1 << 21  # scores a tile: 8 MB
CANCELLED = 1e-5  # a difference below this share of its terms has lost too many digits


def tile_rows(num_classes: int) -> int:
    """Samples a tile of float32 scores."""
    return max(64, SCORES // num_classes)


class BoundedScores(OwnScores):
    """Every score in float32, of centred features and centred weights, so that its error is bounded.

    The classes that these scores single out are certain, or else found again in float64; their scores are then computed
    in float64. The same holds for the least and the largest negative score. Their mean comes from the class means,
    their standard deviation from d x d moments, and their quantiles from the float32 scores.
    """

    def __init__(
        self, classifier: Classifier, moments: Moments, classes: Tensor | None, needs: ScoreNeeds, energy: float
    ) -> None:
        super().__init__(classifier, moments, needs, classifier.weight.device)
        self.classifier, self.classes = classifier, classes
        centred = classifier.rows().centre()
        self.logits = Products(classifier.rows(), offset=self.anchor_scores - classifier.bias)
        self.narrow, self.scale = Float32Rows(centred), moments.float32_scale
        inverse = invert(self.narrow.norms)
        self.cosines = Products(centred, scale=inverse)
        self.relative = (inverse * self.narrow.largest).to(torch.float32)
        self.shared = centred.times(moments.global_mean)
        offset = self.shared - classifier.bias
        self.offset = self.narrow.offset(offset - offset.mean(), self.scale)
        self.best_at_zero = torch.argsort(classifier.bias, stable=True)[:2].expand(2)  # where h = 0, the logits are -b
        self.mean_weight = classifier.rows().mean()
        self.anchor_mean = moments.anchor @ self.mean_weight
        self.common_squares = torch.zeros((), dtype=torch.float64, device=inverse.device)
        self.radii: Tensor | None = None
        if needs.decisions_only and is_worthwhile(moments, len(classifier.weight), inverse.device):
            self.radii = decision_radii(classifier, moments, classes)
        if needs.negatives:
            self.negatives = open_negatives(classifier, moments, classes, energy, inverse.device)
            self.extremes = [_Extreme(sign, self.scores, inverse.device) for sign in (1.0, -1.0)]

    def add(self, chunk: Chunk) -> None:
        """Take some samples."""
        super().add(chunk)
        if self.needs.decisions_only:
            place = slice(chunk.start, chunk.start + len(chunk.labels))
            self.decision[place] = find_beyond(self.radii, chunk, chunk.labels, self._decide)
            return
        for part in split_range(len(chunk.labels), tile_rows(len(self.narrow.values))):
            self._add_part(chunk, part)

    def _decide(self, chunk: Chunk) -> Tensor:
        """The class with the largest logit."""
        found = torch.empty_like(chunk.labels)
        for part in split_range(len(found), tile_rows(len(self.narrow.values))):
            samples = chunk.narrow.part(part)
            tile, bound = self.narrow.multiply(samples, chunk.room)
            scores = self.offset.add_to(tile, bound, samples, tile)
            found[part] = self.logits.decide(*scores, chunk.x[part], chunk.labels[part])
        return torch.where(chunk.zero, self.best_at_zero[0], found)

    def _add_part(self, chunk: Chunk, part: slice) -> None:
        place = slice(chunk.start + part.start, chunk.start + part.stop)
        x, labels, samples = chunk.x[part], chunk.labels[part], chunk.narrow.part(part)
        tile, bound = self.narrow.multiply(samples, chunk.room)
        other = chunk.room.take("other tile", *tile.shape, dtype=torch.float32)
        if self.needs.decisions:
            index = self.logits.settle(*self.offset.add_to(tile, bound, samples, other), x, labels)
            own = self.positive[place] - self.bias[labels]
            largest, zero = self.logits.at(x, index), chunk.zero[part]
            if zero.device.type != "cpu" or bool(zero.any()):  # a GPU is not waited for
                first, second = self.best_at_zero
                index = torch.where(zero, torch.where(labels == first, second, first), index)
                largest = torch.where(zero, -self.bias[index], largest)
            self.put_logits(place, own, largest, index)
        if self.negatives is not None:
            self._add_negatives(tile, chunk, part, other)
        if self.needs.margins:
            centred = chunk.centred[part]
            index = self.cosines.settle(tile.mul_(self.relative), bound, centred, labels)
            margin = self.cosines.at(centred, labels) - self.cosines.at(centred, index)
            self.margin[place] = margin * chunk.inverse[part]

    def _add_negatives(self, tile: Tensor, chunk: Chunk, part: slice, out: Tensor) -> None:
        assert self.negatives is not None
        scale, x = self.negatives.scale, chunk.x[part]
        lengths, common = chunk.norms[part] * (self.narrow.largest * scale), x @ self.mean_weight + self.anchor_mean
        self.common_squares += (common - self.negatives.centre).square().sum()
        shared, added = self.shared * scale, common * scale
        scores = torch.mul(tile, self.narrow.largest / self.scale * scale, out=out)
        scores.add_(shared.float()).add_(added.float()[:, None])
        bound = bound_error(x.shape[1]) * lengths + x.shape[1] * TINY
        bound += 4 * UNIT * (lengths + shared.abs().max() + added.abs())
        own = chunk.labels[part, None]
        for extreme in self.extremes:
            extreme.add(scores.scatter_(1, own, -extreme.sign * torch.inf), bound, x)
        self.negatives.count_bins(scores.scatter_(1, own, -torch.inf))

    def finish(self, moments: Moments) -> None:
        """Complete the negative scores: their extremes and the sum of their squared deviations from the mean c.

        With W~ the centred classifier and w its mean row, a sample's deviations have the squared sum
        |W~ h|^2 + K (w h - c)^2; over all samples the first part is <W~^T W~, H^T H>. The own scores are taken off.
        """
        if self.negatives is None:
            return
        assert moments.scatter is not None
        largest, least = (extreme.value for extreme in self.extremes)
        self.negatives.widen(least, largest)
        second = moments.scatter.clone()
        for part in moments.means().parts():
            block = moments.means().block(part) * moments.counts[part].sqrt()[:, None]
            second.addmm_(block.T, block)
        classes = len(self.classifier.weight)
        everything = (self.cosines.rows.gram() * second).sum() + classes * self.common_squares
        squares = everything - (self.positive - self.negatives.centre).square().sum()
        if float(squares) < CANCELLED * float(everything):
            squares = self._sum_by_class(moments)
        self.negatives.squares = squares.clamp_min(0.0)

    def _sum_by_class(self, moments: Moments) -> Tensor:
        """The same sum where the own scores are nearly all of it: around the class means, pair by pair of classes."""
        assert moments.scatter is not None
        assert self.negatives is not None
        weight, means, bounds = self.classifier.rows(), moments.means(), tile_rows(len(self.classifier.weight))
        total = torch.zeros((), dtype=torch.float64, device=moments.scatter.device)
        own = torch.empty_like(moments.counts)
        for part in split_range(len(means), bounds):
            index = torch.arange(part.start, part.stop, device=own.device)
            index = index if self.classes is None else self.classes[part]
            block = means.block(part)
            own[part] = torch.linalg.vecdot(block, weight.pick(index))
            for columns in weight.parts():
                table = (block @ weight.block(columns).T).sub_(self.negatives.centre)
                inside = (index >= columns.start) & (index < columns.stop)
                table[inside, index[inside] - columns.start] = 0.0
                total += moments.counts[part] @ table.square_().sum(1)
        places = self.labels if self.classes is None else torch.searchsorted(self.classes, self.labels)
        within = (weight.gram() * moments.scatter).sum() - (self.positive - own[places]).square().sum()
        return total + within.clamp_min(0.0)


class _Extreme:
    """The largest (sign 1) or least (sign -1) of all scores in float64, from float32 scores with known bounds."""

    def __init__(self, sign: float, products: Products, device: torch.device) -> None:
        self.sign, self.products = sign, products
        self.certain = torch.full(
            (), -torch.inf, dtype=torch.float64, device=device
        )  # the extreme is no less than this
        self.value = torch.full((), -sign * torch.inf, dtype=torch.float64, device=device)

    def add(self, scores: Tensor, bound: Tensor, x: Tensor) -> None:
        """Take scores [c, K], each off by at most its sample's bound [c], of features x [c, d]."""
        edge = (scores.amax(1) if self.sign > 0 else -scores.amin(1)).to(torch.float64)
        self.certain = torch.maximum(self.certain, (edge - bound).max())
        rows = (edge + bound >= self.certain).nonzero().flatten()
        slack = 2 * bound[rows].float()[:, None]  # more than the rounding of this comparison
        near = (self.sign * scores[rows] + slack >= self.certain.float()).nonzero()
        for part in split_range(len(near), max(1, SCORES // x.shape[1])):
            sample, index = near[part].unbind(1)
            exact = self.products.at(x[rows[sample]], index)
            if self.sign > 0:
                self.value = torch.maximum(self.value, exact.max())
            else:
                self.value = torch.minimum(self.value, exact.min())
