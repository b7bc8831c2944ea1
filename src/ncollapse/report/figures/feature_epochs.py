"""Features over the epochs, in the principal components of the last one, with an epoch slider."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncollapse.compare import Variant
from ncollapse.compare.numbers import show
from ncollapse.grammar import join
from ncollapse.report.encoding import compact
from ncollapse.report.figures.features import BARE, equal_axes
from ncollapse.report.panels import Figure, Panel, Spec, build, escape, side_by_side
from ncollapse.report.slider import attach_slider, latest, list_epochs
from ncollapse.report.snapshots import Epochs
from ncollapse.report.style import INK, class_colour
from ncollapse.runs.epoch_snapshots import Arrays, EpochSnapshots, reduce_features
from ncollapse.runs.record import RunRecord

NUMBERED = 20
"""Up to so many classes carry their number."""


def draw_feature_epochs(variants: Sequence[Variant], epochs: Epochs) -> Figure | None:
    """The features of each variant's first run, one panel a variant; None unless several epochs were kept."""
    runs: list[tuple[Variant, RunRecord, EpochSnapshots]] = []
    for variant in variants:
        record = next((r for r in variant.counted if has_features(epochs.get(r.path, {}))), None)
        if record is not None:
            runs.append((variant, record, reduce_features(dict(epochs[record.path]))))
    if not runs:
        return None
    titles = [escape(variant.label) for variant, _, _ in runs]
    ranges = [find_range(found) for _, _, found in runs]
    positions = []
    for epoch in list_epochs(found for _, _, found in runs):
        panels = [lay_cloud(t, latest(found, epoch)[1], r) for t, (_, _, found), r in zip(titles, runs, ranges)]
        positions.append((str(epoch), panels))
    last, panels = positions.pop()
    numbered = any(trace["mode"] == "text" for panel in panels for trace in panel.traces)
    marks = (
        "numbers the classes, above the mean of their training samples" if numbered else "colours tell classes apart"
    )
    equal_axes(panels, 1, square=True)
    columns = side_by_side(len(panels))
    spec = build(
        panels,
        columns=columns,
        row_height=330 if columns < 3 else 260,  # squares: the height of a row is the width of its panels on a page
        min_width=230,
        bottom=12,
        gap_y=44,
        any_order=True,
        showlegend=False,
    )
    return Figure(
        "feature-epochs",
        "Features over the epochs",
        f"Dots are training samples, circles test samples, {marks}. Every epoch is drawn in the first two principal "
        "components of the last one and around its own mean, so that positions and distances compare between epochs. "
        "First seed of each loss.",
        attach_slider(spec, positions, last),
        "Papyan et al. 2020, Fig. 1",
        result=describe_shrinking(runs),
    )


def has_features(epochs: EpochSnapshots) -> bool:
    """Whether every snapshot has features of at least two dimensions and as many as the others."""
    shapes = {arrays["train.features"].shape[1] if "train.features" in arrays else 0 for arrays in epochs.values()}
    return len(shapes) == 1 and min(shapes) >= 2


def find_range(epochs: EpochSnapshots) -> float:
    """Half the width of a square around the origin that holds nearly all features of every epoch."""
    sizes = [np.abs(points).max(1) for arrays in epochs.values() for points, _ in find_clouds(arrays)]
    return 1.06 * max(min(float(size.max()), 1.5 * float(np.quantile(size, 0.99))) for size in sizes) or 1.0


def find_clouds(arrays: Arrays) -> list[tuple[np.ndarray, np.ndarray]]:
    """Points in the plane and labels of the training and the test samples, around the mean of the training samples."""
    middle = arrays["train.features"][:, :2].mean(0)
    splits = [split for split in ("train", "test") if f"{split}.features" in arrays]
    return [(arrays[f"{split}.features"][:, :2] - middle, arrays[f"{split}.labels"]) for split in splits]


def lay_cloud(title: str, arrays: Arrays, reach: float) -> Panel:
    """The features of one epoch as a panel."""
    traces: list[Spec] = []
    clouds = find_clouds(arrays)
    classes = max(int(labels.max()) for _, labels in clouds) + 1
    for (points, labels), split in zip(clouds, ("train", "test")):
        colours = [class_colour(int(k), classes) for k in labels]
        marker = {"color": colours, "size": 6, "opacity": 0.85}
        if split == "test":
            marker = {"symbol": "circle-open", "color": colours, "size": 6, "line": {"width": 1}}
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": compact(points[:, 0], 3),
                "y": compact(points[:, 1], 3),
                "marker": marker,
                "text": [f"class {int(k)}, {split}" for k in labels],
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    points, labels = clouds[0]
    if classes <= NUMBERED:
        present = np.unique(labels)
        middles = np.stack([points[labels == k].mean(0) for k in present])
        traces.append(
            {
                "type": "scatter",
                "mode": "text",
                "x": compact(middles[:, 0], 3),
                "y": compact(middles[:, 1] + 0.07 * reach, 3),
                "text": [f"<b>{int(k)}</b>" for k in present],
                "textfont": {"size": 13, "color": INK},
                "hoverinfo": "skip",
            }
        )
    limits = compact([-reach, reach], 3)
    return Panel(title, traces, {**BARE, "range": limits}, {**BARE, "range": limits})


def describe_shrinking(runs: Sequence[tuple[Variant, RunRecord, EpochSnapshots]]) -> str:
    """How far NC1 of the training set fell between the first and the last snapshot of each variant."""
    said = []
    for variant, record, epochs in runs:
        known = dict(zip(*record.series("train.nc1")))
        first, last = min(epochs), max(epochs)
        if first in known and last in known:
            ends = f"from {show(known[first], 2)} at epoch {first} to {show(known[last], 2)} at epoch {last}"
            said.append(f"{ends} ({variant.label})")
    return f"Train NC1 goes {join(said)}." if said and len(said) <= 3 else ""
