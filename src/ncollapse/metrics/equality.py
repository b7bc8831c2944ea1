"""Equality of results in which NaN, an undefined number, equals NaN."""

from __future__ import annotations

import dataclasses
import math
from typing import Any


class NanEqual:
    """A base of dataclasses (with `eq=False`) that are equal if all fields are, NaN counting as equal to NaN.

    The equality that dataclasses have by themselves depends on the version of Python: up to 3.12 a NaN equals itself
    if it is the same object, from 3.13 on never.

    >>> @dataclasses.dataclass(frozen=True, eq=False)
    ... class Pair(NanEqual):
    ...     left: float
    ...     right: float = math.nan
    >>> Pair(1.0) == Pair(1.0, float("nan")), Pair(1.0) == Pair(1.0, 2.0), len({Pair(1.0), Pair(1.0, float("nan"))})
    (True, False, 1)
    """

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return same_value(_compared(self), _compared(other))

    def __hash__(self) -> int:
        return hash(tuple(None if _is_nan(value) else value for value in _compared(self)))


def same_value(left: Any, right: Any) -> bool:
    """Equality of field values in which NaN equals NaN.

    >>> same_value((1.0, math.nan), (1.0, float("nan")))
    True
    """
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(same_value(x, y) for x, y in zip(left, right))
    return (_is_nan(left) and _is_nan(right)) or bool(left == right)


def _compared(result: Any) -> tuple[Any, ...]:
    return tuple(getattr(result, item.name) for item in dataclasses.fields(result) if item.compare)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
