"""NC1 to NC3 and accuracies over the epochs, with the bounds that the certified gap implies for them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ncollapse.compare import Variant
from ncollapse.compare.numbers import show
from ncollapse.grammar import join
from ncollapse.report.encoding import compact
from ncollapse.report.figures.curves import MANY, curve_panel, gather
from ncollapse.report.panels import Figure, Panel, Spec, build, escape, log_axis, name_once
from ncollapse.report.style import loss_style

BOUNDED = {
    "nc1": ("train NC1", True),
    "nc2": ("train NC2", True),
    "nc3": ("train NC3", True),
    "accuracy": ("train accuracy", False),
    "uniform_accuracy": ("train uniform accuracy", False),
}
"""Fields of the training set with a bound in the certificate, and whether it is an upper one."""
TRIVIAL = {"nc2": 2.0, "nc3": 2.0}
"""The largest values that fields can have: the distance of two matrices of norm 1. A bound there says nothing."""


def draw_bounds(variants: Sequence[Variant]) -> Figure | None:
    """A panel for each field that has a bound: measured lines, and the weakest bound of all seeds dotted."""
    if len(variants) > MANY:
        return None
    panels: list[Panel] = []
    for field, (title, upper) in BOUNDED.items():
        bounds = [trace for variant in variants if (trace := trace_bound(variant, field, upper)) is not None]
        panel = curve_panel(variants, f"train.{field}", title, log=upper) if bounds else None
        if panel is None:
            continue
        panel.traces += bounds
        if upper:
            panel.y = log_axis([v for trace in panel.traces for v in trace["y"] if v])
        else:
            panel.y |= {"range": [-0.04, 1.04]}
        panels.append(panel)
    if not panels:
        return None
    name_once(panels)
    return Figure(
        "bounds",
        "Measured, and guaranteed by the certified gap",
        "Solid: measured on the training set. Dotted: what the certified gap alone guarantees at that epoch, the "
        "weakest of all seeds: an upper bound for NC1 to NC3, a lower one for accuracies.",
        build(panels, columns=2, row_height=230, showlegend=True),
        "docs/theory.md, section 5",
        result=describe_bounds(variants),
    )


def trace_bound(variant: Variant, field: str, upper: bool) -> Spec | None:
    """The bound of a field over the epochs, the weakest of all runs; None where no run has a useful one."""
    found = gather([r for r in variant.counted if r.history], f"certificate.{field}_bound")
    if found is None:
        return None
    epochs, values = found
    known = np.isfinite(values).all(0)
    weakest = np.full(len(epochs), np.nan)
    weakest[known] = values[:, known].max(0) if upper else values[:, known].min(0)
    weakest[weakest >= TRIVIAL.get(field, math.inf)] = np.nan
    if not (weakest > 0).any():
        return None
    name = f"{escape(variant.label)}, guaranteed"
    said = "at most %{y:.3g}" if upper else "at least %{y:.1%}"
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "legendgroup": name,
        "showlegend": False,
        "x": epochs,
        "y": compact(weakest),
        "line": {"color": loss_style(variant.loss).colour, "width": 1.5, "dash": "dot"},
        "hovertemplate": f"{said}<extra>{name}</extra>",
    }


def describe_bounds(variants: Sequence[Variant]) -> str:
    """The last measured NC1 of each variant beside its bound."""
    said = []
    for variant in variants:
        bound, measured = (
            max((values[-1] for r in variant.counted if (values := r.series(key)[1])), default=float("nan"))
            for key in ("certificate.nc1_bound", "train.nc1")
        )
        if np.isfinite(bound) and np.isfinite(measured):
            said.append(f"at most {show(bound, 2)} by the gap and {show(measured, 2)} as measured ({variant.label})")
    return f"NC1 is {join(said)} at the end." if said and len(said) <= 3 else ""
