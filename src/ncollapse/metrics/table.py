"""A measurement as a table of text: value, value at full collapse, meaning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .fields import FIELDS, GROUPS
from .scores import Spread

if TYPE_CHECKING:
    from .measurement import Measurement

HEADER = ("", "value", "at full collapse", "meaning")
# distances to a simplex ETF, which no d < K - 1 dimensions hold
SIMPLEX_DISTANCES = ("nc2", "nc2_uncentred", "nc2_means", "nc3", "nc3_centred")
ABOVE_ZERO = ("equiangle_means", "equiangle_weights")


class Line(NamedTuple):
    """One line of the table; lines stay whole: a narrow terminal wraps them, a file keeps them."""

    text: str
    heading: bool = False


def make_table(measurement: Measurement, asked: Sequence[str] = ()) -> list[Line]:
    """The lines of the table, group by group, and the names of what was not measured: of all fields, or those asked."""
    cells = {
        row.name: (f"  {row.name}", text, at_collapse(row.name, row.at_collapse, measurement), row.meaning)
        for row in FIELDS
        if (text := write_value(getattr(measurement, row.name))) is not None
    }
    widths = [max(len(line[column]) for line in (HEADER, *cells.values())) for column in range(len(HEADER))]
    lines = [Line(_lay_out(HEADER, widths), heading=True)]
    for group, title in GROUPS.items():
        members = [row.name for row in FIELDS if row.group == group and row.name in cells]
        if members:
            lines.append(Line(title, heading=True))
            lines += [Line(_lay_out(cells[name], widths)) for name in members]
    missing = [row.name for row in FIELDS if row.name not in (*cells, "empty_classes")]
    missing = [name for name in missing if not asked or name in asked]
    if missing:
        lines += [Line(""), Line(f"not measured: {', '.join(missing)}")]
    return lines


def _lay_out(cells: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip()


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
