"""The standard errors of accuracies, from the number of samples that they were measured on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ncollapse.runs.record import RunRecord


def error_of_rate(rate: float, samples: float) -> float:
    """The standard error of a share of so many samples.

    >>> error_of_rate(0.5, 100)
    0.05
    """
    return math.sqrt(max(rate * (1 - rate), 0.0) / samples)


def error_of_difference(ce: RunRecord, bce: RunRecord, field: str) -> float:
    """That of the difference of two accuracies; 0 for other fields."""
    part, _, name = field.rpartition(".")
    if not name.endswith("accuracy"):
        return 0.0
    rates = [(record.final(field), record.final(f"{part}.num_samples")) for record in (ce, bce)]
    return math.hypot(*(error_of_rate(rate, samples) for rate, samples in rates if samples > 0))


def error_of_mean(pairs: Sequence[tuple[RunRecord, RunRecord]], field: str) -> float:
    """That of the difference averaged over (CE, BCE) pairs of runs."""
    return math.hypot(*(error_of_difference(ce, bce, field) for ce, bce in pairs)) / len(pairs)
