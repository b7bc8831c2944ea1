"""The distribution of more numbers than fit in memory.

Mean, standard deviation, least and largest are exact for any size. Quantiles are exact while all numbers fit in memory;
beyond that they come from exact counts in fixed bins: a number's bin is made of the sign, the exponent and the first
eleven digits of its mantissa in float32, so that a quantile is off by at most one part in 2^11 of its own size, and
does not depend on batches or order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .rows import split_range
from .scores import Counts, Spread, Values, interpolate, make_spread, quantile_places

if TYPE_CHECKING:
    from .shards import Shards

EXACT = 1 << 23  # numbers held at once for exact quantiles: 64 MB
SHIFT = 12  # mantissa digits of float32 dropped to make a bin
FLIP = 0x7FFFFFFF  # all bits but the sign
BINS = 1 << (32 - SHIFT)
FEW = 1 << 18  # numbers that are sorted at once, or put into bins at once
COPIES = 16  # of the counts on a GPU, where equal numbers would all add to the same few counts


class Distribution:
    """Collects numbers chunk by chunk.

    Args:
        count: how many numbers will be added.
        centre: their mean, known beforehand.
        device: where they are.
        scale: a power of two that brings the largest magnitude near 1, where float32 can tell them apart.
        parked: how many infinities will be added beside them, which stand for no number.
        hold: whether few numbers are held for exact quantiles.
    """

    def __init__(
        self, count: int, centre: float, device: torch.device, *, scale: float = 1.0, parked: int = 0, hold: bool = True
    ) -> None:
        self.count, self.centre, self.scale = count, centre, scale
        self.exact = hold and count + parked <= EXACT
        self.squares = torch.zeros((), dtype=torch.float64, device=device)  # sum of (number - centre)^2
        self.least = torch.full((), torch.inf, dtype=torch.float64, device=device)
        self.largest = torch.full((), -torch.inf, dtype=torch.float64, device=device)
        self._parked = parked
        self._held = torch.empty(count + parked if self.exact else 0, dtype=torch.float64, device=device)
        self._filled = 0
        self._copies = COPIES if device.type == "cuda" else 1
        self._counts = torch.zeros(0 if self.exact else BINS * self._copies, dtype=torch.int64, device=device)

    def add(self, numbers: Tensor) -> None:
        """Add float64 numbers, none of them parked."""
        if numbers.numel() == 0:
            return
        self.widen(numbers.amin(), numbers.amax())
        self.squares += (numbers - self.centre).square_().sum()
        self.keep(numbers)

    def add_other_scores(self, scores: Tensor, own: Tensor) -> None:
        """Add scores [K, c] but for each sample's own class `own` [1, c]; `scores` is overwritten."""
        least = scores.scatter_(0, own, torch.inf).amin()
        self.widen(least, scores.scatter_(0, own, -torch.inf).amax())
        self.keep(scores)
        self.squares += scores.scatter_(0, own, self.centre).sub_(self.centre).square_().sum()

    def widen(self, least: Tensor, largest: Tensor) -> None:
        """Note the extremes of some numbers."""
        self.least, self.largest = torch.minimum(self.least, least), torch.maximum(self.largest, largest)

    def keep(self, numbers: Tensor) -> None:
        """Keep numbers for the quantiles; a parked one is -inf."""
        if not self.exact:
            self.count_bins((numbers * self.scale).to(torch.float32))
            return
        place = self._held[self._filled : self._filled + numbers.numel()].view_as(numbers)
        place.copy_(numbers)
        if self._parked:
            place.masked_fill_(place == -torch.inf, torch.inf)
        self._filled += numbers.numel()

    def count_bins(self, scaled: Tensor) -> None:
        """Count float32 numbers, times the scale, into the bins; `scaled` is overwritten."""
        bins = find_bins(scaled).flatten()
        if self._copies == 1:
            self._counts += torch.bincount(bins, minlength=BINS)
            return
        copy = torch.arange(len(bins), device=bins.device) % self._copies
        self._counts.scatter_add_(0, copy.add_(bins, alpha=self._copies), torch.ones_like(copy))

    def merge(self, shards: Shards) -> None:
        """Put together what every process added; none of them may hold numbers."""
        self.squares, self._counts = shards.add(self.squares), shards.add(self._counts)
        self.least, self.largest = shards.least(self.least), shards.largest(self.largest)

    def _sum_copies(self) -> Tensor:
        counts = self._counts.view(BINS, self._copies).sum(1)
        counts[_bin_of(-math.inf)] -= self._parked
        return counts

    def rank(self) -> Tensor:
        """What the spread is made of: squares, least, largest, and the numbers at `quantile_places` or their bins."""
        edges = torch.stack([self.squares, self.least, self.largest])
        places = quantile_places(self.count) if self.count else ()
        return torch.cat([edges, self._rank_held(places) if self.exact else self._rank_binned(places)])

    def _rank_held(self, places: Sequence[int]) -> Tensor:
        """The numbers with so many below them, for each of the places in ascending order.

        On the CPU many numbers are counted into bins first, and only those in the bins of these places are sorted.
        """
        if self._held.device.type != "cpu":
            ordered = self._held.sort().values
            return torch.stack([ordered[place] for place in places]) if places else ordered[:0]
        ranks, held = np.array(places, dtype=np.int64), self._held.numpy()
        if len(held) <= FEW:
            return torch.from_numpy(np.partition(held, ranks)[ranks])
        bins = np.concatenate([_bin_held(self._held[part] * self.scale) for part in split_range(len(held), FEW)])
        below = np.cumsum(np.bincount(bins, minlength=BINS))
        found = np.searchsorted(below, ranks, side="right")
        used = np.zeros(BINS, dtype=np.bool_)
        used[found] = True
        ordered_values = np.sort(held[used[bins]])
        kept = np.unique(found)
        sizes = below[kept] - np.where(kept > 0, below[kept - 1], 0)
        starts = (np.cumsum(sizes) - sizes)[np.searchsorted(kept, found)]
        before = np.where(found > 0, below[found - 1], 0)
        return torch.from_numpy(ordered_values[starts + ranks - before])

    def _rank_binned(self, places: Sequence[int]) -> Tensor:
        """For each place its bin, how many numbers are below the bin, and how many in it."""
        below = self._sum_copies().cumsum(0)
        found = torch.searchsorted(below, torch.tensor(places, dtype=torch.int64, device=below.device), right=True)
        before = torch.where(found > 0, below[(found - 1).clamp_min(0)], 0)
        return torch.cat([found, before, below[found] - before]).to(torch.float64)

    def finish(self, numbers: Sequence[float]) -> Spread:
        """The spread, from what `rank` found."""
        if self.count == 0:
            return Spread()
        squares, least, largest, *ranked = numbers
        places = quantile_places(self.count)
        if not self.exact:
            parts = (ranked[start :: len(places)] for start in range(len(places)))
            ranked = [self._place(rank, *part) for rank, part in zip(places, parts)]
        mean, std = min(max(self.centre, least), largest), math.sqrt(squares / self.count)
        quantiles = interpolate(dict(zip(places, ranked)), self.count)
        return make_spread(mean, std, quantiles, least, largest, self.count)

    def _place(self, rank: int, index: float, before: float, inside: float) -> float:
        """The number with so many below it, to within its bin."""
        low, high = self._edge(int(index)), self._edge(int(index) + 1)
        return low + (rank - before + 0.5) / inside * (high - low)

    def spread(self) -> Spread:
        """The spread of all numbers."""
        return self.finish(self.rank().tolist())

    def histogram(self, bins: int) -> tuple[Values, Counts]:
        """Edges [bins + 1] from least to largest and counts [bins]; a kept count is filed at the middle of its bin."""
        if self.count == 0:
            return np.linspace(0.0, 1.0, bins + 1), np.zeros(bins, dtype=np.int64)
        edges = even_edges(float(self.least), float(self.largest), bins)
        if self.exact:
            return edges, count_between(self._held, edges)
        counts: Counts = self._sum_copies().cpu().numpy()
        filled = counts.nonzero()[0]
        middles = np.array([(self._edge(int(index)) + self._edge(int(index) + 1)) / 2 for index in filled])
        middles = np.clip(middles, edges[0], edges[-1])
        return edges, np.histogram(middles, edges, weights=counts[filled])[0].astype(np.int64)

    def _edge(self, index: int) -> float:
        """The least number of a bin."""
        key = (index - BINS // 2) << SHIFT
        key = key ^ FLIP if key < 0 else key
        return float(np.array([key], dtype=np.int32).view(np.float32)[0]) / self.scale


def find_bins(numbers: Tensor) -> Tensor:
    """The bin of each float32 number, as int32; larger numbers have no smaller bins."""
    keys = numbers.view(torch.int32)
    # flip the negative half so that the order of the keys is the order of the numbers
    bins = (keys >> 31).bitwise_and_(FLIP).bitwise_xor_(keys)
    return bins.bitwise_right_shift_(SHIFT).add_(BINS // 2)


def _bin_held(numbers: Tensor) -> np.ndarray[Any, np.dtype[np.int32]]:
    bins: np.ndarray[Any, np.dtype[np.int32]] = find_bins(numbers.to(torch.float32)).cpu().numpy()
    return bins


def choose_scale(largest: float) -> float:
    """The power of two that brings a bound on the magnitudes to at most 1; 1 for a bound of 0.

    >>> choose_scale(5.0)
    0.125
    """
    return 2.0 ** -math.ceil(math.log2(largest)) if largest > 0 else 1.0


def even_edges(low: float, high: float, bins: int) -> Values:
    """Evenly spaced edges from low to high, a little apart when the two are equal."""
    if not high > low:
        margin = max(abs(low), 1.0) * 1e-6
        low, high = low - margin, high + margin
    return np.linspace(low, high, bins + 1)


def count_between(values: Tensor, edges: Values) -> Counts:
    """How many values lie between evenly spaced edges, the last one included; infinities are left out.

    >>> count_between(torch.tensor([0.0, 1.0, 1.5, 2.0, torch.inf]), np.array([0.0, 1.0, 2.0])).tolist()
    [1, 3]
    """
    counts: Counts
    if values.device.type == "cpu":
        found: Values = values.numpy()
        if bool((edges[1:] > edges[:-1]).all()):  # a fast guess from even edges, which NumPy then compares with them
            counted = np.histogram(found, len(edges) - 1, (float(edges[0]), float(edges[-1])))[0]
        else:  # so close that some edges are equal
            counted = np.histogram(found[found < np.inf], edges)[0]
        counts = counted.astype(np.int64)
        return counts
    bounds = torch.from_numpy(edges).to(values.device)
    places = torch.searchsorted(bounds, values, right=True).clamp_(1, len(edges) - 1) - 1
    inside = ((values >= bounds[0]) & (values <= bounds[-1])).to(torch.int64)
    totals = torch.zeros(len(edges) - 1, dtype=torch.int64, device=values.device).index_add_(0, places, inside)
    counts = totals.cpu().numpy()
    return counts


def _bin_of(value: float) -> int:
    key = int(np.array([value], dtype=np.float32).view(np.int32)[0])
    key = key ^ FLIP if key < 0 else key
    return (key >> SHIFT) + BINS // 2
