"""A measurement as a table of text: value, value at full collapse, meaning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ncollapse.console import break_lines, lay_out

from .fields import FIELDS, GROUPS
from .scores import Spread

if TYPE_CHECKING:
    from .measurement import Measurement

HEADER = ("", "value", "at full collapse", "meaning")
# distances to a simplex ETF, which no d < K - 1 dimensions hold
SIMPLEX_DISTANCES = ("nc2", "nc2_uncentred", "nc2_means", "nc3", "nc3_centred")
ABOVE_ZERO = ("equiangle_means", "equiangle_weights")


class Line(NamedTuple):
    """One row of the table, or a heading."""

    text: str
    heading: bool = False


def make_table(measurement: Measurement, asked: Sequence[str] = (), width: int | None = None) -> list[Line]:
    """The rows of the table, group by group, and the names of what was not measured: of all fields, or those asked.

    Where the rows are wider than `width`, the meaning of each field stands below it.
    """
    shown = [(row, text) for row in FIELDS if (text := write_value(getattr(measurement, row.name))) is not None]
    cells = [
        (f"  {row.name}", text, at_collapse(row.name, row.at_collapse, measurement), row.meaning) for row, text in shown
    ]
    texts = lay_out([HEADER, *cells])
    if width is not None and max(map(len, texts)) > width:
        texts = lay_out([row[:-1] for row in (HEADER, *cells)], width)
        texts[1:] = [f"{text}\n    {break_lines(row[-1], width - 4, '    ')}" for text, row in zip(texts[1:], cells)]
    lines = [Line(texts[0], heading=True)]
    for group, title in GROUPS.items():
        members = [Line(text) for text, (row, _) in zip(texts[1:], shown) if row.group == group]
        lines += [Line(title, heading=True), *members] if members else []
    measured = {row.name for row, _ in shown}
    missing = [row.name for row in FIELDS if row.name not in measured and row.name != "empty_classes"]
    missing = [name for name in missing if not asked or name in asked]
    if missing:
        lines += [Line(""), Line(break_lines(f"not measured: {', '.join(missing)}", width))]
    return lines


def at_collapse(name: str, formula: str, measurement: Measurement) -> str:
    """The value at full collapse with K and d put in; where d < K - 1, the least that these dimensions allow."""
    classes, dim = measurement.num_classes, measurement.dim
    means = name.endswith("_means") or name.startswith(("means_", "nc3", "compact", "distinct", "mean_"))
    if means and measurement.present_classes:
        classes = measurement.present_classes
    if classes < 2:
        return formula
    rest = classes - 1
    if dim and dim < rest:
        if name in SIMPLEX_DISTANCES:
            return write_number(least_simplex_distance(classes, dim))
        if name in ABOVE_ZERO:
            return "> 0"
        if name == "cosine_margin":
            return f"< {write_number(classes / rest)}"
    known = {"K/(2(K−1))": classes / (2 * rest), "−1/(K−1)": -1 / rest, "K/(K−1)": classes / rest}
    known["K−1"] = min(rest, dim) if dim else rest
    for symbol, value in known.items():
        formula = formula.replace(symbol, write_number(value))
    return formula


def least_simplex_distance(num_classes: int, dim: int) -> float:
    """The least of |G / |G|_F - simplex|_F over K x K matrices G of rank d: sqrt(2 - 2 sqrt(d / (K - 1))).

    >>> round(least_simplex_distance(50, 8), 3)
    1.092
    """
    return math.sqrt(max(2 - 2 * math.sqrt(min(dim / (num_classes - 1), 1.0)), 0.0))


def write_value(value: Any) -> str | None:
    """A value as text, or None where it was not measured."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Spread):
        if math.isnan(value.mean):
            return None
        mean = write_number(value.mean)
        return mean if math.isnan(value.std) else f"{mean} ± {write_number(value.std)}"
    if isinstance(value, tuple):
        shown = [f"{item:.4g}" for item in value[:3]]
        return ", ".join(shown) + (", …" if len(value) > 3 else "") if value else None
    return write_number(value)


def write_number(value: float) -> str:
    """At most six significant digits."""
    return f"{value:.6g}"
