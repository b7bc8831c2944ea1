"""Cosine margins of all samples, sorted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncollapse.compare import Variant, name_loss
from ncollapse.grammar import join
from ncollapse.report.encoding import compact
from ncollapse.report.figures.curves import MANY
from ncollapse.report.panels import Figure, Panel, Spec, build, escape, merge_alike, name_once, shorten_labels
from ncollapse.report.snapshots import Snapshots, histogram
from ncollapse.report.style import DASHES, INK, loss_style


def draw_margins(variants: Sequence[Variant], snapshots: Snapshots) -> Figure | None:
    """Sorted cosine margins: the share of samples whose margin is at most the height of the curve."""
    many = len(variants) > MANY
    contexts = list(dict.fromkeys(v.context for v in variants))
    named = dict(zip((v.label for v in variants), shorten_labels([v.label for v in variants])))
    panels = []
    for split in ("train", "test"):
        traces: list[Spec] = []
        for variant in variants:
            for record in variant.counted:
                found = histogram(snapshots.get(record.path), f"{split}.margin")
                if found is None:
                    continue
                share, heights = sorted_values(*found)
                style = loss_style(variant.loss)
                dash = "solid" if many else DASHES[contexts.index(variant.context) % len(DASHES)]
                traces.append(
                    {
                        "type": "scatter",
                        "mode": "lines",
                        "name": escape(name_loss(variant.loss) if many else named[variant.label]),
                        "legendgroup": escape(variant.loss if many else variant.label),
                        "showlegend": False,
                        "x": compact(share, 4),
                        "y": compact(heights, 6),  # 4 digits would draw stairs where all margins are near 1
                        "line": {"color": style.colour, "width": 1 if many else 1.6, "dash": dash},
                        "opacity": 0.5 if many else 0.85,
                        "hovertemplate": "%{x:.1%} of samples at most %{y:.3f}<extra>%{fullData.name}</extra>",
                    }
                )
        if traces:
            x = {
                "tickformat": ".2~%",
                "tickvals": [0, 0.25, 0.5, 0.75, 1],
                "title": {"text": "share of samples, ascending", "standoff": 4},
            }
            panels.append(
                Panel(f"{split} cosine margin", merge_alike(traces), x, {"zeroline": True, "zerolinecolor": INK})
            )
    if not panels:
        return None
    name_once(panels)
    return Figure(
        "margins",
        "Cosine margins",
        "Each sample's cosine to its own class vector less the largest to another, sorted. Below zero it is nearer to "
        "another class; a flat curve means every sample is as safe as the next. One line per run.",
        build(panels, columns=2, row_height=250, showlegend=True),
        "mse-landscape Figs. 3–6",
        result=describe_margins(variants, snapshots),
    )


def sorted_values(edges: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shares and values of a histogram's samples in ascending order, one point a filled bin: no stairs, no jumps.

    Each filled bin stands at its middle, by the middle of the samples in it; the ends are the outer edges.
    """
    filled = np.flatnonzero(counts)
    total = counts.sum()
    upper = np.cumsum(counts)[filled] / total
    share = upper - counts[filled] / total / 2
    values = (edges[filled] + edges[filled + 1]) / 2
    return np.concatenate([[0], share, [1]]), np.concatenate([[edges[filled[0]]], values, [edges[filled[-1] + 1]]])


def share_below_zero(edges: np.ndarray, counts: np.ndarray) -> float:
    """The share of a histogram's samples below zero, a bin across zero counted in proportion."""
    widths = np.diff(edges)
    part = np.clip((0 - edges[:-1]) / np.where(widths > 0, widths, 1), 0, 1)
    return float((part * counts).sum() / counts.sum())


def describe_margins(variants: Sequence[Variant], snapshots: Snapshots) -> str:
    """The share of test samples that are nearer to another class, variant by variant."""
    said = []
    for variant, label in zip(variants, shorten_labels([v.label for v in variants])):
        found = [histogram(snapshots.get(r.path), "test.margin") for r in variant.counted]
        shares = [share_below_zero(*h) for h in found if h is not None]
        if shares:
            said.append(f"{100 * sum(shares) / len(shares):.1f} % ({label})")
    if not said or len(said) > MANY:
        return ""
    return f"Test samples with a negative margin, which are nearer to another class: {join(said)}."
