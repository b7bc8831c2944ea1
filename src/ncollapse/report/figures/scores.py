"""Violins of scores and biases on one axis, with the predicted values and an epoch slider."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ncollapse.compare import Variant, is_number, name_loss
from ncollapse.grammar import join
from ncollapse.report.encoding import compact
from ncollapse.report.panels import Figure, Panel, Spec, build, escape, merge_alike, name_once, shorten_labels
from ncollapse.report.slider import attach_slider, latest, list_epochs
from ncollapse.report.snapshots import Epochs, Snapshots, histogram
from ncollapse.report.style import INK, PAPER, fade, loss_style
from ncollapse.runs.record import RunRecord, get_nested

MOST_SLIDING = 16
"""Up to so many runs the figure has an epoch slider."""
ONE_ABOVE_ANOTHER = 48
"""So many letters fit side by side on a phone: words of labels then stand one above another."""
SLANTED = 18
"""Up to so many letters labels below the violins are slanted; longer ones would leave the page on the left."""
SCORES = {
    "positive_score": ("positive scores", "var:positive"),
    "bias": ("biases", "var:faint"),
    "negative_score": ("negative scores", "var:negative"),
}
"""Scores by their sign have colours of their own; the colours of losses mean losses."""


def draw_scores(variants: Sequence[Variant], snapshots: Snapshots, epochs: Epochs | None = None) -> Figure | None:
    """Violins of positive scores, biases and negative scores on one axis, one run beside the other.

    With snapshots of single `epochs` of every run the figure has a slider.
    """
    places, ticks = place_runs(variants, snapshots)
    panel = lay_scores(variants, snapshots, places)
    if not panel.traces:
        return None
    labels = shorten_labels([text for _, text in ticks])
    panel.x |= {
        "tickvals": [p for p, _ in ticks],
        "ticktext": [escape(t) for t in labels],
        "ticks": "",
        "zeroline": False,
        "range": [-0.9, max(places.values()) + 0.9],
    }
    room = place_labels(panel, labels)
    positions, last = slide_scores(variants, places, epochs or {})
    if positions:
        panel.y["range"] = span_values([panel, *(p for _, (p,) in positions)])
    dash = "; the dash is the predicted value" if any(t.get("name") == "predicted" for t in panel.traces) else ""
    spec = build([panel], columns=1, row_height=360, min_width=205, bottom=room, showlegend=True)
    return Figure(
        "scores",
        "Scores and biases" if positions else "Scores and biases at the end of training",
        f"One column per run{describe_order(variants, places)}: left half train, right half test, the mark its "
        f"mean{dash}. All three share one axis: a classifier separates well when the biases lie between negative and "
        "positive scores.",
        attach_slider(spec, positions, last),
        "bce-vs-ce Figs. 3, 7",
        result=describe_separation([r for v in variants for r in v.counted]),
    )


def place_labels(panel: Panel, labels: Sequence[str]) -> int:
    """Turn or break the labels below the violins where they are long; return the room they need, in pixels."""
    longest = max(map(len, labels))
    if sum(map(len, labels)) <= 40:
        return 46
    parts = [label.split(" · ") for label in labels]
    if len(labels) * max(len(part) for words in parts for part in words) <= ONE_ABOVE_ANOTHER:
        panel.x["ticktext"] = ["<br>".join(map(escape, words)) for words in parts]
        return 30 + 16 * max(map(len, parts))
    panel.x["tickangle"] = -60 if longest <= SLANTED else -90
    return min(700, 30 + round(longest * (5.8 if longest <= SLANTED else 6.8)))


def slide_scores(
    variants: Sequence[Variant], places: dict[Path, float], epochs: Epochs
) -> tuple[list[tuple[str, list[Panel]]], str]:
    """The violins at each epoch before the end, and the label of the end; nothing unless all runs have snapshots."""
    known = {path: epochs[path] for path in places if path in epochs}
    if len(known) < len(places) or len(known) > MOST_SLIDING:
        return [], ""
    drawn = [r for v in variants for r in v.counted if r.path in places]
    ends = {r.path: get_nested(r.summary or {}, "selected_epoch") or max(known[r.path]) for r in drawn}
    positions = []
    for epoch in list_epochs(known.values()):
        now = {path: latest(found, epoch) for path, found in known.items()}
        if any(now[path][0] != ends[path] for path in now):
            arrays = {path: found for path, (_, found) in now.items()}
            panel = lay_scores(variants, arrays, places, {path: at for path, (at, _) in now.items()})
            positions.append((str(epoch), [panel]))
    trained = [max(found) for found in known.values()]
    return positions, str(max(trained)) if sorted(trained) == sorted(ends.values()) else "the reported epochs"


def lay_scores(
    variants: Sequence[Variant], snapshots: Snapshots, places: dict[Path, float], at: dict[Path, int] | None = None
) -> Panel:
    """The violins of runs at their places; means are those of the end of training, or of the epochs `at`."""
    traces: list[Spec] = []
    for field in SCORES:
        traces += _score_traces(field, variants, snapshots, places, at)
    for field in SCORES:
        traces += mark_predictions(field, variants, places)
    panel = Panel("scores and biases", merge_alike(traces), {}, {"zeroline": True})
    name_once([panel])
    return panel


def span_values(panels: Sequence[Panel]) -> list[float]:
    """The range of all values along the y axis of panels, with a little room."""
    values = [v for panel in panels for trace in panel.traces for v in trace["y"] if v is not None]
    room = 0.04 * (max(values) - min(values)) or 0.5
    return compact([min(values) - room, max(values) + room], 4)  # type: ignore[return-value]


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
    if len(known) == 1:
        place = "separates every training score" if full else "lies" if between else "does not lie"
        return f"The mean bias {place}{'' if full else ' between the mean negative and the mean positive score'}."
    runs = f"{len(known)} runs"
    return (
        f"In {between} of {runs} the mean bias lies between the mean negative and the mean positive score; in "
        f"{full or 'none'} it separates every training score."
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
        label = inside[0][0].label  # several losses side by side: `describe_order` names them
        ticks.append((cursor + (count - 1) / 2, label.split(" · ", 1)[-1] if len(inside) > 1 else label))
        for _, runs in inside:
            for run in runs:
                places[run.path] = cursor
                cursor += 1
        cursor += 0.8
    return places, ticks


def describe_order(variants: Sequence[Variant], places: dict[Path, float]) -> str:
    """Which losses stand side by side at each setting, as part of a sentence; nothing where each has its own label."""
    groups: dict[str, list[str]] = {}
    for variant in variants:
        if any(run.path in places for run in variant.counted):
            groups.setdefault(variant.context, []).append(name_loss(variant.loss))
    orders = {tuple(losses) for losses in groups.values()}
    if len(groups) < 2 or max(map(len, orders)) < 2:
        return ""
    if len(orders) > 1:
        return ", losses side by side told apart by their marks"
    return f", in each group from left to right {join(orders.pop())}"


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
    field: str,
    variants: Sequence[Variant],
    snapshots: Snapshots,
    places: dict[Path, float],
    at: dict[Path, int] | None,
) -> list[Spec]:
    title, colour = SCORES[field]
    traces: list[Spec] = []
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
                traces.append({**common, **_mean_dot(variant, record, field, place, colour, at)})
    return traces


def mark_predictions(field: str, variants: Sequence[Variant], places: dict[Path, float]) -> list[Spec]:
    """A dash at the predicted value of every run that has one."""
    predicted = [
        (places[record.path], float(value))
        for variant in variants
        for record in variant.counted
        if record.path in places and is_number(value := get_nested(record.summary or {}, f"prediction.{field}"))
    ]
    traces: list[Spec] = []
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
                "hovertemplate": f"{SCORES[field][0]}: predicted %{{y:.4g}}<extra></extra>",
            }
        )
    return traces


def find_spread(record: RunRecord, field: str, epoch: int | None) -> Any:
    """The spread of a field over the training set at an epoch, or at the end of training."""
    if epoch is None and record.summary and "train" in record.summary:
        return get_nested(record.summary, f"train.{field}")
    rows = [row for row in record.history if epoch is None or row.get("epoch") == epoch]
    return get_nested(rows[-1] if rows else {}, f"train.{field}")


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


def _mean_dot(
    variant: Variant, record: RunRecord, field: str, place: float, colour: str, at: dict[Path, int] | None
) -> Spec:
    spread = find_spread(record, field, None if at is None else at[record.path])
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
