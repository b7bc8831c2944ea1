"""Distributions over samples: violins of scores and biases with the predicted values, and cosine margins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ncollapse.compare import Variant, is_number, name_loss
from ncollapse.grammar import join
from ncollapse.report.encoding import compact
from ncollapse.report.figures.curves import MANY
from ncollapse.report.panels import Figure, Panel, Spec, build, escape, merge_alike, name_once
from ncollapse.report.style import DASHES, INK, PAPER, fade, loss_style
from ncollapse.runs.record import RunRecord, get_nested

Snapshots = dict[Path, dict[str, np.ndarray]]
SLANTED = 18
"""Up to so many letters labels below the violins are slanted; longer ones would leave the page on the left."""
SCORES = {
    "positive_score": ("positive scores", "var:positive"),
    "bias": ("biases", "var:faint"),
    "negative_score": ("negative scores", "var:negative"),
}
"""Scores by their sign have colours of their own; the colours of losses mean losses."""


def draw_scores(variants: Sequence[Variant], snapshots: Snapshots) -> Figure | None:
    """Violins of positive scores, biases and negative scores on one axis, one run beside the other."""
    places, ticks = place_runs(variants, snapshots)
    traces: list[Spec] = []
    for field in SCORES:
        traces += _score_traces(field, variants, snapshots, places)
    if not traces:
        return None
    axis: Spec = {
        "tickvals": [p for p, _ in ticks],
        "ticktext": [escape(t) for _, t in ticks],
        "ticks": "",
        "zeroline": False,
        "range": [-0.9, max(places.values()) + 0.9],
    }
    longest = max(len(text) for _, text in ticks)
    panel = Panel("scores and biases", merge_alike(traces), axis, {"zeroline": True})
    room = 46
    if sum(len(text) for _, text in ticks) > 40:
        axis["tickangle"] = -60 if longest <= SLANTED else -90
        room = min(700, 30 + round(longest * (5.8 if longest <= SLANTED else 6.8)))
    name_once([panel])
    spec = build([panel], columns=1, row_height=360, min_width=205, bottom=room, showlegend=True)
    return Figure(
        "scores",
        "Scores and biases at the end of training",
        "One column per run: left half train, right half test, the mark its mean; the dash is the predicted value. "
        "All three share one axis: a classifier separates well when the biases lie between negative and positive "
        "scores.",
        spec,
        "bce-vs-ce Figs. 3, 7",
        result=describe_separation([r for v in variants for r in v.counted]),
    )


def describe_separation(records: Sequence[RunRecord]) -> str:
    """In how many runs the mean bias separates all training scores, and in how many it lies between their means."""
    known = []
    for record in records:
        spreads = [get_nested(record.summary or {}, f"train.{name}") for name in SCORES]
        if all(isinstance(spread, dict) for spread in spreads):
            known.append(spreads)
    if not known:
        return ""
    ends = [(p.get("min"), b.get("mean"), n.get("max")) for p, b, n in known]
    full = sum(all(is_number(v) for v in end) and end[2] < end[1] < end[0] for end in ends)
    means = [(p.get("mean"), b.get("mean"), n.get("mean")) for p, b, n in known]
    between = sum(all(is_number(v) for v in mean) and mean[2] < mean[1] < mean[0] for mean in means)
    runs = f"{len(known)} runs" if len(known) > 1 else "1 run"
    return (
        f"In {between} of {runs} the mean bias lies between the mean negative and the mean positive score; in {full} "
        "it separates every training score."
    )


def draw_margins(variants: Sequence[Variant], snapshots: Snapshots) -> Figure | None:
    """Sorted cosine margins: the share of samples whose margin is at most the height of the curve."""
    many = len(variants) > MANY
    contexts = list(dict.fromkeys(v.context for v in variants))
    panels = []
    for split in ("train", "test"):
        traces: list[Spec] = []
        for variant in variants:
            for record in variant.counted:
                found = histogram(snapshots.get(record.path), f"{split}.margin")
                if found is None:
                    continue
                share, heights = sorted_values(*found)
                style = loss_style(variant.loss)
                dash = "solid" if many else DASHES[contexts.index(variant.context) % len(DASHES)]
                traces.append(
                    {
                        "type": "scatter",
                        "mode": "lines",
                        "name": escape(name_loss(variant.loss) if many else variant.label),
                        "legendgroup": escape(variant.loss if many else variant.label),
                        "showlegend": False,
                        "x": compact(share, 4),
                        "y": compact(heights, 4),
                        "line": {"color": style.colour, "width": 1 if many else 1.6, "dash": dash},
                        "opacity": 0.5 if many else 0.85,
                        "hovertemplate": "%{x:.1%} of samples at most %{y:.3f}<extra>%{fullData.name}</extra>",
                    }
                )
        if traces:
            x = {
                "tickformat": ".2~%",
                "tickvals": [0, 0.25, 0.5, 0.75, 1],
                "title": {"text": "share of samples, ascending", "standoff": 4},
            }
            panels.append(
                Panel(f"{split} cosine margin", merge_alike(traces), x, {"zeroline": True, "zerolinecolor": INK})
            )
    if not panels:
        return None
    name_once(panels)
    return Figure(
        "margins",
        "Cosine margins",
        "Each sample's cosine to its own class vector less the largest to another, sorted. Below zero it is nearer to "
        "another class; a flat curve means every sample is as safe as the next. One line per run.",
        build(panels, columns=2, row_height=250, showlegend=True),
        "mse-landscape Figs. 3–6",
        result=describe_margins(variants, snapshots),
    )


def sorted_values(edges: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shares and values of a histogram's samples in ascending order, one point a filled bin: no stairs, no jumps.

    Each filled bin stands at its middle, by the middle of the samples in it; the ends are the outer edges.
    """
    filled = np.flatnonzero(counts)
    total = counts.sum()
    upper = np.cumsum(counts)[filled] / total
    share = upper - counts[filled] / total / 2
    values = (edges[filled] + edges[filled + 1]) / 2
    return np.concatenate([[0], share, [1]]), np.concatenate([[edges[filled[0]]], values, [edges[filled[-1] + 1]]])


def share_below_zero(edges: np.ndarray, counts: np.ndarray) -> float:
    """The share of a histogram's samples below zero, a bin across zero counted in proportion."""
    widths = np.diff(edges)
    part = np.clip((0 - edges[:-1]) / np.where(widths > 0, widths, 1), 0, 1)
    return float((part * counts).sum() / counts.sum())


def describe_margins(variants: Sequence[Variant], snapshots: Snapshots) -> str:
    """The share of test samples that are nearer to another class, variant by variant."""
    said = []
    for variant in variants:
        found = [histogram(snapshots.get(r.path), "test.margin") for r in variant.counted]
        shares = [share_below_zero(*h) for h in found if h is not None]
        if shares:
            said.append(f"{100 * sum(shares) / len(shares):.1f} % ({variant.label})")
    if not said or len(said) > MANY:
        return ""
    return f"Test samples with a negative margin, that is nearer to another class: {join(said)}."


def place_runs(variants: Sequence[Variant], snapshots: Snapshots) -> tuple[dict[Path, float], list[tuple[float, str]]]:
    """A place on the axis for every run: by loss where only the loss varies, else by the other settings."""
    kept = [(v, [r for r in v.counted if r.path in snapshots]) for v in variants]
    kept = [(v, runs) for v, runs in kept if runs]
    contexts = list(dict.fromkeys(v.context for v, _ in kept))
    places: dict[Path, float] = {}
    ticks: list[tuple[float, str]] = []
    cursor = 0.0
    if len(contexts) == 1:
        for variant, runs in kept:
            ticks.append((cursor + (len(runs) - 1) / 2, variant.label))
            for run in runs:
                places[run.path] = cursor
                cursor += 1
            cursor += 0.6
        return places, ticks
    for context in contexts:
        inside = [(v, runs) for v, runs in kept if v.context == context]
        count = sum(len(runs) for _, runs in inside)
        first = inside[0][0]
        ticks.append((cursor + (count - 1) / 2, first.label.split(" · ", 1)[-1]))
        for _, runs in inside:
            for run in runs:
                places[run.path] = cursor
                cursor += 1
        cursor += 0.8
    return places, ticks


def histogram(snapshot: dict[str, np.ndarray] | None, name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Edges and counts of a stored histogram, None where it is missing, empty or does not fit."""
    if snapshot is None or f"{name}.edges" not in snapshot or f"{name}.counts" not in snapshot:
        return None
    edges = np.asarray(snapshot[f"{name}.edges"], dtype=np.float64)
    counts = np.asarray(snapshot[f"{name}.counts"], dtype=np.float64)
    if edges.ndim != 1 or counts.shape != (edges.size - 1,) or counts.sum() <= 0 or not np.isfinite(edges).all():
        return None
    return edges, counts


def half_violin(
    edges: np.ndarray, counts: np.ndarray, place: float, side: int, points: int = 28
) -> tuple[list[Any], list[Any]]:
    """The outline of half a violin: density against value, on the left (-1) or right (1) of its place."""
    filled = np.flatnonzero(counts)
    edges, counts = edges[filled[0] : filled[-1] + 2], counts[filled[0] : filled[-1] + 1]
    group = math.ceil(counts.size / points)
    starts = np.arange(0, counts.size, group)
    totals = np.add.reduceat(counts, starts)
    bounds = np.append(edges[starts], edges[-1])
    widths = np.diff(bounds)
    density = totals / np.where(widths > 0, widths, 1)
    density = np.convolve(np.pad(density, 1), [0.25, 0.5, 0.25], "valid") if density.size > 4 else density
    density = density / density.max()
    centres = (bounds[:-1] + bounds[1:]) / 2
    x = [place, *(place + side * 0.44 * density), place]
    y = [bounds[0], *centres, bounds[-1]]
    return compact(x), compact(y)


def _score_traces(
    field: str, variants: Sequence[Variant], snapshots: Snapshots, places: dict[Path, float]
) -> list[Spec]:
    title, colour = SCORES[field]
    traces: list[Spec] = []
    predicted: list[tuple[float, float]] = []
    for variant in variants:
        for record in variant.counted:
            if record.path not in places:
                continue
            place = places[record.path]
            outlines = _outlines(snapshots[record.path], field, place)
            common = {"legendgroup": title, "showlegend": False, "name": title}
            for side, (x, y) in outlines:
                shade = fade(colour, 0.6 if side < 0 else 0.3)
                shape = {"type": "scatter", "mode": "lines", "fill": "toself", "fillcolor": shade}
                line = {"color": colour, "width": 1}
                traces.append({**common, **shape, "line": line, "x": x, "y": y, "hoverinfo": "skip"})
            if outlines:
                traces.append({**common, **_mean_dot(variant, record, field, place, colour)})
            value = get_nested(record.summary or {}, f"prediction.{field}")
            if is_number(value):
                predicted.append((place, float(value)))
    if predicted:
        mark = {"symbol": "line-ew-open", "size": 17 if len(places) < 25 else 9, "line": {"width": 2.5, "color": INK}}
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "predicted",
                "legendgroup": "predicted",
                "showlegend": False,
                "x": compact(p for p, _ in predicted),
                "y": compact(v for _, v in predicted),
                "marker": {**mark, "color": INK},
                "hovertemplate": f"{title}: predicted %{{y:.4g}}<extra></extra>",
            }
        )
    return traces


def _outlines(
    snapshot: dict[str, np.ndarray], field: str, place: float
) -> list[tuple[int, tuple[list[Any], list[Any]]]]:
    if field == "bias":
        biases = snapshot.get("bias")
        if biases is None or biases.size < 1 or not np.isfinite(biases).all():
            return []
        counts, edges = np.histogram(np.asarray(biases, dtype=np.float64), bins=min(24, max(5, biases.size // 2)))
        return [(side, half_violin(edges, counts.astype(np.float64), place, side)) for side in (-1, 1)]
    found = [(side, histogram(snapshot, f"{split}.{field}")) for split, side in (("train", -1), ("test", 1))]
    return [(side, half_violin(*h, place, side)) for side, h in found if h is not None]


def _mean_dot(variant: Variant, record: RunRecord, field: str, place: float, colour: str) -> Spec:
    spread = get_nested(record.summary or {}, f"train.{field}")
    mean, std = (spread.get("mean"), spread.get("std")) if isinstance(spread, dict) else (None, None)
    about = f"{variant.label}, seed {record.seed}" + (f", std {std:.3g}" if isinstance(std, float) else "")
    marker = loss_style(variant.loss).marker
    return {
        "type": "scatter",
        "mode": "markers",
        "x": compact([place]),
        "y": compact([mean if is_number(mean) else math.nan]),
        "marker": {"color": PAPER, "symbol": marker, "size": 6, "line": {"color": colour, "width": 1.5}},
        "text": [escape(about)],
        "hovertemplate": "train mean %{y:.4g}<br>%{text}<extra>%{fullData.name}</extra>",
    }
