"""Width x epochs grids: a heat map for each loss, data set, network family, optimiser and other setting."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ncollapse.compare import Variant, estimate, measured, name_loss, name_optimiser
from ncollapse.compare.numbers import show
from ncollapse.compare.variants import phrase
from ncollapse.report.encoding import compact_matrix
from ncollapse.report.panels import Figure, Panel, Spec, build, escape
from ncollapse.report.style import SEQUENTIAL

MEASURES = {
    "accuracy": ("test.accuracy", "test accuracy", "all-losses Figs. 3, 4, 7"),
    "nc1": ("train.nc1", "train NC1", "all-losses Figs. 4, 7"),
}
MOST_PANELS = 16


class Cell(NamedTuple):
    """Where a variant stands: its panel, its network of some width, its training length.

    `rest` are other settings in words, where variants differ in them that would else share a cell.
    """

    loss: str
    data: str
    family: str
    optimiser: str
    model: str
    epochs: int
    rest: str = ""

    @property
    def panel(self) -> tuple[str, ...]:
        """What the cells of a panel have in common."""
        return *self[:4], self.rest


def draw_grids(variants: Sequence[Variant]) -> list[Figure]:
    """Test accuracy and NC1 over width and training length; variants of other settings are never put in one cell."""
    groups = group_cells(variants)
    if not groups:
        return []
    models, lengths = find_axes(groups)
    figures = []
    for name, (key, title, source) in MEASURES.items():
        panels, notes = [], []
        for group, cells in list(groups.items())[:MOST_PANELS]:
            panels.append(_panel(name_panel(group, list(groups)), (models[group], lengths[group]), cells, name, key))
        if len(groups) > MOST_PANELS:
            notes.append(f"The first {MOST_PANELS} of {len(groups)} grids are shown.")
        tall = max(len(rows) for rows in lengths.values())
        bar: Spec = {"thickness": 10, "outlinewidth": 0, "x": 1.01}
        bar |= {"tickformat": ".1%", "nticks": 6} if name == "accuracy" else mark_powers(panels)
        spec = build(
            panels,
            columns=min(3, len(panels)) if len(panels) != 4 else 2,
            row_height=60 + 46 * tall,
            coloraxis={"colorscale": SEQUENTIAL, "reversescale": name == "nc1", "colorbar": bar},
            showlegend=False,
        )
        figures.append(
            Figure(
                f"grid-{name}",
                f"Width and training length: {title}",
                "Wider networks to the right, longer training upwards, a panel for each loss, data set and optimiser"
                f"{' and for each other setting in which runs differ' if any(g[4] for g in groups) else ''}. "
                "Where every loss reaches the same value in the upper right corner, the choice of loss matters little. "
                "Empty cells have no finished run." + (" Colours follow the logarithm." if name == "nc1" else ""),
                spec,
                source,
                tuple(notes),
            )
        )
    return figures


def group_cells(variants: Sequence[Variant]) -> dict[tuple[str, ...], dict[Cell, list[Variant]]]:
    """The finished variants by panel (loss, data, family, optimiser, other settings) and cell.

    Losses trained on the same data with the same family and optimiser make one grid each, of the same rows and columns;
    where these are one row or one column, they stay out. Only variants that differ in how often they were measured
    share a cell.
    """
    cells: dict[Cell, list[Variant]] = {}
    for variant in (v for v in variants if v.finished):
        cell = locate(variant)
        if cell.epochs:
            cells.setdefault(cell, []).append(variant)
    shared = {cell.panel for cell, found in cells.items() if len(found) > 1}
    panels: dict[tuple[str, ...], dict[Cell, list[Variant]]] = {}
    for panel in dict.fromkeys(cell.panel for cell in cells):
        mine = [(cell, v) for cell, found in cells.items() if cell.panel == panel for v in found]
        varied = find_varied([v for _, v in mine]) if panel in shared else []
        for cell, variant in mine:
            words = ", ".join(phrase(key, variant.settings[key]) for key in varied if key in variant.settings)
            own = cell._replace(rest=words)
            panels.setdefault(own.panel, {}).setdefault(own, []).append(variant)
    models, lengths = find_axes(panels)
    return {group: cells for group, cells in panels.items() if min(len(models[group]), len(lengths[group])) > 1}


def find_varied(variants: Sequence[Variant]) -> list[str]:
    """The settings in which variants of one panel differ, besides its axes and how often they were measured."""
    names = dict.fromkeys(key for variant in variants for key in variant.settings)
    return [
        key
        for key in names
        if key not in ("model.name", "optim.epochs", "measure_every")
        and len({str(variant.settings.get(key)) for variant in variants}) > 1
    ]


Axes = dict[tuple[str, ...], list[Any]]


def find_axes(panels: Mapping[tuple[str, ...], Iterable[Cell]]) -> tuple[Axes, Axes]:
    """For each panel its networks and its training lengths: those of all losses that are compared with its own."""
    models: Axes = {}
    lengths: Axes = {}
    for group in panels:
        beside = [cell for other, cells in panels.items() if other[1:4] == group[1:4] for cell in cells]
        models[group] = sorted({cell.model for cell in beside}, key=_width)
        lengths[group] = sorted({cell.epochs for cell in beside})
    return models, lengths


def locate(variant: Variant) -> Cell:
    """The panel and cell of a variant."""
    record = variant.records[0]
    model, epochs = str(record.get("model.name") or ""), record.get("optim.epochs", 0)
    data, optimiser = str(record.get("data.name") or ""), str(record.get("optim.name") or "")
    length = epochs if isinstance(epochs, int) else 0
    return Cell(variant.loss, data, _width(model)[0], optimiser, model, length)


def _panel(
    title: str, axes: tuple[list[str], list[int]], cells: dict[Cell, list[Variant]], name: str, key: str
) -> Panel:
    models, lengths = axes
    table = np.full((len(lengths), len(models)), np.nan)
    about = np.full(table.shape, "", dtype=object)
    for cell, members in cells.items():
        value = estimate([measured(r, key) for v in members for r in v.finished]).mean
        at = lengths.index(cell.epochs), models.index(cell.model)
        table[at] = np.log10(value) if name == "nc1" and value > 0 else value
        about[at] = f", {len(members)} variants" if len(members) > 1 else ""
    written = [
        [f"{100 * v:.1f} %" if name == "accuracy" else show(10**v, 3) if math.isfinite(v) else "" for v in row]
        for row in table.tolist()
    ]
    shown = np.array(written)
    trace = {
        "type": "heatmap",
        "z": compact_matrix(table, 4),
        "x": [escape(m) for m in models],
        "y": [str(e) for e in lengths],
        "text": np.where(np.isfinite(table), shown, "").tolist(),
        "customdata": about.tolist(),
        "texttemplate": "%{text}",
        "coloraxis": "coloraxis",
        "hovertemplate": "%{x}, %{y} epochs: %{text}%{customdata}<extra></extra>",
    }
    axis = {"type": "category", "ticks": "", "showline": False}
    return Panel(title, [trace], axis, {"type": "category", "title": {"text": "epochs", "standoff": 2}})


def mark_powers(panels: Sequence[Panel]) -> Spec:
    """Ticks of a colour bar over logarithms, written as the numbers themselves."""
    values = [v for panel in panels for trace in panel.traces for row in trace["z"] for v in row if v is not None]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    powers = range(math.floor(low), math.ceil(high) + 1)
    marks = [m * 10.0**power for power in powers for m in ((1, 2, 5) if high - low < 2.5 else (1,))]
    inside = [m for m in marks if low <= math.log10(m) <= high] or [10**low, 10**high]
    return {"tickvals": [math.log10(m) for m in inside], "ticktext": [show(m, 2) for m in inside]}


def name_panel(group: tuple[str, ...], groups: Sequence[tuple[str, ...]]) -> str:
    """The loss, and the data set, family, optimiser and other settings where panels differ in them."""
    words = [name_loss(group[0])]
    varying = [place for place in range(1, 5) if len({g[place] for g in groups}) > 1]
    words += [name_optimiser(group[place]) for place in varying]
    return escape(", ".join(filter(None, words)))


def _width(model: str) -> tuple[str, float]:
    found = re.search(r"-(\d+(?:\.\d+)?)$", model)
    return (re.sub(r"-\d+(?:\.\d+)?$", "", model), float(found.group(1)) if found else 0.0)
