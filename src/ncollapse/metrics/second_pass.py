"""The second pass over the features: everything that is measured around the class means of the first.

Each accumulator takes the chunks one after another and keeps sums or a few numbers a sample. All sums are float64 from
the first addition on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from .batches import Source
from .class_sums import ClassSums
from .collapse import Moments, finish_moments
from .rows import square_norms
from .similarity import DirectionSums

SAME_TOTAL, SAME_CLASS, SAME_CONSTANT = 1e-7, 1e-5, 1e-12  # how far the energies of the two passes may differ


@dataclass(frozen=True)
class Chunk:
    """Some samples: features around the anchor, labels, their places among the classes present, and their start."""

    x: Tensor  # [c, d] float64: h - anchor
    labels: Tensor  # [c]
    places: Tensor  # [c]
    start: int  # of all samples
    moments: Moments

    @cached_property
    def shifted(self) -> Tensor:
        """Features minus the global mean [c, d]."""
        return self.x - self.moments.shift

    @cached_property
    def distances(self) -> Tensor:
        """|h - global mean| [c], 0 where it is rounding."""
        norms: Tensor = torch.linalg.vector_norm(self.shifted, dim=1)
        return torch.where(norms > self.moments.rounding, norms, 0.0)

    @cached_property
    def inverse(self) -> Tensor:
        """1 / |h - global mean| [c], 0 where that is 0."""
        return invert(self.distances)

    @cached_property
    def units(self) -> Tensor:
        """(h - global mean) / |h - global mean| [c, d] in float32."""
        return to_units(self.shifted, self.inverse)


def invert(norms: Tensor) -> Tensor:
    """1 / norm, 0 where the norm is 0."""
    return torch.where(norms > 0, 1 / norms, 0.0)


def to_units(x: Tensor, inverse: Tensor) -> Tensor:
    """Vectors [c, d] times the inverses of their norms [c], in float32."""
    return (x * inverse[:, None]).to(torch.float32)


class Accumulator(Protocol):
    """Something that measures the samples of the second pass."""

    def add(self, chunk: Chunk) -> None:
        """Take some samples."""


def read_again(
    source: Source, first: ClassSums, moments: Moments, places: Tensor | None, accumulators: Sequence[Accumulator]
) -> None:
    """Give all samples to the accumulators, in their order; `places` [K] numbers the classes present, None if all are.

    Raises if the samples are not those of the first pass.
    """
    start, check = 0, _SameSamples(first)
    for features, labels in source.read(source.rows()):
        if start + len(labels) > check.samples or int(labels.max()) >= len(first.counts):
            check.fail()
        index = labels if places is None else places[labels]
        chunk = Chunk(features.sub_(moments.anchor), labels, index, start, moments)  # in place: a chunk is ours
        check.add(chunk)
        for accumulator in accumulators:
            accumulator.add(chunk)
        start += len(labels)
    check.finish()


class _SameSamples:
    """Compares the counts and energies of the two passes: augmentation and dropout change them."""

    def __init__(self, first: ClassSums) -> None:
        self.first, self.samples = first, int(first.counts.sum())
        self.counts, self.energies = torch.zeros_like(first.counts), torch.zeros_like(first.counts)

    def add(self, chunk: Chunk) -> None:
        self.energies.index_add_(0, chunk.labels, square_norms(chunk.x))
        self.counts.index_add_(0, chunk.labels, torch.ones_like(chunk.x[:, 0]))

    def finish(self) -> None:
        before, after = self.first.energies, self.energies
        total = before.sum()
        constant = SAME_CONSTANT * self.first.feature_energy
        close = (after - before).abs() <= SAME_CLASS * (before + total / self.samples) + constant * self.counts
        same = (self.counts == self.first.counts).all() & close.all()
        same &= (after.sum() - total).abs() <= SAME_TOTAL * total + constant * self.samples
        if not bool(same):
            self.fail()

    def fail(self) -> None:
        raise ValueError(
            "features: the second pass over the batches differed from the first; they must hold the same samples each "
            "time (no augmentation, no dropout, no drop_last with shuffling)"
        )


class WithinClasses:
    """Variances of the classes and, in the basis of the moments, the within-class scatter; overwrites the chunk."""

    def __init__(self, moments: Moments, *, scatter: bool) -> None:
        dim = moments.offsets.shape[1]
        size = dim if moments.basis is None else moments.basis.shape[1]
        self.moments, self.with_scatter = moments, scatter
        self.means: Tensor | None = None  # room for the class means of a chunk
        self.squares = torch.zeros_like(moments.counts)
        self.scatter = torch.zeros(size, size, dtype=torch.float64, device=moments.offsets.device)

    def add(self, chunk: Chunk) -> None:
        """Take some samples."""
        if self.means is None or len(self.means) < len(chunk.x):
            self.means = torch.empty_like(chunk.x)
        means = torch.index_select(self.moments.offsets, 0, chunk.places, out=self.means[: len(chunk.x)])
        residuals = chunk.x.sub_(means)
        self.squares.index_add_(0, chunk.places, square_norms(residuals))
        if self.with_scatter:
            inside = residuals if self.moments.basis is None else residuals @ self.moments.basis
            self.scatter.addmm_(inside.T, inside)

    def finish(self) -> Moments:
        """The moments with variances and scatter."""
        return finish_moments(self.moments, self.squares / self.moments.counts, self.scatter)


class CentredDirections:
    """The unit vectors of features minus the global mean, summed by class."""

    def __init__(self, moments: Moments) -> None:
        self.floor = moments.rounding
        self.directions = DirectionSums(torch.zeros_like(moments.offsets))

    def add(self, chunk: Chunk) -> None:
        """Take some samples."""
        self.directions.add(chunk.shifted, chunk.places, chunk.distances, self.floor)
