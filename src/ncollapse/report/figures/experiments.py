"""Figures of an experiment of the catalogue: its curves, and ours beside published and predicted numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ncollapse.compare.variants import CASES, LOSSES, group_runs
from ncollapse.papers.archive import find_gram
from ncollapse.papers.experiment import Experiment
from ncollapse.papers.judge import Line, tolerance_in_points
from ncollapse.papers.markdown import NAMES
from ncollapse.report.figures.curves import collect_panels, curve_panel
from ncollapse.report.figures.frames import RANGE, lay_matrix, scale_colours
from ncollapse.report.numbers import compact
from ncollapse.report.panels import Figure, Panel, Spec, build, escape, name_once
from ncollapse.report.style import look
from ncollapse.runs.record import RunRecord

MANY = 24
"""Settings along one axis up to which their names are written out."""
AXES = {"batch_size": "batch size", "bias_init": "initial bias", "bias_decay": "λb", "dim": "feature dimension"}
SCORES = {
    "train.positive_score": ("positive score", "#009E73", "circle"),
    "train.bias": ("bias", "#7F7F7F", "diamond"),
    "train.negative_score": ("negative score", "#CC79A7", "square"),
}
LEGEND = ("ours", "ours, cut short", "published", "predicted")
AID = (
    "Filled: ours, paler where the run was cut short; open: published; dash: predicted. A filled mark within an open "
    "one is a number reproduced."
)
UNPUBLISHED = "Filled: ours, paler where the run was cut short; dash: predicted."
HEIGHT = 230
WITHIN = 4.0  # pixels between the centres of two marks, of which the filled one is seen within the open one


def draw_curves(experiment: Experiment, records: Sequence[RunRecord]) -> Figure | None:
    """What the figure of the paper shows over the epochs, a panel a field."""
    variants = group_runs(records)
    panels = [
        curve_panel(variants, field, name_field(field), log="accuracy" not in field) for field in experiment.curves
    ]
    aid = "Over the epochs, means over seeds; on a log axis a straight descent is exponential."
    return collect_panels(panels, "curves", experiment.title, aid, experiment.id)


def draw_means(experiment: Experiment, records: Sequence[RunRecord]) -> Figure | None:
    """Cosines between the class means of each run that has them, where the experiment is about their orthogonality."""
    if "train.mean_orthogonality" not in experiment.finals:
        return None
    panels: list[Panel] = []
    for variant in group_runs(records):
        gram = next((gram for gram in map(find_gram, variant.finished) if gram is not None), None)
        if gram is not None:
            panels.append(lay_matrix(escape(variant.label), np.array(gram["cosines"]), len(panels)))
    if not panels:
        return None
    columns = min(3, len(panels))
    spec = build(panels, columns=columns, row_height=300, min_width=240, coloraxis=scale_colours(), showlegend=False)
    aid = f"Cosines between the class means; the colours stop at ±{RANGE}, so that the small ones can be told apart."
    return Figure("means", "Cosines between the class means", aid, spec, experiment.id)


def draw_axes(lines: Sequence[Line]) -> Figure | None:
    """Scores and biases along each axis of the grid (batch size, bias, decay), a panel for each loss and optimiser.

    None where no axis has more than two settings.
    """
    kept = [line for line in lines if line.values and line.field in SCORES]
    panels = []
    for axis in AXES:
        here = [line for line in kept if axis in line.keys]
        if len({line.keys[axis] for line in here}) < 3:
            continue
        for loss, optimiser in dict.fromkeys(_tell_group(line) for line in here):
            mine = [line for line in here if _tell_group(line) == (loss, optimiser)]
            title = ", ".join(filter(None, (LOSSES.get(loss, loss), CASES.get(optimiser, optimiser))))
            panels.append(_panel_along(axis, [line.keys[axis] for line in here], mine, escape(title)))
    if not panels:
        return None
    name_once(panels)
    spec = build(panels, columns=2, row_height=260, min_width=280, bottom=60, showlegend=True)
    return Figure("scores", "Scores and biases", AID, spec)


def draw_lines(lines: Sequence[Line]) -> Figure | None:
    """Every field a panel, every setting a column."""
    shown = [line for line in lines if line.values and (line.published or line.predicted is not None)]
    if not shown:
        return None
    settings = list(dict.fromkeys(_name_setting(line, shown) for line in shown))
    panels: list[Panel] = []
    for field in dict.fromkeys(line.field for line in shown):
        here = [line for line in shown if line.field == field]
        percent = any(line.published and line.published.percent for line in here)
        traces: list[Spec] = []
        for loss in dict.fromkeys(str(line.keys.get("loss", "")) for line in here):
            mine = [line for line in here if str(line.keys.get("loss", "")) == loss]
            style, xs = look(loss), [_name_setting(line, shown) for line in mine]
            traces += _mark(LOSSES.get(loss, loss), mine, xs, style.colour, style.marker, scale=100 if percent else 1)
        title = name_field(field) + (", %" if percent else "")
        hidden = {"showticklabels": False} if len(settings) > MANY else {"automargin": True}
        x = {"type": "category", "categoryorder": "array", "categoryarray": settings, **hidden}
        panels.append(Panel(title, traces, x, {} if tolerance_in_points(field) else _widen(here)))
    name_once(panels)
    columns = 2 if len(panels) in (2, 4) else min(3, len(panels))
    spec = build(panels, columns=columns, row_height=HEIGHT, min_width=240, bottom=70, showlegend=True)
    if not any(line.published for line in shown):
        return Figure("published", "Ours on the predicted numbers", UNPUBLISHED, spec)
    return Figure("published", "Ours on the published numbers", AID, spec)


def _widen(lines: Sequence[Line]) -> Spec:
    """A range for the axis where its own would be so narrow that numbers reproduced were seen apart."""
    values: list[float] = []
    apart = 0.0
    for line in lines:
        published = line.published.value if line.published else None
        values += [value for value in (line.ours, published, line.predicted) if value is not None]
        if line.verdict == "reproduced" and line.ours is not None and published is not None:
            apart = max(apart, abs(line.ours - published))
    low, high, needed = min(values), max(values), apart * HEIGHT / WITHIN
    if needed <= high - low:
        return {}
    return {"range": [(low + high - needed) / 2, (low + high + needed) / 2]}


def name_field(field: str) -> str:
    """A field as the papers write it, escaped.

    >>> name_field("train.positive_score"), name_field("train.nc2_relu")
    ('s_pos', 'NC2 of ReLU features')
    """
    return escape(NAMES.get(field, field.removeprefix("train.")))


def _panel_along(axis: str, values: Sequence[Any], lines: Sequence[Line], title: str) -> Panel:
    order = [str(value) for value in sorted(set(values), reverse=axis == "bias_decay")]
    traces: list[Spec] = []
    for rank, (field, (name, colour, symbol)) in enumerate(SCORES.items()):
        mine = [line for line in lines if line.field == field]
        traces += _mark(name, mine, [str(line.keys[axis]) for line in mine], colour, symbol, rank=10 * rank)
    x = {"type": "category", "categoryorder": "array", "categoryarray": order, "range": [-0.5, len(order) - 0.5]}
    return Panel(title, traces, {**x, "title": {"text": AXES[axis], "standoff": 4}})


def _mark(
    name: str,
    lines: Sequence[Line],
    xs: list[str],
    colour: str,
    symbol: str,
    *,
    scale: float = 1,
    rank: int | None = None,
) -> list[Spec]:
    """Published, ours and predicted as marks one on another; `rank` is the place of the first in the legend."""
    kinds: dict[str, tuple[list[float | None], Spec]] = {
        "published": (
            [line.published.value if line.published else None for line in lines],
            {"symbol": f"{symbol}-open", "size": 13, "line": {"width": 1.5}},
        ),
        "ours": ([None if line.short else line.ours for line in lines], {"symbol": symbol, "size": 7}),
        "ours, cut short": (
            [line.ours if line.short else None for line in lines],
            {"symbol": symbol, "size": 7, "opacity": 0.45},
        ),
        "predicted": ([line.predicted for line in lines], {"symbol": "line-ew-open", "size": 14, "line": {"width": 2}}),
    }
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": escape(f"{name}, {kind}"),
            "legendgroup": escape(f"{name}, {kind}"),
            "showlegend": False,
            "x": xs,
            "y": compact(None if value is None else scale * value for value in values),
            "marker": {"color": colour, **marker},
            "hovertemplate": "%{y:.6g}<br>%{x}<extra>%{fullData.name}</extra>",
            **({} if rank is None else {"legendrank": rank + LEGEND.index(kind)}),
        }
        for kind, (values, marker) in kinds.items()
        if any(value is not None for value in values)
    ]


def _tell_group(line: Line) -> tuple[str, str]:
    return str(line.keys.get("loss", "")), str(line.keys.get("optimizer", ""))


def _name_setting(line: Line, shown: Sequence[Line]) -> str:
    """What tells the settings of an experiment apart, the loss aside."""
    keys = [k for k in line.keys if k not in ("loss", "seed") and len({str(o.keys.get(k)) for o in shown}) > 1]
    words = [line.keys[k] for k in keys]
    return "<br>".join(escape(CASES.get(str(word), str(word))) for word in words) or escape(line.row)
