"""A figure as static SVG, for readers without JavaScript: the same panels, lines, marks and heat maps, no interaction.

It draws the parts of plotly's specifications that the page uses, in the colours of the page's theme.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from ncollapse.report.axes import Axis
from ncollapse.report.style import LIGHT, resolve

Spec = dict[str, Any]
DASHES = {"dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "11 5", "longdashdot": "11 4 2 4"}
MARKS = {
    "diamond": "M0 -{r}L{r} 0 0 {r} -{r} 0Z",
    "square": "M-{r} -{r}H{r}V{r}H-{r}Z",
    "triangle-up": "M0 -{r}L{r} {r}H-{r}Z",
    "triangle-down": "M0 {r}L{r} -{r}H-{r}Z",
    "cross": "M-{r} 0H{r}M0 -{r}V{r}",
    "x": "M-{r} -{r}L{r} {r}M{r} -{r}L-{r} {r}",
    "line-ew": "M-{r} 0H{r}",
}
CELLS = 2500
"""Up to so many cells of a heat map are drawn; larger ones are thinned out."""


def draw_static(spec: Spec) -> str:
    """The figure as an SVG element; a sentence where it cannot be drawn without JavaScript."""
    layout = spec["layout"]
    if "meta" not in layout or "scene" in layout:
        return "<p>This figure is drawn in three dimensions and needs JavaScript.</p>"
    width, height, margin = layout["width"], layout["height"], layout["margin"]
    inner = width - margin["l"] - margin["r"], height - margin["t"] - margin["b"]
    parts: list[str] = []
    for index in range(layout["meta"]["panels"]):
        n = "" if index == 0 else str(index + 1)
        across, up = layout[f"xaxis{n}"], layout[f"yaxis{n}"]
        traces = [t for t in spec["data"] if t.get("xaxis", "x") == f"x{n}" and t.get("visible") is not False]
        left, right = (margin["l"] + inner[0] * share for share in across["domain"])
        bottom, top = (margin["t"] + inner[1] * (1 - share) for share in up["domain"])
        x = Axis(across, _values(traces, "x"), left, right)
        y = Axis(up, _values(traces, "y"), bottom, top)
        parts.append(f'<clipPath id="c{id(spec)}-{index}"><rect x="{left:.1f}" y="{top:.1f}" ')
        parts.append(f'width="{right - left:.1f}" height="{bottom - top:.1f}"/></clipPath>')
        parts += _frame(x, y, left, right, top, bottom)
        parts.append(f'<g clip-path="url(#c{id(spec)}-{index})">')
        for trace in traces:
            parts += draw_trace(trace, x, y, layout)
        parts.append("</g>")
        parts += [
            _text(note["text"], left, top - 6, "start", bold=True)
            for note in layout["annotations"]
            if note.get("xref") == f"x{n} domain"
        ]
    parts += _legend(spec, margin["l"], inner[0])
    return f'<svg class="static" viewBox="0 0 {width:.0f} {height:.0f}" role="img">{"".join(parts)}</svg>'


def draw_trace(trace: Spec, x: Axis, y: Axis, layout: Spec) -> list[str]:
    """One trace as SVG elements."""
    if trace["type"] in ("heatmap", "contour"):
        return _draw_cells(trace, x, y, layout)
    points = [(x.place(a), y.place(b)) for a, b in zip(trace.get("x", ()), trace.get("y", ()))]
    parts = []
    opacity = f"opacity:{trace['opacity']}" if "opacity" in trace else ""
    mode = trace.get("mode", "lines")
    line = trace.get("line", {})
    if trace.get("fill") == "toself":
        parts += [_path(run, f"fill:{_colour(trace['fillcolor'])};{opacity}", close=True) for run in _runs(points)]
    if "lines" in mode and line.get("width", 2) > 0:
        style = (
            f"fill:none;stroke:{_colour(line.get('color', 'var:ink'))};stroke-width:{line.get('width', 2)};{opacity}"
        )
        if line.get("dash") in DASHES:
            style += f";stroke-dasharray:{DASHES[line['dash']]}"
        parts += [_path(run, style) for run in _runs(points)]
    if "markers" in mode:
        every = max(1, len(points) // trace.get("marker", {}).get("maxdisplayed", 10**9))
        parts += _draw_marks(points, trace, every)
    return parts


def _draw_marks(points: list[tuple[float, float]], trace: Spec, every: int) -> list[str]:
    marker = trace.get("marker", {})
    colour, symbol = marker.get("color", trace.get("line", {}).get("color", "var:ink")), marker.get("symbol", "circle")
    parts = []
    for index, (a, b) in enumerate(points):
        if index % every or not (math.isfinite(a) and math.isfinite(b)):
            continue
        name = symbol[index] if isinstance(symbol, list) else symbol
        paint = _colour(colour[index] if isinstance(colour, list) else colour)
        hollow = name.endswith("-open") or name in ("line-ew", "cross", "x")
        edge = _colour(marker.get("line", {}).get("color", "")) or paint
        width = marker.get("line", {}).get("width", 2 if hollow else 0)
        style = f"fill:{'none' if hollow else paint};stroke:{edge if width else 'none'};stroke-width:{width}"
        radius = (marker.get("size", 6) if isinstance(marker.get("size", 6), (int, float)) else 6) / 2
        shape = MARKS.get(name.removesuffix("-open"))
        if shape is None:
            parts.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{radius:g}" style="{style}"/>')
        else:
            path = shape.replace("{r}", f"{radius:g}")
            parts.append(f'<path transform="translate({a:.1f} {b:.1f})" d="{path}" style="{style}"/>')
    return parts


def _draw_cells(trace: Spec, x: Axis, y: Axis, layout: Spec) -> list[str]:
    z = trace["z"]
    rows, columns = len(z), max(map(len, z), default=0)
    if not rows or not columns:
        return []
    step = max(1, math.ceil(math.sqrt(rows * columns / CELLS)))
    shared = layout.get(trace.get("coloraxis", ""), {}) if "coloraxis" in trace else trace
    known = [v for row in z for v in row if isinstance(v, (int, float))]
    low = shared.get("cmin", shared.get("zmin", min(known, default=0.0)))
    high = shared.get("cmax", shared.get("zmax", max(known, default=1.0)))
    scale = shared.get("colorscale", [[0, "var:paper"], [1, "var:ink"]])
    xs, ys = trace.get("x", list(range(columns))), trace.get("y", list(range(rows)))
    left, bottom = _edges([x.place(v) for v in xs]), _edges([y.place(v) for v in ys])
    parts = []
    for i in range(0, rows, step):
        for j in range(0, len(z[i]), step):
            value = z[i][j]
            if not isinstance(value, (int, float)):
                continue
            share = (value - low) / (high - low) if high > low else 0.5
            share = 1 - share if shared.get("reversescale") else share
            (a, b), (c, d) = (left[j], left[min(columns, j + step)]), (bottom[i], bottom[min(rows, i + step)])
            size = f'width="{abs(b - a) + 0.3:.1f}" height="{abs(d - c) + 0.3:.1f}"'
            box = f'x="{min(a, b):.1f}" y="{min(c, d):.1f}" {size}'
            parts.append(f'<rect {box} style="fill:{pick_colour(scale, share)}"/>')
            if trace.get("texttemplate") and trace.get("text"):
                parts.append(_text(trace["text"][i][j], (a + b) / 2, (c + d) / 2 + 4, "middle"))
    return parts


def pick_colour(scale: list[list[Any]], share: float) -> str:
    """The colour of a scale at a share from 0 to 1, between its neighbours.

    >>> pick_colour([[0, "#000000"], [1, "#ffffff"]], 0.5)
    '#808080'
    """
    share = min(1.0, max(0.0, share if math.isfinite(share) else 0.0))
    upper = next((i for i, (at, _) in enumerate(scale) if at >= share), len(scale) - 1)
    (a, first), (b, second) = scale[max(0, upper - 1)], scale[upper]
    ends = [_channels(str(resolve(colour, LIGHT))) for colour in (first, second)]
    part = (share - a) / (b - a) if b > a else 1.0
    return "#" + "".join(f"{round(p + (q - p) * part):02x}" for p, q in zip(*ends))


def _channels(colour: str) -> tuple[int, ...]:
    if colour.startswith("#"):
        return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
    found = [float(v) for v in re.findall(r"[\d.]+", colour)]
    opacity = found[3] if len(found) > 3 else 1.0
    return tuple(round(255 - opacity * (255 - v)) for v in found[:3])


def _frame(x: Axis, y: Axis, left: float, right: float, top: float, bottom: float) -> list[str]:
    parts = [f'<path d="M{left:.1f} {bottom:.1f}H{right:.1f}" class="rule"/>']
    for at, text in x.ticks():
        parts.append(_text(text, at, bottom + 15, "middle", small=True))
    for at, text in y.ticks():
        parts.append(f'<path d="M{left:.1f} {at:.1f}H{right:.1f}" class="grid"/>')
        parts.append(_text(text, left - 6, at + 4, "end", small=True))
    title = x.spec.get("title", {})
    if isinstance(title, dict) and title.get("text"):
        parts.append(_text(title["text"], (left + right) / 2, bottom + 31, "middle", small=True))
    return parts


def _legend(spec: Spec, left: float, inner: float) -> list[str]:
    if spec["layout"].get("showlegend") is False:
        return []
    entries = [t for t in spec["data"] if t.get("showlegend") is not False and t.get("name")]
    if not entries:
        return []
    wide = max(len(str(t["name"])) for t in entries) * 6.6 + 48
    columns = max(1, int(inner // wide))
    parts = []
    for index, trace in enumerate(entries):
        at, row = left + wide * (index % columns), 14 + 29 * (index // columns)
        marker = trace.get("marker", {}).get("color")
        colour = trace.get("line", {}).get("color") or (marker if isinstance(marker, str) else "var:ink")
        parts.append(f'<path d="M{at:.1f} {row}h22" style="stroke:{_colour(colour)};stroke-width:3"/>')
        parts.append(_text(str(trace["name"]), at + 28, row + 4, "start"))
    return parts


def _values(traces: Iterable[Spec], key: str) -> list[Any]:
    found: list[Any] = []
    for trace in traces:
        if key in trace:
            found += trace[key]
        elif trace["type"] in ("heatmap", "contour"):
            size = len(trace["z"]) if key == "y" else max(map(len, trace["z"]), default=0)
            found += [-0.5, size - 0.5]
    return found


def _edges(places: list[float]) -> list[float]:
    if len(places) == 1:
        return [places[0] - 20, places[0] + 20]
    middles = [(a + b) / 2 for a, b in pairwise(places)]
    return [2 * places[0] - middles[0], *middles, 2 * places[-1] - middles[-1]]


def _runs(points: list[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """The points between gaps, without those that would fall on the pixel of the one before."""
    runs: list[list[tuple[float, float]]] = [[]]
    for a, b in points:
        if not (math.isfinite(a) and math.isfinite(b)):
            runs.append([])
        elif not runs[-1] or abs(a - runs[-1][-1][0]) + abs(b - runs[-1][-1][1]) > 0.8:
            runs[-1].append((a, b))
    return [run for run in runs if len(run) > 1]


def _path(points: list[tuple[float, float]], style: str, close: bool = False) -> str:
    steps = " ".join(f"{a:.1f} {b:.1f}" for a, b in points)
    return f'<path d="M{steps}{"Z" if close else ""}" style="{style}"/>'


def _text(text: str, x: float, y: float, anchor: str, bold: bool = False, small: bool = False) -> str:
    plain = html.escape(html.unescape(re.sub(r"</?(b|i|br|sub|sup)>", "", str(text))))
    names = " ".join(name for name, on in (("bold", bold), ("small", small)) if on)
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{names}">{plain}</text>'


def _colour(token: Any) -> str:
    """A colour for a style attribute: tokens become the page's custom properties, so that the theme counts."""
    text = str(token or "")
    if not text.startswith("var:"):
        return html.escape(str(resolve(text)), quote=True)
    name, _, opacity = text[4:].partition("@")
    if opacity:
        return f"color-mix(in srgb,var(--{name}) {100 * float(opacity):g}%,transparent)"
    return f"var(--{name})"
