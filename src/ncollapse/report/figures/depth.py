"""Depth profiles: how collapsed the output of each layer is, from the first layer to the last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ncollapse.report.encoding import compact
from ncollapse.report.panels import Figure, Panel, Spec, build, escape, log_axis, name_once
from ncollapse.report.style import CLASS_COLOURS

Profile = Mapping[str, Mapping[str, Any]]
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x")


class DepthField(NamedTuple):
    """A field of a layer and how it is drawn."""

    name: str
    title: str
    log: bool
    percent: bool = False


FIELDS = (
    DepthField("nc1", "NC1 by layer", True),
    DepthField("nc2_means", "NC2 of the means by layer", True),
    DepthField("cdnv", "CDNV by layer", True),
    DepthField("nearest_mean_accuracy", "Nearest-mean accuracy by layer", False, True),
    DepthField("effective_rank", "Effective rank by layer", False),
)


def draw_depth(profiles: Mapping[str, Profile]) -> Figure:
    """One panel a field, layers from left to right, one line a profile (an epoch, a loss).

    `profiles` maps a label to layer -> field -> value, as `LayerProfile.to_dict` gives them.
    """
    panels = depth_panels(profiles)
    if not panels:
        raise ValueError("profiles: expected at least one layer with a finite value, got none")
    name_once(panels)
    return Figure(
        "depth",
        "Collapse over depth",
        "Layers from the input on the left to the output on the right. NC1 and CDNV near 0 and an effective rank near "
        "K − 1 mean a collapsed layer.",
        build(panels, columns=3, bottom=96, showlegend=len(profiles) > 1),
        "Papyan et al. 2020; Galanti et al. 2022; Rangamani et al. 2023",
    )


def depth_panels(profiles: Mapping[str, Profile]) -> list[Panel]:
    """The panels of `draw_depth`, for figures that show them beside others."""
    layers = list(dict.fromkeys(layer for profile in profiles.values() for layer in profile))
    panels = [_draw_field(row, profiles, layers) for row in FIELDS]
    return [panel for panel in panels if panel is not None]


def _draw_field(row: DepthField, profiles: Mapping[str, Profile], layers: list[str]) -> Panel | None:
    traces: list[Spec] = []
    for place, (label, profile) in enumerate(profiles.items()):
        values = compact(profile[layer].get(row.name) if layer in profile else None for layer in layers)
        if row.log:
            values = [value if value is not None and value > 0 else None for value in values]
        if any(value is not None for value in values):
            colour = CLASS_COLOURS[place % len(CLASS_COLOURS)]
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": escape(label),
                    "legendgroup": escape(label),
                    "showlegend": False,
                    "x": list(range(len(layers))),
                    "y": values,
                    "line": {"color": colour, "width": 2},
                    "marker": {"symbol": SYMBOLS[place % len(SYMBOLS)], "size": 7},
                    "text": [escape(layer) for layer in layers],
                    "hovertemplate": f"%{{text}}: %{{y:{'.2%' if row.percent else '.4g'}}}"
                    f"<extra>{escape(label)}</extra>",
                }
            )
    if not traces:
        return None
    step = -(-len(layers) // 12)
    ticks = {"tickvals": list(range(0, len(layers), step)), "ticktext": [escape(name) for name in layers[::step]]}
    drawn = [value for trace in traces for value in trace["y"] if value is not None]
    y: Spec = log_axis(drawn) if row.log else {"rangemode": "tozero"}
    return Panel(row.title, traces, {**ticks, "tickangle": -45}, {**y, "tickformat": ".0%"} if row.percent else y)
