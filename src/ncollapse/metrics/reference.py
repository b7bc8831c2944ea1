"""Class means of other samples, such as the training set's, to measure decisions against."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

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


def open_reference(reference: ReferenceLike, dim: int) -> Reference:
    """The class means of `ClassStatistics`, of a pair (features, labels) or of batches of them."""
    if isinstance(reference, ClassStatistics):
        moments, presence = reference.moments()
    else:
        pair = reference if isinstance(reference, tuple) and len(reference) == 2 else (reference, None)
        try:
            moments, presence = moments_of(sum_classes(open_source(*pair), None, directions=False))
        except (TypeError, ValueError) as error:
            raise type(error)(f"reference: {error}") from error
    if moments.offsets.shape[1] != dim:
        raise ValueError(f"reference: expected features of {dim} columns, got {moments.offsets.shape[1]}")
    return Reference(moments, presence)


def moments_of(first: ClassSums) -> tuple[Moments, Presence]:
    """The moments of the classes that a first pass found samples of, and which these are."""
    presence = find_present(first.counts)
    return average_sums(first, presence), presence


def average_sums(first: ClassSums, presence: Presence) -> Moments:
    """The moments of the classes present; the sums of the first pass become their means."""
    counts = presence.take(first.counts)
    offsets = presence.take(first.sums.div_(first.counts.clamp_min(1.0)[:, None]))
    first.sums = first.sums[:0].clone()
    return take_moments(counts, offsets, first.anchor, presence.take(first.energies) / counts)
