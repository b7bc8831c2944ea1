"""Class means of other samples, such as the training set's, to measure decisions against."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from .batches import Array, open_source
from .class_sums import ClassSums, sum_classes
from .collapse import Moments, take_moments
from .presence import Presence, find_present
from .statistics import ClassStatistics

ReferenceLike: TypeAlias = "ClassStatistics | tuple[Array, Array] | Iterable[tuple[Array, Array]]"


@dataclass(frozen=True)
class Reference:
    """Moments of the reference's classes, and which classes they are."""

    moments: Moments
    presence: Presence


def open_reference(reference: ReferenceLike, dim: int, device: torch.device) -> Reference:
    """The class means of `ClassStatistics`, of a pair (features, labels) or of batches of them."""
    if isinstance(reference, ClassStatistics):
        moments, presence = reference.moments()
    else:
        pair = reference if isinstance(reference, tuple) and len(reference) == 2 else (reference, None)
        source = open_source(*pair)
        moments, presence = moments_of(sum_classes(source, None, directions=False))
    if moments.offsets.shape[1] != dim:
        raise ValueError(f"reference: expected features of {dim} columns, got {moments.offsets.shape[1]}")
    return Reference(_move(moments, device), _move_presence(presence, device))


def moments_of(first: ClassSums, *, strict: bool = False, min_count: int = 1) -> tuple[Moments, Presence]:
    """The moments of the classes that a first pass found samples of; its sums become their means."""
    presence = find_present(first.counts, strict=strict, min_count=min_count)
    counts = presence.take(first.counts)
    offsets = presence.take(first.sums.div_(first.counts.clamp_min(1.0)[:, None]))
    first.sums = first.sums[:0].clone()
    return take_moments(counts, offsets, first.anchor, presence.take(first.energies) / counts), presence


def _move(moments: Moments, device: torch.device) -> Moments:
    return Moments(
        counts=moments.counts.to(device),
        offsets=moments.offsets.to(device),
        anchor=moments.anchor.to(device),
        shift=moments.shift.to(device),
        energies=moments.energies.to(device),
    )


def _move_presence(presence: Presence, device: torch.device) -> Presence:
    classes = None if presence.classes is None else presence.classes.to(device)
    return Presence(presence.counts.to(device), classes)
