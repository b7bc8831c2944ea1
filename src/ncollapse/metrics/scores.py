"""Distributions of decision scores and the accuracies that hang on one threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .equality import NanEqual

Values: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Counts: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
FEW_SORTED = 256  # so many values are sorted, of more of them only the places that are needed
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
    """The spread of a set of numbers, ranked where they are.

    >>> spread_of(torch.tensor([1.0, 2.0, 3.0])).median
    2.0
    """
    return finish_spread(rank_values(values).tolist(), values.numel())


def rank_values(values: Tensor) -> Tensor:
    """What a spread is made of: mean, standard deviation, least, largest and the values at `quantile_places`."""
    count = values.numel()
    if count == 0:
        return torch.zeros(0, dtype=torch.float64, device=values.device)
    numbers = values.to(torch.float64).flatten()
    if numbers.device.type != "cpu":
        places = [0, count - 1, *quantile_places(count)]
        ordered = numbers.sort().values
        mean = torch.minimum(torch.maximum(numbers.mean(), ordered[0]), ordered[-1])
        std = (numbers - mean).square_().mean().sqrt()
        return torch.stack([mean, std, *(ordered[place] for place in places)])
    return torch.from_numpy(rank_array(numbers.numpy()))


def rank_array(array: Values) -> Values:
    """`rank_values` of an array [n], n at least 1."""
    count = len(array)
    places = [0, count - 1, *quantile_places(count)]
    ordered = np.sort(array) if count <= FEW_SORTED else np.partition(array, places)
    least, largest, *ranked = ordered[places].tolist()
    mean = min(max(float(np.add.reduce(array)) / count, least), largest)
    away = array - mean
    return np.array([mean, math.sqrt(away @ away / count), least, largest, *ranked])


def finish_spread(numbers: Sequence[float], count: int) -> Spread:
    """The spread of so many values, from what `rank_values` found."""
    if count == 0:
        return Spread()
    mean, std, least, largest, *ranked = numbers
    return make_spread(
        mean, std, interpolate(dict(zip(quantile_places(count), ranked)), count), least, largest, count
    )


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


@lru_cache(maxsize=16)
def quantile_places(count: int) -> tuple[int, ...]:
    """The places in the order of so many values that their quantiles are made of.

    >>> quantile_places(11)
    (0, 1, 2, 3, 5, 6, 7, 8, 9, 10)
    """
    below = [int(level * (count - 1)) for level in LEVELS]
    return tuple(sorted({*below, *(min(place + 1, count - 1) for place in below)}))


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
    return finish_uniform(rank_intervals(positive, negative).tolist(), len(positive))[:2]


def uniform_accuracy_grid(positive: Tensor, negative: Tensor) -> float:
    """The same by the paper's 200 evenly spaced thresholds between the least positive and the largest negative score.

    When the two sets of scores are apart every sample is right; that needs positive > negative strictly.
    """
    return finish_uniform(rank_intervals(positive, negative).tolist(), len(positive))[2]


def rank_intervals(positive: Tensor, negative: Tensor) -> Tensor:
    """What both accuracies are made of.

    How many intervals [negative, positive) overlap at most, the edges of the first stretch where they do, the ends of
    the grid, and the largest overlap on the grid. Intervals that are empty are moved to infinity.
    """
    positive, negative = positive.to(torch.float64), negative.to(torch.float64)
    count, proper = len(positive), negative < positive
    starts, ends = (sort_values(torch.where(proper, edges, torch.inf)) for edges in (negative, positive))
    depth = torch.arange(1, count + 1, device=starts.device) - torch.searchsorted(ends, starts, right=True)
    deepest, best = depth.max(0, keepdim=True)
    left = starts.gather(0, best)
    right = ends.gather(0, torch.searchsorted(ends, left, right=True).clamp_max_(count - 1))
    low, high = positive.amin().reshape(1), negative.amax().reshape(1)
    grid = torch.arange(GRID, dtype=torch.float64, device=starts.device) * ((high - low) / (GRID - 1)) + low
    grid[-1:] = high
    inside = torch.searchsorted(starts, grid, right=True) - torch.searchsorted(ends, grid, right=True)
    return torch.cat([deepest, left, right, low, high, inside.amax().reshape(1)])


def finish_uniform(numbers: Sequence[float], count: int) -> tuple[float, float, float]:
    """The exact accuracy, its threshold, and the accuracy on the grid, from what `rank_intervals` found."""
    deepest, left, right, low, high, inside = numbers
    on_grid = 1.0 if low > high else inside / count
    if deepest <= 0:
        return 0.0, math.nan, on_grid
    middle = left + (right - left) / 2
    return deepest / count, middle if left <= middle < right else left, on_grid
