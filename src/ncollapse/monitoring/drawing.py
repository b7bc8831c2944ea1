"""The curves of a monitor, drawn as the report draws its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ncollapse.monitoring.observation import Observation
from ncollapse.report.encoding import compact
from ncollapse.report.figures.depth import depth_panels
from ncollapse.report.panels import Panel, Spec, build, for_print
from ncollapse.report.style import CLASS_COLOURS, FAINT

if TYPE_CHECKING:
    import plotly.graph_objects as go

Reader = Callable[[Observation], float]
PROFILES = 4
"""Epochs whose profile over depth is drawn."""


def draw_history(history: Sequence[Observation]) -> go.Figure:
    """A plotly figure of observations over their epochs; the predicted optimum is a dashed line."""
    if not history:
        raise ValueError("history: expected at least one observation, got none")
    import plotly.graph_objects as go

    wanted = [
        _panel(history, "NC1: within-class spread", {"NC1": lambda seen: seen.measurement.nc1}, log=True),
        _panel(history, "NC2: classifier to simplex", {"NC2": lambda seen: seen.measurement.nc2}, log=True),
        _panel(history, "NC3: classifier to class means", {"NC3": lambda seen: seen.measurement.nc3}, log=True),
        _panel(
            history,
            "Accuracy and NC4",
            {
                "accuracy": lambda seen: seen.measurement.accuracy,
                "uniform accuracy": lambda seen: seen.measurement.uniform_accuracy,
                "NC4": lambda seen: seen.measurement.nc4,
            },
            form=".0%",
        ),
        _panel(
            history,
            "Mean scores and bias",
            {
                "positive score": lambda seen: seen.measurement.positive_score.mean,
                "negative score": lambda seen: seen.measurement.negative_score.mean,
                "bias": lambda seen: seen.measurement.bias.mean,
            },
            predicted=("positive_score", "negative_score", "bias"),
        ),
        _panel(
            history,
            "Energy of classifier and features",
            {
                "|W|²": lambda seen: seen.measurement.weight_energy,
                "mean |h|²": lambda seen: seen.measurement.feature_energy,
            },
            predicted=("weight_energy", "feature_energy"),
        ),
        _panel(
            history,
            "Certified gap to the optimum",
            {"gap": lambda seen: math.nan if seen.certificate is None else seen.certificate.gap},
            log=True,
        ),
    ]
    panels = [panel for panel in wanted if panel is not None]
    profiled = [seen for seen in history if seen.layers is not None]
    if profiled:
        places = sorted({round(i * (len(profiled) - 1) / (PROFILES - 1)) for i in range(PROFILES)})
        chosen = [profiled[place] for place in places]
        panels += depth_panels({f"epoch {s.epoch}": s.layers.to_dict() for s in chosen if s.layers is not None})
    figure = go.Figure(for_print(build(panels, columns=3, bottom=96 if profiled else 46, showlegend=False)))
    figure.update_layout(title={"text": _title(history), "x": 0, "xref": "paper", "y": 0.995, "yanchor": "top"})
    figure.update_layout(margin_t=70, height=figure.layout.height + 40, paper_bgcolor="white", plot_bgcolor="white")
    return figure


def _title(history: Sequence[Observation]) -> str:
    last = history[-1].measurement
    return (
        f"Neural collapse over {history[-1].epoch} epochs: NC1 {last.nc1:.3g}, accuracy {last.accuracy:.1%} "
        f"({last.num_samples:,} samples, {last.num_classes:,} classes)"
    )


def _panel(
    history: Sequence[Observation],
    title: str,
    readers: dict[str, Reader],
    *,
    log: bool = False,
    form: str = "",
    predicted: tuple[str, ...] = (),
) -> Panel | None:
    """One panel with a labelled curve a reader; None where nothing can be drawn."""
    epochs = [seen.epoch for seen in history]
    prediction = history[-1].prediction
    traces: list[Spec] = []
    labels: list[Spec] = []
    for place, (name, read) in enumerate(readers.items()):
        values = compact(read(seen) for seen in history)
        if log:
            values = [value if value is not None and value > 0 else None for value in values]
        drawn = [(epoch, value) for epoch, value in zip(epochs, values) if value is not None]
        if not drawn:
            continue
        colour = CLASS_COLOURS[place]
        form_here = form or ".4g"
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "x": epochs,
                "y": values,
                "line": {"color": colour, "width": 2},
                "marker": {"size": 5, "maxdisplayed": 12},
                "hovertemplate": f"epoch %{{x}}: %{{y:{form_here}}}<extra>{name}</extra>",
            }
        )
        if len(readers) > 1:
            at, value = drawn[-1]
            height = math.log10(value) if log else value
            labels.append(_label(name, at, height, colour, len(labels)))
        if predicted and prediction is not None:
            level = float(getattr(prediction, predicted[place]))
            if math.isfinite(level):
                traces.append(_predicted(name, epochs, level, colour))
    if not traces:
        return None
    y: Spec = {"type": "log", "exponentformat": "power"} if log else {}
    if form:
        y["tickformat"] = form
    return Panel(title, traces, {"title": {"text": "epoch", "standoff": 4}}, y, labels)


def _label(name: str, x: float, y: float, colour: str, place: int) -> Spec:
    """A curve's name at its end."""
    side = {"xanchor": "right", "yanchor": "bottom" if place % 2 == 0 else "top"}
    return {"x": x, "y": y, "text": name, "font": {"color": colour, "size": 11}, **side}


def _predicted(name: str, epochs: Sequence[int], level: float, colour: str) -> Spec:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"{name}, predicted",
        "x": [epochs[0], epochs[-1]],
        "y": [level, level],
        "line": {"color": colour or FAINT, "width": 1.5, "dash": "dash"},
        "hovertemplate": f"predicted {level:.4g}<extra>{name}</extra>",
    }
