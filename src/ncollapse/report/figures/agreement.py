"""Measured against predicted: every variant of the page as a point, on the diagonal where theory is met."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ncollapse.compare import Finding, name_loss
from ncollapse.compare.numbers import show
from ncollapse.grammar import join
from ncollapse.report.encoding import compact
from ncollapse.report.panels import Figure, Panel, Spec, build, escape, name_once
from ncollapse.report.style import FAINT, loss_style

FIELDS = {
    "positive_score": "positive score",
    "negative_score": "negative score",
    "bias": "bias",
    "weight_energy": "weight energy",
    "feature_energy": "feature energy",
}


def draw_agreement(findings: Sequence[Finding]) -> Figure | None:
    """Means over seeds against predictions, a panel a field; None where theory predicts nothing."""
    panels: list[Panel] = []
    said: list[str] = []
    for field, title in FIELDS.items():
        points = [(f, f.predictions[field], f.estimates[f"train.{field}"]) for f in findings]
        known = [(f, p, e) for f, p, e in points if math.isfinite(p) and e.n and math.isfinite(e.mean)]
        if not known:
            continue
        off = [abs(e.mean - p) / abs(p) for _, p, e in known if p]
        if off:
            said.append(f"{title} {show(100 * float(np.median(off)), 2)} %")
        traces: list[Spec] = []
        for loss in dict.fromkeys(f.variant.loss for f, _, _ in known):
            mine = [(f, p, e) for f, p, e in known if f.variant.loss == loss]
            style = loss_style(loss)
            name = escape(name_loss(loss))
            errors = [e.std if e.n > 1 else 0.0 for _, _, e in mine]
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": name,
                    "legendgroup": name,
                    "showlegend": False,
                    "x": compact(p for _, p, _ in mine),
                    "y": compact(e.mean for _, _, e in mine),
                    "error_y": {"type": "data", "array": compact(errors), "thickness": 1, "width": 2},
                    "text": [escape(f.variant.label) for f, _, _ in mine],
                    "marker": {"color": style.colour, "symbol": style.marker, "size": 8, "opacity": 0.8},
                    "hovertemplate": "%{text}<br>predicted %{x:.4g}, measured %{y:.4g}<extra></extra>",
                }
            )
        ends = [v for _, p, e in known for v in (p, e.mean)]
        limits = widen(min(ends), max(ends))
        diagonal = {"type": "scatter", "mode": "lines", "x": compact(limits), "y": compact(limits)}
        line = {"color": FAINT, "width": 1, "dash": "dot"}
        traces.insert(0, {**diagonal, "line": line, "hoverinfo": "skip", "showlegend": False})
        axis: Spec = {"range": compact(limits), "zeroline": False, "nticks": 5}
        x = {**axis, "title": {"text": "predicted", "standoff": 4}}
        panels.append(Panel(title, traces, x, {**axis, "title": {"text": "measured", "standoff": 2}}))
    if not panels:
        return None
    name_once(panels)
    return Figure(
        "agreement",
        "Measured against predicted",
        "Each point is a variant, the mean over its seeds with their standard deviation. On the dotted line the "
        "measured value is the predicted one. Nothing is fitted.",
        build(panels, columns=3, row_height=220, min_width=205, any_order=True, showlegend=True),
        "bce-vs-ce Tables 6–11",
        result=f"Median deviation from theory: {join(said)}." if said else "",
    )


def widen(low: float, high: float) -> list[float]:
    """Limits of an axis around two values: at least a fifth of their size apart, so that a small deviation looks small.

    >>> widen(95.0, 100.0), widen(0.0, 0.0)
    ([87.5, 107.5], [-0.5, 0.5])
    """
    largest = max(abs(low), abs(high))
    room = max(0.06 * (high - low), (0.2 * largest - (high - low)) / 2) or 0.5
    return [round(low - room, 12), round(high + room, 12)]
