"""The curves of a monitor, drawn as the report draws its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ncollapse.grammar import count
from ncollapse.monitoring.observation import Observation
from ncollapse.report.encoding import compact
from ncollapse.report.figures.depth import Profile, depth_panels
from ncollapse.report.panels import Panel, Spec, build, for_print, log_axis
from ncollapse.report.style import CLASS_COLOURS, DARK, PRINT, resolve

if TYPE_CHECKING:
    import plotly.graph_objects as go

PROFILES = 4
"""Epochs whose profile over depth is drawn."""


class Curve(NamedTuple):
    """A number of every observation, and the field of a prediction that it should reach."""

    name: str
    read: Callable[[Observation], float]
    predicted: str = ""


# the curves of each panel, whether the axis is logarithmic, the format of its numbers
PANELS: tuple[tuple[tuple[Curve, ...], bool, str], ...] = (
    ((Curve("NC1: within-class spread", lambda seen: seen.measurement.nc1),), True, ""),
    ((Curve("NC2: classifier to simplex", lambda seen: seen.measurement.nc2),), True, ""),
    ((Curve("NC3: classifier to class means", lambda seen: seen.measurement.nc3),), True, ""),
    (
        (
            Curve("accuracy", lambda seen: seen.measurement.accuracy),
            Curve("uniform accuracy", lambda seen: seen.measurement.uniform_accuracy),
            Curve("NC4", lambda seen: seen.measurement.nc4),
        ),
        False,
        ".0%",
    ),
    (
        (
            Curve("positive score", lambda seen: seen.measurement.positive_score.mean, "positive_score"),
            Curve("negative score", lambda seen: seen.measurement.negative_score.mean, "negative_score"),
            Curve("bias", lambda seen: seen.measurement.bias.mean, "bias"),
        ),
        False,
        "",
    ),
    (
        (
            Curve("|W|²", lambda seen: seen.measurement.weight_energy, "weight_energy"),
            Curve("mean |h|²", lambda seen: seen.measurement.feature_energy, "feature_energy"),
        ),
        False,
        "",
    ),
    (
        (
            Curve(
                "Certified gap to the optimum",
                lambda seen: math.nan if seen.certificate is None else seen.certificate.gap,
            ),
        ),
        True,
        "",
    ),
)


def draw_history(history: Sequence[Observation], dark: bool = False) -> go.Figure:
    """A plotly figure of observations over their epochs, light or dark; the predicted optimum is a dashed line."""
    if not history:
        raise ValueError("history: expected at least one observation, got none")
    import plotly.graph_objects as go

    theme = DARK if dark else PRINT
    drawn = [_draw(history, curves, log, form, theme) for curves, log, form in PANELS]
    panels = [panel for panel in drawn if panel is not None]
    profiles = _choose_profiles(history)
    panels += depth_panels(profiles)
    figure = go.Figure(for_print(build(panels, columns=3, bottom=96 if profiles else 46, showlegend=False), theme))
    height = figure.layout.height + 54
    place = {"x": 0, "xref": "paper", "y": 1 - 16 / height, "yref": "container", "yanchor": "top"}
    figure.update_layout(title={"text": _title(history, theme), **place}, margin_t=84, height=height)
    return figure.update_layout(paper_bgcolor=theme["paper"], plot_bgcolor=theme["paper"])


def _choose_profiles(history: Sequence[Observation]) -> dict[str, Profile]:
    """The profiles over depth of a few epochs, from the first to the last."""
    profiled = [seen for seen in history if seen.layers is not None]
    places = sorted({round(i * (len(profiled) - 1) / (PROFILES - 1)) for i in range(PROFILES)}) if profiled else []
    chosen = [profiled[place] for place in places]
    return {f"epoch {seen.epoch}": seen.layers.to_dict() for seen in chosen if seen.layers is not None}


def _title(history: Sequence[Observation], theme: dict[str, str]) -> str:
    last, profiles = history[-1].measurement, list(_choose_profiles(history))
    notes = [f"{last.num_samples:,} samples, {last.num_classes:,} classes"]
    if history[-1].prediction is not None:
        notes.append("dashed: the predicted optimum")
    if len(profiles) > 1:
        notes.append("by layer: " + _colour_names(dict(zip(profiles, CLASS_COLOURS)), theme))
    known = [f"NC1 {last.nc1:.3g}"] if math.isfinite(last.nc1) else []
    known += [f"accuracy {last.accuracy:.1%}"] if math.isfinite(last.accuracy) else []
    text = f"<b>Neural collapse over {count(history[-1].epoch, 'epoch')}</b>{': ' if known else ''}{', '.join(known)}"
    return f"{text}<br><sup>{'; '.join(notes)}</sup>"  # short lines: plotly's buttons stand at the end of the first


def _colour_names(colours: Mapping[str, str], theme: dict[str, str]) -> str:
    """Names in the colours of their curves: the legend, where there is room for one line."""
    return " · ".join(f'<span style="color:{resolve(colour, theme)}">{name}</span>' for name, colour in colours.items())


def _draw(
    history: Sequence[Observation], curves: Sequence[Curve], log: bool, form: str, theme: dict[str, str]
) -> Panel | None:
    """One panel; None where nothing can be drawn."""
    epochs = [seen.epoch for seen in history]
    prediction = history[-1].prediction
    traces: list[Spec] = []
    shown: dict[str, str] = {}
    for place, curve in enumerate(curves):
        values = compact(curve.read(seen) for seen in history)
        if log:
            values = [value if value is not None and value > 0 else None for value in values]
        if all(value is None for value in values):
            continue
        shown[curve.name] = CLASS_COLOURS[place]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": curve.name,
                "x": epochs,
                "y": values,
                "line": {"color": CLASS_COLOURS[place], "width": 2},
                "marker": {"size": 5, "maxdisplayed": 12},
                "hovertemplate": f"epoch %{{x}}: %{{y:{form or '.4g'}}}<extra>{curve.name}</extra>",
            }
        )
        level = float(getattr(prediction, curve.predicted, math.nan)) if curve.predicted else math.nan
        if math.isfinite(level):
            traces.append(_draw_level(f"{curve.name}, predicted", epochs, level, CLASS_COLOURS[place]))
    if not traces:
        return None
    drawn = [value for trace in traces for value in trace["y"] if value is not None]
    y = log_axis(drawn) if log else {}
    y |= {"tickformat": form} if form else {}
    title = curves[0].name if len(curves) == 1 else _colour_names(shown, theme)
    return Panel(title, traces, {"title": {"text": "epoch", "standoff": 4}}, y)


def _draw_level(name: str, epochs: Sequence[int], level: float, colour: str) -> Spec:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [epochs[0], epochs[-1]],
        "y": [level, level],
        "line": {"color": colour, "width": 1.5, "dash": "dash"},
        "hovertemplate": f"{name}: {level:.4g}<extra></extra>",
    }
