"""Figures as plain plotly specifications: panels side by side that stack where the page is narrow."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ncollapse.compare.numbers import show
from ncollapse.report.style import FAINT, GRID, INK, PRINT, resolve

Spec = dict[str, Any]
GAP_X, GAP_Y, MARGIN = 62, 80, {"l": 54, "r": 24}
PAGE, LETTER = 1000, 7
"""The width of a figure and of a letter of a title, in pixels."""
ROW = 29
"""The height of a row of the legend, as plotly draws it."""
FONT = '-apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "Liberation Sans", sans-serif'


@dataclass(frozen=True)
class Figure:
    """A figure of the page: its title, how to read it, what to draw, and which published figure it corresponds to."""

    id: str
    title: str
    method: str
    spec: Spec
    source: str = ""
    notes: tuple[str, ...] = ()
    result: str = ""
    """What the figure shows, computed from its numbers."""


@dataclass
class Panel:
    """One pair of axes with its traces."""

    title: str
    traces: list[Spec]
    x: Spec = field(default_factory=dict)
    y: Spec = field(default_factory=dict)
    annotations: list[Spec] = field(default_factory=list)


def escape(text: str) -> str:
    """Text that plotly draws: no tag can open in it, and quotes stay quotes, which plotly would not decode."""
    return html.escape(text, quote=False)


def build(
    panels: list[Panel],
    columns: int = 3,
    row_height: int = 250,
    min_width: int = 250,
    bottom: int = 46,
    gap_y: int = GAP_Y,
    any_order: bool = False,
    **layout: Any,
) -> Spec:
    """Put panels into one specification; `meta` keeps what the page needs to rearrange them to its width.

    any_order: no row belongs together, so that rows may break anywhere.
    """
    data: list[Spec] = []
    axes: Spec = {}
    notes: list[Spec] = []
    for index, panel in enumerate(panels):
        n = "" if index == 0 else str(index + 1)
        data += [{**trace, "xaxis": f"x{n}", "yaxis": f"y{n}"} for trace in panel.traces]
        common = {"gridcolor": GRID, "linecolor": FAINT, "zerolinecolor": GRID, "ticks": "outside", "tickcolor": FAINT}
        common["exponentformat"] = "power"  # plotly's own would write 200 million as 200M, 4e-7 as 400n
        axes[f"xaxis{n}"] = {**common, "anchor": f"y{n}", "showgrid": False, "showline": True, **panel.x}
        axes[f"yaxis{n}"] = {**common, "anchor": f"x{n}", "ticks": "", **panel.y}
        short = fit_title(panel.title, columns)
        heading = {"text": f"<b>{short}</b>", "xref": f"x{n} domain", "yref": f"y{n} domain", "x": 0, "y": 1}
        if short != panel.title:
            heading["hovertext"] = panel.title
        notes.append(
            {**heading, "xanchor": "left", "yanchor": "bottom", "yshift": 5, "showarrow": False, "font": {"size": 13}}
        )
        notes += [{"xref": f"x{n}", "yref": f"y{n}", "showarrow": False, **note} for note in panel.annotations]
    spec = {
        "data": data,
        "layout": {
            **axes,
            "annotations": notes,
            "font": {"family": FONT, "size": 12, "color": INK},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "hovermode": "closest",
            "hoverlabel": {"namelength": -1},
            "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "top", "yref": "container"},
            "meta": {
                "panels": len(panels),
                "columns": columns,
                "row_height": row_height,
                "min_width": min_width,
                "bottom": bottom,
                **({} if gap_y == GAP_Y else {"gap_y": gap_y}),
                **({"any_order": True} if any_order else {}),
            },
            **layout,
        },
    }
    return arrange(spec, PAGE)


def side_by_side(panels: int) -> int:
    """Columns for panels that may stand in any order: two by two of two or four, else up to three in a row.

    >>> [side_by_side(n) for n in (1, 2, 3, 4, 5)]
    [1, 2, 3, 2, 3]
    """
    return 2 if panels == 4 else min(3, panels)


def fit_title(title: str, columns: int) -> str:
    """A title with as many of its parts as its panel has room for.

    >>> fit_title("BCE · cifar10 · resnet18 · batch 128 · epochs 40", columns=3)
    'BCE · cifar10 · resnet18 · …'
    >>> fit_title('<span style="color:#004c8a">accuracy</span> · <span style="color:#a9340f">NC4</span>', 3)[-10:]
    'NC4</span>'
    """
    room = (PAGE // columns - GAP_X) // LETTER
    first, *rest = title.split(" · ")
    if count_letters(title) <= room or not rest:
        return title
    short = first
    for part in rest:
        if count_letters(f"{short} · {part} · …") > room:
            break
        short = f"{short} · {part}"
    return f"{short} · …"


def count_letters(text: str) -> int:
    """The letters of a text as plotly draws it: without tags, an escaped letter counted once.

    >>> count_letters("<b>a &lt; b</b>")
    5
    """
    return len(html.unescape(re.sub(r"<[^>]*>", "", text)))


def shorten_labels(labels: Sequence[str], most: int = 60) -> list[str]:
    """Labels of settings without what all of them share, and, where they stay distinct, without what is beyond `most`.

    >>> shorten_labels(["CE · mnist · Adam · batch 64", "BCE · cifar10 · Adam · batch 64"])
    ['CE · mnist', 'BCE · cifar10']
    >>> shorten_labels(["CE · mnist · Adam", "CE · cifar10 · AdamW"], most=14)
    ['CE · mnist · …', 'CE · cifar10 · …']
    """
    parts = [label.split(" · ") for label in labels]
    if len(labels) < 2:
        return list(labels)
    shared = set.intersection(*(set(words[1:]) for words in parts))
    kept = [[words[0], *(word for word in words[1:] if word not in shared)] for words in parts]
    full = [" · ".join(words) for words in kept]
    cut = []
    for text, words in zip(full, kept):
        while len(text) > most and len(words) > 2:
            words.pop()
            text = " · ".join([*words, "…"])
        cut.append(text)
    chosen = next((found for found in (cut, full) if len(set(found)) == len(set(labels))), labels)
    return list(chosen)


def name_once(panels: list[Panel]) -> None:
    """Let each legend entry appear once, at the first trace of its group that has a name."""
    seen: set[str] = set()
    for panel in panels:
        for trace in panel.traces:
            group = trace.get("legendgroup")
            if group and "name" in trace and group not in seen:
                seen.add(group)
                trace["showlegend"] = True


def merge_alike(traces: list[Spec]) -> list[Spec]:
    """Join traces that look alike into one each, with gaps between them: many lines draw as fast as one."""
    joined: dict[str, Spec] = {}
    for trace in traces:
        style = json.dumps(
            {key: value for key, value in trace.items() if key not in ("x", "y", "text")}, sort_keys=True
        )
        if style not in joined:
            joined[style] = {**trace, **{key: list(trace[key]) for key in ("x", "y", "text") if key in trace}}
            continue
        gap = [None] if "lines" in trace["mode"] else []
        for key in ("x", "y", "text"):
            if key in trace:
                joined[style][key] += [*gap, *trace[key]]
    return list(joined.values())


def arrange(spec: Spec, width: float) -> Spec:
    """Place the panels of a specification for a width in pixels; the page's script does the same when it is resized."""
    layout = spec["layout"]
    meta = layout["meta"]
    left, gap, bottom = meta.get("left", MARGIN["l"]), meta.get("gap", GAP_X), meta["bottom"]
    right = meta.get("right", 58 if "coloraxis" in layout else MARGIN["r"])
    inner = width - left - right
    fitting = int((inner + gap) // (meta["min_width"] + gap))
    columns = max(1, min(meta["columns"], fitting, meta["panels"]))
    while meta["columns"] % columns and not meta.get("any_order"):
        columns -= 1  # rows that belong together break at their middle or not at all
    rows = math.ceil(meta["panels"] / columns)
    top = 30 + legend_height(spec, inner)
    panel_width = (inner - (columns - 1) * gap) / columns
    row_height = meta["row_height"]
    gap_y = meta.get("gap_y", GAP_Y)
    height = rows * row_height + (rows - 1) * gap_y
    for index in range(meta["panels"]):
        row, column = divmod(index, columns)
        n = "" if index == 0 else str(index + 1)
        start = column * (panel_width + gap) / inner
        upper = 1 - row * (row_height + gap_y) / height
        layout[f"xaxis{n}"]["domain"] = [round(start, 5), round(min(1, start + panel_width / inner), 5)]
        layout[f"yaxis{n}"]["domain"] = [round(max(0, upper - row_height / height), 5), round(upper, 5)]
    layout["margin"] = {"l": left, "r": right, "t": top, "b": bottom}
    layout["height"] = round(height + top + bottom)
    layout["width"] = width
    return spec


def legend_height(spec: Spec, inner: float) -> int:
    """Room for the legend in pixels, from the length of its entries."""
    if spec["layout"].get("showlegend") is False:
        return 0
    names = [str(t.get("name", "")) for t in spec["data"] if t.get("showlegend") is not False]
    if not names:
        return 0
    widest = max(len(name) for name in names) * 6.6 + 48
    return ROW * math.ceil(len(names) / max(1, inner // widest)) + 1


def log_axis(values: Sequence[float]) -> Spec:
    """A logarithmic axis for positive values, with labels that can be read: plotly's own are tiny between decades."""
    decades = math.log10(max(values) / min(values)) if values else 0.0
    if decades < 0.7:
        return {"type": "log", "nticks": 6}
    if decades >= 2.2:
        step = 1 if decades <= 5 else max(2, math.ceil(decades / 6))
        return {"type": "log", "tickfont": {"size": 10}, "exponentformat": "power", "dtick": step}
    exponents = range(math.floor(math.log10(min(values))) - 1, math.ceil(math.log10(max(values))) + 1)
    marks = [float(f"{digit}e{exponent}") for exponent in exponents for digit in (1, 2, 5)]
    labels = {"tickmode": "array", "tickvals": marks, "ticktext": [show(mark, 2) for mark in marks]}
    return {"type": "log", "tickfont": {"size": 10}, **labels}


def thin(values: Sequence[float], parts: int = 8) -> list[float]:
    """Some of the values, as marks of a log axis: first, last, and others at least an eighth of the axis apart.

    >>> thin([5, 10, 11, 50, 100])
    [5, 10, 50, 100]
    >>> thin([1, 3, 10, 20, 30, 50, 60, 100, 280, 300])
    [1, 3, 10, 30, 100, 300]
    """
    if len(values) < 2:
        return list(values)
    step = (values[-1] / values[0]) ** (1 / parts)
    kept = [values[0]]
    for value in values[1:-1]:
        if value >= step * kept[-1] and values[-1] >= step * value:
            kept.append(value)
    return [*kept, values[-1]]


def for_print(spec: Spec, theme: dict[str, str] = PRINT) -> Spec:
    """A copy of a specification in the colours of a theme, print's unless given; of a slider the last position."""

    def paint(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: paint(item) for key, item in value.items()}
        if isinstance(value, list):
            return [paint(item) for item in value]
        return resolve(value, theme)

    painted: Spec = paint({key: value for key, value in spec.items() if key != "slider"})
    return painted
