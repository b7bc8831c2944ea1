"""How far samples are from the distribution that class statistics describe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .batches import Array, check_features, to_float64
from .collapse import Moments, decompose_means
from .nearest_means import find_nearest
from .rows import Rows, split_range, square_norms
from .statistics import ClassStatistics

METHODS = ("mahalanobis", "neco", "distance")
ROWS = 4096


def ood_score(features: Array, reference: ClassStatistics, method: str = "mahalanobis") -> Tensor:
    """A score of each sample [N], larger the further it is from the samples that `reference` has seen.

    Args:
        features: tensor or array [N, d].
        reference: the statistics of the training set.
        method: "mahalanobis": the least squared distance to a class mean in the metric of the within-class covariance
            (Lee et al. 2018), whose pseudo-inverse covers the directions in which the classes spread. "neco": minus
            the share of the norm of h - global mean that lies in the span of the centred class means, which hold all
            of it when the features have collapsed (Ammar et al. 2024). "distance": the least distance to a class mean.

    >>> import torch
    >>> rows, labels = torch.eye(3).repeat(2, 1), torch.arange(3).repeat(2)
    >>> statistics = ClassStatistics(3, 3).update(rows, labels)
    >>> ood_score(torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]]), statistics, "distance").tolist()
    [0.0, 1.4142135623730951]
    """
    if method not in METHODS:
        raise ValueError(f"method: expected {', '.join(METHODS)}, got {method!r}")
    check_features(features)
    if features.shape[1] != reference.dim:
        raise ValueError(f"features: expected [N, {reference.dim}], got {tuple(features.shape)}")
    moments, _ = reference.moments()
    score = _METHODS[method](reference, moments)
    parts = [score(rows) for rows in _read(features, moments)]
    return torch.cat([moments.counts.new_zeros(0), *parts])


def _read(features: Array, moments: Moments) -> Iterator[Tensor]:
    """Chunks of features minus the global mean."""
    for part in split_range(len(features), ROWS):
        yield to_float64(features[part]).to(moments.offsets.device) - moments.global_mean


def _by_distance(reference: ClassStatistics, moments: Moments) -> Callable[[Tensor], Tensor]:
    centred = moments.centred()

    def score(x: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(x - centred.pick(find_nearest(centred, x)), dim=1)
        return norms

    return score


def _by_mahalanobis(reference: ClassStatistics, moments: Moments) -> Callable[[Tensor], Tensor]:
    """Distances after a map that makes the within-class covariance the identity where it is not zero."""
    values, axes = torch.linalg.eigh(reference.scatter / moments.counts.sum())
    kept = values > len(values) * torch.finfo(torch.float64).eps * values[-1].clamp_min(0.0)
    whiten = axes[:, kept] / values[kept].sqrt()
    whitened = Rows(torch.cat([block @ whiten for block in moments.centred().blocks()]))

    def score(x: Tensor) -> Tensor:
        inside = x @ whiten
        return square_norms(inside - whitened.pick(find_nearest(whitened, inside)))

    return score


def _by_span(reference: ClassStatistics, moments: Moments) -> Callable[[Tensor], Tensor]:
    spectrum = decompose_means(moments)
    axes = spectrum.axes if spectrum.axes is not None else torch.eye(reference.dim).to(moments.offsets)
    span = axes if moments.basis is None else moments.basis @ axes

    def score(x: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(x, dim=1)
        inside: Tensor = torch.linalg.vector_norm(x @ span, dim=1)
        return -torch.where(norms > moments.rounding, inside / norms, 1.0)

    return score


_METHODS: dict[str, Any] = {"mahalanobis": _by_mahalanobis, "neco": _by_span, "distance": _by_distance}
