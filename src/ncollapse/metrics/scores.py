"""Distributions of decision scores and the accuracies that hang on one threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .equality import NanEqual

Values: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Counts: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
GRID = 200  # thresholds of bce-vs-ce A.2


@dataclass(frozen=True, eq=False)
class Spread(NanEqual):
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


def spread_of(values: Tensor) -> Spread:
    """The spread of a set of numbers, sorted where they are.

    >>> spread_of(torch.tensor([1.0, 2.0, 3.0])).median
    2.0
    """
    if values.numel() == 0:
        return Spread()
    ordered: Values = sort_values(values.to(torch.float64).flatten()).cpu().numpy()
    mean = min(max(float(ordered.mean()), float(ordered[0])), float(ordered[-1]))
    std = math.sqrt(float(np.mean((ordered - mean) ** 2)))
    ranked = dict(zip(places := quantile_places(len(ordered)), ordered[places].tolist()))
    quantiles = interpolate(ranked, len(ordered))
    return make_spread(mean, std, quantiles, float(ordered[0]), float(ordered[-1]), len(ordered))


def sort_values(values: Tensor) -> Tensor:
    """Numbers [n] in ascending order; NumPy is the faster one on the CPU."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy()))
    return values.sort().values


def make_spread(
    mean: float, std: float, quantiles: Sequence[float], least: float, largest: float, count: int
) -> Spread:
    """A spread from its moments, its quantiles at `LEVELS` and its extremes."""
    q05, q25, median, q75, q95 = (min(max(value, least), largest) for value in quantiles)
    return Spread(mean, std, least, q05, q25, median, q75, q95, largest, count)


def quantile_places(count: int) -> list[int]:
    """The places in the order of so many values that their quantiles are made of.

    >>> quantile_places(11)
    [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]
    """
    below = [int(level * (count - 1)) for level in LEVELS]
    return sorted({*below, *(min(place + 1, count - 1) for place in below)})


def interpolate(ranked: Mapping[int, float], count: int) -> list[float]:
    """The quantiles at `LEVELS` of so many values, from those at `quantile_places`, linear between neighbours.

    >>> interpolate(dict(enumerate([0.0, 1.0, 4.0])), 3)
    [0.1, 0.5, 1.0, 2.5, 3.6999999999999997]
    """
    found = []
    for level in LEVELS:
        place = level * (count - 1)
        below, above = ranked[int(place)], ranked[min(int(place) + 1, count - 1)]
        found.append(below + (place - int(place)) * (above - below))
    return found


def uniform_accuracy(positive: Tensor, negative: Tensor) -> tuple[float, float]:
    """The largest share of samples that one threshold decides rightly, and such a threshold (bce-vs-ce Eqs. 43-45).

    `positive` holds each sample's own logit, `negative` the largest of its others, bias included. A sample is right
    for the thresholds t with negative <= t < positive; the best t lies where most of these intervals overlap, found
    by one sort. The threshold returned is the middle of the first such stretch, NaN if no sample can be right.

    >>> uniform_accuracy(torch.tensor([2.0, 3.0, 0.0]), torch.tensor([1.0, -1.0, 4.0]))
    (0.6666666666666666, 1.5)
    """
    starts, ends = _sort_intervals(positive, negative)
    if len(starts) == 0:
        return 0.0, math.nan
    depth = torch.arange(1, len(starts) + 1, device=starts.device) - torch.searchsorted(ends, starts, right=True)
    best = int(depth.argmax())
    left = starts[best]
    right = float(ends[torch.searchsorted(ends, left, right=True)])
    middle = float(left) + (right - float(left)) / 2
    return int(depth[best]) / len(positive), middle if float(left) <= middle < right else float(left)


def uniform_accuracy_grid(positive: Tensor, negative: Tensor) -> float:
    """The same by the paper's 200 evenly spaced thresholds between the least positive and the largest negative score.

    When the two sets of scores are apart every sample is right; that needs positive > negative strictly.
    """
    low, high = float(positive.min()), float(negative.max())
    if low > high:
        return 1.0
    starts, ends = _sort_intervals(positive, negative)
    grid = torch.from_numpy(np.linspace(low, high, GRID)).to(starts)
    right = torch.searchsorted(starts, grid, right=True) - torch.searchsorted(ends, grid, right=True)
    return int(right.max()) / len(positive)


def _sort_intervals(positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    proper = negative < positive
    return sort_values(negative[proper]), sort_values(positive[proper])
