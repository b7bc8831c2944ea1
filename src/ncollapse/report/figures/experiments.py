"""Figures of an experiment of the catalogue: its curves, and ours beside published and predicted numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ncollapse.compare import group_runs, name_loss, name_optimiser
from ncollapse.compare.variants import leave_out
from ncollapse.grammar import join
from ncollapse.papers.archive import find_gram
from ncollapse.papers.experiment import Experiment
from ncollapse.papers.judge import Line, tolerance_in_points
from ncollapse.papers.markdown import NAMES
from ncollapse.report.encoding import compact
from ncollapse.report.figures.curves import collect_panels, curve_panel
from ncollapse.report.figures.frames import lay_matrix, off_diagonal_limit, scale_colours
from ncollapse.report.panels import Figure, Panel, Spec, arrange, build, escape, name_once
from ncollapse.report.paper_tables import AGAINST, SYMBOLS, gain, group_by_setting, is_rate, name_settings
from ncollapse.report.style import loss_style
from ncollapse.runs.record import RunRecord

MANY = 24
"""Settings along one axis up to which their names are written out."""
AXES = {"batch_size": "batch size", "bias_init": "initial bias", "bias_decay": "λb", "dim": "feature dimension"}
SCORES = {
    "train.positive_score": ("positive score", "var:positive", "circle"),
    "train.bias": ("bias", "var:ink", "diamond"),
    "train.negative_score": ("negative score", "var:negative", "square"),
}
SHIFTS = {"published": -0.16, "ours": 0.16, "ours, cut short": 0.16, "predicted": 0.0}
"""Where marks stand beside each other, in places along the axis."""
LEGEND = ("ours", "ours, cut short", "published", "predicted")
RATES = ("accuracy", "uniform_accuracy", "compactness", "distinctiveness")
HEIGHT = 230
WITHIN = 4.0  # pixels between the centres of two marks, of which the filled one is seen within the open one


def draw_curves(experiment: Experiment, records: Sequence[RunRecord]) -> Figure | None:
    """What the figure of the paper shows over the epochs, a panel a field."""
    variants = group_runs(records)
    shorter = [leave_out(variant, "measure_every") for variant in variants]
    if len({variant.label for variant in shorter}) == len(variants):  # how often a run was measured shows in its curve
        variants = shorter
    panels = [
        curve_panel(variants, field, name_in_words(field), log="accuracy" not in field) for field in experiment.curves
    ]
    method = "Over the epochs, means over seeds; on a log axis a straight descent is exponential."
    title = experiment.title[0].upper() + experiment.title[1:]
    return collect_panels(panels, "curves", title, method, experiment.id)


def draw_mean_cosines(experiment: Experiment, records: Sequence[RunRecord]) -> Figure | None:
    """Cosines between the class means of each run that has them, where the experiment is about their orthogonality."""
    if "train.mean_orthogonality" not in experiment.finals:
        return None
    found: dict[str, np.ndarray] = {}
    for variant in group_runs(records):
        gram = next((gram for gram in map(find_gram, variant.finished) if gram is not None), None)
        if gram is not None:
            found[variant.label] = np.array(gram["cosines"])
    if not found:
        return None
    panels: list[Panel] = []
    for label, cosines in found.items():
        ideal = np.eye(len(cosines))
        for kind, matrix in (("measured", cosines), ("ideal", ideal), ("difference", cosines - ideal)):
            panels.append(lay_matrix(escape(f"{kind}: {label}" if len(found) > 1 else kind), matrix, len(panels)))
    limit = off_diagonal_limit(list(found.values()))
    colours = scale_colours(limit)
    spec = build(panels, columns=3, row_height=260, min_width=220, coloraxis=colours, showlegend=False)
    means = [float(np.abs(m[~np.eye(len(m), dtype=bool)]).mean()) for m in found.values()]
    said = join(
        [f"{mean:.2g} ({label})" for mean, label in zip(means, found)] if len(found) > 1 else [f"{means[0]:.2g}"]
    )
    return Figure(
        "means",
        "Cosines between the class means",
        "The ideal of imbalanced classes after a ReLU is an orthogonal frame: 1 on the diagonal, 0 elsewhere. Colours "
        f"stop at ±{limit:.2g}, the largest size off the diagonal. Difference: measured minus ideal.",
        spec,
        experiment.id,
        result=f"Mean size of the cosine between two classes: {said}.",
    )


def draw_scores_by_setting(lines: Sequence[Line]) -> Figure | None:
    """Scores and biases along each axis of the grid (batch size, bias, decay), a panel for each setting of the rest.

    None where no axis has more than two settings.
    """
    kept = [line for line in lines if line.values and line.field in SCORES]
    panels = []
    for axis in AXES:
        here = [line for line in kept if axis in line.keys]
        if len({line.keys[axis] for line in here}) < 3:
            continue
        settings: dict[tuple[tuple[str, Any], ...], list[Line]] = {}
        for line in here:
            settings.setdefault(_leave_out(line, axis), []).append(line)
        for setting, mine in settings.items():
            title = _name_panel(dict(setting), [dict(other) for other in settings])
            panels.append(_panel_along(axis, [line.keys[axis] for line in here], mine, escape(title)))
    if not panels:
        return None
    name_once(panels)
    spec = build(panels, columns=2, row_height=260, min_width=280, bottom=60, showlegend=True)
    names = {str(trace.get("name", "")) for trace in spec["data"]}
    marks = "Open, left: published; filled, right: ours" if any("published" in n for n in names) else "Filled: ours"
    marks += ", paler where the run was cut short" if any("cut short" in n for n in names) else ""
    marks += "; dash: predicted" if any("predicted" in n for n in names) else ""
    return Figure(
        "scores",
        "Scores and biases by what is swept",
        f"Means with their spread over samples (scores) or classes (biases). {marks}. The bias should "
        "lie between the scores.",
        spec,
        result=describe_agreement(kept),
    )


def describe_agreement(lines: Sequence[Line]) -> str:
    """How far ours lie from the published and from the predicted numbers, in the median."""
    printed = [abs(d) for line in lines if (d := line.deviation) is not None]
    pairs = [(line.ours, line.predicted) for line in lines if line.ours is not None and line.predicted]
    theory = [abs(ours - value) / abs(value) for ours, value in pairs if value]
    said = [
        f"{100 * float(np.median(found)):.2g} % from the {name} numbers"
        for found, name in ((printed, "published"), (theory, "predicted"))
        if found
    ]
    return f"Ours deviate by {join(said)}, in the median." if said else ""


def draw_numbers(lines: Sequence[Line]) -> Figure | None:
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
            style, xs = loss_style(loss), [_name_setting(line, shown) for line in mine]
            traces += _mark(name_loss(loss), mine, xs, style.colour, style.marker, scale=100 if percent else 1)
        title = name_in_words(field) + (", %" if percent else "")
        hidden = {"showticklabels": False} if len(settings) > MANY else {"automargin": True}
        x = {"type": "category", "categoryorder": "array", "categoryarray": settings, **hidden}
        panels.append(Panel(title, traces, x, {} if tolerance_in_points(field) else _widen(here)))
    name_once(panels)
    columns = 2 if len(panels) in (2, 4) else min(3, len(panels))
    spec = build(panels, columns=columns, row_height=HEIGHT, min_width=240, bottom=70, showlegend=True)
    on = "published" if any(line.published for line in shown) else "predicted"
    return Figure("published", f"Ours on the {on} numbers", describe_marks(spec), spec)


def describe_marks(spec: Spec) -> str:
    """How to read the marks of a figure, as far as it has them."""
    names = [str(trace.get("name", "")) for trace in spec["data"]]
    held = {kind: any(name.endswith(kind) for name in names) for kind in LEGEND}
    said = "Filled: ours" + (", paler where the run was cut short" if held["ours, cut short"] else "")
    said += "; open: published" if held["published"] else ""
    said += "; dash: predicted." if held["predicted"] else "."
    return said + (" A filled mark within an open one is a number reproduced." if held["published"] else "")


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


def name_in_words(field: str) -> str:
    """A rate in words, any other field as the papers write it.

    >>> name_in_words("test.uniform_accuracy"), name_in_words("train.positive_score")
    ('test uniform accuracy', 's_pos')
    """
    split, _, name = field.rpartition(".")
    _, meaning = SYMBOLS.get(name, ("", ""))
    return f"{split} {meaning}" if meaning and name in RATES else name_field(field)


def _panel_along(axis: str, values: Sequence[Any], lines: Sequence[Line], title: str) -> Panel:
    order = sorted(set(values), reverse=axis == "bias_decay")
    alone = not any(line.published or line.predicted is not None for line in lines)
    shifts = dict.fromkeys(SHIFTS, 0.0) if alone else SHIFTS
    traces: list[Spec] = []
    for rank, (field, (name, colour, symbol)) in enumerate(SCORES.items()):
        mine = [line for line in lines if line.field == field]
        places = [order.index(line.keys[axis]) for line in mine]
        traces += _mark(name, mine, places, colour, symbol, rank=10 * rank, shifts=shifts)
    ticks = {"tickvals": list(range(len(order))), "ticktext": [str(value) for value in order]}
    x = {**ticks, "range": [-0.5, len(order) - 0.5], "zeroline": False}
    return Panel(title, traces, {**x, "title": {"text": AXES[axis], "standoff": 4}})


def _mark(
    name: str,
    lines: Sequence[Line],
    xs: Sequence[Any],
    colour: str,
    symbol: str,
    *,
    scale: float = 1,
    rank: int | None = None,
    shifts: Mapping[str, float] | None = None,
) -> list[Spec]:
    """Published, ours and predicted as marks; `rank` is the place of the first in the legend.

    They stand one on another, or, with `shifts` along the axis, side by side, their spreads over samples or classes as
    bars.
    """
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
            "x": [x + shifts[kind] for x in xs] if shifts else list(xs),
            "y": compact(None if value is None else scale * value for value in values),
            **(_spread_bars(kind, lines, colour) if shifts else {}),
            "marker": {"color": colour, **marker},
            "hovertemplate": "%{y:.6g}<br>%{x}<extra>%{fullData.name}</extra>",
            **({} if rank is None else {"legendrank": rank + LEGEND.index(kind)}),
        }
        for kind, (values, marker) in kinds.items()
        if any(value is not None for value in values)
    ]


def _spread_bars(kind: str, lines: Sequence[Line], colour: str) -> Spec:
    """The spread over samples or classes as bars, where there is one."""
    if kind == "predicted":
        return {}
    published = kind == "published"
    found = [
        float(line.published.std) if published and line.published and line.published.std else line.spread
        for line in lines
    ]
    sizes = [None if published and not (line.published and line.published.std) else s for s, line in zip(found, lines)]
    bars = {"type": "data", "array": compact(sizes), "thickness": 1.2, "width": 0, "color": colour}
    return {"error_y": bars}


def draw_gains(lines: Sequence[Line]) -> Figure | None:
    """The gain of BCE over CE in every setting, ours beside published; None where no setting has both losses."""
    cells = {s: found for s, found in group_by_setting(lines).items() if len(s) > 0}
    names = name_settings(list(cells))
    panels = []
    for field in dict.fromkeys(line.field for line in lines if line.values):
        found = [(names[s], gain(*(c.get((field, loss)) for loss in AGAINST)), c) for s, c in cells.items()]
        found = [(name, values, c) for name, values, c in found if np.isfinite(values[0])]
        if len(found) < 2 or not any(np.isfinite(values[1]) for _, values, _ in found):
            continue
        scale = 100 if any(is_rate(line) for _, _, c in found for (f, _), line in c.items() if f == field) else 1
        rows = [name for name, _, _ in found]
        kinds = {
            "published": {"symbol": "circle-open", "size": 13, "line": {"width": 1.5}},
            "ours": {"symbol": "circle", "size": 7},
        }
        traces: list[Spec] = [
            {
                "type": "scatter",
                "mode": "markers",
                "name": kind,
                "legendgroup": kind,
                "showlegend": False,
                "x": compact(scale * values[0 if kind == "ours" else 1] for _, values, _ in found),
                "y": [escape(row) for row in rows],
                "marker": {"color": loss_style("bce").colour, **marker},
                "hovertemplate": "%{y}: %{x:.4g}<extra>%{fullData.name}</extra>",
            }
            for kind, marker in kinds.items()
        ]
        order = {"type": "category", "autorange": "reversed", "automargin": True, "tickfont": {"size": 10}}
        zero = {"zeroline": True, "zerolinecolor": "var:ink", "showgrid": True}
        unit = ", points" if scale == 100 else ""
        panels.append(Panel(f"{name_in_words(field)}{unit}", traces, zero, order))
    if not panels or len(panels) > 6:
        return None
    name_once(panels)
    tall = max(len(t["y"]) for p in panels for t in p.traces)
    ours = [(t["x"], p.title) for p in panels for t in p.traces if t["name"] == "ours"]
    said = [
        f"{title.partition(',')[0]} in {sum(v > 0 for v in xs if v is not None)} of {len(xs)}" for xs, title in ours
    ]
    spec = build(panels, columns=2, row_height=60 + 20 * tall, min_width=300, showlegend=True)
    spec["layout"]["meta"] |= {"left": 150, "gap": 170}
    return Figure(
        "gains",
        "Gain of BCE over CE",
        "BCE minus CE in every setting that was run. Filled: ours; open: published. Right of the line BCE is higher.",
        arrange(spec, 1000),
        result=f"BCE is higher for {join(said)} settings.",
    )


def _leave_out(line: Line, axis: str) -> tuple[tuple[str, Any], ...]:
    """The keys of a line that say where it belongs apart from its place along an axis."""
    return tuple((key, value) for key, value in line.keys.items() if key not in (axis, "seed"))


def _name_panel(setting: dict[str, Any], settings: Sequence[dict[str, Any]]) -> str:
    """The loss, the optimiser and whatever else tells a setting from the others."""
    names = [name_loss(str(setting.get("loss", ""))), name_optimiser(str(setting.get("optimizer", "")))]
    rest = [key for key in setting if key not in ("loss", "optimizer")]
    varied = [key for key in rest if len({str(other.get(key)) for other in settings}) > 1]
    said = [f"{setting[key]:g}" if isinstance(setting[key], float) else str(setting[key]) for key in varied]
    return ", ".join(filter(None, (*names, *(f"{AXES.get(key, key)} {word}" for key, word in zip(varied, said)))))


def _name_setting(line: Line, shown: Sequence[Line]) -> str:
    """What tells the settings of an experiment apart, the loss aside."""
    keys = [k for k in line.keys if k not in ("loss", "seed") and len({str(o.keys.get(k)) for o in shown}) > 1]
    words = [line.keys[k] for k in keys]
    return "<br>".join(escape(name_optimiser(str(word))) for word in words) or escape(line.row)
