"""Loss landscapes over the norm and the angle of one feature, with the field of descent."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ncollapse.compare import Variant, measured
from ncollapse.report.encoding import compact, compact_matrix
from ncollapse.report.panels import Figure, Panel, build, escape, side_by_side
from ncollapse.report.style import FAINT, INK, PAPER, fade, loss_style
from ncollapse.runs.record import get_nested

if TYPE_CHECKING:
    from ncollapse.theory.landscape import Landscape


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
        energy = measured(record, "train.weight_energy")
        scale = math.sqrt(max(0.0, energy / classes)) if isinstance(classes, int) and classes else math.nan
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
        "The loss of one feature under a fixed classifier: a simplex with the trained length and bias. Arrows point "
        "downhill, and their length grows with the gradient; the mark is the mean norm of the trained features. A "
        "gradient across the angle turns a feature towards its class.",
        build(
            panels,
            columns=side_by_side(len(panels)),
            row_height=280,
            min_width=230,
            bottom=60,
            any_order=True,
            showlegend=False,
        ),
        "mse-landscape Figs. 2, 8",
    )


def _landscape_panel(variant: Variant, field: Landscape, norm: float) -> Panel:
    degrees = np.degrees(field.angles)
    contour = {
        "type": "contour",
        "x": compact(field.norms, 4),
        "y": compact(degrees, 4),
        "z": compact_matrix(field.value, 4),
        "colorscale": [[0, PAPER], [1, fade(loss_style(variant.loss).colour, 0.75)]],
        "showscale": False,
        "ncontours": 14,
        "line": {"width": 0.5, "color": FAINT},
        "hovertemplate": "norm %{x:.3g}, angle %{y:.0f}°: loss %{z:.4g}<extra></extra>",
    }
    arrows = {
        "type": "scatter",
        "mode": "lines",
        **draw_arrows(field),
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
            "symbol": loss_style(variant.loss).marker,
            "size": 10,
            "color": loss_style(variant.loss).colour,
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


def gradient_size(field: Landscape) -> np.ndarray:
    """The length of the gradient in the plane, [T, S]: hypot(dL/ds, dL/dtheta / s)."""
    return np.hypot(field.d_norm, field.d_angle / field.norms)


def draw_arrows(field: Landscape, across: int = 12, up: int = 10) -> dict[str, Any]:
    """Arrows down the gradient as one line with gaps, on axes scaled to the panel.

    Their length is proportional to the gradient's, the longest being as long as the arrows are apart; an arrow too
    short to be seen is a dot.
    """
    degrees = np.degrees(field.angles)
    columns = np.linspace(1, field.norms.size - 3, across).round().astype(int)
    rows = np.linspace(1, field.angles.size - 2, up).round().astype(int)
    width, height = float(np.ptp(field.norms)), float(np.ptp(degrees))
    sizes = gradient_size(field)[np.ix_(rows, columns)]
    longest = float(sizes[np.isfinite(sizes)].max())
    if not longest > 0:
        return {"x": [], "y": []}
    xs: list[float] = []
    ys: list[float] = []
    for i in rows:
        for j in columns:
            # the gradient's components along the radius and across it, in shares of the panel's sides
            gradient = np.array([-field.d_norm[i, j], -field.d_angle[i, j] / field.norms[j]])
            step = gradient / np.array([width, field.norms[j] * math.radians(height)])
            size = float(np.hypot(*step))
            if not size > 0:
                continue
            step = step / size * 0.9 / max(across, up) * float(np.hypot(*gradient)) / longest
            start = np.array([(field.norms[j] - field.norms[0]) / width, (degrees[i] - degrees[0]) / height])
            end = start + step
            side = np.array([-step[1], step[0]])
            points = [start, end, end - 0.35 * step + 0.2 * side, end, end - 0.35 * step - 0.2 * side]
            xs += [float(field.norms[0] + p[0] * width) for p in points] + [math.nan]
            ys += [float(degrees[0] + p[1] * height) for p in points] + [math.nan]
    return {"x": compact(xs, 4), "y": compact(ys, 4)}
