"""`measure`: features, labels and classifier in, `Measurement` out."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .batches import Source, open_source
from .collapse import Moments, cosines, decompose_means, measure_duality, measure_means, measure_weights, measure_within
from .measurement import NAN, Measurement
from .problems import measure_bias_residual, measure_relu_logits
from .ranks import numerical_rank as measure_rank
from .scan import (
    LARGEST,
    Classifier,
    Scan,
    refuse_large_labels,
    refuse_scale,
    refuse_scale_of,
    scan_samples,
    sum_classes,
)
from .scores import Spread, Values, spread_of, uniform_accuracy, uniform_accuracy_grid
from .similarity import compactness, distinctiveness
from .statistics import ClassStatistics

COLLAPSED_STD = 0.5  # bce-vs-ce App. B.2


def measure(
    features: Any,
    labels: Any = None,
    weight: Any = None,
    bias: Any = None,
    num_classes: int | None = None,
    *,
    head: Any = None,
    problem: Any = None,
    numerical_rank: bool = False,
) -> Measurement:
    """Every number of the papers about a last layer z = W h - b, exact to float64, in two passes.

    Args:
        features: tensor (any device) or array (memory-mapped too) [N, d] in any real dtype; or, with `labels` left out,
            batches of (features, labels) that can be gone through twice (a list, a DataLoader); or `ClassStatistics`,
            which leave the fields that need single samples NaN. The largest magnitude, here and in `weight`, has to be
            0 or within 1e-70 to 1e70: fourth powers must fit into float64.
        labels: integers [N] in 0..K-1.
        weight: classifier W [K, d]; without it the fields that need it are NaN.
        bias: the threshold b [K] of z = W h - b (a torch.nn.Linear adds its bias: pass that as `head`).
        num_classes: K, where neither the classifier nor the largest label says it.
        head: instead of `weight` and `bias`: a Head, LinearHead, ETFHead, torch.nn.Linear or (weight, threshold).
        problem: a `Problem` (its decays and samples a class), for `bias_residual`, `bias_residual_printed`, `nc3_relu`.
        numerical_rank: also measure `numerical_rank`, which takes a QR of every class's features.

    >>> import torch
    >>> m = measure(torch.eye(3).repeat(4, 1), torch.arange(3).repeat(4), weight=torch.eye(3))
    >>> m.nc1, m.accuracy, m.uniform_accuracy, m.positive_score.mean
    (0.0, 1.0, 1.0, 1.0)
    """
    if isinstance(features, ClassStatistics):
        refuse_beside_statistics(features, labels, num_classes, numerical_rank)
        return measure_statistics(features, *check_head(weight, bias, head), problem=problem)
    source = open_source(features, labels)
    return measure_source(
        source, check_head(weight, bias, head), num_classes, problem=problem, numerical_rank=numerical_rank
    )[0]


def measure_source(
    source: Source,
    head: tuple[Tensor | None, Tensor | None],
    num_classes: int | None,
    *,
    problem: Any = None,
    numerical_rank: bool = False,
) -> tuple[Measurement, Scan]:
    """`measure` on an open source, with the second pass itself."""
    classifier = place_classifier(head, source.dim, source.device)
    classes = settle_classes(num_classes, source.num_classes, classifier)
    first = sum_classes(source, classes)
    scan = scan_samples(source, first, classifier)
    refuse_scale_of(source, float(scan.feature_energy), source.rows(len(first.counts)))
    values = measure_moments(scan.moments, classifier, problem)
    values |= measure_samples(scan, classifier)
    if numerical_rank:
        values["numerical_rank"] = measure_rank(source, first.counts)
    return finish(values), scan


def measure_statistics(
    statistics: ClassStatistics, weight: Tensor | None, bias: Tensor | None, *, problem: Any = None
) -> Measurement:
    """The fields that class means and the within-class scatter determine."""
    moments = statistics.moments()
    classifier = place_classifier((weight, bias), moments.means.shape[1], moments.means.device)
    rows, held = None if classifier is None else len(classifier.weight), len(moments.counts)
    if rows not in (None, held):
        raise ValueError(f"weight: {rows} rows, but the statistics are of {held} classes")
    total = moments.counts.sum()
    within = torch.where(moments.counts > 0, moments.counts * (moments.variances + moments.means.square().sum(1)), 0.0)
    energy, size = float(within.sum() / total), float(moments.means.nan_to_num().abs().max())
    refuse_scale("features", size if size > LARGEST else max(size, math.sqrt(energy)))
    values = measure_moments(moments, classifier, problem)
    values["feature_energy"] = energy
    if classifier is not None:
        table = (
            torch.where(moments.counts[:, None] > 0, moments.means @ classifier.weight.T, 0.0) * moments.counts[:, None]
        )
        classes, samples = len(table), int(total)
        own = float(torch.diagonal(table).sum())
        others = float(table.fill_diagonal_(0.0).sum())
        values["positive_score"] = Spread(mean=own / samples, count=samples)
        if classes > 1:
            values["negative_score"] = Spread(mean=others / (samples * (classes - 1)), count=samples * (classes - 1))
    return finish(values)


def refuse_beside_statistics(
    statistics: ClassStatistics, labels: Any, num_classes: int | None, numerical_rank: bool
) -> None:
    """Raise for arguments that class statistics leave no use for."""
    if labels is not None or numerical_rank:
        name = "labels" if labels is not None else "numerical_rank"
        raise ValueError(f"{name}: class statistics hold no single samples; leave it out, or pass the features")
    if num_classes not in (None, statistics.num_classes):
        raise ValueError(f"num_classes: {num_classes}, but the statistics are of {statistics.num_classes} classes")


def check_head(weight: Any, bias: Any, head: Any) -> tuple[Tensor | None, Tensor | None]:
    """The classifier as tensors, from either way of giving it."""
    if head is not None:
        if weight is not None or bias is not None:
            raise ValueError("head: give either head or weight and bias, not both")
        from ncollapse.heads import Head

        found = Head.of(head)
        return found.weight, found.bias
    if weight is None:
        if bias is not None:
            raise ValueError("bias: given without weight; a bias alone is no classifier")
        return None, None
    return _as_tensor(weight), None if bias is None else _as_tensor(bias)


def _as_tensor(value: Any) -> Tensor:
    return value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value, dtype=np.float64))


def place_classifier(head: tuple[Tensor | None, Tensor | None], dim: int, device: torch.device) -> Classifier | None:
    """The classifier in float64 beside the features, its shape and values checked; no bias is a bias of 0."""
    weight, bias = head
    if weight is None:
        return None
    if weight.ndim != 2 or weight.shape[1] != dim or weight.shape[0] == 0:
        raise ValueError(f"weight: expected shape [K, {dim}] to fit features [N, {dim}], got {tuple(weight.shape)}")
    classes = weight.shape[0]
    if bias is None:
        bias = torch.zeros(classes)
    if tuple(bias.shape) != (classes,):
        raise ValueError(f"bias: expected shape [{classes}] to fit weight [{classes}, {dim}], got {tuple(bias.shape)}")
    placed = Classifier(weight.to(device, torch.float64), bias.to(device, torch.float64))
    for name, value in placed._asdict().items():
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name}: holds NaN or Inf")
    refuse_scale("weight", float(placed.weight.abs().max()))
    return placed


def settle_classes(num_classes: int | None, seen: int | None, classifier: Classifier | None) -> int | None:
    """The number of classes by the argument, the classifier or the labels; raises where they disagree."""
    if num_classes is not None and (num_classes != int(num_classes) or num_classes < 1):
        raise ValueError(f"num_classes: expected a whole number of at least 1, got {num_classes}")
    if classifier is not None:
        rows = len(classifier.weight)
        if num_classes is not None and num_classes != rows:
            raise ValueError(f"num_classes: {num_classes}, but weight has {rows} rows")
        num_classes = rows
    if num_classes is None:
        return seen
    if seen is not None:
        refuse_large_labels(seen - 1, num_classes)
    return int(num_classes)


def measure_moments(moments: Moments, classifier: Classifier | None, problem: Any) -> dict[str, Any]:
    """All fields that do not look at single samples."""
    classes, dim = moments.means.shape
    counts = [int(count) for count in moments.counts.tolist()]
    empty = tuple(index for index, count in enumerate(counts) if count == 0)
    values: dict[str, Any] = {
        "num_samples": sum(counts),
        "num_classes": classes,
        "dim": dim,
        "counts": tuple(counts),
        "empty_classes": empty,
    }
    scalars: dict[str, Tensor] = {}
    complete = classes > 1 and not empty
    if complete:
        spectrum = decompose_means(moments)
        values["means_rank"] = spectrum.rank
        scalars["means_smallest_singular_value"] = spectrum.singular_values[-1]
        scalars |= measure_within(moments, spectrum)
        scalars |= measure_means(moments)
        values["mean_cosines"] = spread_of(pairs_of(cosines(moments.means)))
    else:
        warn_undefined(classes, empty)
    values["mean_norms"] = tuple(torch.linalg.vector_norm(moments.means, dim=1).tolist())
    if classifier is not None:
        weight, bias = classifier
        scalars["weight_energy"] = weight.square().sum()
        values["bias"] = spread_of(bias)
        values["weight_norms"] = tuple(torch.linalg.vector_norm(weight, dim=1).tolist())
        if classes > 1:
            scalars |= measure_weights(weight)
            values["weight_cosines"] = spread_of(pairs_of(cosines(weight)))
        if complete:
            scalars |= measure_duality(weight, moments)
        if problem is not None:
            values |= measure_bias_residual(problem, float(weight.square().sum()), float(bias.mean()), classes)
            if complete:
                values["nc3_relu"] = measure_relu_logits(problem, weight, moments)
    if scalars:
        values |= dict(zip(scalars, torch.stack(list(scalars.values())).tolist()))
    return values


def measure_samples(scan: Scan, classifier: Classifier | None) -> dict[str, Any]:
    """All fields that look at single samples."""
    counts = scan.moments.counts
    classes = len(counts)
    complete = classes > 1 and bool((counts > 0).all())
    values: dict[str, Any] = {"feature_energy": float(scan.feature_energy)}
    if complete:
        values["compactness"] = float(compactness(scan.centred_directions))
        values["compactness_uncentred"] = float(compactness(scan.directions))
        values["distinctiveness"] = float(distinctiveness(scan.directions))
        values["distinctiveness_centred"] = float(distinctiveness(scan.centred_directions))
    if classifier is None or scan.decision is None or scan.nearest is None or scan.positive is None:
        return values
    right = (scan.decision == scan.labels).to(torch.float64)
    by_class = torch.zeros_like(counts).index_add_(0, scan.labels, right) / counts
    values["accuracy"] = float(right.sum()) / len(right)
    values["class_accuracy"] = tuple(by_class.tolist())
    values["positive_score"] = spread_of(scan.positive)
    if complete:
        values["nc4"] = int((scan.decision == scan.nearest).sum()) / len(right)
    if classes > 1 and scan.own_logit is not None and scan.other_logit is not None and scan.margin is not None:
        logits = scan.own_logit, scan.other_logit
        values["uniform_accuracy"], values["uniform_threshold"] = uniform_accuracy(*logits)
        values["uniform_accuracy_grid"] = uniform_accuracy_grid(*logits)
        values["cosine_margin"] = spread_of(scan.margin)
        if scan.negatives is not None:
            values["negative_score"] = scan.negatives.spread()
            values["collapsed"] = (
                values["positive_score"].std <= COLLAPSED_STD and values["negative_score"].std <= COLLAPSED_STD
            )
    return values


def finish(values: dict[str, Any]) -> Measurement:
    """A `Measurement` with infinities (a quotient by an exact zero) turned into NaN."""
    finite: dict[str, Any] = {
        name: NAN if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }
    return Measurement(**finite)


def warn_undefined(classes: int, empty: tuple[int, ...]) -> None:
    """One warning that says why fields are NaN."""
    if classes < 2:
        reason = "there is a single class"
    else:
        named = ", ".join(str(index) for index in empty[:10]) + (", ..." if len(empty) > 10 else "")
        reason = f"no sample of class {named}" if len(empty) == 1 else f"no sample of classes {named}"
    warnings.warn(f"measure: {reason}; fields that compare all class means are NaN", stacklevel=5)


def pairs_of(matrix: Tensor) -> Tensor:
    """The entries above the diagonal."""
    rows, columns = torch.triu_indices(len(matrix), len(matrix), 1, device=matrix.device)
    return matrix[rows, columns]


def to_numpy(values: Tensor) -> Values:
    """A float64 array on the host."""
    found: Values = values.cpu().numpy()
    return found
