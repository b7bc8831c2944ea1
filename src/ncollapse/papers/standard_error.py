"""The standard errors of accuracies, from the number of samples that they were measured on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ncollapse.runs.record import RunRecord

TEST_SAMPLES = 10_000
TRAIN_SAMPLES = {"mnist": 60_000}


def count_measured(field: str, data: str) -> int:
    """The number of samples behind an accuracy of MNIST or CIFAR.

    >>> count_measured("train.accuracy", "mnist"), count_measured("test.uniform_accuracy", "cifar100")
    (60000, 10000)
    """
    return TRAIN_SAMPLES.get(data, 50_000) if field.startswith("train.") else TEST_SAMPLES


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
