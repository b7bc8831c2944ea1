"""The features themselves: t-SNE and principal components per loss, and the space where it has three dimensions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ncollapse.compare import Variant
from ncollapse.one_thread import one_thread
from ncollapse.report.encoding import compact
from ncollapse.report.panels import Figure, Panel, Spec, build, escape, side_by_side
from ncollapse.report.snapshots import Snapshots
from ncollapse.report.style import FAINT, GRID, INK, VEIL, class_colour
from ncollapse.runs.record import RunRecord

SAMPLES = 600
BARE = {"showticklabels": False, "ticks": "", "showgrid": False, "zeroline": False, "showline": True, "mirror": True}
"""Axes whose numbers mean nothing."""


def draw_embedding(
    variants: Sequence[Variant], snapshots: Snapshots, split: str = "test", components: bool = True
) -> Figure | None:
    """t-SNE of each variant's first run, above principal components unless another figure shows those."""
    runs = [(v, r) for v in variants if (r := first_run(v, snapshots, split)) is not None]
    runs = [(v, r) for v, r in runs if snapshots[r.path][f"{split}.features"].shape[1] > 2]
    if not runs:
        return None
    upper, lower = [], []
    for variant, record in runs:
        maps = embed(record, split)
        if maps is None:
            continue
        labels, tsne, pca = maps
        upper.append(scatter_panel(f"t-SNE: {escape(variant.label)}", tsne, labels))
        lower.append(scatter_panel(f"principal components: {escape(variant.label)}", pca, labels))
    if not upper:
        return None
    # up to three side by side, t-SNE above components; more of them in rows of two pairs
    few = len(upper) <= 3
    lower = lower if components else []
    panels = [*upper, *lower] if few or not lower else [panel for pair in zip(upper, lower) for panel in pair]
    for place, panel in enumerate(panels, 1):
        if any(panel is other for other in lower):
            equal_axes([panel], place)
    return Figure(
        "embedding",
        f"Features of the {split} set",
        "Tight clusters far from each other are compact and distinct features. Distances between clusters have no "
        "meaning in t\u2011SNE"
        + (", but do in the principal components, whose axes share one scale" if lower else "")
        + f". {'Numbers mark' if any(p.annotations for p in panels) else 'Colours tell apart'} the classes. First seed "
        "of each loss.",
        build(
            panels,
            columns=side_by_side(len(upper)) if few or not lower else 4,
            row_height=300,
            min_width=230,
            bottom=12,
            any_order=not lower,
            showlegend=False,
        ),
        "bce-vs-ce, early version, Fig. 4",
    )


def draw_space(variants: Sequence[Variant], snapshots: Snapshots) -> list[Figure]:
    """Training features and classifier vectors of runs whose features have three dimensions, one figure a variant."""
    figures = []
    for number, variant in enumerate(variants):
        record = first_run(variant, snapshots, "train")
        if record is None or snapshots[record.path]["train.features"].shape[1] != 3:
            continue
        snapshot = snapshots[record.path]
        features, labels = subsample(snapshot["train.features"], snapshot["train.labels"])
        if np.ptp(features, axis=0).max() == 0:  # training has failed: every feature is the same
            continue
        axis = {"backgroundcolor": "rgba(0,0,0,0)", "gridcolor": GRID, "zerolinecolor": FAINT, "nticks": 5}
        names = zip(("xaxis", "yaxis", "zaxis"), ("h₁", "h₂", "h₃"))
        scene: Spec = {place: {"title": {"text": name}, **axis} for place, name in names}
        scene |= {"aspectmode": "data", "camera": {"eye": {"x": 1.5, "y": 1.5, "z": 0.9}, "center": {"z": -0.12}}}
        layout = {
            "scene": scene,
            "height": 520,
            "margin": {"l": 0, "r": 0, "t": 36, "b": 0},
            "legend": {"orientation": "h", "y": 1.06, "itemsizing": "constant"},
        }
        data = place_clouds(features, labels, snapshot.get("weight"))
        figures.append(
            Figure(
                f"space-{number}",
                f"Features of {variant.label} in three dimensions",
                "Drag to turn. Dots are training samples; the line of a colour is the classifier's vector of that "
                "class, drawn as long as the longest feature. Three dimensions hold no simplex of five or more "
                "classes, so some stay close.",
                {"data": data, "layout": {**layout, "font": {"color": INK}, "paper_bgcolor": "rgba(0,0,0,0)"}},
                "mse-landscape Fig. 7",
            )
        )
    return figures


def place_clouds(features: np.ndarray, labels: np.ndarray, weight: np.ndarray | None) -> list[Spec]:
    """The samples of each class as dots in space, and the classifier's vector of the class as a line."""
    classes = int(labels.max()) + 1
    data: list[Spec] = []
    reach = float(np.linalg.norm(features, axis=1).max())
    for k in range(classes):
        cloud, colour = features[labels == k], class_colour(k, classes)
        base: Spec = {"type": "scatter3d", "name": f"class {k}", "legendgroup": str(k)}
        base["hovertemplate"] = f"class {k}<extra></extra>"
        points = {axis: compact(cloud[:, i], 4) for i, axis in enumerate("xyz")}
        marker = {"size": 3, "color": colour, "opacity": 0.8}
        data.append({**base, "mode": "markers", **points, "marker": marker, "showlegend": classes <= 20})
        if weight is not None and weight.shape[1] == 3 and k < len(weight) and np.linalg.norm(weight[k]) > 0:
            end = weight[k] / np.linalg.norm(weight[k]) * reach
            ray = {axis: compact([0.0, float(end[i])], 4) for i, axis in enumerate("xyz")}
            data.append({**base, "mode": "lines", **ray, "line": {"color": colour, "width": 5}, "showlegend": False})
    return data


def first_run(variant: Variant, snapshots: Snapshots, split: str) -> RunRecord | None:
    """The first counted run whose snapshot holds usable features."""
    for record in variant.counted:
        snapshot = snapshots.get(record.path, {})
        features, labels = snapshot.get(f"{split}.features"), snapshot.get(f"{split}.labels")
        if features is None or labels is None or features.ndim != 2 or labels.shape != features.shape[:1]:
            continue
        if features.shape[0] >= 10 and np.isfinite(features).all():
            return record
    return None


def subsample(features: np.ndarray, labels: np.ndarray, total: int = SAMPLES) -> tuple[np.ndarray, np.ndarray]:
    """The first few samples of every class, `total` in all or fewer; the snapshot's own order is already random."""
    classes = np.unique(labels)
    each = max(1, total // max(1, classes.size))
    index = np.sort(np.concatenate([np.flatnonzero(labels == k)[:each] for k in classes]))
    return np.asarray(features[index], dtype=np.float64), np.asarray(labels[index])


def embed(record: RunRecord, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """`embed_run` of a record, computed again when its snapshot has changed."""
    return embed_run(str(record.path), _stamp(record), split)


@lru_cache(maxsize=64)
def embed_run(path: str, stamp: float, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Labels, t-SNE and principal components of a run's kept features; `stamp` lets a live page see a new snapshot."""
    snapshot = RunRecord(Path(path), "").snapshot()
    if snapshot is None:
        return None
    features, labels = subsample(snapshot[f"{split}.features"], snapshot[f"{split}.labels"])
    from sklearn.manifold import TSNE

    centred = features - features.mean(0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    components = centred @ axes.T
    if sizes[0] <= 1e-12 * max(1.0, float(np.abs(features).max())):
        return None
    perplexity = min(30.0, (features.shape[0] - 1) / 3)
    start = components[:, :2] / components[:, 0].std() * 1e-4
    # A few hundred points are done sooner by one thread than by threads that wait for each other.
    with warnings.catch_warnings(), one_thread():
        warnings.simplefilter("ignore")
        tsne = TSNE(init=start, perplexity=perplexity, max_iter=500, random_state=0)
        placed = np.asarray(tsne.fit_transform(components[:, :50]))
    return labels, placed, components[:, :2]


def scatter_panel(title: str, points: np.ndarray, labels: np.ndarray) -> Panel:
    """Points in the plane coloured by class, the class's number at the middle of its cloud (up to twenty classes)."""
    classes = int(labels.max()) + 1
    colours = [class_colour(int(k), classes) for k in labels]
    trace: Spec = {
        "type": "scatter",
        "mode": "markers",
        "x": compact(points[:, 0], 4),
        "y": compact(points[:, 1], 4),
        "text": [f"class {int(k)}" for k in labels],
        "marker": {"color": colours, "size": 4, "opacity": 0.75},
        "hovertemplate": "%{text}<extra></extra>",
    }
    notes: list[Spec] = []
    if classes <= 20:
        for k in np.unique(labels):
            x, y = np.median(points[labels == k], axis=0)
            mark: dict[str, Any] = {"x": float(f"{x:.4g}"), "y": float(f"{y:.4g}"), "text": f"<b>{int(k)}</b>"}
            notes.append({**mark, "yshift": 12, "bgcolor": VEIL, "borderpad": 0, "font": {"size": 12}})
    return Panel(title, [trace], dict(BARE), dict(BARE), notes)


def equal_axes(panels: Sequence[Panel], first: int, square: bool = False) -> None:
    """Give panels one scale for both axes, because distances count in them; `first` is the number of the first.

    The axes are extended to fill the panel, or the panel shrinks to a `square`.
    """
    constrain = {"constrain": "domain" if square else "range"}
    for place, panel in enumerate(panels, first):
        panel.y = {**panel.y, "scaleanchor": "x" if place == 1 else f"x{place}", "scaleratio": 1}
        panel.x, panel.y = {**panel.x, **constrain}, {**panel.y, **constrain}


def _stamp(record: RunRecord) -> float:
    try:
        return (record.path / "snapshot.safetensors").stat().st_mtime
    except OSError:
        return 0.0
