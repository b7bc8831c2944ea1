"""A trained last layer together with the objective it was trained on: the common input of `certify` and `escape`."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncollapse.heads import Head
from ncollapse.losses import ConvexForm, Loss
from ncollapse.theory.class_summary import Summary, summarise
from ncollapse.theory.problem import Problem

Array = NDArray[np.float64]
_SIZES = ("per_class", "batch_size", "class_counts")


@dataclass(frozen=True)
class Point:
    """A point (W, H, b) of a problem, summarised by class.

    counts [K]: how many samples of each class the feature decay counts. shares [K]: the weights of the classes in the
    mean loss. feature_decay: per sample of `counts`.
    """

    problem: Problem
    head: Head
    form: ConvexForm
    summary: Summary
    counts: Array
    shares: Array
    feature_decay: float

    @property
    def bias(self) -> Array | None:
        """The thresholds, None without."""
        return None if self.head.bias is None else self.head.bias.detach().double().cpu().numpy()

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
) -> Point:
    """Check the arguments of `certify`, and go through the samples once."""
    if (head is None) == (weight is None):
        raise ValueError("the classifier is missing: give weight [K, d] and bias [K], or head, and not both")
    head = Head.of(head if head is not None else (weight, bias))
    problem, sized = _read_problem(problem, head.num_classes, arguments)
    if problem.num_classes != head.num_classes:
        raise ValueError(f"problem: expected {head.num_classes} classes as weight has rows, got {problem.num_classes}")
    if not problem.bias and head.bias is not None:
        if bool(head.bias.any()):
            raise ValueError("bias: expected None or zeros as the problem has bias=False, got other values")
        head = Head(head.weight)
    form = convex_form(problem.loss, problem.num_classes)
    summary = summarise(features, labels, head, form)
    if problem.features == "relu" and summary.lowest < -1e-9 * summary.highest:
        raise ValueError(
            f"features has a value of {summary.lowest:.3g}, but the problem's features='relu' is for non-negative "
            "ones; use 'free'"
        )
    measured = problem.class_counts is None and (problem.batch_size is not None or not sized)
    counts = summary.given if measured else np.asarray(problem.counts)
    if (counts[summary.given == 0] > 0).any():
        raise ValueError("class_counts is positive for a class of which no sample is given")
    feature_decay = problem.feature_decay
    if measured and sized and problem.batch_size is not None:  # a decay of batches, spread over all samples
        feature_decay *= problem.batch_size / float(counts.sum())
    weighted = counts * problem.class_weights
    return Point(problem, head, form, summary, counts, weighted / weighted.sum(), feature_decay)


def convex_form(loss: Loss, num_classes: int) -> ConvexForm:
    """The convex form of a loss for plain classes; a ValueError where it has none (focal is not convex)."""
    form = loss.convex_form(np.eye(num_classes))
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
