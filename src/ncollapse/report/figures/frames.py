"""Heat maps of the Gram matrices of classifier and class means beside their ideal frames."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncollapse.compare import Variant
from ncollapse.report.encoding import compact_matrix
from ncollapse.report.figures.distributions import Snapshots
from ncollapse.report.panels import Figure, Panel, Spec, arrange, build
from ncollapse.report.style import DIVERGING

LARGEST = 60
NAMES = ("W Wᵀ", "Hᵀ H", "W H")


def draw_frames(
    variant: Variant, number: int, snapshots: Snapshots, ideal: tuple[np.ndarray, np.ndarray] | None
) -> Figure | None:
    """W W^T, H^T H of the class means and W H of a variant's first run, those of the optimum, and their difference.

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
    if classes < 2 or not np.isfinite(means).all():
        return None
    if ideal is None or ideal[0].shape[0] != classes:
        simplex = np.eye(classes) - 1 / classes
        ideal = simplex, simplex
    step = -(-classes // LARGEST)
    measured, best = (grams(np.asarray(w, np.float64), np.asarray(h, np.float64)) for w, h in ((weight, means), ideal))
    apart = [a - b for a, b in zip(measured, best)]
    limit = off_diagonal_limit([*measured, *best])
    worst = max(float(np.abs(a).max()) for a in apart)
    panels: list[Panel] = []
    for kind, matrices in (("measured", measured), ("ideal", best), ("measured − ideal", apart)):
        for name, matrix in zip(NAMES, matrices):
            axis = "coloraxis2" if matrices is apart else "coloraxis"
            panels.append(lay_matrix(f"{kind} {name}", matrix[::step, ::step], len(panels), axis, step))
    notes = (f"Every {step}th class of {classes} is shown.",) if step > 1 else ()
    scales: Spec = {
        "coloraxis": scale_colours(limit, 0.72),
        "coloraxis2": scale_colours(max(worst, 1e-9), 0.14, clipped=False),
    }
    spec = build(panels, columns=3, row_height=210, min_width=180, gap_y=56, showlegend=False, **scales)
    spec["layout"]["meta"] |= {"gap": 30, "left": 30, "bottom": 30, "right": 76}
    largest = [(float(np.abs(a).max()), float(np.sqrt((a**2).mean())), name) for name, a in zip(NAMES, apart)]
    most, rms, which = max(largest)
    return Figure(
        f"frames-{number}",
        f"Frames of {variant.label}",
        "H holds the class means. Each matrix is divided by the mean of its diagonal. Colours of the upper rows stop "
        f"at ±{limit:.2g}, the largest entry off the diagonal; the last row has a scale of its own.",
        arrange(spec, 1000),
        "imbalanced-relu Fig. 3",
        notes,
        f"Measured and ideal matrices differ most in {which}: by at most {most:.2g}, {rms:.2g} root mean square.",
    )


def off_diagonal_limit(matrices: Sequence[np.ndarray]) -> float:
    """The largest size off the diagonal, at least a hundredth of the diagonal: where the colours stop."""
    sizes = [float(np.abs(m[~np.eye(m.shape[0], dtype=bool)]).max()) for m in matrices]
    return float(min(1.0, max(0.01, *sizes)))


def lay_matrix(title: str, matrix: np.ndarray, place: int, coloraxis: str = "coloraxis", step: int = 1) -> Panel:
    """A square matrix as a heat map with its classes named, the `place`-th panel of its figure (from 0)."""
    names = [str(step * k) for k in range(matrix.shape[0])]
    trace = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": compact_matrix(matrix),
        "coloraxis": coloraxis,
        "hovertemplate": "classes %{y}, %{x}: %{z:.3f}<extra></extra>",
    }
    axis = {"type": "category", "ticks": "", "showline": False, "constrain": "domain", "zeroline": False}
    axis |= {"showgrid": False, "tickfont": {"size": 9}, "nticks": 11}
    anchor = f"x{place + 1}" if place else "x"
    return Panel(title, [trace], axis, {**axis, "autorange": "reversed", "scaleanchor": anchor})


def scale_colours(limit: float, at: float = 0.5, clipped: bool = True) -> Spec:
    """Colours from -limit to limit; where values go further the ends of the bar say so."""
    marks = [f"≤ −{limit:.2g}", "0", f"≥ {limit:.2g}"] if clipped else [f"−{limit:.2g}", "0", f"{limit:.2g}"]
    ticks = {"tickvals": [-limit, 0, limit], "ticktext": marks}
    bar = {"thickness": 10, "len": 0.28, "y": at, "outlinewidth": 0, "x": 1.01, **ticks}
    return {"cmin": -limit, "cmax": limit, "colorscale": DIVERGING, "colorbar": bar}


def grams(weight: np.ndarray, means: np.ndarray) -> list[np.ndarray]:
    """W W^T, M M^T and W M^T, each divided by the mean size of its diagonal."""
    scaled = []
    for matrix in (weight @ weight.T, means @ means.T, weight @ means.T):
        size = np.abs(np.diag(matrix)).mean()
        scaled.append(matrix / size if size > 0 else matrix)
    return scaled
