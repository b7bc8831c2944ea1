"""The first pass over the features: counts, sums and energies by class.

Features are taken relative to an anchor in their middle: what all samples have in common (an offset, a constant
output) then adds no rounding, and neither does a single sample far away from all others. Nothing is read back from the
device inside the pass; its sums are copied together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ncollapse.heads import TWO_OUTPUTS

from .batches import Source, refuse_inferred, refuse_non_finite
from .rows import add_by_class, invert, square_norms
from .similarity import DirectionSums
from .transfer import choose_site, copy_together
from .workspace import Workspace

ANCHOR_ROWS = 15  # samples whose median is the anchor
SMALLEST, LARGEST = 1e-70, 1e70  # between them fourth powers, summed over samples and classes, stay within float64


@dataclass
class ClassSums:
    """What the first pass finds, where class-level work is done; the [K, d] sums are let go once they are used."""

    counts: Tensor  # [K] float64
    sums: Tensor  # [K, d] of h - anchor
    energies: Tensor  # [K] sum of |h - anchor|^2
    anchor: Tensor  # [d]
    feature_energy: float  # mean of |h|^2
    directions: DirectionSums | None  # of h / |h|, where asked for
    chunk: tuple[Tensor, Tensor] | None = None  # h - anchor and labels of all samples, if they were one chunk of arrays


def sum_classes(
    source: Source, num_classes: int | None, *, directions: bool = True, room: Workspace | None = None
) -> ClassSums:
    """First pass; raises for labels past `num_classes`, for NaN or Inf and for magnitudes beyond 1e-70 to 1e70."""
    classes = num_classes or source.num_classes or 0
    options: dict[str, Any] = {"dtype": torch.float64, "device": source.device}
    sums, energies = torch.zeros(classes, source.dim, **options), torch.zeros(classes, **options)
    counts, total = torch.zeros(classes, **options), torch.zeros((), **options)
    units = DirectionSums.zeros(classes, source.dim, source.device) if directions else None
    anchor: Tensor | None = None
    room = room or Workspace(source.device)
    chunks = 0
    for features, labels in source.read(source.rows(), room):
        chunks += 1
        if source.num_classes is None:
            largest = int(labels.max())
            if num_classes is None and largest >= len(counts):
                refuse_inferred(largest)
                grown = largest + 1 - len(counts)
                sums, energies, counts = (_grow(value, grown) for value in (sums, energies, counts))
                units = None if units is None else DirectionSums(_grow(units.sums, grown))
            refuse_large_labels(largest, len(counts))
        norms = torch.linalg.vector_norm(features, dim=1)
        total += norms.square().sum()
        if units is not None:
            # the memory is that of the centred features in the second pass
            units.add(features, labels, invert(norms), out=room.take("centred", *features.shape))
        if anchor is None:
            anchor = choose_anchor(features)
        features.sub_(anchor)  # in place: a chunk is ours until the next one
        add_by_class(sums, labels, features)
        energies.index_add_(0, labels, square_norms(features))
        counts.index_add_(0, labels, room.ones(len(labels)))
    if anchor is None:
        raise ValueError("features: no samples (N = 0); at least one is needed")
    parts = [counts, sums, energies, anchor, total, *(() if units is None else (units.sums,))]
    site = choose_site(source.device, len(counts), source.dim)
    counts, sums, energies, anchor, total, *directed = copy_together(parts, site)
    energy = float(total) / float(counts.sum())
    if not math.isfinite(energy):  # NaN and Inf reach it
        refuse_non_finite(source, source.rows())
    refuse_scale_of(source, energy)
    chunk = (features, labels) if chunks == 1 and source.num_classes is not None else None
    return ClassSums(counts, sums, energies, anchor, energy, DirectionSums(directed[0]) if directed else None, chunk)


def choose_anchor(features: Tensor) -> Tensor:
    """The median of some samples [c, d], column by column: what all have in common, whatever few of them are.

    >>> choose_anchor(torch.tensor([[1e9, 5.0], [2.0, 5.0], [1.0, 5.0]]))
    tensor([2., 5.])
    """
    some = features[:: max(1, len(features) // ANCHOR_ROWS)]
    return some.median(0).values


def _grow(values: Tensor, rows: int) -> Tensor:
    return torch.cat([values, values.new_zeros(rows, *values.shape[1:])])


def refuse_large_labels(largest: int, num_classes: int) -> None:
    """Raise for a label that names no class."""
    if largest >= num_classes == 1:
        raise ValueError(
            f"labels: expected 0 alone for the one class of num_classes or weight, got {largest}; {TWO_OUTPUTS}"
        )
    if largest >= num_classes:
        raise ValueError(f"labels: expected integers 0..{num_classes - 1} for {num_classes} classes, got {largest}")


def refuse_scale(name: str, size: float) -> None:
    """Raise for a largest magnitude whose fourth power leaves float64; all zeros are fine."""
    if size and not SMALLEST <= size <= LARGEST:
        raise ValueError(f"{name}: expected magnitudes of {SMALLEST:g} to {LARGEST:g}, got {size:.2g}; rescale them")


def refuse_scale_of(source: Source, energy: float) -> None:
    """`refuse_scale` of features with this mean |h|^2; they are read again only where that looks wrong."""
    if not SMALLEST**2 <= energy <= LARGEST**2:
        refuse_scale("features", max(float(features.abs().max()) for features, _ in source.read(source.rows())))
