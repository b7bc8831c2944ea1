"""The predicted optimum of a variant: the problem behind its prediction, and the ideal frame."""

from __future__ import annotations

from typing import Any

import numpy as np

from ncollapse.compare import Variant, predicted
from ncollapse.runs.record import RunRecord


def find_problem(record: RunRecord) -> dict[str, Any] | None:
    """The problem behind a run's prediction as plain values, None where there is none."""
    problem = predicted(record).get("problem")
    return problem if isinstance(problem, dict) and "loss" in problem else None


def ideal_frame(variant: Variant) -> tuple[np.ndarray, np.ndarray] | None:
    """Weight and class means [K, d] of the predicted optimum, None where theory has none for these runs."""
    problem = next((p for r in variant.counted if (p := find_problem(r))), None)
    if problem is None:
        return None
    from ncollapse.theory import Problem, predict

    arguments = {key: value for key, value in problem.items() if key not in ("loss", "loss_params", "per_class")}
    if arguments.get("batch_size") is None and arguments.get("class_counts") is None:
        arguments["per_class"] = problem.get("per_class")
    try:
        posed = Problem(
            str(problem["loss"]),
            **{k: v for k, v in arguments.items() if v is not None},
            **problem.get("loss_params", {}),
        )
        features, labels, weight, _ = predict(posed, method="closed").configuration()
    except (ValueError, TypeError, KeyError):
        return None
    means = np.stack([features[labels == k].mean(0).numpy() for k in range(posed.num_classes)])
    return weight.numpy(), means


def nearest_optimum(
    ideal: tuple[np.ndarray, np.ndarray] | None, gram: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray] | None:
    """The optimum nearest to a measured W W^T [K, K], where there are many; None where the ideal is the only one.

    Under MSE with d < K - 1 any d of the K - 1 directions are optimal (docs/theory.md, section 3): W W^T, H^T H and W H
    are multiples of a centred projection of rank d, and the nearest one has the leading eigenvectors of W W^T.
    """
    if ideal is None or gram is None or len(gram) != len(ideal[0]):
        return None
    rank = int(np.linalg.matrix_rank(ideal[0]))
    if not 0 < rank < len(gram) - 1:
        return None
    for left, right in ((ideal[0], ideal[0]), (ideal[1], ideal[1]), ideal):
        projection = left @ right.T * rank / np.trace(left @ right.T)
        if not np.allclose(projection @ projection, projection) or not np.allclose(projection.sum(0), 0):
            return None
    centred = gram - gram.mean(0)
    directions = np.linalg.eigh(centred - centred.mean(1, keepdims=True))[1][:, -rank:]
    return directions, directions
