"""What a handful of seeds can say: means, paired differences with their intervals, and how fast a run collapsed."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

CONFIDENCE = 0.95
COLLAPSED_NC1 = 0.1
EARLY_EPOCHS = 20


@dataclass(frozen=True)
class Estimate:
    """Mean and sample standard deviation (n - 1) over seeds; `std` is NaN for a single seed, all NaN for none."""

    mean: float
    std: float
    n: int


@dataclass(frozen=True)
class Difference:
    """Mean of the paired differences over seeds, Student's t interval and two-sided p-value; NaN where n < 2.

    Where every seed gives the same difference the interval has no width, and there is no p-value either.
    """

    mean: float
    low: float
    high: float
    p_value: float
    n: int
    confidence: float = CONFIDENCE

    @property
    def clear(self) -> bool:
        """Whether the interval leaves zero out; one without width says nothing about chance and never does."""
        return self.low < self.high and (self.low > 0 or self.high < 0)


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


def paired_difference(first: Sequence[float], second: Sequence[float], confidence: float = CONFIDENCE) -> Difference:
    """Difference second - first over pairs: mean +- t_{n-1} s / sqrt(n). Pairs that are not finite are left out.

    >>> d = paired_difference([1.0, 2.0, 3.0], [2.0, 3.5, 3.9])
    >>> round(d.mean, 4), d.clear
    (1.1333, True)
    """
    if len(first) != len(second):
        raise ValueError(f"first and second must pair up, got {len(first)} and {len(second)} values")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    found = estimate([b - a for a, b in zip(first, second) if math.isfinite(a) and math.isfinite(b)])
    if found.n < 2:
        return Difference(found.mean, math.nan, math.nan, math.nan, found.n, confidence)
    if found.std <= 1e-12 * max(abs(v) for v in (*first, *second) if math.isfinite(v)):
        return Difference(found.mean, found.mean, found.mean, math.nan, found.n, confidence)
    # the distribution function of Student's t and its inverse; scipy.stats has them too, but takes seconds to import
    from scipy.special import stdtr, stdtrit

    error = found.std / math.sqrt(found.n)
    reach = float(stdtrit(found.n - 1, 0.5 + confidence / 2)) * error
    p_value = 2 * float(stdtr(found.n - 1, -abs(found.mean) / error))
    return Difference(found.mean, found.mean - reach, found.mean + reach, p_value, found.n, confidence)


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
        logs = [math.log10(v[field]) for v in early if is_number(v.get(field)) and v[field] > 0]
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


def is_number(value: Any) -> bool:
    """Whether a value of a record is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
