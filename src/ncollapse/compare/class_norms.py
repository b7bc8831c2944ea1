"""Norms of the class means and of W's rows, class by class, beside those of the predicted optimum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncollapse.runs.record import RunRecord

Array = NDArray[np.float64]
MEANS, ROWS = ("mean_norms", "class_norms"), ("weight_norms", "weight_norms")
"""What a run measures, and the same in its prediction."""


def read_norms(record: RunRecord, names: tuple[str, str] = MEANS) -> tuple[Array, Array] | None:
    """The measured and the predicted norms of all classes; None where the record lacks one of them."""
    summary = record.summary or {}
    measured = _to_array(summary.get("train"), names[0])
    predicted = _to_array(summary.get("prediction"), names[1])
    if measured is None or predicted is None or measured.shape != predicted.shape:
        return None
    return measured, predicted


def _to_array(part: Any, name: str) -> Array | None:
    values = part.get(name) if isinstance(part, dict) else None
    if not isinstance(values, (list, tuple)) or not values or any(value is None for value in values):
        return None
    return np.array(values, dtype=np.float64)


def measure_error(record: RunRecord, names: tuple[str, str] = MEANS) -> float | None:
    """The largest deviation from the prediction over the classes, as a share of the largest predicted norm."""
    found = read_norms(record, names)
    if found is None or not found[1].max():
        return None
    measured, predicted = found
    return float(np.abs(measured - predicted).max() / predicted.max())


def read_rarity(record: RunRecord) -> Array | None:
    """How many samples the largest class has for each sample of a class; None where a class has none, or is unknown."""
    counts = _to_array((record.summary or {}).get("train"), "counts")
    return None if counts is None or not counts.all() else counts.max() / counts
