"""Heat maps of the Gram matrices of classifier and class means beside their ideal frames."""

from __future__ import annotations

import numpy as np

from ncollapse.compare.variants import Variant
from ncollapse.report.figures.distributions import Snapshots
from ncollapse.report.numbers import compact_matrix
from ncollapse.report.panels import Figure, Panel, Spec, arrange, build
from ncollapse.report.style import DIVERGING

LARGEST = 60
RANGE = 0.4


def draw_frames(
    variant: Variant, number: int, snapshots: Snapshots, ideal: tuple[np.ndarray, np.ndarray] | None
) -> Figure | None:
    """W W^T, H^T H of the class means and W H of a variant's first run, above those of the predicted optimum.

    `ideal` holds the predicted weight and class means, [K, d] each; without it the simplex frame takes their place.
    """
    record = next((r for r in variant.counted if r.path in snapshots), None)
    if record is None:
        return None
    snapshot = snapshots[record.path]
    weight, means = snapshot.get("weight"), snapshot.get("train.class_means")
    if weight is None or means is None or weight.shape != means.shape or not np.isfinite(weight).all():
        return None
    classes = weight.shape[0]
    if classes < 2:
        return None
    if ideal is None or ideal[0].shape[0] != classes:
        simplex = np.eye(classes) - 1 / classes
        ideal = simplex, simplex
    step = -(-classes // LARGEST)
    rows = [grams(np.asarray(w, np.float64), np.asarray(h, np.float64)) for w, h in ((weight, means), ideal)]
    panels: list[Panel] = []
    for name, *pair in zip(("W Wᵀ", "Hᵀ H", "W H"), *rows):
        for kind, matrix in zip(("measured", "ideal"), pair):
            panels.append(lay_matrix(f"{kind} {name}", matrix[::step, ::step], len(panels)))
    notes = (f"Every {step}th class of {classes} is shown.",) if step > 1 else ()
    spec = build(panels, columns=3, row_height=230, min_width=200, coloraxis=scale_colours(), showlegend=False)
    spec["layout"]["meta"] |= {"paired": True, "gap": 24, "left": 8, "bottom": 16}
    return Figure(
        f"frames-{number}",
        f"Frames of {variant.label}",
        "H holds the class means. Each matrix is divided by the mean of its diagonal, and the colours stop at ±0.4 so "
        "that the small entries can be told apart. Collapse makes the measured matrix look like the ideal one.",
        arrange(spec, 1000),
        "imbalanced-relu Fig. 3",
        notes,
    )


def lay_matrix(title: str, matrix: np.ndarray, place: int) -> Panel:
    """A square matrix as a heat map, the `place`-th panel of its figure (from 0)."""
    trace = {
        "type": "heatmap",
        "z": compact_matrix(matrix),
        "coloraxis": "coloraxis",
        "hovertemplate": "classes %{y}, %{x}: %{z:.3f}<extra></extra>",
    }
    bare = {"showticklabels": False, "ticks": "", "showline": False, "constrain": "domain", "zeroline": False}
    anchor = f"x{place + 1}" if place else "x"
    return Panel(title, [trace], bare, {**bare, "autorange": "reversed", "scaleanchor": anchor})


def scale_colours() -> Spec:
    """The colours of matrices with a diagonal of 1: they stop early, so that the small entries can be told apart."""
    marks = {"tickvals": [-RANGE, 0, RANGE], "ticktext": [f"≤ −{RANGE}", "0", f"≥ {RANGE}"]}
    bar = {"thickness": 10, "len": 0.6, "outlinewidth": 0, "x": 1.01, **marks}
    return {"cmin": -RANGE, "cmax": RANGE, "colorscale": DIVERGING, "colorbar": bar}


def grams(weight: np.ndarray, means: np.ndarray) -> list[np.ndarray]:
    """W W^T, M M^T and W M^T, each divided by the mean size of its diagonal."""
    scaled = []
    for matrix in (weight @ weight.T, means @ means.T, weight @ means.T):
        size = np.abs(np.diag(matrix)).mean()
        scaled.append(matrix / size if size > 0 else matrix)
    return scaled
