"""Curves over epochs: the collapse metrics, accuracies, the certified gap; and the paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ncollapse.compare.findings import QUANTITIES, Finding
from ncollapse.compare.variants import LOSSES, Variant
from ncollapse.report.numbers import compact
from ncollapse.report.panels import Figure, Panel, Spec, build, escape, merge_alike, name_once
from ncollapse.report.style import CLASSES, DASHES, INK, fade, look
from ncollapse.runs.record import RunRecord

MANY = 8
NAMED = 24
"""Up to so many variants each line keeps its own label under the pointer; beyond, lines of a loss are joined."""
POINTS = 240


def draw_collapse(variants: Sequence[Variant]) -> Figure | None:
    """NC1, NC2 and NC3 over epochs, train above test."""
    wanted = [(split, nc) for split in ("train", "test") for nc in ("nc1", "nc2", "nc3")]
    panels = [curve_panel(variants, f"{split}.{nc}", f"{split} {nc.upper()}", log=True) for split, nc in wanted]
    return collect_panels(
        panels,
        "collapse",
        "NC1, NC2 and NC3 over epochs",
        "Lower is more collapsed; a straight descent on this log axis is exponential. Lines are means over seeds "
        "(geometric), bands run from the smallest seed to the largest. NC2 looks at W alone: train and test agree.",
        "bce-vs-ce Figs. 2, 4–6; all-losses Figs. 1, 5, 8",
    )


def draw_accuracy(variants: Sequence[Variant]) -> Figure | None:
    """Accuracy and uniform accuracy over epochs on every split that was measured."""
    splits = ("train", "validation", "test")
    panels = [curve_panel(variants, f"{s}.accuracy", f"{s} accuracy") for s in splits]
    panels += [curve_panel(variants, f"{s}.uniform_accuracy", f"{s} uniform accuracy") for s in splits]
    return collect_panels(
        panels,
        "accuracy",
        "Accuracy and uniform accuracy",
        "Uniform accuracy counts a sample only if one threshold, the same for all samples, separates its positive "
        "score from all its negative ones.",
        "all-losses Figs. 2, 6; bce-vs-ce Eqs. 43–45",
    )


def draw_gap(variants: Sequence[Variant]) -> Figure | None:
    """The certified gap to the global optimum of the last layer's problem, and the training loss."""
    panels = [
        curve_panel(variants, "certificate.gap", "certified gap", log=True),
        curve_panel(variants, "loss", "training loss", log=True),
    ]
    if panels[0] is None:
        return None
    return collect_panels(
        panels,
        "gap",
        "Certified gap to the optimum",
        "An upper bound on how far the last layer's objective lies above its global minimum; 0 at the optimum.",
        "dual bound of the unconstrained feature model",
    )


def draw_differences(findings: Sequence[Finding]) -> Figure | None:
    """Paired differences in rates to the reference loss, with intervals, where there are at least two seeds."""
    rows = [q for q in QUANTITIES if q.percent]
    shown = [f for f in findings if f.reference and any(f.differences[q.key].n > 1 for q in rows)]
    if not shown or len(shown) > MANY:
        return None
    traces = []
    for place, finding in enumerate(shown):
        style = look(finding.variant.loss)
        found = [(q, finding.differences[q.key]) for q in rows if finding.differences[q.key].n > 1]
        shift = 0.5 * ((place + 0.5) / len(shown) - 0.5)
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": escape(f"{finding.variant.label} − {finding.reference.label if finding.reference else ''}"),
                "x": compact(100 * d.mean for _, d in found),
                "y": [round(rows.index(q) + shift, 3) for q, _ in found],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": compact(100 * (d.high - d.mean) for _, d in found),
                    "arrayminus": compact(100 * (d.mean - d.low) for _, d in found),
                    "thickness": 1.5,
                    "width": 4,
                },
                "marker": {"color": style.colour, "symbol": style.marker, "size": 9},
                "hovertemplate": "%{x:.3g} points<extra>%{fullData.name}</extra>",
            }
        )
    ticks = {"tickvals": list(range(len(rows))), "ticktext": [q.title for q in rows], "autorange": "reversed"}
    zero = {"zeroline": True, "zerolinecolor": INK, "zerolinewidth": 1, "title": {"text": "percentage points"}}
    panel = Panel("95 % intervals", traces, {**zero, "showgrid": True}, {**ticks, "automargin": True})
    return Figure(
        "differences",
        "Paired differences between losses",
        "Each seed is compared with itself under the reference loss. An interval that crosses zero shows no difference "
        "these seeds can tell; intervals are one quantity at a time, not corrected for their number.",
        build([panel], columns=1, row_height=46 * len(rows), showlegend=True),
        "bce-vs-ce Tables 1, 2",
    )


def curve_panel(variants: Sequence[Variant], key: str, title: str, log: bool = False) -> Panel | None:
    """Mean lines and seed bands of one field; None where no run has it.

    Colours tell losses apart, dashes the settings; where all have one loss, colours tell the settings apart too.
    """
    many = len(variants) > MANY
    alone = not many and len(variants) > 1 and len({v.loss for v in variants}) == 1
    contexts = list(dict.fromkeys(v.context for v in variants))
    traces: list[Spec] = []
    for variant in variants:
        found = gather([r for r in variant.records if r.history], key)
        if found is None:
            continue
        epochs, values = found
        if log:
            values = np.where(values > 0, values, np.nan)
        style = look(variant.loss)
        colour = CLASSES[variants.index(variant)] if alone else style.colour
        dash = DASHES[contexts.index(variant.context) % len(DASHES)] if not many else "solid"
        group = variant.loss if many else variant.label
        named = escape(variant.label) if len(variants) <= NAMED else "%{fullData.name}"
        with np.errstate(all="ignore"):
            middle = _mean(np.log(values), axis=0) if log else _mean(values, axis=0)
            line = np.exp(middle) if log else middle
        x = [int(e) for e in epochs]
        if values.shape[0] > 1:
            low, high = _extent(values)
            traces.append(_band(x, low, high, colour, escape(group)))
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(x) < 3 or not many else "lines",
                "name": escape(LOSSES.get(variant.loss, variant.loss) if many else variant.label),
                "legendgroup": escape(group),
                "showlegend": False,
                "legendrank": variants.index(variant),
                "x": x,
                "y": compact(line),
                "line": {"color": colour, "width": 1 if many else 2, "dash": dash},
                "opacity": 0.55 if many else 1,
                "marker": {"symbol": style.marker, "size": 7, "maxdisplayed": 7},
                "hovertemplate": f"epoch %{{x}}: %{{y:{'.4g' if log else '.2%'}}}<extra>{named}</extra>",
            }
        )
    if not traces:
        return None
    if many:
        traces = merge_alike(traces)
    y: Spec = (
        {"type": "log", "exponentformat": "power", "dtick": 1, "tickfont": {"size": 10}}
        if log
        else {"tickformat": ".2~%"}
    )
    if log:
        finite = [v for t in traces for v in t["y"] if v]
        decades = math.log10(max(finite) / min(finite)) if finite else 0.0
        if decades > 5:
            y["dtick"] = 2
        elif decades < 0.7:
            y = {"type": "log", "nticks": 6}
        elif decades < 2.2:
            y = {"type": "log", "tickfont": {"size": 10}, **_label_decades(min(finite), max(finite))}
    return Panel(title, traces, {"title": {"text": "epoch", "standoff": 4}, "rangemode": "tozero"}, y)


def _label_decades(low: float, high: float) -> Spec:
    """Labels at 1, 2 and 5 of every decade between, and of one more on either side; plotly's own would be tiny."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    values = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
    return {"tickmode": "array", "tickvals": values, "ticktext": [f"{value:g}" for value in values]}


def gather(records: Sequence[RunRecord], key: str) -> tuple[list[int], np.ndarray] | None:
    """Epochs (thinned out to a few hundred) and values [runs, epochs] of a field, NaN where a run did not measure."""
    series = [dict(zip(*r.series(key))) for r in records]
    series = [s for s in series if any(math.isfinite(v) for v in s.values())]
    if not series:
        return None
    epochs = sorted({e for s in series for e in s})
    if len(epochs) > POINTS:
        picked = np.unique(np.linspace(0, len(epochs) - 1, POINTS).round().astype(int))
        epochs = [epochs[i] for i in picked]
    values = np.array([[s.get(e, math.nan) for e in epochs] for s in series], dtype=np.float64)
    values[~np.isfinite(values)] = np.nan
    return epochs, values


def _band(x: list[int], low: np.ndarray, high: np.ndarray, colour: str, group: str) -> Spec:
    kept = np.isfinite(low) & np.isfinite(high)
    xs = [e for e, k in zip(x, kept) if k]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": xs + xs[::-1],
        "y": compact(low[kept], 4) + compact(high[kept][::-1], 4),
        "fill": "toself",
        "fillcolor": fade(colour, 0.16),
        "line": {"width": 0},
        "hoverinfo": "skip",
        "legendgroup": group,
        "showlegend": False,
    }


def _mean(values: np.ndarray, axis: int) -> np.ndarray:
    counts = np.isfinite(values).sum(axis)
    total = np.where(np.isfinite(values), values, 0).sum(axis)
    return np.asarray(np.where(counts > 0, total / np.maximum(counts, 1), np.nan))


def _extent(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low = np.where(np.isfinite(values), values, np.inf).min(0)
    high = np.where(np.isfinite(values), values, -np.inf).max(0)
    return low, high


def collect_panels(panels: Sequence[Panel | None], id: str, title: str, aid: str, source: str) -> Figure | None:
    """A figure of those panels there are; None where there are none."""
    kept = [p for p in panels if p is not None]
    if not kept:
        return None
    name_once(kept)
    columns = 3 if len(kept) % 3 == 0 else 2
    return Figure(id, title, aid, build(kept, columns=columns, row_height=220, min_width=205, showlegend=True), source)
