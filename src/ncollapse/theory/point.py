"""A trained last layer together with the objective it was trained on: the common input of `certify` and `escape`."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ncollapse.heads import TWO_OUTPUTS, Head
from ncollapse.losses import ConvexForm, Loss
from ncollapse.theory.class_groups import ClassGroups, SymmetricShares, expand_rows, group_classes
from ncollapse.theory.class_summary import Summary, count_labels, summarise
from ncollapse.theory.problem import Problem

Array = NDArray[np.float64]
Index = NDArray[np.int64]
DENSE = 400  # classes up to which the K x K matrix of mean gradients is formed
_SIZES = ("per_class", "batch_size", "class_counts")


@dataclass(frozen=True)
class Point:
    """A point (W, H, b) of a problem, averaged over the samples of each of G groups with one target row.

    form: the loss of these groups. gradients [G, K]: the mean gradients in the logits. counts [G]: how many samples of
    each group the feature decay counts. shares [G]: the weights of the groups in the mean loss. feature_decay: per
    sample of `counts`. losses, energies [G]: the means of the loss and of |h|^2. labels [G]: the class of each group.

    symmetry: a point that is averaged over permutations of the classes of each group of `symmetry` has one row for each
    such group, that of its first class, and the counts and shares of all its classes.
    """

    problem: Problem
    head: Head
    form: ConvexForm
    gradients: Array
    losses: Array
    energies: Array
    counts: Array
    shares: Array
    labels: NDArray[np.int64]
    feature_decay: float
    num_samples: int
    soft: bool = False
    symmetry: ClassGroups | None = None

    @property
    def groups(self) -> Index:
        """The group of classes of each row [G] of a symmetric point."""
        assert self.symmetry is not None
        return self.symmetry.index[self.labels]

    @property
    def weights(self) -> Array:
        """The shares, as a factor: `weights @ rows` is their sum over all samples, [K]."""
        return self.shares if self.symmetry is None else cast(Array, SymmetricShares(self.shares, self.symmetry))

    @property
    def bias(self) -> Array | None:
        """The thresholds, None without."""
        return None if self.head.bias is None else self.head.bias.detach().double().cpu().numpy()

    @property
    def offset(self) -> Array:
        """What is added to the logits inside the loss, [K]."""
        return np.array(self.problem.logit_offset or (0.0,) * self.problem.num_classes)

    @property
    def tau(self) -> float:
        """sqrt(weight_decay feature_decay), the radius of the dual ball."""
        return math.sqrt(self.problem.weight_decay) * math.sqrt(self.feature_decay)  # their product may underflow


def read_point(
    features: Any,
    labels: Any,
    weight: Any,
    bias: Any,
    problem: Problem | str | Loss | None,
    head: Any,
    arguments: dict[str, Any],
    *,
    dense: bool = False,
) -> Point:
    """Check the arguments of `certify`, and go through the samples once.

    For many classes the point is averaged over permutations of classes that the problem treats alike, unless `dense`.
    """
    if (head is None) == (weight is None):
        raise ValueError("the classifier is missing: give weight [K, d] and bias [K], or head, and not both")
    if isinstance(weight, torch.nn.Module):
        raise TypeError(f"weight: expected an array [K, d], got {type(weight).__name__}; a classifier goes in as head=")
    head = Head.of(head if head is not None else (weight, bias))
    if head.num_classes == 1:
        raise ValueError(f"weight: expected a row for each of 2 or more classes, got 1; {TWO_OUTPUTS}")
    problem, sized = _read_problem(problem, head.num_classes, arguments)
    if problem.num_classes != head.num_classes:
        raise ValueError(f"problem: expected {head.num_classes} classes as weight has rows, got {problem.num_classes}")
    if not problem.bias and head.bias is not None:
        if bool(head.bias.any()):
            raise ValueError("bias: expected None or zeros as the problem has bias=False, got other values")
        head = Head(head.weight)
    if is_soft(labels):
        return _read_soft_point(features, labels, head, problem, sized)
    if problem.soft:
        raise ValueError("labels: expected soft targets [N, K] for a problem with targets or mixing, got class labels")
    convex_form(problem.loss, problem.num_classes, np.zeros(1, dtype=np.int64))
    measured = problem.class_counts is None and (problem.batch_size is not None or not sized)
    symmetry = None
    if problem.num_classes > DENSE and not dense:
        given = count_labels(features, labels, problem.num_classes) if measured else np.asarray(problem.counts)
        symmetry = group_alike(problem, given)
    summary = summarise(features, labels, head, problem.loss, problem.logit_offset, symmetry)
    if problem.features == "relu" and summary.lowest < -1e-9 * summary.highest:
        raise ValueError(
            f"features has a value of {summary.lowest:.3g}, but the problem's features='relu' is for non-negative "
            "ones; use 'free'"
        )
    counts = summary.given if measured else np.asarray(problem.counts)
    if (counts[summary.given == 0] > 0).any():
        raise ValueError("class_counts is positive for a class of which no sample is given")
    feature_decay = problem.feature_decay
    if measured and sized and problem.batch_size is not None:  # a decay of batches, spread over all samples
        feature_decay *= problem.batch_size / float(counts.sum())
    weighted = counts * problem.class_weights
    if symmetry is not None:
        return _read_symmetric(problem, head, summary, symmetry, counts, weighted, feature_decay)
    kept = np.flatnonzero(weighted)
    return Point(
        problem=problem,
        head=head,
        form=convex_form(problem.loss, problem.num_classes, kept),
        gradients=summary.gradients[kept],
        losses=summary.losses[kept],
        energies=summary.energies[kept],
        counts=counts[kept],
        shares=(weighted / weighted.sum())[kept],
        labels=kept,
        feature_decay=feature_decay,
        num_samples=int(summary.given.sum()),
    )


def group_alike(problem: Problem, counts: Array) -> ClassGroups:
    """The groups of classes that a problem with these counts treats alike."""
    return group_classes(counts, problem.class_weights, np.array(problem.logit_offset or (0.0,) * len(counts)))


def _read_symmetric(
    problem: Problem,
    head: Head,
    summary: Summary,
    symmetry: ClassGroups,
    counts: Array,
    weighted: Array,
    feature_decay: float,
) -> Point:
    present = np.flatnonzero(symmetry.add(weighted))
    own, sums = summary.gradients[present, 0], summary.gradients[present, 1:].copy()
    left = np.tile(symmetry.sizes.astype(np.float64), (len(present), 1))
    sums[np.arange(len(present)), present] -= own
    left[np.arange(len(present)), present] -= 1.0
    others = np.where(left > 0, sums / np.where(left > 0, left, 1.0), 0.0)
    labels = symmetry.first[present]
    sizes = symmetry.sizes[present]
    return Point(
        problem=problem,
        head=head,
        form=convex_form(problem.loss, problem.num_classes, labels),
        gradients=expand_rows(own, others, symmetry, present),
        losses=symmetry.add(summary.losses)[present] / sizes,
        energies=symmetry.add(summary.energies)[present] / sizes,
        counts=symmetry.add(counts)[present],
        shares=symmetry.add(weighted)[present] / weighted.sum(),
        labels=labels,
        feature_decay=feature_decay,
        num_samples=int(summary.given.sum()),
        symmetry=symmetry,
    )


def symmetrise(point: Point) -> Point | None:
    """The point averaged over permutations of classes that its problem treats alike; None if there are none."""
    if point.soft or point.symmetry is not None:
        return None
    k = point.problem.num_classes
    counts = np.zeros(k)
    counts[point.labels] = point.counts
    symmetry = group_alike(point.problem, counts)
    if len(symmetry.sizes) == k:
        return None
    gradients, losses, energies, shares = np.zeros((k, k)), np.zeros(k), np.zeros(k), np.zeros(k)
    gradients[point.labels], losses[point.labels] = point.gradients, point.losses
    energies[point.labels], shares[point.labels] = point.energies, point.shares
    own = symmetry.add(gradients.diagonal()) / symmetry.sizes
    sums = symmetry.add(symmetry.add(gradients).T).T / symmetry.sizes[:, None]
    table = Summary(counts, losses, energies, np.column_stack([own, sums]), 0.0, 0.0)
    made = _read_symmetric(point.problem, point.head, table, symmetry, counts, shares, point.feature_decay)
    return replace(made, num_samples=point.num_samples)


def is_soft(labels: Any) -> bool:
    """Whether labels are target rows [N, K] rather than class indices."""
    return isinstance(labels, Tensor | np.ndarray) and labels.ndim == 2


def _read_soft_point(features: Any, labels: Any, head: Head, problem: Problem, sized: bool) -> Point:
    """The point of samples with soft targets [N, K]; samples with the same target row are averaged."""
    x = torch.as_tensor(features).detach().cpu().double()
    y = torch.as_tensor(labels).detach().cpu().double().numpy()
    if x.ndim != 2 or y.shape != (len(x), head.num_classes):
        raise ValueError(f"labels: expected soft targets [{len(x)}, {head.num_classes}], got {list(y.shape)}")
    if not (bool(x.isfinite().all()) and np.isfinite(y).all()):
        raise ValueError("features and labels: expected finite values")
    if problem.class_counts is not None:
        raise ValueError("problem: expected batch_size or target_counts with soft targets, got class_counts")
    if problem.features == "relu" and float(x.min()) < -1e-9 * float(x.max()):
        raise ValueError(f"features has a value of {float(x.min()):.3g}, but the problem's features='relu'; use 'free'")
    targets, group = np.unique(y, axis=0, return_inverse=True)
    form = problem.loss.convex_form(targets)
    if form is None:
        raise ValueError(f"loss: expected one with a known convex conjugate, got {problem.loss.name!r}")
    offset = torch.tensor(problem.logit_offset or (0.0,) * problem.num_classes, dtype=torch.float64)
    logits = x @ head.weight.detach().cpu().double().T + offset
    if head.bias is not None:
        logits = logits - head.bias.detach().cpu().double()
    members = torch.from_numpy(group.ravel())
    losses, gradients = form.evaluate(logits, members)
    sizes = np.bincount(members.numpy(), minlength=len(targets)).astype(np.float64)

    def average(values: Array) -> Array:
        sums = np.zeros((len(targets), *values.shape[1:]))
        np.add.at(sums, members.numpy(), values)
        return np.asarray(sums / sizes.reshape(-1, *[1] * (values.ndim - 1)))

    weighted = sizes * problem.weigh(targets)
    scale = problem.per_class * problem.num_classes / len(x) if sized else 1.0
    return Point(
        problem=problem,
        head=head,
        form=form,
        gradients=average(gradients.numpy()),
        losses=average(losses.numpy()),
        energies=average(x.square().sum(dim=1).numpy()),
        counts=sizes,
        shares=weighted / weighted.sum(),
        labels=np.arange(len(targets)),
        feature_decay=problem.feature_decay * scale,
        num_samples=len(x),
        soft=True,
    )


def point_of_groups(problem: Problem, features: Tensor, weight: Tensor, bias: Tensor | None) -> Point | None:
    """The point with one feature [G, d] for each of the problem's groups; None for a loss without a convex form."""
    groups = problem.groups
    form = problem.loss.convex_form(groups.targets)
    if form is None:
        return None
    offset = torch.tensor(problem.logit_offset or (0.0,) * problem.num_classes, dtype=torch.float64)
    logits = features @ weight.T + offset
    losses, gradients = form.evaluate(logits if bias is None else logits - bias, torch.arange(len(features)))
    return Point(
        problem=problem,
        head=Head(weight, bias),
        form=form,
        gradients=gradients.numpy(),
        losses=losses.numpy(),
        energies=features.square().sum(dim=1).numpy(),
        counts=groups.counts,
        shares=groups.shares,
        labels=np.arange(len(features)) if groups.labels is None else groups.labels,
        feature_decay=problem.feature_decay,
        num_samples=len(features),
        soft=groups.labels is None,
    )


def convex_form(loss: Loss, num_classes: int, labels: NDArray[np.int64] | None = None) -> ConvexForm:
    """The convex form of a loss for samples of these classes (default: all); a ValueError where it has none."""
    labels = np.arange(num_classes) if labels is None else labels
    targets = np.zeros((len(labels), num_classes))
    targets[np.arange(len(labels)), labels] = 1.0
    form = loss.convex_form(targets)
    if form is None:
        raise ValueError(
            f"loss: expected one with a known convex conjugate, got {loss.name!r}, for which no lower bound is known"
        )
    return form


def _read_problem(
    problem: Problem | str | Loss | None, num_classes: int, arguments: dict[str, Any]
) -> tuple[Problem, bool]:
    """The problem, and whether it says how many samples there are; without, those given are meant."""
    if isinstance(problem, Problem):
        if arguments:
            raise TypeError(f"problem says all of {', '.join(arguments)} already; problem.replace(...) changes it")
        return problem, True
    arguments = dict(arguments)
    if "features_model" in arguments:
        warnings.warn(
            "features_model is deprecated: pass problem=Problem(..., features='relu')", DeprecationWarning, stacklevel=4
        )
        arguments["features"] = arguments.pop("features_model")
    if problem is not None:
        if "loss" in arguments:
            raise TypeError("loss: given twice, by position and by name")
        arguments["loss"] = problem
    arguments.setdefault("loss", "bce")
    for name in ("weight_decay", "feature_decay"):
        if name not in arguments:
            raise TypeError(f"{name} is missing: give problem=Problem(...), or the arguments that make one")
    sized = any(arguments.get(name) is not None for name in _SIZES)
    if not sized:
        arguments["batch_size"] = 1.0
    return Problem(**arguments, num_classes=num_classes), sized
