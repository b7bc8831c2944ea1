"""The two passes over the features: class means first, then everything that is measured around them.

Both passes are float64 from the first addition on. Nothing is read back from the device inside a pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from .batches import Source, refuse_non_finite
from .collapse import Moments, centre_means, span_means
from .negatives import NegativeScores

SMALLEST, LARGEST = 1e-70, 1e70  # between them fourth powers, summed over samples and classes, stay within float64


class Classifier(NamedTuple):
    """W [K, d] and b [K] of z = W h - b, float64 on the device of the features."""

    weight: Tensor
    bias: Tensor


class ClassSums(NamedTuple):
    """The first pass: how many samples of each class, and the sum of their features."""

    counts: Tensor  # [K] float64
    sums: Tensor  # [K, d]


@dataclass
class Scan:
    """The second pass: moments, mean directions and a few numbers a sample."""

    moments: Moments
    directions: Tensor  # [K, d] mean of h / |h| by class
    centred_directions: Tensor  # [K, d] mean of (h - global mean) / |h - global mean| by class
    feature_energy: Tensor  # mean |h|^2
    labels: Tensor  # [N]
    positive: Tensor | None = None  # [N] own score, without bias
    own_logit: Tensor | None = None  # [N] own logit, with bias
    other_logit: Tensor | None = None  # [N] largest other logit, with bias
    margin: Tensor | None = None  # [N] cosine margin
    decision: Tensor | None = None  # [N] class with the largest logit
    nearest: Tensor | None = None  # [N] class with the nearest mean; of no use where a class is empty
    negatives: NegativeScores | None = None


def mark(labels: Tensor, num_classes: int) -> Tensor:
    """One-hot rows in float64."""
    marks = torch.zeros(len(labels), num_classes, dtype=torch.float64, device=labels.device)
    return marks.scatter_(1, labels[:, None], 1.0)


def sum_classes(source: Source, num_classes: int | None) -> ClassSums:
    """First pass: counts and sums by class; raises for labels past `num_classes` and for NaN or Inf."""
    classes = num_classes or source.num_classes or 0
    sums = torch.zeros(classes, source.dim, dtype=torch.float64, device=source.device)
    counts = torch.zeros(classes, dtype=torch.float64, device=source.device)
    rows = source.rows(classes)
    for features, labels in source.read(rows):
        if source.num_classes is None and len(labels):
            largest = int(labels.max())
            if num_classes is None and largest >= len(counts):
                grown = largest + 1 - len(counts)
                sums = torch.cat([sums, sums.new_zeros(grown, source.dim)])
                counts = torch.cat([counts, counts.new_zeros(grown)])
            refuse_large_labels(largest, len(counts))
        marks = mark(labels, len(counts))
        sums.addmm_(marks.T, features)
        counts += marks.sum(0)
    if not bool(counts.any()):
        raise ValueError("features: no samples (N = 0); at least one is needed")
    if not bool(torch.isfinite(sums).all()):
        refuse_non_finite(source, rows)
        raise ValueError("features: their sums overflow float64; rescale them")
    return ClassSums(counts, sums)


def refuse_large_labels(largest: int, num_classes: int) -> None:
    """Raise for a label that names no class."""
    if largest >= num_classes:
        raise ValueError(f"labels: expected integers 0..{num_classes - 1} for {num_classes} classes, got {largest}")


def refuse_scale(name: str, size: float) -> None:
    """Raise for a largest magnitude whose fourth power leaves float64; all zeros are fine."""
    if size and not SMALLEST <= size <= LARGEST:
        raise ValueError(f"{name}: expected magnitudes of {SMALLEST:g} to {LARGEST:g}, got {size:.2g}; rescale them")


def refuse_scale_of(source: Source, energy: float, rows: int) -> None:
    """`refuse_scale` of features with this mean |h|^2; they are read again only where that looks wrong."""
    if not SMALLEST**2 <= energy <= LARGEST**2:
        refuse_scale("features", max(float(features.abs().max()) for features, _ in source.read(rows)))


@dataclass
class _Kept:
    """What the second pass collects, chunk by chunk."""

    labels: list[Tensor] = field(default_factory=list)
    energy: list[Tensor] = field(default_factory=list)
    squared: list[Tensor] = field(default_factory=list)
    drift: list[Tensor] = field(default_factory=list)
    scale: list[Tensor] = field(default_factory=list)
    nearest: list[Tensor] = field(default_factory=list)
    positive: list[Tensor] = field(default_factory=list)
    own_logit: list[Tensor] = field(default_factory=list)
    other_logit: list[Tensor] = field(default_factory=list)
    margin: list[Tensor] = field(default_factory=list)
    decision: list[Tensor] = field(default_factory=list)


def scan_samples(source: Source, first: ClassSums, classifier: Classifier | None) -> Scan:
    """Second pass, around the means of the first."""
    counts, sums = first
    classes = len(counts)
    means, global_mean, centred = centre_means(sums, counts)
    filled = torch.nan_to_num(centred)
    basis = span_means(centred)
    scatter = torch.zeros(basis.shape[1], basis.shape[1], dtype=torch.float64, device=source.device)
    unit_sums = torch.zeros(2 * classes, source.dim, dtype=torch.float64, device=source.device)
    unit_weights = torch.zeros(2 * classes, dtype=torch.float64, device=source.device)
    self_product = (filled * (filled + global_mean)).sum(1)
    nearest_offset = self_product - filled.square().sum(1) / 2
    matrix = filled.T.contiguous()
    scorer = None
    if classifier is not None:
        scorer = _Scorer(classifier, first, global_mean)
        matrix = torch.cat([classifier.weight, filled]).T.contiguous()
    kept = _Kept()
    gathered = torch.empty(source.rows(classes), source.dim, dtype=torch.float64, device=source.device)
    for features, labels in source.read(len(gathered)):
        own = labels[:, None]
        products = features @ matrix
        norms = torch.linalg.vector_norm(features, dim=1)
        shifted = features.sub_(global_mean)  # in place: a chunk is ours until the next one
        distances = torch.linalg.vector_norm(shifted, dim=1)
        units = torch.zeros(len(labels), 2 * classes, dtype=torch.float64, device=source.device)
        units.scatter_(1, own, _invert(distances)[:, None]).scatter_(1, own + classes, _invert(norms)[:, None])
        unit_sums.addmm_(units.T, shifted)
        unit_weights += units.sum(0)
        torch.index_select(filled, 0, labels, out=gathered[: len(labels)])
        residuals = shifted.sub_(gathered[: len(labels)])
        squared = torch.linalg.vector_norm(residuals, dim=1).square_()
        inside = residuals @ basis
        scatter.addmm_(inside.T, inside)
        to_means = products[:, -classes:]
        along = to_means.gather(1, own).squeeze(1) - self_product[labels]
        kept.labels.append(labels)
        kept.energy.append(norms.square_().sum())
        kept.squared.append(squared)
        kept.drift.append(torch.stack([along.sum(), along.abs().sum()]))
        kept.scale.append(distances.square_().sum())
        kept.nearest.append((to_means - nearest_offset).argmax(1))
        if scorer is not None:
            scorer.add(products[:, :classes], own, distances.sqrt_(), kept)
    joined = torch.cat(kept.labels)
    total = counts.sum()
    check_same(joined, counts, kept)
    variances = mark_sums(joined, torch.cat(kept.squared), classes) / counts
    unit_sums[classes:] += unit_weights[classes:, None] * global_mean
    scan = Scan(
        moments=Moments(counts, means, global_mean, centred, variances, basis, scatter),
        directions=unit_sums[classes:] / counts[:, None],
        centred_directions=unit_sums[:classes] / counts[:, None],
        feature_energy=torch.stack(kept.energy).sum() / total,
        labels=joined,
        nearest=torch.cat(kept.nearest),
    )
    if scorer is not None:
        scan.positive = torch.cat(kept.positive)
        scan.own_logit = torch.cat(kept.own_logit)
        scan.other_logit = torch.cat(kept.other_logit)
        scan.margin = torch.cat(kept.margin)
        scan.decision = torch.cat(kept.decision)
        scan.negatives = scorer.negatives
    return scan


def mark_sums(labels: Tensor, values: Tensor, num_classes: int) -> Tensor:
    """Sum of one number a sample, by class."""
    return torch.zeros(num_classes, dtype=torch.float64, device=values.device).index_add_(0, labels, values)


def check_same(labels: Tensor, counts: Tensor, kept: _Kept) -> None:
    """Raise if the second pass saw other samples than the first (a loader with augmentation, a model with dropout)."""
    seen = torch.bincount(labels, minlength=len(counts))
    drift, size = torch.stack(kept.drift).sum(0).tolist()
    scale, energy = (float(torch.stack(parts).sum()) for parts in (kept.scale, kept.energy))
    # the last term is the rounding of the class means: it counts for collapsed features far from the origin
    tolerance = 1e-7 * size + 1e-11 * scale + 1e-13 * math.sqrt(scale * energy)
    if not bool((seen == counts).all()) or abs(drift) > tolerance:
        raise ValueError(
            "features: the second pass over the batches differed from the first; they must hold the same samples each "
            "time (no augmentation, no dropout, no drop_last with shuffling)"
        )


def _invert(norms: Tensor) -> Tensor:
    """1 / norm; a zero vector has no direction and adds nothing."""
    return torch.where(norms > 0, 1.0 / norms, 0.0)


class _Scorer:
    """What the second pass does with a chunk's scores."""

    def __init__(self, classifier: Classifier, first: ClassSums, global_mean: Tensor) -> None:
        weight, self.bias = classifier
        counts, sums = first
        table = sums @ weight.T  # [K, K]: for each class the sum of its samples' scores
        others = table.fill_diagonal_(0.0).sum()
        pairs = float(counts.sum()) * (len(weight) - 1)
        centre = float(others) / pairs if pairs else 0.0
        self.negatives = NegativeScores(int(counts.sum()), len(weight), centre, weight.device)
        centred = weight - weight.mean(0)
        self.offset = centred @ global_mean
        self.inverse = _invert(torch.linalg.vector_norm(centred, dim=1))

    def add(self, scores: Tensor, own: Tensor, distances: Tensor, kept: _Kept) -> None:
        """Add a chunk's scores W h [c, K]."""
        logits = scores - self.bias
        kept.positive.append(scores.gather(1, own).squeeze(1))
        kept.own_logit.append(logits.gather(1, own).squeeze(1))
        kept.decision.append(logits.argmax(1))
        kept.other_logit.append(logits.scatter_(1, own, -torch.inf).amax(1))
        cosines = (scores - scores.mean(1, keepdim=True)).sub_(self.offset).mul_(self.inverse)
        own_cosine = cosines.gather(1, own).squeeze(1)
        margin = own_cosine - cosines.scatter_(1, own, -torch.inf).amax(1)
        kept.margin.append(torch.where(distances > 0, margin / distances, 0.0))
        self.negatives.add(scores, own)
