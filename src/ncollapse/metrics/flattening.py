"""Nested results as plain named numbers, for loggers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

SKIPPED = ("count",)  # how many values a spread is made of


def flatten(nested: Mapping[str, Any], separator: str = ".") -> dict[str, float]:
    """Finite numbers by dotted name; lists (values by class), texts, None and NaN are left out.

    >>> flatten({"nc1": 0.5, "nc2": float("nan"), "positive_score": {"mean": 2.0, "count": 8}, "counts": [4, 4]})
    {'nc1': 0.5, 'positive_score.mean': 2.0}
    """
    flat: dict[str, float] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}{separator}{inner}": number for inner, number in flatten(value).items()}
        elif isinstance(value, (bool, int, float)) and math.isfinite(value) and name not in SKIPPED:
            flat[str(name)] = float(value)
    return flat
