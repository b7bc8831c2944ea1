"""What theory says of a run whose problem is known: the optimum where it is known, and how far the run is from it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ncollapse.heads import Head
from ncollapse.theory.certificate import Certificate, certify
from ncollapse.theory.prediction import Prediction, predict
from ncollapse.theory.problem import Problem


def predict_posed(problem: Problem | None) -> Prediction | None:
    """The prediction, where there is a problem and its optimum is known in closed form."""
    if problem is None:
        return None
    try:
        return predict(problem)
    except ValueError:  # no closed form: the certificate still bounds the distance to the optimum
        return None


def certify_posed(features: Tensor, labels: Tensor, head: Any, problem: Problem | None) -> Certificate | None:
    """The certified gap for as many samples as the problem counts; with batches alone, in the measured shares.

    None where no problem is posed, its loss is not convex, or a class that it counts was not measured.
    """
    if problem is None or not problem.loss.convex:
        return None
    shared = problem.batch_size is not None and problem.class_counts is None
    if not shared and int(torch.bincount(labels).count_nonzero()) != problem.num_classes:
        return None
    return certify(
        features,
        labels,
        loss=problem.loss,
        head=Head.of(head),
        weight_decay=problem.weight_decay,
        feature_decay=problem.feature_decay,
        bias_decay=problem.bias_decay,
        batch_size=problem.batch_size if shared else None,
        class_counts=None if shared else problem.counts,
        features_model=problem.features,
    )
