"""Losses, or the size of their gradients, over norm and angle, with the field of descent (mse-landscape Figs. 2, 8)."""

from __future__ import annotations

import numpy as np

from ncollapse.grammar import join
from ncollapse.papers import landscapes
from ncollapse.report.encoding import compact, compact_matrix
from ncollapse.report.figures.landscapes import draw_arrows, gradient_size
from ncollapse.report.panels import Figure, Panel, build, escape
from ncollapse.report.style import FAINT, SEQUENTIAL


def draw_losses(steep: bool) -> Figure:
    """A panel a loss: its value, or if `steep` the size of its gradient, and arrows in proportion to the gradient."""
    shown = "size of the gradient" if steep else "loss"
    panels = []
    for name, field in landscapes.compute_panels().items():
        values = gradient_size(field) if steep else field.value
        contour = {
            "type": "contour",
            "x": compact(field.norms, 4),
            "y": compact(np.degrees(field.angles), 4),
            "z": compact_matrix(values, 4),
            "colorscale": SEQUENTIAL,
            "showscale": False,
            "ncontours": 16,
            "line": {"width": 0.5, "color": FAINT},
            "hovertemplate": f"norm %{{x:.3g}}, angle %{{y:.0f}}°: {shown} %{{z:.4g}}<extra></extra>",
        }
        lines = {"type": "scatter", "mode": "lines", **draw_arrows(field), "hoverinfo": "skip"}
        # white on a dark edge, to be seen on dark and on bright ground
        arrows = [{**lines, "line": {"color": c, "width": w}} for c, w in (("#1c1c1a", 3.2), ("#ffffff", 1.2))]
        angle = {"title": {"text": "angle", "standoff": 2}, "ticksuffix": "°", "showgrid": False, "range": [0, 90]}
        norm = {"title": {"text": "norm of the feature", "standoff": 4}, "showgrid": False, "range": [0, 6]}
        panels.append(Panel(escape(name), [contour, *arrows], norm, angle))
    shares = [f"{share:.2f} ({name})".replace("-", "−") for name, share in landscapes.compute_shares().items()]
    return Figure(
        "landscape",
        "Over norm and angle",
        f"The {shown} over the norm of one feature and its angle to its class in a simplex ETF of 10 unit vectors; "
        "darker is lower. Arrows point downhill, as long as the gradient is large.",
        build(panels, columns=2, row_height=320, min_width=300, bottom=60, showlegend=False),
        "mse-landscape Figs. 2, 8",
        result=f"Mean share of the descent that turns the feature to its class: {join(shares)}.",
    )
