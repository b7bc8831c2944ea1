"""The phase diagram of the optimum over mu and the bias decay, with the settings of the runs marked."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ncollapse.compare import Variant, name_loss
from ncollapse.grammar import join
from ncollapse.report.encoding import compact
from ncollapse.report.figures.ideal import find_problem
from ncollapse.report.panels import Figure, Panel, Spec, build, escape, side_by_side
from ncollapse.report.style import FAINT, INK, loss_style

PHASES = {
    "collapsed": ("no classes: W = H = 0", "var:faint@0.35"),
    "mean-only": ("mean only", "var:class3@0.4"),
    "centred": ("centred simplex", "var:class5@0.4"),
    "saturated": ("saturated bias", "var:class1@0.4"),
    "orthogonal-frame": ("orthogonal frame", "var:class2@0.4"),
}
COLUMNS = 48
DECAYS = (1e-6, 10.0)
SCANNED = 9
"""Bias decays at which a column is looked at before the borders between are found by bisection."""
HALVINGS = 9


class Column(NamedTuple):
    """The phases at one mu: names from the smallest bias decay to the largest, and the borders between them."""

    mu: float
    phases: tuple[str, ...]
    borders: tuple[float, ...]


def draw_phases(variants: Sequence[Variant]) -> Figure | None:
    """Phases of the optimum over mu and the bias decay for each loss of the runs, their own settings marked."""
    settings: dict[tuple[Any, ...], list[tuple[float, float, str]]] = {}
    for variant in variants:
        problem = next((p for r in variant.counted if (p := find_problem(r))), None)
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
    said: dict[str, set[str]] = {}
    for (loss, params, classes, features, bias), marks in list(settings.items())[:6]:
        low = 10.0 ** min([-4, *(math.ceil(math.log10(m)) - 1 for m, _, _ in marks if m > 0)])
        columns = map_phases(loss, params, classes, features, bias, low)
        if columns is None:
            continue
        title = f"{escape(name_loss(loss))}, K = {classes}, {'H ≥ 0' if features == 'relu' else 'free H'}"
        panels.append(_phase_panel(title, loss, columns, marks, shown))
        phase_at = make_phase(loss, params, classes, features, bias)
        for mu, decay, _ in marks:
            said.setdefault(name_loss(loss), set()).add(phase_at(mu, decay))
    if not panels:
        return None
    named = {loss: join(sorted(PHASES.get(p, (p,))[0] for p in found)) for loss, found in said.items()}
    result = "; ".join(f"{loss}: {phase}" for loss, phase in named.items())
    return Figure(
        "phases",
        "Phase diagram of the optimum",
        "What the last layer converges to, over μ = √(n λW λH) and the bias decay λb. Marks are the settings of these "
        "runs (λb = 0 on the lower edge). In the grey area decay is too strong for any class to survive; where the "
        "bias saturates, λb holds it back and W keeps a mean; “mean only” separates no class.",
        build(
            panels,
            columns=side_by_side(len(panels)),
            row_height=280,
            min_width=230,
            any_order=True,
            showlegend=True,
        ),
        "corrected closed forms of bce-vs-ce Theorem 3.2 and its kin",
        result=f"The optima of these settings: {result}.",
    )


def make_phase(loss: str, params: str, classes: int, features: str, bias: bool) -> Callable[[float, float], str]:
    """A function from mu and bias decay to the phase of the optimum; ValueError without closed form."""
    from ncollapse.theory import Problem
    from ncollapse.theory.balanced import make_phase_finder

    problem = Problem(
        loss,
        num_classes=classes,
        per_class=1.0,
        weight_decay=1.0,
        feature_decay=1.0,
        bias=bias,
        features="relu" if features == "relu" else "free",
        **json.loads(params),
    )
    find = make_phase_finder(problem)
    return lambda mu, decay: find(math.sqrt(mu) * math.sqrt(mu), decay)  # rounded as the mu of a problem is


@lru_cache(maxsize=32)
def map_phases(
    loss: str, params: str, classes: int, features: str, bias: bool, low: float
) -> tuple[Column, ...] | None:
    """The phases over mu from `low` to 1, with columns on both sides of every change; None without closed form."""
    try:
        phase_at = make_phase(loss, params, classes, features, bias)
        columns = [scan_column(phase_at, float(mu)) for mu in np.logspace(math.log10(low), 0, COLUMNS)]
        found = [columns[0]]
        for column in columns[1:]:
            if column.phases != found[-1].phases:
                found += _find_change(phase_at, found[-1], column)
            found.append(column)
    except (ValueError, TypeError):
        return None
    return tuple(found)


def scan_column(phase_at: Callable[[float, float], str], mu: float) -> Column:
    """The phases at one mu, the borders between them by bisection of the bias decay."""
    decays = np.logspace(math.log10(DECAYS[0]), math.log10(DECAYS[1]), SCANNED).tolist()
    names = [phase_at(mu, decay) for decay in decays]
    phases, borders = [names[0]], []
    for below, above, before, after in zip(decays, decays[1:], names, names[1:]):
        if after == before:
            continue
        for _ in range(HALVINGS):
            middle = math.sqrt(below * above)
            below, above = (middle, above) if phase_at(mu, middle) == before else (below, middle)
        phases.append(after)
        borders.append(math.sqrt(below * above))
    return Column(mu, tuple(phases), tuple(borders))


def _find_change(phase_at: Callable[[float, float], str], before: Column, after: Column) -> list[Column]:
    """Columns on both sides of every change between two columns, each pair close to each other."""
    found = []
    while before.phases != after.phases:
        first, last = before, after
        for _ in range(HALVINGS):
            middle = scan_column(phase_at, math.sqrt(first.mu * last.mu))
            if middle.phases == before.phases:
                first = middle
            else:
                last = middle
        found += [first, last]
        if last.mu >= after.mu:
            break
        before = last
    return found


def outline(columns: Sequence[Column], phase: str) -> list[tuple[list[float], list[float]]]:
    """The region of a phase as closed outlines over mu, a new one wherever it is interrupted."""
    parts: list[list[tuple[float, float, float]]] = [[]]
    for column in columns:
        limits = (DECAYS[0], *column.borders, DECAYS[1])
        if phase not in column.phases:
            parts.append([])
            continue
        place = column.phases.index(phase)
        parts[-1].append((column.mu, limits[place], limits[place + 1]))
    found = []
    for part in (p for p in parts if len(p) > 1):
        xs, lows, highs = ([row[i] for row in part] for i in range(3))
        found.append((xs + xs[::-1], lows + highs[::-1]))
    return found


def _phase_panel(
    title: str, loss: str, columns: Sequence[Column], marks: Sequence[tuple[float, float, str]], shown: set[str]
) -> Panel:
    traces: list[Spec] = []
    for rank, (phase, (words, colour)) in enumerate(PHASES.items()):
        xs: list[float | None] = []
        ys: list[float | None] = []
        for x, y in outline(columns, phase):
            xs += [*compact(x, 4), None]
            ys += [*compact(y, 4), None]
        if xs:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "x": xs[:-1],
                    "y": ys[:-1],
                    "fill": "toself",
                    "fillcolor": colour,
                    "line": {"width": 0.7, "color": FAINT},
                    "name": words,
                    "legendgroup": words,
                    "showlegend": words not in shown,
                    "legendrank": rank,
                    "hoveron": "fills",
                    "hoverinfo": "name",
                }
            )
            shown.add(words)
    style = loss_style(loss)
    first = "settings of these runs" not in shown
    shown.add("settings of these runs")
    places: dict[tuple[float, float], list[str]] = {}
    for mu, decay, label in marks:
        places.setdefault((mu, decay), []).append(escape(label))
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "settings of these runs",
            "showlegend": first,
            "cliponaxis": False,
            "legendgroup": "settings",
            "legendrank": 9,
            "x": compact(mu for mu, _ in places),
            "y": compact(max(decay, DECAYS[0]) for _, decay in places),
            "text": ["<br>".join(labels) for labels in places.values()],
            "marker": {"symbol": style.marker, "size": 11, "color": style.colour, "line": {"width": 1.5, "color": INK}},
            "hovertemplate": "%{text}<br>μ %{x:.3g}, λb %{y:.3g}<extra></extra>",
        }
    )
    log = {"type": "log", "exponentformat": "power", "dtick": 1, "tickfont": {"size": 10}, "showgrid": False}
    x_range = [round(math.log10(columns[0].mu), 4), round(math.log10(columns[-1].mu), 4)]
    across: Spec = {**log, "title": {"text": "μ", "standoff": 4}, "range": x_range}
    y_range = [math.log10(DECAYS[0]) - 0.1, math.log10(DECAYS[1])]
    up: Spec = {**log, "dtick": 2, "range": y_range, "title": {"text": "λb", "standoff": 4}}
    return Panel(title, traces, across, up)
