"""Values as the page embeds them: short numbers in JSON that is safe inside a script, text that breaks well."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np


def limit_breaks(text: str) -> str:
    """Text for a cell of a table that may break only after a comma, a colon or a dot, and before an interval.

    >>> limit_breaks("theory 3.771, +0.18 %").split(" ")
    ['theory\xa03.771,', '+0.18\xa0%']
    """
    held = text.replace(" ", "\u00a0").replace("\u00a0[", " [")
    return re.sub(r"([,:·])\u00a0(?![^\[\]]*\])", r"\1 ", held)


def compact(values: Iterable[Any], digits: int = 5) -> list[float | int | None]:
    """Numbers rounded to some significant digits for the page's JSON, None where not finite.

    >>> compact([1.0, 0.123456789, float("nan")])
    [1, 0.12346, None]
    """
    rounded: list[float | int | None] = []
    for value in values:
        if value is None or not math.isfinite(value):
            rounded.append(None)
            continue
        short = float(f"{value:.{digits}g}")
        rounded.append(int(short) if short.is_integer() and abs(short) < 1e15 else short)
    return rounded


def compact_matrix(matrix: np.ndarray, digits: int = 3) -> list[list[float | int | None]]:
    """A matrix rounded likewise."""
    return [compact(row, digits) for row in np.asarray(matrix, dtype=np.float64).tolist()]


def embed(value: Any) -> str:
    """JSON that may stand inside a script element: no "<", ">", "&" nor line separators can end or open anything."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
