"""The distribution of the N (K - 1) negative scores, in bounded memory.

Mean, standard deviation, least and largest are exact for any size. Quantiles are exact while all scores fit in memory;
beyond that they come from exact counts in fixed bins: a score's bin is made of the sign, the exponent and the first
eleven digits of its mantissa in float32, so that a quantile is off by at most one part in 2^11 of its own size, and
does not depend on batches or order.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from .scores import LEVELS, Counts, Spread, Values, make_spread

EXACT = 1 << 23  # scores held at once for exact quantiles: 64 MB
SHIFT = 12  # mantissa digits of float32 dropped to make a bin
FLIP = 0x7FFFFFFF  # all bits but the sign
BINS = 1 << (32 - SHIFT)
COPIES = 16  # of the counts on a GPU, where collapsed scores would all add to the same few numbers


class NegativeScores:
    """Collects negative scores chunk by chunk; `centre` is their mean, known from the class means beforehand."""

    def __init__(self, num_samples: int, num_classes: int, centre: float, device: torch.device) -> None:
        self.count = num_samples * (num_classes - 1)
        self.centre = centre
        self._num_samples = num_samples
        exact = num_samples * num_classes <= EXACT
        self._held = torch.empty(num_samples * num_classes if exact else 0, dtype=torch.float64, device=device)
        self._filled = 0
        self._exact = exact
        self._copies = COPIES if device.type == "cuda" else 1
        size = 0 if exact else BINS * self._copies
        self._counts = torch.zeros(size, dtype=torch.int64, device=device)
        self._squares = torch.zeros((), dtype=torch.float64, device=device)
        self._least = torch.full((), torch.inf, dtype=torch.float64, device=device)
        self._largest = torch.full((), -torch.inf, dtype=torch.float64, device=device)

    def add(self, scores: Tensor, own: Tensor) -> None:
        """Add scores [c, K] but for each sample's own class `own` [c, 1]; `scores` is used up."""
        self._least = torch.minimum(self._least, scores.scatter_(1, own, torch.inf).amin())
        self._largest = torch.maximum(self._largest, scores.scatter_(1, own, -torch.inf).amax())
        if self._exact:
            place = self._held[self._filled : self._filled + scores.numel()].view_as(scores)
            place.copy_(scores).scatter_(1, own, torch.inf)
            self._filled += scores.numel()
        else:
            self._tally(scores)
        self._squares += (scores.scatter_(1, own, self.centre) - self.centre).square_().sum()

    def _tally(self, scores: Tensor) -> None:
        keys = scores.to(torch.float32).view(torch.int32)
        # flip the negative half so that the order of the keys is the order of the scores
        keys = torch.where(keys < 0, keys ^ FLIP, keys)
        bins = (keys >> SHIFT).long() + BINS // 2
        if self._copies == 1:
            self._counts += torch.bincount(bins.flatten(), minlength=BINS)
            return
        copy = torch.arange(scores.shape[1], device=scores.device) % self._copies
        bins = bins.mul_(self._copies).add_(copy).flatten()
        self._counts.scatter_add_(0, bins, torch.ones_like(bins))

    def _collapse_counts(self) -> Counts:
        counts: Counts = self._counts.view(BINS, self._copies).sum(1).cpu().numpy()
        own = int(counts[_bin_of(-math.inf)])  # each sample's own class was parked at -inf
        counts[_bin_of(-math.inf)] = 0
        if own != self._num_samples:
            raise ValueError("scores: some are too large for float32; rescale the features or the weights")
        return counts

    def ordered(self) -> Values | None:
        """All negative scores in order, or None where only their counts are kept."""
        if not self._exact:
            return None
        ordered: Values = self._held.cpu().numpy()
        ordered.sort()
        return ordered[: self.count]

    def spread(self) -> Spread:
        """The spread of all negative scores."""
        if self.count == 0:
            return Spread()
        least, largest = float(self._least), float(self._largest)
        mean = min(max(self.centre, least), largest)
        std = math.sqrt(float(self._squares) / self.count)
        ordered = self.ordered()
        if ordered is not None:
            return make_spread(mean, std, ordered)
        q05, q25, median, q75, q95 = (min(max(value, least), largest) for value in self._binned_quantiles())
        return Spread(mean, std, least, q05, q25, median, q75, q95, largest, self.count)

    def _binned_quantiles(self) -> list[float]:
        below = np.cumsum(self._collapse_counts())

        def ranked(rank: int) -> float:  # the score with that many below it, to within its bin
            index = int(np.searchsorted(below, rank, side="right"))
            before = int(below[index - 1]) if index else 0
            share = (rank - before + 0.5) / int(below[index] - before)
            low, high = _edge(index), _edge(index + 1)
            return low + share * (high - low)

        result = []
        for level in LEVELS:
            place = level * (self.count - 1)
            left, right = ranked(int(place)), ranked(min(int(place) + 1, self.count - 1))
            result.append(left + (place - int(place)) * (right - left))
        return result

    def histogram(self, bins: int) -> tuple[Values, Counts]:
        """Edges [bins + 1] from least to largest and counts [bins]; a kept count is filed at the middle of its bin."""
        if self.count == 0:
            return np.linspace(0.0, 1.0, bins + 1), np.zeros(bins, dtype=np.int64)
        edges = even_edges(float(self._least), float(self._largest), bins)
        ordered = self.ordered()
        if ordered is not None:
            return edges, np.histogram(ordered, edges)[0].astype(np.int64)
        counts = self._collapse_counts()
        filled = counts.nonzero()[0]
        middles = np.array([(_edge(int(index)) + _edge(int(index) + 1)) / 2 for index in filled])
        middles = np.clip(middles, edges[0], edges[-1])
        return edges, np.histogram(middles, edges, weights=counts[filled])[0].astype(np.int64)


def even_edges(low: float, high: float, bins: int) -> Values:
    """Evenly spaced edges from low to high, a little apart when the two are equal."""
    if not high > low:
        margin = max(abs(low), 1.0) * 1e-6
        low, high = low - margin, high + margin
    return np.linspace(low, high, bins + 1)


def _bin_of(value: float) -> int:
    key = int(np.array([value], dtype=np.float32).view(np.int32)[0])
    key = key ^ FLIP if key < 0 else key
    return (key >> SHIFT) + BINS // 2


def _edge(index: int) -> float:
    """The least score of a bin."""
    key = (index - BINS // 2) << SHIFT
    key = key ^ FLIP if key < 0 else key
    return float(np.array([key], dtype=np.int32).view(np.float32)[0])
