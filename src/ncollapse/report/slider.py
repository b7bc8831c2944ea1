"""Figures with an epoch slider: the same traces at several epochs, the last of which is drawn first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ncollapse.report.panels import Panel, Spec
from ncollapse.runs.epoch_snapshots import Arrays, EpochSnapshots

MOVING = ("x", "y", "z", "text")
"""What may change in a trace from epoch to epoch; everything else stays as it is at the last one."""


def list_epochs(runs: Iterable[EpochSnapshots]) -> list[int]:
    """The epochs of which any of the runs has a snapshot."""
    return sorted({epoch for epochs in runs for epoch in epochs})


def latest(epochs: EpochSnapshots, epoch: int) -> tuple[int, Arrays]:
    """The last snapshot up to an epoch, or the first one where all are later."""
    chosen = max((e for e in epochs if e <= epoch), default=min(epochs))
    return chosen, epochs[chosen]


def attach_slider(spec: Spec, positions: Sequence[tuple[str, Sequence[Panel]]], last: str) -> Spec:
    """Add a slider to a specification: `positions` hold the panels before its own, each with a label, `last` its own.

    A position whose traces are not those of the specification, such as one that lacks a histogram, is left out.
    """
    labels, frames = [], []
    for label, panels in positions:
        traces = [trace for panel in panels for trace in panel.traces]
        if len(traces) == len(spec["data"]):
            labels.append(label)
            frames.append([pick_moving(trace, drawn) for trace, drawn in zip(traces, spec["data"])])
    if frames:
        spec["slider"] = {"labels": [*labels, last], "frames": frames}
    return spec


def pick_moving(trace: Spec, drawn: Spec) -> Spec:
    """What a trace has otherwise than the one that is drawn."""
    return {key: trace[key] for key in MOVING if key in trace and trace[key] != drawn.get(key)}
