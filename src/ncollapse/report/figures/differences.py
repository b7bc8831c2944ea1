"""Paired differences between losses with their intervals, each quantity on its own scale."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ncollapse.compare import QUANTITIES, Finding, Quantity
from ncollapse.compare.numbers import show_difference, show_ratio
from ncollapse.compare.ranking import find_effects
from ncollapse.compare.sentences import describe_effect
from ncollapse.report.encoding import compact
from ncollapse.report.panels import Figure, Panel, Spec, build, escape, log_axis, name_once
from ncollapse.report.style import INK, loss_style

MANY = 8
FILLINGS = ("", "-open", "-dot", "-open-dot")
"""What plotly adds to a marker's name."""


def draw_differences(findings: Sequence[Finding]) -> Figure | None:
    """Paired differences to the reference loss with intervals, one panel a quantity, where two seeds are shared."""
    shown = [f for f in findings if f.reference and any(f.effect(q).has_interval for q in QUANTITIES if q.better)]
    if not shown or len(shown) > MANY:
        return None
    panels = [panel for q in QUANTITIES if q.better and (panel := _quantity_panel(q, shown)) is not None]
    if not panels:
        return None
    panels[0].traces += [_legend_entry(*entry) for entry in zip(shown, name_shown(shown), choose_markers(shown))]
    name_once(panels)
    effects = find_effects(findings)
    clear = f"Largest clear difference: {describe_effect(effects[0])}." if effects else "No difference is clear."
    return Figure(
        "differences",
        "Paired differences between losses",
        "Each seed is compared with itself under the reference loss. Rates are in percentage points, NC1 to NC3 are "
        "ratios. An interval that crosses the line shows no difference that these seeds can tell; what is not clear is "
        "pale. Intervals are one quantity at a time, not corrected for their number.",
        build(
            panels,
            columns=3,
            row_height=max(60, 26 * len(shown)),
            min_width=205,
            gap_y=72,
            any_order=True,
            showlegend=True,
        ),
        "bce-vs-ce Tables 1, 2",
        result=clear,
    )


def name_shown(findings: Sequence[Finding]) -> list[str]:
    """Names for the legend: of the losses alone, where that tells the variants apart."""
    losses = [f.variant.label.partition(" · ")[0] for f in findings]
    return losses if len(set(losses)) == len(losses) else [f.variant.label for f in findings]


def _factor(logarithm: float) -> float:
    return math.exp(min(700.0, max(-700.0, logarithm)))


def choose_markers(findings: Sequence[Finding]) -> list[str]:
    """The marker of each finding: that of its loss, filled, open or dotted by its other settings."""
    contexts = list(dict.fromkeys(f.variant.context for f in findings))
    return [
        loss_style(f.variant.loss).marker + FILLINGS[contexts.index(f.variant.context) % len(FILLINGS)]
        for f in findings
    ]


def _legend_entry(finding: Finding, name: str, symbol: str) -> Spec:
    """An entry in the full colour of a loss, which its differences have only where they are clear."""
    marker = {"color": loss_style(finding.variant.loss).colour, "symbol": symbol, "size": 9}
    shape = {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "marker": marker}
    return {**shape, "name": escape(name), "legendgroup": escape(finding.variant.label), "showlegend": False}


def _quantity_panel(quantity: Quantity, findings: Sequence[Finding]) -> Panel | None:
    traces: list[Spec] = []
    for row, (finding, symbol) in enumerate(zip(findings, choose_markers(findings))):
        d = finding.effect(quantity)
        if not d.has_interval:
            continue
        mean, low, high = (
            (_factor(v) for v in (d.mean, d.low, d.high))
            if quantity.ratio
            else (100 * v for v in (d.mean, d.low, d.high))
        )
        size, interval = show_ratio(d) if quantity.ratio else show_difference(d, percent=True)
        style = loss_style(finding.variant.loss)
        name = f"{finding.variant.label} − {finding.reference.label if finding.reference else ''}"
        if quantity.ratio:
            name = name.replace(" − ", " against ")
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "legendgroup": escape(finding.variant.label),
                "showlegend": False,
                "x": compact([mean]),
                "y": [-row],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": compact([high - mean]),
                    "arrayminus": compact([mean - low]),
                    "thickness": 2,
                    "width": 4,
                    "color": style.colour,
                },
                "opacity": 1 if d.clear else 0.55,
                "marker": {"color": style.colour, "symbol": symbol, "size": 9},
                "hovertemplate": f"{escape(name)}: {size} {interval}<extra></extra>",
            }
        )
    if not traces:
        return None
    neutral = 1 if quantity.ratio else 0
    shape = {"type": "scatter", "mode": "lines", "x": [neutral, neutral], "y": [-len(findings) + 0.4, 0.6]}
    line = {**shape, "line": {"color": INK, "width": 1}, "hoverinfo": "skip", "showlegend": False}
    ends = [f.effect(quantity) for f in findings if f.effect(quantity).has_interval]
    reached = [1.0, *(_factor(v) for d in ends for v in (d.low, d.high))] if quantity.ratio else []
    x: Spec = {**log_axis(reached), "nticks": 4} if quantity.ratio else {"nticks": 5}
    y = {"showticklabels": False, "showgrid": False, "zeroline": False, "range": [-len(findings) + 0.4, 0.6]}
    arrow = {"higher": " ↑", "lower": " ↓"}[quantity.better]
    unit = "ratio" if quantity.ratio else "points"
    return Panel(f"{quantity.title}{arrow}, {unit}", [line, *traces], {**x, "showgrid": True}, y)
