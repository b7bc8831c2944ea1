"""Distributions of decision scores and the accuracies that hang on one threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Values: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Counts: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
GRID = 200  # thresholds of bce-vs-ce A.2


@dataclass(frozen=True)
class Spread:
    """A distribution in ten numbers; `std` is the population standard deviation, quantiles interpolate linearly."""

    mean: float = math.nan
    std: float = math.nan
    min: float = math.nan
    q05: float = math.nan
    q25: float = math.nan
    median: float = math.nan
    q75: float = math.nan
    q95: float = math.nan
    max: float = math.nan
    count: int = 0


def spread_of(values: Values) -> Spread:
    """The spread of a set of numbers.

    >>> import numpy as np
    >>> spread_of(np.array([1.0, 2.0, 3.0])).median
    2.0
    """
    if values.size == 0:
        return Spread()
    ordered = np.sort(values, axis=None)
    low, high = float(ordered[0]), float(ordered[-1])
    mean = min(max(float(values.mean()), low), high)
    std = math.sqrt(float(np.mean((values - mean) ** 2)))
    return make_spread(mean, std, low, [interpolate(ordered, level) for level in LEVELS], high, int(values.size))


def make_spread(mean: float, std: float, least: float, quantiles: list[float], largest: float, count: int) -> Spread:
    """A spread from its parts; `quantiles` at `LEVELS`."""
    q05, q25, median, q75, q95 = quantiles
    return Spread(mean, std, least, q05, q25, median, q75, q95, largest, count)


def interpolate(ordered: Values, level: float) -> float:
    """The quantile of sorted values, by linear interpolation between neighbours."""
    place = level * (ordered.size - 1)
    below = int(place)
    above = min(below + 1, ordered.size - 1)
    return float(ordered[below] + (place - below) * (ordered[above] - ordered[below]))


def uniform_accuracy(positive: Values, negative: Values) -> tuple[float, float]:
    """The largest share of samples that one threshold decides rightly, and such a threshold (bce-vs-ce Eqs. 43-45).

    `positive` holds each sample's own logit, `negative` the largest of its others, bias included. A sample is right
    for the thresholds t with negative <= t < positive; the best t lies where most of these intervals overlap, found
    by one sort. The threshold returned is the middle of the first such stretch, NaN if no sample can be right.

    >>> import numpy as np
    >>> uniform_accuracy(np.array([2.0, 3.0, 0.0]), np.array([1.0, -1.0, 4.0]))
    (0.6666666666666666, 1.5)
    """
    starts, ends = _intervals(positive, negative)
    if starts.size == 0:
        return 0.0, math.nan
    depth = np.arange(1, starts.size + 1) - np.searchsorted(ends, starts, side="right")
    best = int(depth.argmax())
    left = float(starts[best])
    right = float(ends[np.searchsorted(ends, left, side="right")])
    middle = left + (right - left) / 2
    return int(depth[best]) / positive.size, middle if left <= middle < right else left


def uniform_accuracy_grid(positive: Values, negative: Values) -> float:
    """The same by the paper's 200 evenly spaced thresholds between the least positive and the largest negative score.

    When the two sets of scores are apart every sample is right; that needs positive > negative strictly.
    """
    low, high = float(positive.min()), float(negative.max())
    if low > high:
        return 1.0
    starts, ends = _intervals(positive, negative)
    grid = np.linspace(low, high, GRID)
    right = np.searchsorted(starts, grid, side="right") - np.searchsorted(ends, grid, side="right")
    return int(right.max()) / positive.size


def _intervals(positive: Values, negative: Values) -> tuple[Values, Values]:
    proper = negative < positive
    return np.sort(negative[proper]), np.sort(positive[proper])
