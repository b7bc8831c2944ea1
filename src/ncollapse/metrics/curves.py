"""Results of successive measurements as curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

SHOWN = ("nc1", "nc2", "nc3")


def draw_curves(results: Sequence[Mapping[str, Any]], at: Sequence[float] | None = None) -> Any:
    """A plotly figure, one curve a field on a logarithmic axis: `nc1`, `nc2`, `nc3` drawn, the others in the legend.

    `results` are dictionaries of numbers (those of `NeuralCollapse.compute`, of `monitor`), `at` their epochs. Fields
    that are never positive cannot be drawn and are left out.

    >>> figure = draw_curves([{"nc1": 1.0, "nc2": 0.5}, {"nc1": 0.1, "nc2": 0.2}])
    >>> [curve.name for curve in figure.data]
    ['nc1', 'nc2']
    """
    if not results:
        raise ValueError("results: nothing measured yet, so there is no curve to draw")
    import plotly.graph_objects as go

    steps = list(range(len(results))) if at is None else list(at)
    names = list(dict.fromkeys(name for result in results for name in result))
    shown = [name for name in SHOWN if name in names] or names[:3]
    figure = go.Figure()
    for name in [*shown, *(name for name in names if name not in shown)]:  # plotly has ten colours, given in this order
        values = [float(result.get(name, math.nan)) for result in results]
        heights = [value if value > 0 and math.isfinite(value) else None for value in values]
        if any(height is not None for height in heights):
            visible = True if name in shown else "legendonly"
            figure.add_scatter(x=steps, y=heights, name=name, mode="lines+markers", visible=visible)
    figure.update_layout(
        template="plotly_white", xaxis_title="epoch" if at is not None else "measurement", yaxis_title="value"
    )
    figure.update_yaxes(type="log", exponentformat="power")
    return figure
