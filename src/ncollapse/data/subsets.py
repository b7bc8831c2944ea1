"""Seeded subsets. Each returns a new data set whose `record` says how it was drawn.

A class's samples are drawn without replacement; the kept samples stay in their old order. With seed None a subset by
class keeps the first samples of each class instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Generator

from ncollapse.data.dataset import Dataset
from ncollapse.data.folders import FolderDataset
from ncollapse.data.splits import list_classes, split_stratified

Data = TypeVar("Data", Dataset, FolderDataset)


def per_class_counts(dataset: Data, counts: Sequence[int], seed: int | None = 0) -> Data:
    """Keep counts[k] samples of class k, as [100, 100, 200, 200, ..., 500, 500] in the imbalanced ReLU study.

    seed: of the draw; None keeps the first samples of each class.

    >>> from ncollapse.data import load
    >>> per_class_counts(load("digits"), [10, 20, 30] + [40] * 7).counts()
    (10, 20, 30, 40, 40, 40, 40, 40, 40, 40)
    """
    wanted = [_read_count(f"counts[{label}]", count) for label, count in enumerate(counts)]
    if len(wanted) != dataset.num_classes:
        raise ValueError(f"counts: expected {dataset.num_classes} numbers, one a class, got {len(wanted)}")
    for label, (want, have) in enumerate(zip(wanted, dataset.counts())):
        if not 0 <= want <= have:
            raise ValueError(
                f"counts[{label}]: expected a value in 0..{have} (samples of {dataset.classes[label]!r}), got {want}"
            )
    if not any(wanted):
        raise ValueError("counts: no sample is kept; at least one class needs some")
    kept = [rows[:want] for rows, want in zip(list_classes(dataset.labels, dataset.num_classes, seed), wanted)]
    return dataset.select(torch.cat(kept).sort().values, draw="per_class_counts", counts=wanted, seed=seed)


def samples_per_class(dataset: Data, count: int, seed: int | None = 0) -> Data:
    """Keep the same number of samples of every class."""
    if _read_count("count", count) < 1:
        raise ValueError(f"count: expected at least 1, got {count}")
    return per_class_counts(dataset, [count] * dataset.num_classes, seed)


def step_counts(num_classes: int, most: int, ratio: float, minority_fraction: float = 0.5) -> tuple[int, ...]:
    """Return `most` samples for the first classes and most / ratio, rounded down, for the last `minority_fraction`.

    >>> step_counts(4, 100, 10)
    (100, 100, 10, 10)
    """
    _require_factor("ratio", ratio)
    if not 0 <= minority_fraction <= 1:
        raise ValueError(f"minority_fraction: expected a value in [0, 1], got {minority_fraction}")
    minority = round(num_classes * minority_fraction)
    return (most,) * (num_classes - minority) + (int(most / ratio),) * minority


def step_imbalance(dataset: Data, ratio: float, minority_fraction: float = 0.5, seed: int | None = 0) -> Data:
    """Keep the smallest class's number of samples in the first classes, and that number / ratio in the last ones."""
    counts = step_counts(dataset.num_classes, min(dataset.counts()), ratio, minority_fraction)
    return per_class_counts(dataset, counts, seed)


def long_tail_counts(num_classes: int, most: int, factor: float) -> tuple[int, ...]:
    """n_k = most * factor^(-k / (K - 1)), rounded down: the usual CIFAR-LT (Cui et al., 2019; Cao et al., 2019).

    >>> sum(long_tail_counts(100, 500, 100))
    10847
    """
    _require_factor("factor", factor)
    return tuple(int(most * (1 / factor) ** (k / max(1, num_classes - 1))) for k in range(num_classes))


def long_tail(dataset: Data, factor: float, seed: int | None = 0) -> Data:
    """Keep exponentially fewer samples from the first class to the last, which has 1/factor of the first's."""
    return per_class_counts(dataset, long_tail_counts(dataset.num_classes, min(dataset.counts()), factor), seed)


def validation_split(dataset: Data, fraction: float = 0.1, seed: int = 0) -> tuple[Data, Data]:
    """Hold out a fraction of every class; returns (the rest, the held-out part).

    The split is stratified, so that a balanced training set stays balanced, as the theory assumes.
    """
    if not isinstance(fraction, (int, float)):
        raise TypeError(f"fraction: expected a number, got {fraction!r}")
    if not 0 < fraction < 1:
        raise ValueError(f"fraction: expected a value strictly between 0 and 1, got {fraction}")
    rest, held = split_stratified(dataset.labels, fraction, seed)
    if len(rest) == 0 or len(held) == 0:
        raise ValueError(
            f"fraction: {fraction} of each class, rounded, leaves one part without samples (the largest class has "
            f"{max(dataset.counts())})"
        )
    kept = dataset.select(rest, draw="validation_split", fraction=fraction, seed=seed, part="rest")
    validation = dataset.select(held, draw="validation_split", fraction=fraction, seed=seed, part="held out")
    return kept, replace(validation, split="validation")


HELD_OUT = 0.2
SMALLEST_SPLIT = 3
"""Samples of a class of which a fifth is, rounded, one."""


def hold_out_test(dataset: Data, name: str) -> tuple[Data, Data]:
    """(training set, test set) of data without a test set: a fifth of each class, the same for every run, is held out.

    `name` names the data in an error.
    """
    largest = max(dataset.counts())
    if largest < SMALLEST_SPLIT:
        raise ValueError(
            f"data: {name} has too few samples to hold out a fifth of each class as the test set: the largest "
            f"class has {largest}; give it a test set of its own, or {SMALLEST_SPLIT} samples a class"
        )
    kept, held = validation_split(dataset, HELD_OUT, seed=0)
    return kept, replace(held, split="test")


def random_labels(dataset: Data, seed: int = 0) -> Data:
    """Shuffle the labels among the samples: they become independent of the images, and the class counts stay."""
    order = torch.randperm(len(dataset), generator=Generator().manual_seed(seed))
    labels = dataset.labels[order.to(dataset.labels.device)]
    return replace(dataset, labels=labels, record=(*dataset.record, {"draw": "random_labels", "seed": seed}))


def _read_count(name: str, value: float) -> int:
    if isinstance(value, str) or value != int(value):
        raise ValueError(f"{name}: expected a whole number, got {value!r}")
    return int(value)


def _require_factor(name: str, value: float) -> None:
    if not isinstance(value, (int, float)):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    if not value >= 1:
        raise ValueError(f"{name}: expected at least 1 (the largest class over the smallest), got {value}")
