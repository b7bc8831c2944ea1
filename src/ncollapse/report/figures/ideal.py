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
