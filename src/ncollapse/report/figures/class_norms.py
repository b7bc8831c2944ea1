"""Norms of class means and of W's rows by the size of the class, measured beside predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ncollapse.compare import Variant, name_loss
from ncollapse.compare.class_norms import MEANS, ROWS, Array, read_norms, read_rarity
from ncollapse.compare.numbers import show
from ncollapse.compare.variants import leave_out
from ncollapse.report.encoding import compact
from ncollapse.report.panels import Figure, Panel, Spec, build, escape, name_once, shorten_labels, thin
from ncollapse.report.style import CLASS_COLOURS, INK, loss_style
from ncollapse.runs.record import RunRecord
from ncollapse.train.theory import BALANCED_UP_TO

TITLES = (("norm of the class mean", MEANS), ("norm of the row of W", ROWS))
AXIS = "samples, largest class / this class"
DASH = {"color": INK, "symbol": "line-ew-open", "size": 14, "line": {"width": 2}}
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x")
FEW = len(SYMBOLS)
"""Variants up to which each has a symbol, a colour and a legend entry of its own."""


def draw_class_norms(variants: Sequence[Variant]) -> Figure | None:
    """A mark for every class of every run, by how much rarer than the largest class it is.

    None where no class is rarer than another, or nothing is predicted.
    """
    found = [(v, points) for v in variants for record in v.finished if (points := find_points(record)) is not None]
    if not found:
        return None
    label_of = {v.label: v.label for v, _ in found}
    if len(label_of) > FEW:  # the axis tells sizes of classes apart
        label_of = {v.label: leave_out(v, "data.").label for v, _ in found}
    labels = list(dict.fromkeys(label_of.values()))
    alike = len(labels) if len(labels) > FEW else 0
    if alike:
        label_of = {v.label: name_loss(v.loss) for v, _ in found}
        labels = list(dict.fromkeys(label_of.values()))
    own = 1 < len(labels) <= FEW
    names = dict(zip(labels, shorten_labels(labels)))
    marks = thin(sorted({float(f"{value:.3g}") for _, (rarity, _) in found for value in rarity if value < math.inf}))
    texts = [show(value, 3) for value in marks]
    panels = []
    for number, (title, _) in enumerate(TITLES):
        measured: list[Spec] = []
        predicted: dict[str, Spec] = {}
        for variant, (rarity, norms) in found:
            label = label_of[variant.label]
            place = labels.index(label) if own else 0
            colour = CLASS_COLOURS[place] if own else loss_style(variant.loss).colour
            name = f"{names[label]}, measured" if own else "measured"
            ours, best = norms[number]
            measured.append(mark(rarity, ours, name, {"color": colour, "symbol": SYMBOLS[place], "size": 7}))
            dash = mark(rarity, best, "predicted", DASH)
            predicted.setdefault(f"{dash['x']} {dash['y']}", dash)
        axis = {"type": "log", "title": {"text": AXIS, "standoff": 4}, "tickvals": marks, "ticktext": texts}
        panels.append(Panel(title, [*measured, *predicted.values()], axis, {"rangemode": "tozero"}))
    name_once(panels)
    return Figure(
        "class-norms",
        "Norms by size of the class",
        "A mark for every class of every run; rarer classes are to the right. Filled: measured; dash: predicted. The "
        "optimum gives up a class whose predicted norm is 0."
        + (f" The {alike} settings of the runs are not told apart{', only their losses' * own}." if alike else ""),
        build(panels, columns=2, row_height=280, min_width=300, bottom=60, showlegend=True),
        "imbalanced-relu Theorem 1",
    )


def mark(rarity: Array, norms: Array, name: str, marker: Spec) -> Spec:
    """The classes of one run."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": escape(name),
        "legendgroup": escape(name),
        "showlegend": False,
        "x": compact(rarity),
        "y": compact(norms),
        "marker": marker,
        "cliponaxis": False,
        "hovertemplate": "1 in %{x:.4g}: %{y:.4g}<extra>%{fullData.name}</extra>",
    }


def find_points(record: RunRecord) -> tuple[Array, list[tuple[Array, Array]]] | None:
    """How rare each class is, and measured and predicted norms, a pair for each panel.

    None where classes hardly differ in size, or one of the norms is not known.
    """
    rarity = read_rarity(record)
    norms = [pair for _, kind in TITLES if (pair := read_norms(record, kind)) is not None]
    if rarity is None or rarity.max() <= BALANCED_UP_TO or len(norms) < len(TITLES):
        return None
    return rarity, norms
