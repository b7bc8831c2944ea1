"""Distributions over samples: violins of scores and biases with the predicted values, and cosine margins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ncollapse.compare.variants import LOSSES, Variant
from ncollapse.report.figures.curves import MANY
from ncollapse.report.numbers import compact
from ncollapse.report.panels import GAP_Y, Figure, Panel, Spec, arrange, build, escape, merge_alike, name_once
from ncollapse.report.style import DASHES, INK, PAPER, fade, look
from ncollapse.runs.record import RunRecord, get_nested

Snapshots = dict[Path, dict[str, np.ndarray]]
SLANTED = 18
"""Up to so many letters labels below the violins are slanted; longer ones would leave the page on the left."""
SCORES = {"positive_score": "positive scores", "negative_score": "negative scores", "bias": "biases"}


def draw_scores(variants: Sequence[Variant], snapshots: Snapshots) -> Figure | None:
    """Violins of positive and negative scores (left half train, right half test) and of the biases, one per run."""
    places, ticks = place_runs(variants, snapshots)
    panels = [_score_panel(field, title, variants, snapshots, places, ticks) for field, title in SCORES.items()]
    kept = [p for p in panels if p is not None]
    if not kept:
        return None
    name_once(kept)
    wide = len(places) > 24
    longest = max(len(text) for _, text in ticks)
    spec = build(kept, columns=1 if wide else 3, row_height=240, min_width=205, showlegend=True)
    if longest > 8:
        room = min(700, 30 + round(longest * (5.8 if longest <= SLANTED else 6.8)))
        spec["layout"]["meta"] |= {"bottom": room} if wide else {"bottom": room, "gap_y": max(GAP_Y, room + 30)}
        arrange(spec, spec["layout"]["width"])
    if wide:
        for index in range(1, len(kept)):
            spec["layout"]["xaxis" if index == 1 else f"xaxis{index}"]["showticklabels"] = False
    return Figure(
        "scores",
        "Scores and biases at the end of training",
        "One violin per run: left half train, right half test, the mark its mean; the dash is the predicted value. "
        "A classifier separates well when the biases lie between negative and positive scores.",
        spec,
        "bce-vs-ce Figs. 3, 7",
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
                edges, counts = found
                share = np.concatenate([[0], np.cumsum(counts)]) / counts.sum()
                style = look(variant.loss)
                dash = "solid" if many else DASHES[contexts.index(variant.context) % len(DASHES)]
                traces.append(
                    {
                        "type": "scatter",
                        "mode": "lines",
                        "name": escape(LOSSES.get(variant.loss, variant.loss) if many else variant.label),
                        "legendgroup": escape(variant.loss if many else variant.label),
                        "showlegend": False,
                        "x": compact(share, 4),
                        "y": compact(edges, 4),
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
    )


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


def _score_panel(
    field: str,
    title: str,
    variants: Sequence[Variant],
    snapshots: Snapshots,
    places: dict[Path, float],
    ticks: list[tuple[float, str]],
) -> Panel | None:
    traces: list[Spec] = []
    predicted: list[tuple[float, float]] = []
    for variant in variants:
        style = look(variant.loss)
        for record in variant.counted:
            if record.path not in places:
                continue
            place = places[record.path]
            outlines = _outlines(snapshots[record.path], field, place)
            common = {
                "legendgroup": escape(variant.loss),
                "showlegend": False,
                "name": escape(LOSSES.get(variant.loss, variant.loss)),
            }
            for side, (x, y) in outlines:
                shade = fade(style.colour, 0.55 if side < 0 else 0.25)
                line = {"color": style.colour, "width": 1}
                shape = {"type": "scatter", "mode": "lines", "fill": "toself", "fillcolor": shade, "line": line}
                traces.append({**common, **shape, "x": x, "y": y, "hoverinfo": "skip"})
            if outlines:
                traces.append({**common, **_mean_dot(record, field, place, style.colour, style.marker)})
            value = get_nested(record.summary or {}, f"prediction.{field}")
            if isinstance(value, (int, float)) and math.isfinite(value):
                predicted.append((place, float(value)))
    if not traces:
        return None
    traces = merge_alike(traces)
    if predicted:
        mark = {"symbol": "line-ew-open", "size": 15 if len(places) < 25 else 9, "line": {"width": 2.5, "color": INK}}
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
                "hovertemplate": "predicted %{y:.4g}<extra></extra>",
            }
        )
    axis: Spec = {
        "tickvals": [p for p, _ in ticks],
        "ticktext": [escape(t) for _, t in ticks],
        "ticks": "",
        "zeroline": False,
        "range": [-0.9, max(places.values()) + 0.9],
    }
    if max(len(t) for _, t in ticks) > 8:
        axis["tickangle"] = -60 if max(len(t) for _, t in ticks) <= SLANTED else -90
    return Panel(title, traces, axis, {"zeroline": True})


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


def _mean_dot(record: RunRecord, field: str, place: float, colour: str, marker: str) -> Spec:
    spread = get_nested(record.summary or {}, f"train.{field}")
    mean, std = (spread.get("mean"), spread.get("std")) if isinstance(spread, dict) else (None, None)
    return {
        "type": "scatter",
        "mode": "markers",
        "x": compact([place]),
        "y": compact([mean if isinstance(mean, (int, float)) else math.nan]),
        "marker": {"color": PAPER, "symbol": marker, "size": 6, "line": {"color": colour, "width": 1.5}},
        "text": [
            escape(f"{record.run_id}, seed {record.seed}, std {std:.3g}" if isinstance(std, float) else record.run_id)
        ],
        "hovertemplate": "train mean %{y:.4g}<br>%{text}<extra>%{fullData.name}</extra>",
    }
