"""`collect`: what the figures need of a last layer, beside its measurement."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .batches import Source, open_source
from .classifier import HeadLike, check_head
from .decay_fields import Decays
from .distribution import count_between, even_edges
from .measurement import Measurement
from .measuring import measure_source
from .scores import Counts, Spread, Values
from .workspace import borrow_workspace


class Histogram(NamedTuple):
    """Counts [bins] between edges [bins + 1]."""

    edges: Values
    counts: Counts


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Class means, classifier, histograms and a few features a class; the last three are None without a classifier."""

    class_means: Values  # [K, d]
    counts: Counts  # [K]
    weight: Values | None  # [K, d]
    bias: Values | None  # [K]
    positive_score: Histogram | None  # own scores, without bias
    negative_score: Histogram | None  # other scores, without bias
    margin: Histogram | None  # cosine margins
    features: np.ndarray[Any, np.dtype[np.float32]]  # [M, d] seeded choice, class by class
    labels: Counts  # [M]
    measurement: Measurement

    def tensors(self) -> dict[str, Tensor]:
        """Everything but the measurement, flat: class_means, counts, positive_score.edges, ..., as tensors to save."""
        flat: dict[str, Any] = {"class_means": self.class_means, "counts": self.counts}
        flat |= {"features": self.features, "labels": self.labels}
        for name in ("weight", "bias"):
            if getattr(self, name) is not None:
                flat[name] = getattr(self, name)
        for name in ("positive_score", "negative_score", "margin"):
            histogram = getattr(self, name)
            if histogram is not None:
                flat |= {f"{name}.edges": histogram.edges, f"{name}.counts": histogram.counts}
        return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in flat.items()}


def collect(
    features: Any,
    labels: Any = None,
    weight: Any = None,
    bias: Any = None,
    num_classes: int | None = None,
    *,
    head: HeadLike | None = None,
    problem: Decays | None = None,
    numerical_rank: bool = False,
    bins: int = 128,
    keep: int = 100,
    seed: int = 0,
) -> Snapshot:
    """Measure, and keep what figures need: histograms with `bins` bins and `keep` seeded features a class.

    Takes what `measure` takes. Memory stays bounded for batches, as there.

    >>> import torch
    >>> s = collect(torch.eye(3).repeat(4, 1), torch.arange(3).repeat(4), weight=torch.eye(3), bins=4, keep=2)
    >>> s.features.shape, s.positive_score.counts.sum()
    ((6, 3), np.int64(12))
    """
    source, given = open_source(features, labels), check_head(weight, bias, head)
    found = measure_source(source, given, num_classes, problem=problem, numerical_rank=numerical_rank)
    for note in found.notes:
        warnings.warn(f"measure: {note}", stacklevel=2)
    measured, scores = found.measurement, found.scores
    classifier, negatives = found.classifier, None if scores is None else scores.negatives
    margin = None if scores is None or not measured.cosine_margin.count else scores.margin
    kept, kept_labels = keep_features(source, measured.counts, keep, seed)
    return Snapshot(
        class_means=to_numpy(found.presence.fill(found.moments.means().whole())),
        counts=np.array(measured.counts, dtype=np.int64),
        weight=None if classifier is None else to_numpy(classifier.weight.to(torch.float64)),
        bias=None if classifier is None else to_numpy(classifier.bias),
        positive_score=None if scores is None else _count(scores.positive, measured.positive_score, bins),
        negative_score=None if negatives is None else Histogram(*negatives.histogram(bins)),
        margin=None if margin is None else _count(margin, measured.cosine_margin, bins),
        features=kept,
        labels=kept_labels,
        measurement=measured,
    )


def to_numpy(values: Tensor) -> Values:
    """A float64 array on the host."""
    found: Values = values.cpu().numpy()
    return found


def _count(values: Tensor, spread: Spread, bins: int) -> Histogram:
    edges = even_edges(spread.min, spread.max, bins)
    return Histogram(edges, count_between(values, edges))


def keep_features(
    source: Source, counts: tuple[int, ...], keep: int, seed: int
) -> tuple[np.ndarray[Any, np.dtype[np.float32]], Counts]:
    """Features of at most `keep` samples a class, drawn by `seed`, in the order of classes and of the data."""
    draw = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    chosen = np.zeros(offsets[-1], dtype=bool)  # place of a sample: its class's offset plus its rank inside the class
    for start, count in zip(offsets, counts):
        chosen[start + draw.permutation(count)[:keep]] = True
    seen = np.array(offsets[:-1])
    found = [np.zeros((0, source.dim), dtype=np.float32)]
    classes = [np.zeros(0, dtype=np.int64)]
    with borrow_workspace(source.device) as room:
        for features, labels in source.read(source.rows(), room):
            target = labels.cpu().numpy()
            order = np.argsort(target, kind="stable")  # class by class, in the order of the data
            ordered = target[order]
            sizes = np.bincount(target, minlength=len(seen))
            ranks = np.arange(len(ordered)) - (np.cumsum(sizes) - sizes)[ordered]
            picked = chosen[seen[ordered] + ranks]
            seen += sizes
            if picked.any():
                rows = features[torch.from_numpy(order[picked]).to(features.device)]
                found.append(rows.to(torch.float32).cpu().numpy())
                classes.append(ordered[picked])
    every, labels_kept = np.concatenate(found), np.concatenate(classes)
    by_class = np.argsort(labels_kept, kind="stable")
    return every[by_class], labels_kept[by_class]
