"""Which classes have samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

SHOWN = 10  # missing classes named in a warning


@dataclass(frozen=True)
class Presence:
    """Counts of all K classes, and the numbers of those that have samples.

    strict: fields that compare class means are undefined unless every class has a sample. min_count: classes with fewer
    samples were left out on request; their counts are 0.
    """

    counts: Tensor  # [K] float64
    classes: Tensor | None  # [P] the classes with a sample, None if all have one
    strict: bool = False
    min_count: int = 1

    @property
    def present(self) -> int:
        """How many classes have samples."""
        return len(self.counts) if self.classes is None else len(self.classes)

    @property
    def comparable(self) -> bool:
        """Whether the fields that compare class means are defined."""
        return self.present > 1 and not (self.strict and self.classes is not None)

    def places(self) -> Tensor | None:
        """The place of each class among those present [K], None if all are."""
        if self.classes is None:
            return None
        found = torch.zeros(len(self.counts), dtype=torch.int64, device=self.counts.device)
        found[self.classes] = torch.arange(len(self.classes), device=found.device)
        return found

    def empty(self) -> tuple[int, ...]:
        """The classes without a sample."""
        return () if self.classes is None else tuple((self.counts == 0).nonzero().flatten().tolist())

    def fill(self, values: Tensor) -> Tensor:
        """Values of the classes present [P, ...] as values of all classes [K, ...], NaN elsewhere."""
        if self.classes is None:
            return values
        filled = values.new_full((len(self.counts), *values.shape[1:]), torch.nan)
        filled[self.classes] = values
        return filled

    def take(self, values: Tensor) -> Tensor:
        """The values [P, ...] of the classes present, of those of all classes [K, ...]."""
        return values if self.classes is None else values[self.classes]

    def explain(self) -> str | None:
        """Why fields are NaN or measured over fewer classes; None where all classes have samples."""
        if len(self.counts) < 2:
            return "there is a single class; fields that compare all class means are NaN"
        if self.classes is None or (self.min_count > 1 and self.comparable):
            return None
        empty = self.empty()
        named = ", ".join(str(index) for index in empty[:SHOWN]) + (", ..." if len(empty) > SHOWN else "")
        few = "no sample" if self.min_count == 1 else f"fewer than {self.min_count} samples"
        missing = f"{few} of class{'' if len(empty) == 1 else 'es'} {named}"
        if not self.comparable:
            return f"{missing}; fields that compare all class means are NaN"
        return f"{missing}; fields that compare class means are of the {self.present} classes present"


def find_present(counts: Tensor, *, strict: bool = False, min_count: int = 1) -> Presence:
    """Look which classes have samples, at least `min_count` of them.

    >>> find_present(torch.tensor([2.0, 0.0, 1.0])).classes
    tensor([0, 2])
    """
    filled = counts >= min_count
    classes = None if bool(filled.all()) else filled.nonzero().flatten()
    return Presence(counts * filled, classes, strict, min_count)


def check_count(name: str, value: Any) -> int:
    """A whole number of at least 1, as an int; anything else is refused by its name.

    >>> check_count("dim", 3.0)
    3
    """
    value = value.item() if isinstance(value, (Tensor, np.ndarray)) and value.ndim == 0 else value
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and value == int(value) and value >= 1):
        raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}")
    return int(value)


def check_min_count(min_count: int) -> int:
    """A whole number of at least 1."""
    return check_count("min_count", min_count)


def refuse_few(largest: int, min_count: int) -> None:
    """Raise if the largest class has fewer samples than asked for."""
    if largest < min_count:
        raise ValueError(f"min_count: no class has {min_count} samples; the largest has {largest}")
