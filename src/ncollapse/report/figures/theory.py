"""What theory draws: the ideal frames, the phase diagram with the user's settings in it, and the loss landscapes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ncollapse.compare.variants import LOSSES, Variant, measured, predicted
from ncollapse.report.numbers import compact, compact_matrix
from ncollapse.report.panels import Figure, Panel, Spec, build, escape
from ncollapse.report.style import FAINT, INK, PAPER, fade, look
from ncollapse.runs.record import RunRecord, get_nested

PHASES = {
    "collapsed": ("no classes: W = H = 0", fade("#7F7F7F", 0.45)),
    "mean-only": ("mean only", fade("#CC79A7", 0.4)),
    "centred": ("centred simplex", fade("#56B4E9", 0.45)),
    "saturated": ("saturated bias", fade("#E69F00", 0.45)),
    "orthogonal-frame": ("orthogonal frame", fade("#009E73", 0.4)),
}
STEPS = (44, 32)


def problem_of(record: RunRecord) -> dict[str, Any] | None:
    """The problem behind a run's prediction as plain values, None where there is none."""
    problem = predicted(record).get("problem")
    return problem if isinstance(problem, dict) and "loss" in problem else None


def ideal_frame(variant: Variant) -> tuple[np.ndarray, np.ndarray] | None:
    """Weight and class means [K, d] of the predicted optimum, None where theory has none for these runs."""
    problem = next((p for r in variant.counted if (p := problem_of(r))), None)
    if problem is None:
        return None
    from ncollapse.theory import Problem, predict

    arguments = {key: value for key, value in problem.items() if key not in ("loss", "loss_params", "per_class")}
    if arguments.get("batch_size") is None and arguments.get("class_counts") is None:
        arguments["per_class"] = problem.get("per_class")
    try:
        posed = Problem(
            str(problem["loss"]),
            **{k: v for k, v in arguments.items() if v is not None},
            **problem.get("loss_params", {}),
        )
        features, labels, weight, _ = predict(posed).configuration()
    except (ValueError, TypeError, KeyError):
        return None
    means = np.stack([features[labels == k].mean(0).numpy() for k in range(posed.num_classes)])
    return weight.numpy(), means


def draw_phases(variants: Sequence[Variant]) -> Figure | None:
    """Phases of the optimum over mu and the bias decay for each loss of the runs, their own settings marked."""
    settings: dict[tuple[Any, ...], list[tuple[float, float, str]]] = {}
    for variant in variants:
        problem = next((p for r in variant.counted if (p := problem_of(r))), None)
        if problem is None or problem.get("class_counts"):
            continue
        try:
            n, weight, feature = (float(problem[key]) for key in ("per_class", "weight_decay", "feature_decay"))
            bias, classes = float(problem["bias_decay"]), int(problem["num_classes"])
        except (KeyError, TypeError, ValueError):
            continue
        params = json.dumps(problem.get("loss_params", {}), sort_keys=True)
        key = (variant.loss, params, classes, str(problem.get("features", "free")), bool(problem.get("bias", True)))
        settings.setdefault(key, []).append((math.sqrt(n * weight * feature), bias, variant.label))
    panels = []
    shown: set[str] = set()
    for (loss, params, classes, features, bias), marks in list(settings.items())[:6]:
        low = min(1e-4, *(m for m, _, _ in marks)) if marks else 1e-4
        found = map_phases(loss, params, classes, features, bias, low)
        if found is None:
            continue
        title = f"{LOSSES.get(loss, escape(loss))}, K = {classes}, {'H ≥ 0' if features == 'relu' else 'free H'}"
        panels.append(_phase_panel(title, loss, *found, marks, shown))
    if not panels:
        return None
    return Figure(
        "phases",
        "Phase diagram of the optimum",
        "What the last layer converges to, over μ = √(n λW λH) and the bias decay λb. Marks are these runs' settings "
        "(λb = 0 on the lower edge). In the grey area decay is too strong for any class to survive; where the "
        "bias saturates, λb holds it back and W keeps a mean; “mean only” separates no class.",
        build(panels, columns=min(3, len(panels)), row_height=280, min_width=270, showlegend=True),
        "corrected closed forms of bce-vs-ce Theorem 3.2 and its kin",
    )


@lru_cache(maxsize=32)
def map_phases(
    loss: str, params: str, classes: int, features: str, bias: bool, low: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """mu, bias decays, phase numbers over both, the saturating bias decay at each mu; None without closed form."""
    from ncollapse.theory import predict

    mus = np.logspace(math.log10(low), 0, STEPS[0])
    decays = np.logspace(-6, 1, STEPS[1])
    names = list(PHASES)
    table = np.full((decays.size, mus.size), np.nan)
    border = np.full(mus.size, np.nan)
    for j, mu in enumerate(mus):
        for i, decay in enumerate(decays):
            try:
                found = predict(
                    loss,
                    num_classes=classes,
                    per_class=1.0,
                    weight_decay=float(mu),
                    feature_decay=float(mu),
                    bias_decay=float(decay),
                    bias=bias,
                    features=features,
                    **json.loads(params),
                )
            except (ValueError, TypeError):
                return None
            table[i, j] = names.index(found.phase) if found.phase in names else np.nan
            border[j] = found.critical_bias_decay
    inside = (border > decays[0]) & (border < decays[-1])
    return mus, decays, table, np.where(inside, border, np.nan)


def draw_landscapes(variants: Sequence[Variant]) -> Figure | None:
    """The loss of one feature over its norm and its angle to its class vector, with the field of descent."""
    from ncollapse.theory import landscape

    panels: list[Panel] = []
    seen: set[tuple[str, str]] = set()
    for variant in variants:
        record = next((r for r in variant.counted if r.status == "finished"), None)
        if record is None or len(panels) == 6:
            continue
        settings = get_nested(record.config, "loss", {})
        params = (
            {k: v for k, v in settings.items() if k != "name" and v is not None} if isinstance(settings, dict) else {}
        )
        key = (variant.loss, json.dumps(params, sort_keys=True, default=str))
        classes = get_nested(record.summary or {}, "train.num_classes")
        norm = math.sqrt(max(0.0, measured(record, "train.feature_energy")))
        scale = (
            math.sqrt(max(0.0, measured(record, "train.weight_energy") / classes))
            if isinstance(classes, int)
            else math.nan
        )
        if key in seen or not (math.isfinite(norm) and math.isfinite(scale) and norm > 0 and scale > 0):
            continue
        seen.add(key)
        bias = measured(record, "train.bias")
        norms, angles = np.linspace(0.02 * norm, 1.8 * norm, 40), np.linspace(0, math.pi, 37)
        where = {"norms": norms, "angles": angles}
        bias = bias if math.isfinite(bias) else 0.0
        try:
            field = landscape(variant.loss, classes, **where, scale=scale, bias=bias, **params)
        except (ValueError, TypeError):
            continue
        panels.append(_landscape_panel(variant, field, norm))
    if not panels:
        return None
    return Figure(
        "landscapes",
        "Loss landscapes and gradient fields",
        "The loss of one feature before a fixed simplex of the trained length and bias. Arrows point downhill; the "
        "mark is the mean norm of the trained features. Steep across the angle is what turns a feature to its class.",
        build(panels, columns=min(3, len(panels)), row_height=280, min_width=250, showlegend=False),
        "mse-landscape Figs. 2, 8",
    )


def _phase_panel(
    title: str,
    loss: str,
    mus: np.ndarray,
    decays: np.ndarray,
    table: np.ndarray,
    border: np.ndarray,
    marks: list[tuple[float, float, str]],
    shown: set[str],
) -> Panel:
    steps = len(PHASES)
    scale = [[(i + j) / steps, colour] for i, (_, colour) in enumerate(PHASES.values()) for j in (0, 1)]
    words = [[list(PHASES.values())[int(v)][0] if math.isfinite(v) else "" for v in row] for row in table]
    traces: list[Spec] = [
        {
            "type": "heatmap",
            "x": compact(mus, 4),
            "y": compact(decays, 4),
            "z": compact_matrix(table),
            "zmin": -0.5,
            "zmax": steps - 0.5,
            "colorscale": scale,
            "showscale": False,
            "text": words,
            "hovertemplate": "μ %{x:.2g}, λb %{y:.2g}: %{text}<extra></extra>",
        }
    ]
    for index, (words_of, colour) in enumerate(PHASES.values()):
        if (table == index).any() and words_of not in shown:
            shown.add(words_of)
            marker = {"symbol": "square", "size": 11, "color": colour, "line": {"width": 1, "color": FAINT}}
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": [None],
                    "y": [None],
                    "name": words_of,
                    "legendrank": index,
                    "marker": marker,
                }
            )
    if np.isfinite(border).any():
        line = {"type": "scatter", "mode": "lines", "line": {"color": INK, "width": 1.5}, "showlegend": False}
        about = {
            "x": compact(mus, 4),
            "y": compact(border, 4),
            "hovertemplate": "saturates at λb = %{y:.3g}<extra></extra>",
        }
        traces.append({**line, **about})
    style = look(loss)
    first = "settings of these runs" not in shown
    shown.add("settings of these runs")
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "settings of these runs",
            "showlegend": first,
            "legendgroup": "settings",
            "legendrank": 9,
            "x": compact(m for m, _, _ in marks),
            "y": compact(max(b, float(decays[0])) for _, b, _ in marks),
            "text": [escape(label) for _, _, label in marks],
            "marker": {"symbol": style.marker, "size": 11, "color": style.colour, "line": {"width": 1.5, "color": INK}},
            "hovertemplate": "%{text}<br>μ %{x:.3g}, λb %{y:.3g}<extra></extra>",
        }
    )
    log = {"type": "log", "exponentformat": "power", "dtick": 1, "tickfont": {"size": 10}, "showgrid": False}
    x = {**log, "title": {"text": "μ", "standoff": 4}, "range": [math.log10(mus[0]), math.log10(mus[-1])]}
    y = {
        **log,
        "dtick": 2,
        "range": [math.log10(decays[0]) - 0.1, math.log10(decays[-1])],
        "title": {"text": "λb", "standoff": 4},
    }
    return Panel(title, traces, x, y)


def _landscape_panel(variant: Variant, field: Any, norm: float) -> Panel:
    degrees = np.degrees(field.angles)
    contour = {
        "type": "contour",
        "x": compact(field.norms, 4),
        "y": compact(degrees, 4),
        "z": compact_matrix(field.value, 4),
        "colorscale": [[0, PAPER], [1, look(variant.loss).colour]],
        "showscale": False,
        "ncontours": 14,
        "line": {"width": 0.5, "color": FAINT},
        "hovertemplate": "norm %{x:.3g}, angle %{y:.0f}°: loss %{z:.4g}<extra></extra>",
    }
    arrows = {
        "type": "scatter",
        "mode": "lines",
        **draw_arrows(field, degrees),
        "line": {"color": INK, "width": 1},
        "opacity": 0.75,
        "hoverinfo": "skip",
    }
    mark = {
        "type": "scatter",
        "mode": "markers",
        "x": compact([norm]),
        "y": [0],
        "cliponaxis": False,
        "marker": {
            "symbol": look(variant.loss).marker,
            "size": 10,
            "color": look(variant.loss).colour,
            "line": {"width": 1.5, "color": INK},
        },
        "hovertemplate": "trained features: norm %{x:.3g}<extra></extra>",
    }
    x = {"title": {"text": "norm of the feature", "standoff": 4}, "showgrid": False}
    y = {
        "title": {"text": "angle", "standoff": 2},
        "tickvals": [0, 45, 90, 135, 180],
        "ticktext": ["0°", "45°", "90°", "135°", "180°"],
        "showgrid": False,
    }
    return Panel(escape(variant.label.split(" · ")[0]), [contour, arrows, mark], x, {**y, "range": [0, 180]})


def draw_arrows(field: Any, degrees: np.ndarray, across: int = 11, up: int = 10) -> dict[str, Any]:
    """Arrows down the gradient as one line with gaps, on axes scaled to the panel, all of one length."""
    columns = np.linspace(2, field.norms.size - 4, across).round().astype(int)
    rows = np.linspace(2, field.angles.size - 3, up).round().astype(int)
    width, height = float(np.ptp(field.norms)), float(np.ptp(degrees))
    xs: list[float] = []
    ys: list[float] = []
    for i in rows:
        for j in columns:
            # the gradient's components along the radius and across it, in shares of the panel's sides
            step = np.array([-field.d_norm[i, j], -field.d_angle[i, j] / field.norms[j]])
            step = step / np.array([width, field.norms[j] * math.radians(height)])
            size = float(np.hypot(*step))
            if not size > 0:
                continue
            step = 0.055 * step / size
            start = np.array([(field.norms[j] - field.norms[0]) / width, degrees[i] / height])
            end = start + step
            side = np.array([-step[1], step[0]])
            points = [start, end, end - 0.35 * step + 0.2 * side, end, end - 0.35 * step - 0.2 * side]
            xs += [float(field.norms[0] + p[0] * width) for p in points] + [math.nan]
            ys += [float(p[1] * height) for p in points] + [math.nan]
    return {"x": compact(xs, 4), "y": compact(ys, 4)}
