"""Curves of many variants: a small panel for each loss, data set, network and optimiser, coloured by what is swept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ncollapse.compare import Variant, name_loss, name_optimiser
from ncollapse.compare.numbers import show
from ncollapse.compare.seeds import rounding_limit
from ncollapse.compare.variants import phrase
from ncollapse.grammar import count, join
from ncollapse.report.encoding import compact
from ncollapse.report.figures.curves import gather
from ncollapse.report.panels import Figure, Panel, Spec, build, escape, log_axis, merge_alike, name_once
from ncollapse.report.style import DASHES, loss_style

METRICS = {
    "collapse": ("train.nc1", "NC1 over epochs", True),
    "collapse-nc2": ("train.nc2", "NC2 over epochs", True),
    "collapse-nc3": ("train.nc3", "NC3 over epochs", True),
    "accuracy": ("test.accuracy", "Test accuracy over epochs", False),
}
GROUPS = {"data.name": "data set", "model.name": "network", "optim.name": "optimiser"}
"""What a panel has in common besides the loss, and the words for it."""
MOST_PANELS = 12
MOST_ENTRIES = 10
MOST_POINTS = 40_000
"""Points of all lines of a figure together; beyond, epochs are thinned out."""
HUES = (225, 15)
"""The hues of the smallest and the largest value of the swept setting."""


def draw_multiples(variants: Sequence[Variant]) -> list[Figure]:
    """One figure a metric, a panel for each group of variants that share loss, data, network and optimiser.

    Where that leaves one line to a panel, optimisers, and else networks, share a panel.
    """
    keys = choose_keys(variants)
    groups = group_variants(variants, keys)
    names = name_groups(list(groups))
    swept = find_swept(list(groups.values()), keys)
    values = sort_values({v.settings.get(swept) for v in variants if swept in v.settings}) if swept else []
    shown = dict(sorted(groups.items(), key=lambda item: -len(item[1]))[:MOST_PANELS])
    notes: tuple[str, ...] = ()
    if len(shown) < len(groups):
        notes = (f"The {MOST_PANELS} largest of {len(groups)} groups of runs are shown.",)
    figures = []
    for id, (key, title, log) in METRICS.items():
        points = max(12, min(120, MOST_POINTS // max(1, sum(map(len, shown.values())))))
        panels = [
            panel
            for group, members in groups.items()
            if group in shown and (panel := _panel(names[group], members, key, log, swept, values, points)) is not None
        ]
        if not panels:
            continue
        name_once(panels)
        word = f"the {GROUPS[swept]}" if swept in GROUPS else phrase(swept, "X").removesuffix(" X")
        by = f" Colours follow {word}." if swept else ""
        each = f"A panel for each combination of {join(['loss', *(GROUPS[key] for key in keys)])}"
        spec = build(panels, columns=3, row_height=150, min_width=190, gap_y=64, showlegend=True)
        figures.append(
            Figure(
                id,
                title,
                f"{each}; a line for each variant, the mean over its seeds.{by}"
                + (" Lower is more collapsed." if log else ""),
                share_axes(spec, log),
                "bce-vs-ce Figs. 2, 4–6; all-losses Figs. 1, 5, 8",
                notes,
                describe_range(list(groups.values()), key, title.removesuffix(" over epochs"), log),
            )
        )
    return figures


def choose_keys(variants: Sequence[Variant]) -> list[str]:
    """What the variants of a panel share besides the loss, so that a panel has lines to compare."""
    keys = list(GROUPS)
    for key in ("optim.name", "model.name"):
        alone = all(len(members) == 1 for members in group_variants(variants, keys).values())
        if alone and len({variant.records[0].get(key) for variant in variants}) > 1:
            keys.remove(key)
    return keys


def group_variants(variants: Sequence[Variant], keys: Iterable[str] = GROUPS) -> dict[tuple[str, ...], list[Variant]]:
    """The variants by loss and by settings, unless given data set, network and optimiser."""
    groups: dict[tuple[str, ...], list[Variant]] = {}
    for variant in variants:
        record = variant.records[0]
        key = (variant.loss, *(str(record.get(name) or "") for name in keys))
        groups.setdefault(key, []).append(variant)
    return groups


def name_groups(groups: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Titles of the groups: the loss, and whatever else differs between them."""
    varying = [i for i in range(1, len(groups[0])) if len({g[i] for g in groups}) > 1]
    return {g: escape(", ".join([name_loss(g[0]), *(name_optimiser(g[i]) for i in varying if g[i])])) for g in groups}


def find_swept(groups: Sequence[Sequence[Variant]], shared: Iterable[str] = GROUPS) -> str:
    """The setting with the most values inside the groups of variants, summed over groups; "" if nothing varies.

    The number of epochs stays out, because the length of a line shows it.
    """
    varying: dict[str, int] = {}
    for group in groups:
        keys = {key for variant in group for key in variant.settings} - {*shared, "optim.epochs"}
        for key in sorted(keys):
            found = {str(variant.settings.get(key)) for variant in group}
            varying[key] = varying.get(key, 0) + len(found) - 1
    best = max(varying, key=lambda key: varying[key], default="")
    return best if best and varying[best] else ""


def sort_values(values: set[Any]) -> list[Any]:
    """Numbers ascending, then everything else by its text."""
    numbers = sorted(v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool))
    return [*numbers, *sorted((v for v in values if v not in numbers), key=str)]


def describe_range(groups: Sequence[Sequence[Variant]], key: str, title: str, log: bool) -> str:
    """From where to where the last values of a metric reach."""
    ends = []
    for variant in (v for group in groups for v in group):
        for record in variant.counted:
            epochs, values = record.series(key)
            if epochs and math.isfinite(values[-1]):
                ends.append(values[-1])
    if not ends:
        return ""
    low, high = (show(v, 2) if log else f"{100 * v:.1f} %" for v in (min(ends), max(ends)))
    return f"{title} of {count(len(ends), 'run')} ends between {low} and {high}."


def share_axes(spec: Spec, log: bool) -> Spec:
    """Give all panels the same vertical range, so that they can be compared."""
    heights = [v for trace in spec["data"] for v in trace["y"] if v is not None and (v > 0 or not log)]
    if not heights:
        return spec
    low, high = min(heights), max(heights)
    limits = [math.log10(low) - 0.1, math.log10(high) + 0.1] if log else [low - 0.02, min(1.0, high) + 0.02]
    for key, axis in spec["layout"].items():
        if key.startswith("yaxis"):
            axis["range"] = [round(v, 3) for v in limits]
            axis |= log_axis([low, high]) if log else {}
    return spec


def _panel(
    title: str, variants: Sequence[Variant], key: str, log: bool, swept: str, values: Sequence[Any], points: int
) -> Panel | None:
    traces: list[Spec] = []
    for variant in variants:
        found = gather([r for r in variant.records if r.history], key, points)
        if found is None:
            continue
        epochs, heights = found
        with np.errstate(all="ignore"):
            line = np.nanmean(np.where(heights > rounding_limit(key), heights, np.nan) if log else heights, axis=0)
        value = variant.settings.get(swept) if swept in variant.settings else None
        named = value in values
        name = escape(phrase(swept, value) if named else name_loss(variant.loss))
        colour = _colour(values.index(value), len(values)) if named else loss_style(variant.loss).colour
        dash = DASHES[values.index(value)] if named and len(values) <= len(DASHES) else "solid"
        traces.append(
            {
                "type": "scatter",
                "mode": "lines" if len(epochs) > 2 else "lines+markers",
                "name": name,
                "legendgroup": name if not named or _has_entry(values.index(value), len(values)) else "",
                "legendrank": values.index(value) if named else 0,
                "showlegend": False,
                "x": [int(e) for e in epochs],
                "y": compact(line, 4),
                "line": {"color": colour, "width": 1.3, "dash": dash},
                "hovertemplate": f"epoch %{{x}}: %{{y:{'.3g' if log else '.2%'}}}<extra>%{{fullData.name}}</extra>",
            }
        )
    if not traces:
        return None
    y: Spec = {"type": "log"} if log else {"tickformat": ".0%", "nticks": 5}
    return Panel(title, merge_alike(traces), {"rangemode": "tozero", "nticks": 5}, {**y, "tickfont": {"size": 10}})


def _has_entry(index: int, total: int) -> bool:
    """Whether a value gets an entry in the legend: all of a few, evenly spaced ones of many."""
    if total <= MOST_ENTRIES:
        return True
    return index in {round(i * (total - 1) / (MOST_ENTRIES - 1)) for i in range(MOST_ENTRIES)}


def _colour(index: int, total: int) -> str:
    share = index / max(1, total - 1)
    return f"hue:{HUES[0] + (HUES[1] - HUES[0]) * share:.0f}"
