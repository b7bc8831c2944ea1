"""Curves over epochs: the collapse metrics, accuracies, scores and the certified gap."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ncollapse.compare import Variant, estimate, is_number, measured, name_loss, predicted
from ncollapse.compare.seeds import rounding_limit
from ncollapse.grammar import join
from ncollapse.report.encoding import compact
from ncollapse.report.panels import Figure, Panel, Spec, build, escape, log_axis, merge_alike, name_once
from ncollapse.report.style import CLASS_COLOURS, DASHES, fade, loss_style
from ncollapse.runs.record import RunRecord

MANY = 8
NAMED = 24
"""Up to so many variants each line keeps its own label under the pointer; beyond, lines of a loss are joined."""
POINTS = 240
SIGNS = {
    "positive_score": ("positive score", "var:positive"),
    "bias": ("bias", "var:ink"),
    "negative_score": ("negative score", "var:negative"),
}
"""Scores by their sign have colours of their own; the colours of losses mean losses."""


def draw_collapse(variants: Sequence[Variant]) -> Figure | None:
    """NC1, NC2 and NC3 over epochs, train above test."""
    wanted = [("train", "nc1"), ("train", "nc2"), ("train", "nc3"), ("test", "nc1"), ("test", "nc3")]
    panels = [curve_panel(variants, f"{split}.{nc}", f"{split} {nc.upper()}", log=True) for split, nc in wanted]
    drawn = {nc.upper() for panel, (_, nc) in zip(panels, wanted) if panel is not None}
    about_nc2 = (
        "NC2 looks at W alone, so it is the same on the test set."
        if "NC2" in drawn
        else "NC2 is 0 or was not measured, and has no curve; with two classes it is always 0."
    )
    return collect_panels(
        panels,
        "collapse",
        f"{join(sorted(drawn))} over epochs",
        "Lower is more collapsed; a straight descent on this log axis is exponential. Lines are geometric means over "
        f"seeds, bands run from the smallest seed to the largest. {about_nc2}",
        "bce-vs-ce Figs. 2, 4–6; all-losses Figs. 1, 5, 8",
        describe_race(variants),
    )


def describe_race(variants: Sequence[Variant]) -> str:
    """Which variant comes below a value first, for that of NC1 to NC3 in which they differ most.

    The value is the smallest of 1, 2 and 5 times a power of ten that all variants reach.
    """
    best: tuple[float, str] = (0.0, "")
    if len({v.context for v in variants}) != 1:
        return ""
    for nc in ("nc1", "nc2", "nc3"):
        means = {v.label: mean_curve(v, f"train.{nc}") for v in variants}
        known = {label: found for label, found in means.items() if found and min(found.values()) > 0}
        if len(known) < 2 or len(known) > MANY:
            continue
        last = max(min(values.values()) for values in known.values())
        limit = next(v for v in round_numbers(last) if v >= last)
        epochs = {label: min(e for e, v in values.items() if v <= limit) for label, values in known.items()}
        ordered = sorted(epochs.items(), key=lambda item: item[1])
        ratio = (ordered[-1][1] + 1) / (ordered[0][1] + 1)
        if ratio == 1:
            continue
        (first, epoch), *rest = ordered
        others = join([f"{label} by {at}" for label, at in rest])
        text = f"{first} reaches {nc.upper()} below {limit:g} by epoch {epoch}, {others}."
        best = max(best, (ratio, text))
    return best[1]


def mean_curve(variant: Variant, key: str) -> dict[int, float]:
    """The geometric mean over seeds of a field, by epoch; nothing where it was not measured."""
    found = gather([r for r in variant.counted if r.history], key)
    if found is None:
        return {}
    epochs, values = found
    with np.errstate(all="ignore"):
        line = np.exp(_mean(np.log(np.where(values > rounding_limit(key), values, np.nan)), axis=0))
    return {e: float(v) for e, v in zip(epochs, line) if e > 0 and math.isfinite(v)}


def round_numbers(above: float) -> list[float]:
    """1, 2 and 5 times the powers of ten around a number, ascending.

    >>> round_numbers(0.03)
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5]
    """
    decade = math.floor(math.log10(above))
    return [float(f"{digit}e{power}") for power in range(decade - 1, decade + 2) for digit in (1, 2, 5)]


def draw_accuracy(variants: Sequence[Variant]) -> Figure | None:
    """Accuracy and uniform accuracy over epochs on every split that was measured."""
    splits = ("train", "validation", "test")
    panels = [curve_panel(variants, f"{s}.accuracy", f"{s} accuracy") for s in splits]
    panels += [curve_panel(variants, f"{s}.uniform_accuracy", f"{s} uniform accuracy") for s in splits]
    ends = [(v.label, estimate([measured(r, "test.accuracy") for r in v.counted]).mean) for v in variants]
    said = [f"{100 * value:.1f} % ({label})" for label, value in ends if math.isfinite(value)]
    return collect_panels(
        panels,
        "accuracy",
        "Accuracy and uniform accuracy",
        "Uniform accuracy counts a sample only if one threshold, the same for all samples, separates its positive "
        "score from all its negative ones.",
        "all-losses Figs. 2, 6; bce-vs-ce Eqs. 43–45",
        f"Test accuracy ends at {join(said)}." if said and len({v.context for v in variants}) == 1 else "",
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


def draw_scores(variants: Sequence[Variant]) -> Figure | None:
    """Mean positive scores, biases and negative scores over epochs on one axis, with the predicted values."""
    panels: list[Panel] = []
    for variant in variants[:MANY]:
        traces: list[Spec] = []
        prediction = next((p for r in variant.counted if (p := predicted(r))), {})
        for name, (title, colour) in SIGNS.items():
            found = gather([r for r in variant.counted if r.history], f"train.{name}.mean")
            if found is None:
                continue
            epochs, values = found
            common = {"type": "scatter", "legendgroup": title, "name": title, "showlegend": False}
            low, high = _extent(values)
            if values.shape[0] > 1:
                traces.append(_band(epochs, low, high, colour, title))
            line = {"color": colour, "width": 2}
            hover = {"hovertemplate": "%{y:.4g}"}
            traces.append(
                {**common, "mode": "lines", "x": epochs, "y": compact(_mean(values, 0)), "line": line, **hover}
            )
            target = prediction.get(name)
            if is_number(target):
                dotted = {"color": colour, "width": 1.5, "dash": "dot"}
                ends = {"x": [epochs[0], epochs[-1]], "y": compact([target, target])}
                shown = {"name": f"{title}, predicted", "legendgroup": f"{title}, predicted"}
                traces.append({**common, **shown, "mode": "lines", **ends, "line": dotted, "hoverinfo": "skip"})
        if traces:
            panels.append(Panel(escape(variant.label), traces, epoch_axis(traces), {"zeroline": True}))
    dotted_lines = ""
    if any(str(trace.get("name", "")).endswith(", predicted") for panel in panels for trace in panel.traces):
        dotted_lines = (
            " Dotted lines are predicted from the decays, the batch size and the number of classes; nothing is fitted."
        )
    return collect_panels(
        panels,
        "scores-epochs",
        "Scores and bias over epochs",
        "Mean positive score, bias and mean negative score of the training set on one axis." + dotted_lines,
        "bce-vs-ce Fig. 3",
    )


def curve_panel(variants: Sequence[Variant], key: str, title: str, log: bool = False) -> Panel | None:
    """Mean lines and seed bands of one field; None where no run has it.

    Colours tell losses apart, dashes the settings; where all have one loss, colours tell the settings apart too.
    """
    many = len(variants) > MANY
    alone = 1 < len(variants) <= len(CLASS_COLOURS) and len({v.loss for v in variants}) == 1
    contexts = list(dict.fromkeys(v.context for v in variants))
    traces: list[Spec] = []
    for variant in variants:
        found = gather([r for r in variant.records if r.history], key)
        if found is None:
            continue
        epochs, values = found
        if log:
            values = np.where(values > rounding_limit(key), values, np.nan)
            if not np.isfinite(values).any():
                continue
        style = loss_style(variant.loss)
        colour = CLASS_COLOURS[variants.index(variant)] if alone else style.colour
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
                "name": escape(name_loss(variant.loss) if many else variant.label),
                "legendgroup": escape(group),
                "showlegend": False,
                "legendrank": variants.index(variant),
                "x": x,
                "y": compact(line),
                "line": {"color": colour, "width": 1 if many else 2, "dash": dash},
                "opacity": 0.55 if many else 1,
                "marker": {"symbol": style.marker, "size": 7, "maxdisplayed": 7},
                "hovertemplate": f"%{{y:{'.4g' if log else '.2%'}}}<extra>{named}</extra>",
            }
        )
    if not traces:
        return None
    if many:
        traces = merge_alike(traces)
    y = log_axis([v for t in traces for v in t["y"] if v]) if log else {"tickformat": ".2~%"}
    return Panel(title, traces, epoch_axis(traces), y)


def epoch_axis(traces: Sequence[Spec]) -> Spec:
    """The axis of epochs, which are whole numbers."""
    last = max((e for trace in traces for e in trace["x"] if e is not None), default=0)
    return {"title": {"text": "epoch", "standoff": 4}, "rangemode": "tozero", **({"dtick": 1} if last <= 6 else {})}


def gather(records: Sequence[RunRecord], key: str, points: int = POINTS) -> tuple[list[int], np.ndarray] | None:
    """Epochs (thinned out to a few hundred) and values [runs, epochs] of a field, NaN where a run did not measure."""
    series = [dict(zip(*r.series(key))) for r in records]
    series = [s for s in series if any(math.isfinite(v) for v in s.values())]
    if not series:
        return None
    epochs = sorted({e for s in series for e in s})
    if len(epochs) > points:
        picked = np.unique(np.linspace(0, len(epochs) - 1, points).round().astype(int))
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


def collect_panels(
    panels: Sequence[Panel | None], id: str, title: str, method: str, source: str, result: str = ""
) -> Figure | None:
    """A figure of the panels that there are; None where there are none."""
    kept = [p for p in panels if p is not None]
    if not kept:
        return None
    name_once(kept)
    columns = 2 if len(kept) in (1, 2, 4) else 3
    spec = build(kept, columns=columns, row_height=220, min_width=205, showlegend=True, hovermode="x unified")
    return Figure(id, title, method, spec, source, result=result)
