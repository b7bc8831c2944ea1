"""The second pass over the features: everything that is measured around the class means of the first.

Each accumulator takes the chunks one after another and keeps sums or a few numbers a sample. All sums are float64 from
the first addition on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from .batches import Source
from .class_sums import ClassSums
from .collapse import Moments, finish_moments
from .products import Float32Samples, narrow
from .rows import add_gram, invert
from .similarity import DirectionSums
from .workspace import Workspace

SAME_TOTAL, SAME_CLASS, SAME_CONSTANT = 1e-7, 1e-5, 1e-12  # how far the energies of the two passes may differ
FEW_COLUMNS = 8  # that a sample is compared with 0 in before all the others


@dataclass(frozen=True)
class Chunk:
    """Some samples: features around the anchor, labels, their places among the classes present, and their start.

    The features are valid until the next chunk is read. Products with features around the anchor are exact for small
    whole numbers, so that equal scores stay equal.
    """

    x: Tensor  # [c, d] float64: h - anchor
    labels: Tensor  # [c]
    places: Tensor  # [c]
    start: int  # of all samples
    moments: Moments
    room: Workspace

    @cached_property
    def centred(self) -> Tensor:
        """Features minus the global mean [c, d]."""
        return torch.sub(self.x, self.moments.shift, out=self.room.take("centred", *self.x.shape))

    @cached_property
    def zero(self) -> Tensor:
        """Which samples are 0 [c]: their products around the anchor cancel up to rounding, which would break ties."""
        opposite = -self.moments.anchor
        if self.x.device.type != "cpu":
            return (self.x == opposite).all(1)
        found = (self.x[:, :FEW_COLUMNS] == opposite[:FEW_COLUMNS]).all(1)
        likely = found.nonzero().flatten()
        if len(likely):
            found[likely] = (self.x[likely] == opposite).all(1)
        return found

    @cached_property
    def norms(self) -> Tensor:
        """|h - global mean| [c]."""
        norms: Tensor = torch.linalg.vector_norm(self.centred, dim=1)
        return norms

    @cached_property
    def distances(self) -> Tensor:
        """|h - global mean| [c], 0 where it is rounding."""
        return torch.where(self.norms > self.moments.rounding, self.norms, 0.0)

    @cached_property
    def inverse(self) -> Tensor:
        """1 / |h - global mean| [c], 0 where that is 0."""
        return invert(self.distances)

    @cached_property
    def residuals(self) -> Tensor:
        """Features minus the mean of their class [c, d]."""
        means = self.room.take("residuals", *self.x.shape)
        torch.index_select(self.moments.offsets, 0, self.places, out=means)
        return torch.sub(self.centred, means, out=means)

    @cached_property
    def residual_norms(self) -> Tensor:
        """The distance of each sample to the mean of its class [c]."""
        norms: Tensor = torch.linalg.vector_norm(self.residuals, dim=1)
        return norms

    def pick(self, rows: Tensor) -> Chunk:
        """Some of the samples, copied; their `start` has no meaning."""
        return Chunk(self.x[rows], self.labels[rows], self.places[rows], 0, self.moments, self.room.inner)

    @cached_property
    def narrow(self) -> Float32Samples:
        """Features minus the global mean, in float32."""
        return narrow(self.centred, self.norms, self.moments, self.room)


def find_beyond(radii: Tensor | None, chunk: Chunk, own: Tensor, find: Callable[[Chunk], Tensor]) -> Tensor:
    """What `find` says of the samples that are beyond the radius of their class [P], and `own` [c] of the others."""
    if radii is None:
        return find(chunk)
    beyond = (chunk.residual_norms >= radii[chunk.places]).nonzero().flatten()
    if len(beyond) == len(own):
        return find(chunk)
    found = own.clone()
    if len(beyond):
        found[beyond] = find(chunk.pick(beyond))
    return found


class Accumulator(Protocol):
    """Something that measures the samples of the second pass."""

    def add(self, chunk: Chunk) -> None:
        """Take some samples."""


def read_again(
    source: Source,
    first: ClassSums,
    moments: Moments,
    places: Tensor | None,
    accumulators: Sequence[Accumulator],
    room: Workspace,
) -> None:
    """Give all samples to the accumulators, in their order; `places` [K] numbers the classes present, None if all are.

    `moments` and `places` are on the device of the samples. Raises if batches are not those of the first pass.
    """
    start = 0
    check = None if source.num_classes is not None else _SameSamples(first, moments, places)
    for x, labels in _read_around(source, first, moments.anchor, room):
        if check is not None:
            check.look_at(labels, start)
        index = labels if places is None else places[labels]
        chunk = Chunk(x, labels, index, start, moments, room)
        if check is not None:
            check.add(chunk)
        for accumulator in accumulators:
            accumulator.add(chunk)
        start += len(labels)
    if check is not None:
        check.finish()


def _read_around(source: Source, first: ClassSums, anchor: Tensor, room: Workspace) -> Iterator[tuple[Tensor, Tensor]]:
    """Features minus the anchor and labels, chunk by chunk; a single chunk is still there from the first pass."""
    if first.chunk is not None:
        yield first.chunk
        return
    for features, labels in source.read(source.rows(), room):
        yield features.sub_(anchor), labels  # in place: a chunk is ours


class _SameSamples:
    """Compares the counts and energies of the two passes over batches: augmentation and dropout change them."""

    def __init__(self, first: ClassSums, moments: Moments, places: Tensor | None) -> None:
        self.feature_energy, self.samples = first.feature_energy, int(first.counts.sum())
        self.before = first.counts.to(moments.counts.device)
        self.counts, self.energies = torch.zeros_like(self.before), torch.zeros_like(self.before)
        # what the first pass says about the mean of |h - global mean|^2; its rounding is that of |h - anchor|^2
        around_mean = moments.energies - 2 * (moments.offsets @ moments.shift) - moments.shift.square().sum()
        self.expected, self.rounding = (
            self.before * (value if places is None else value[places]) for value in (around_mean, moments.energies)
        )

    def look_at(self, labels: Tensor, start: int) -> None:
        if start + len(labels) > self.samples or int(labels.max()) >= len(self.counts):
            self.fail()

    def add(self, chunk: Chunk) -> None:
        self.energies.index_add_(0, chunk.labels, chunk.norms.square())
        self.counts.index_add_(0, chunk.labels, chunk.room.ones(len(chunk.labels)))

    def finish(self) -> None:
        before, after = self.expected, self.energies
        total = before.sum()
        constant = SAME_CONSTANT * (self.rounding + self.feature_energy * self.counts)
        close = (after - before).abs() <= SAME_CLASS * (before + total / self.samples) + constant
        same = (self.counts == self.before).all() & close.all()
        same &= (after.sum() - total).abs() <= SAME_TOTAL * total + constant.sum()
        if not bool(same):
            self.fail()

    def fail(self) -> None:
        raise ValueError(
            "features: the second pass over the batches differed from the first; they must hold the same samples each "
            "time (no augmentation, no dropout, no drop_last with shuffling)"
        )


class WithinClasses:
    """Variances of the classes and, on request, the within-class scatter: of all directions, or along some of them."""

    def __init__(self, moments: Moments, *, scatter: bool) -> None:
        self.moments, self.with_scatter = moments, scatter  # moments on the device of the samples
        self.squares = torch.zeros_like(moments.counts)
        dim = moments.offsets.shape[1]
        options: dict[str, Any] = {"dtype": torch.float64, "device": moments.offsets.device}
        self.directions = None if moments.whitening is None else moments.whitening.directions
        size = (dim, dim) if self.directions is None else (len(self.directions),)
        self.scatter = torch.zeros(*size, **options)

    def add(self, chunk: Chunk) -> None:
        """Take some samples."""
        self.squares.index_add_(0, chunk.places, chunk.residual_norms.square())
        if not self.with_scatter:
            return
        if self.directions is None:
            add_gram(self.scatter, chunk.residuals)
        else:
            along = chunk.room.take("along", len(self.directions), len(chunk.places))
            self.scatter += torch.mm(self.directions, chunk.residuals.T, out=along).square_().sum(1)

    def finish(self) -> Moments:
        """The moments with variances and scatter."""
        return finish_moments(self.moments, self.squares / self.moments.counts, self.scatter)


class CentredDirections:
    """The unit vectors of features minus the global mean, summed by class; the last to use the centred features."""

    def __init__(self, moments: Moments) -> None:
        self.directions = DirectionSums(torch.zeros_like(moments.offsets))

    def add(self, chunk: Chunk) -> None:
        """Take some samples."""
        self.directions.add(chunk.centred, chunk.places, chunk.inverse, out=chunk.centred)
