"""Heat maps of the Gram matrices of classifier and class means beside their ideal frames."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncollapse.compare import Variant
from ncollapse.report.encoding import compact_matrix
from ncollapse.report.figures.ideal import nearest_optimum
from ncollapse.report.panels import Figure, Panel, Spec, arrange, build
from ncollapse.report.slider import attach_slider
from ncollapse.report.snapshots import Epochs, Snapshots
from ncollapse.report.style import DIVERGING
from ncollapse.runs.epoch_snapshots import GRAMS
from ncollapse.runs.record import get_nested

LARGEST = 60
NAMES = ("W Wᵀ", "Hᵀ H", "W H")


def draw_frames(
    variant: Variant,
    number: int,
    snapshots: Snapshots,
    ideal: tuple[np.ndarray, np.ndarray] | None,
    epochs: Epochs | None = None,
) -> Figure | None:
    """W W^T, H^T H of the class means and W H of a variant's first run, those of the optimum, and their difference.

    `ideal` holds the predicted weight and class means, [K, d] each; without it the simplex frame takes their place. Of
    many optima the nearest is shown.
    With snapshots of the run's `epochs` the figure has a slider.
    """
    epochs = epochs or {}
    record = next((r for r in variant.counted if r.path in snapshots or r.path in epochs), None)
    if record is None:
        return None
    before = epochs.get(record.path, {})
    newest = before[max(before)] if before else {}
    last = find_grams(snapshots.get(record.path, {}), newest.get("gram.classes")) or find_grams(newest)
    if last is None:
        return None
    measured, classes, total = last
    weight = snapshots.get(record.path, {}).get("weight")
    whole = measured[0] if len(classes) == total else None if weight is None else weight @ weight.T
    nearest = nearest_optimum(ideal, whole)
    best = ideal_grams(nearest or ideal, total, classes)
    apart = [a - b for a, b in zip(measured, best)]
    found = {epoch: grams for epoch, arrays in before.items() if (grams := find_grams(arrays))}
    moving = {epoch: grams[0] for epoch, grams in found.items() if np.array_equal(grams[1], classes)}
    every = [measured, *moving.values()]
    limit = middle([off_diagonal_limit([*now, *best]) for now in every])
    worst = middle([max(float(np.abs(a - b).max()) for a, b in zip(now, best)) for now in every])
    step = int(classes[1] - classes[0])
    notes: tuple[str, ...] = (f"One class in {step} of all {total} is shown.",) if step > 1 else ()
    if nearest is not None:
        notes += (f"Any {nearest[0].shape[1]} directions are optimal: the ideal is the optimum nearest to W.",)
    if not knows_optimum(ideal, total):
        notes += ("No optimum is predicted for these runs: the ideal is the simplex of balanced classes.",)
    scales: Spec = {
        "coloraxis": scale_colours(limit, 0.72),
        "coloraxis2": scale_colours(max(worst, 1e-9), 0.14, clipped=len(moving) > 1),
    }
    panels = lay_grams(measured, best, classes)
    spec = build(panels, columns=3, row_height=210, min_width=180, gap_y=56, showlegend=False, **scales)
    spec["layout"]["meta"] |= {"gap": 30, "left": 30, "bottom": 30, "right": 76}
    shown = get_nested(record.summary or {}, "selected_epoch") or max(moving, default=0)
    positions = [(f"{e}", lay_grams(grams, best, classes)) for e, grams in moving.items() if e != shown]
    attach_slider(spec, positions, str(shown) if shown >= max(moving, default=0) else f"{shown} (reported)")
    largest = [(float(np.abs(a).max()), float(np.sqrt((a**2).mean())), name) for name, a in zip(NAMES, apart)]
    most, rms, which = max(largest)
    return Figure(
        f"frames-{number}",
        f"Frames of {variant.label}",
        "H holds the class means. Each matrix is divided by the mean of its diagonal. Colours of the upper rows stop "
        f"at ±{limit:.2g}{'' if moving else ', the largest entry off the diagonal'}; the last row has a scale of its "
        "own.",
        arrange(spec, 1000),
        "imbalanced-relu Fig. 3",
        notes,
        f"{f'At epoch {shown}, measured' if moving else 'Measured'} and ideal matrices differ most in {which}: by at "
        f"most {most:.2g}, {rms:.2g} root mean square.",
    )


def find_grams(
    arrays: dict[str, np.ndarray], classes: np.ndarray | None = None
) -> tuple[list[np.ndarray], np.ndarray, int] | None:
    """The scaled Gram matrices of a snapshot, the classes they show, and how many there are; None without them.

    A snapshot of an epoch holds the matrices themselves, that of the end the classifier and the class means, of which
    `classes` are shown, or at most `LARGEST`.
    """
    kept = [arrays.get(name) for name in GRAMS]
    if all(gram is not None and len(gram) > 1 for gram in kept):
        classes = arrays["gram.classes"]
        total = len(arrays["train.counts"]) if "train.counts" in arrays else int(classes[-1]) + 1
        return [scale_gram(np.asarray(gram, np.float64)) for gram in kept], classes, total
    weight, means = arrays.get("weight"), arrays.get("train.class_means")
    if weight is None or means is None or weight.shape != means.shape or len(weight) < 2:
        return None
    if not np.isfinite(weight).all() or not np.isfinite(means).all():
        return None
    if classes is None or classes[-1] >= len(weight):
        classes = np.arange(0, len(weight), -(-len(weight) // LARGEST))
    found = grams(np.asarray(weight, np.float64)[classes], np.asarray(means, np.float64)[classes])
    return found, classes, len(weight)


def knows_optimum(ideal: tuple[np.ndarray, np.ndarray] | None, total: int) -> bool:
    """Whether there is a predicted optimum of as many classes."""
    return ideal is not None and ideal[0].shape[0] == total


def ideal_grams(ideal: tuple[np.ndarray, np.ndarray] | None, total: int, classes: np.ndarray) -> list[np.ndarray]:
    """The scaled Gram matrices of the optimum; those of the simplex where the optimum is not known."""
    if ideal is None or not knows_optimum(ideal, total):
        simplex = np.eye(total) - 1 / total
        ideal = simplex, simplex
    return grams(*(np.asarray(matrix, np.float64)[classes] for matrix in ideal))


def lay_grams(measured: Sequence[np.ndarray], best: Sequence[np.ndarray], classes: np.ndarray) -> list[Panel]:
    """Nine panels: the measured matrices, those of the optimum, and their differences."""
    panels: list[Panel] = []
    apart = [a - b for a, b in zip(measured, best)]
    for kind, matrices in (("measured", measured), ("ideal", best), ("measured − ideal", apart)):
        for name, matrix in zip(NAMES, matrices):
            axis = "coloraxis2" if matrices is apart else "coloraxis"
            panels.append(lay_matrix(f"{kind} {name}", matrix, len(panels), axis, classes))
    return panels


def middle(limits: Sequence[float]) -> float:
    """A limit for the colours of all epochs: the geometric mean of the last epoch's, which is first, and the largest.

    >>> round(middle([0.1, 0.9, 0.4]), 6)
    0.3
    """
    return float(np.sqrt(limits[0] * max(limits)))


def off_diagonal_limit(matrices: Sequence[np.ndarray]) -> float:
    """The largest size off the diagonal, at least a hundredth of the diagonal: where the colours stop."""
    sizes = [float(np.abs(m[~np.eye(m.shape[0], dtype=bool)]).max()) for m in matrices]
    return float(min(1.0, max(0.01, *sizes)))


def lay_matrix(
    title: str, matrix: np.ndarray, place: int, coloraxis: str = "coloraxis", classes: np.ndarray | None = None
) -> Panel:
    """A square matrix as a heat map with its classes named, the `place`-th panel of its figure (from 0)."""
    names = [str(k) for k in (range(matrix.shape[0]) if classes is None else classes)]
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
    return [scale_gram(matrix) for matrix in (weight @ weight.T, means @ means.T, weight @ means.T)]


def scale_gram(matrix: np.ndarray) -> np.ndarray:
    """A matrix divided by the mean size of its diagonal."""
    size = float(np.abs(np.diag(matrix)).mean())
    return matrix / size if size > 0 else matrix
