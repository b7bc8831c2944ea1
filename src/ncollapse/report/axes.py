"""Axes of a static drawing: from values to pixels, with ticks, after plotly's specification of an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ncollapse.compare.numbers import show

Spec = dict[str, Any]
TICKS = 5


class Axis:
    """One axis of a panel: where values lie between two pixels.

    `values` are all values drawn along it; they fix its range where the specification has none.
    """

    def __init__(self, spec: Spec, values: Iterable[Any], start: float, end: float) -> None:
        self.spec, self.start, self.end = spec, start, end
        found = [v for v in values if v is not None]
        self.categories: list[str] = []
        if spec.get("type") == "category" or any(isinstance(v, str) for v in found):
            given = spec.get("categoryarray") or found
            self.categories = list(dict.fromkeys(map(str, given)))
        self.log = spec.get("type") == "log"
        self.low, self.high = self._find_range(found)

    def _find_range(self, values: Sequence[Any]) -> tuple[float, float]:
        if self.categories:
            limits = (-0.5, len(self.categories) - 0.5)
        elif isinstance(self.spec.get("range"), list):
            limits = tuple(self.spec["range"])
        else:
            numbers = [self._scale(float(v)) for v in values if isinstance(v, (int, float))]
            numbers = [v for v in numbers if math.isfinite(v)] or [0.0, 1.0]
            limits = (min(numbers), max(numbers))
            if self.spec.get("rangemode") == "tozero":
                limits = (min(0.0, limits[0]), max(0.0, limits[1]))
            room = 0.05 * (limits[1] - limits[0]) or 0.5
            limits = (limits[0] - (0 if limits[0] == 0 else room), limits[1] + room)
        low, high = limits
        return (high, low) if self.spec.get("autorange") == "reversed" else (low, high)

    def _scale(self, value: float) -> float:
        if not self.log:
            return value
        return math.log10(value) if value > 0 else math.nan

    def place(self, value: Any) -> float:
        """The pixel of a value, NaN where it has none."""
        if self.categories:
            text = str(value)
            number = float(self.categories.index(text)) if text in self.categories else math.nan
        elif isinstance(value, (int, float)):
            number = self._scale(float(value))
        else:
            return math.nan
        return self.start + (number - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Pixels and texts of the ticks inside the axis."""
        if self.spec.get("showticklabels") is False:
            return []
        if self.categories:
            found: list[tuple[Any, str]] = [(c, c.replace("<br>", " ")) for c in self.categories]
        elif "tickvals" in self.spec:
            texts = self.spec.get("ticktext") or [self._write(v) for v in self.spec["tickvals"]]
            found = list(zip(self.spec["tickvals"], texts))
        elif self.log:
            step = max(1, round((max(self.low, self.high) - min(self.low, self.high)) / TICKS))
            first = math.ceil(min(self.low, self.high))
            found = [(10.0**e, show(10.0**e, 2)) for e in range(first, math.floor(max(self.low, self.high)) + 1, step)]
        else:
            found = [(v, self._write(v)) for v in nice_steps(self.low, self.high)]
        low, high = sorted((self.start, self.end))
        return [(at, text) for v, text in found if low - 0.5 <= (at := self.place(v)) <= high + 0.5]

    def _write(self, value: float) -> str:
        if "%" in str(self.spec.get("tickformat", "")):
            return f"{100 * value:.6g} %"
        return f"{value:.6g}{self.spec.get('ticksuffix', '')}".replace("-", "−")


def nice_steps(low: float, high: float) -> list[float]:
    """A few round numbers between two others.

    >>> nice_steps(0, 10)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    low, high = min(low, high), max(low, high)
    if not high > low:
        return [low]
    size = 10.0 ** math.floor(math.log10((high - low) / TICKS))
    step = next(s * size for s in (1, 2, 5, 10, 20) if (high - low) / (s * size) <= TICKS)
    first = math.ceil(low / step - 1e-9)
    return [round(step * i, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]
