"""What a handful of seeds can say: means, paired differences with their intervals, and how fast a run collapsed."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

CONFIDENCE = 0.95
COLLAPSED_NC1 = 0.1
EARLY_EPOCHS = 20
ROUNDING = 1e-14
"""NC2 and NC3 are distances between matrices of norm 1; smaller ones are float64's rounding and count as 0."""


@dataclass(frozen=True)
class Estimate:
    """Mean and sample standard deviation (n - 1) over seeds; `std` is NaN for a single seed, all NaN for none."""

    mean: float
    std: float
    n: int


@dataclass(frozen=True)
class Difference:
    """Mean of the paired differences over seeds, Student's t interval and two-sided p-value; NaN where n < 2.

    `resolution` is the smallest step of the measured values (one test image for an accuracy, 0 for a continuous
    quantity), `smallest` the size up to which a difference is never called clear.
    """

    mean: float
    low: float
    high: float
    p_value: float
    n: int
    confidence: float = CONFIDENCE
    resolution: float = 0.0
    smallest: float = 0.0

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval: two seeds or more, and a spread or a known resolution."""
        return math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high

    @property
    def clear(self) -> bool:
        """Whether the interval excludes zero and the mean exceeds the smallest difference that counts."""
        return self.excludes_zero and not self.too_small

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval without zero."""
        return self.has_interval and (self.low > 0 or self.high < 0)

    @property
    def too_small(self) -> bool:
        """Whether the mean is one of the differences that never count."""
        return abs(self.mean) <= self.smallest * (1 + 1e-9)

    @property
    def steps(self) -> float:
        """The mean in steps of the resolution, such as test images; NaN without a resolution."""
        return self.mean / self.resolution if self.resolution > 0 else math.nan


@dataclass(frozen=True)
class Speed:
    """How fast one run collapsed: epochs (None where it never happened) and mean log10 of NC1-3 over epochs 1-20."""

    accuracy_epoch: int | None
    uniform_accuracy_epoch: int | None
    nc1_epoch: int | None
    log_nc1: float
    log_nc2: float
    log_nc3: float
    early_epochs: int


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and standard deviation of the finite values.

    >>> estimate([1.0, 2.0, 3.0])
    Estimate(mean=2.0, std=1.0, n=3)
    """
    finite = [float(v) for v in values if math.isfinite(v)]
    n = len(finite)
    if n == 0:
        return Estimate(math.nan, math.nan, 0)
    mean = math.fsum(finite) / n
    if n == 1:
        return Estimate(mean, math.nan, 1)
    return Estimate(mean, math.sqrt(math.fsum((v - mean) ** 2 for v in finite) / (n - 1)), n)


def paired_difference(
    first: Sequence[float],
    second: Sequence[float],
    confidence: float = CONFIDENCE,
    resolution: float = 0.0,
    smallest: float = 0.0,
) -> Difference:
    """Difference second - first over pairs: mean +- t_{n-1} s / sqrt(n). Pairs that are not finite are left out.

    Values that are multiples of `resolution` differ by rounding alone with standard deviation resolution / sqrt(6);
    the spread s is never taken smaller than that, so that a few equal differences do not look certain. Without a
    resolution, equal differences give no interval at all.

    >>> d = paired_difference([1.0, 2.0, 3.0], [2.0, 3.5, 3.9])
    >>> round(d.mean, 4), d.clear
    (1.1333, True)
    """
    if len(first) != len(second):
        raise ValueError(f"first and second: expected as many values in each, got {len(first)} and {len(second)}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: expected a number between 0 and 1, got {confidence}")
    if not (resolution >= 0 and smallest >= 0):
        raise ValueError(f"resolution and smallest: expected numbers of at least 0, got {resolution} and {smallest}")
    found = estimate([b - a for a, b in zip(first, second)])
    rounding = 1e-12 * max((abs(v) for v in (*first, *second) if math.isfinite(v)), default=0.0)
    mean = 0.0 if abs(found.mean) <= rounding else found.mean
    none = (mean, math.nan, math.nan, math.nan, found.n, confidence, resolution, smallest)
    if found.n < 2:
        return Difference(*none)
    std = max(found.std if found.std > rounding else 0.0, resolution / math.sqrt(6))
    if std == 0:
        return Difference(*none)
    error = std / math.sqrt(found.n)
    reach = student_quantile(found.n - 1, confidence) * error
    from scipy.special import stdtr

    p_value = 2 * float(stdtr(found.n - 1, -abs(mean) / error))
    limits = mean - reach, mean + reach
    return Difference(mean, *limits, p_value, found.n, confidence, resolution, smallest)


def mean_interval(found: Estimate, confidence: float = CONFIDENCE, resolution: float = 0.0) -> tuple[float, float]:
    """Student's t interval of a mean over seeds; NaN for fewer than two.

    The spread is never taken smaller than that of rounding to multiples of `resolution`, resolution / sqrt(12).
    """
    if found.n < 2:
        return math.nan, math.nan
    std = max(found.std, resolution / math.sqrt(12))
    reach = student_quantile(found.n - 1, confidence) * std / math.sqrt(found.n)
    return found.mean - reach, found.mean + reach


def seeds_needed(difference: Difference, most: int = 1000) -> int | None:
    """With how many seeds in all an interval of the same spread would exclude zero; None where that takes too many.

    >>> d = paired_difference([1.0, 1.0, 1.0], [1.2, 1.5, 0.9])
    >>> d.clear, seeds_needed(d)
    (False, 12)
    """
    if not difference.has_interval or difference.mean == 0:
        return None
    reach = (difference.high - difference.low) / 2
    std = reach * math.sqrt(difference.n) / student_quantile(difference.n - 1, difference.confidence)
    for n in range(2, most + 1):
        if student_quantile(n - 1, difference.confidence) * std / math.sqrt(n) < abs(difference.mean):
            return n
    return None


def student_quantile(freedom: int, confidence: float) -> float:
    """The two-sided quantile of Student's t distribution; scipy.stats has it too, but takes seconds to import."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + confidence / 2))


def collapse_speed(
    history: Sequence[dict[str, Any]], split: str = "train", epochs: Container[int] | None = None
) -> Speed:
    """First epochs at 100 % accuracy, 100 % uniform accuracy and NC1 < 0.1, and mean log10 NC1-3 over epochs 1-20.

    The last three put a number on the claim that BCE collapses faster in the first 20 epochs, which bce-vs-ce Fig. 2
    shows as curves. Epochs that were not measured are left out; `early_epochs` says how many of the 20 counted.
    `epochs` leaves out all others, such as those that another run has not measured.
    """
    kept = [(epoch, values) for epoch, values in _measured(history, split) if epochs is None or epoch in epochs]

    def first(field: str, holds: Any) -> int | None:
        return next((e for e, values in kept if is_number(values.get(field)) and holds(values[field])), None)

    early = [values for epoch, values in kept if 1 <= epoch <= EARLY_EPOCHS]

    def mean_log(field: str) -> float:
        logs = [math.log10(v[field]) for v in early if is_number(v.get(field)) and v[field] > rounding_limit(field)]
        return math.fsum(logs) / len(logs) if logs else math.nan

    return Speed(
        first("accuracy", lambda v: v >= 1),
        first("uniform_accuracy", lambda v: v >= 1),
        first("nc1", lambda v: v < COLLAPSED_NC1),
        mean_log("nc1"),
        mean_log("nc2"),
        mean_log("nc3"),
        len(early),
    )


def shared_epochs(first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]], split: str = "train") -> set[int]:
    """The epochs that two histories both measured."""
    return {epoch for epoch, _ in _measured(first, split)} & {epoch for epoch, _ in _measured(second, split)}


def is_recorded(history: Sequence[dict[str, Any]], field: str, split: str = "train") -> bool:
    """Whether a history has any number of a field; without one, nothing can be said of when it was reached."""
    return any(is_number(values.get(field)) for _, values in _measured(history, split))


def _measured(history: Sequence[dict[str, Any]], split: str) -> list[tuple[int, dict[str, Any]]]:
    rows = [(row.get("epoch"), row.get(split)) for row in history]
    return [(epoch, values) for epoch, values in rows if isinstance(epoch, int) and isinstance(values, dict)]


def rounding_limit(key: str) -> float:
    """The largest value of a metric that counts as 0, so that it has no logarithm: rounding for NC2 and NC3.

    With two classes NC2 is always 0: any two centred rows are opposite, which is the simplex.

    >>> rounding_limit("train.nc1"), rounding_limit("train.nc2")
    (0.0, 1e-14)
    """
    return ROUNDING if key.endswith(("nc2", "nc3")) else 0.0


def is_number(value: Any) -> bool:
    """Whether a value of a record is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
