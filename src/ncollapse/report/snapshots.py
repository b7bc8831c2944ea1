"""The arrays behind the figures, as the runs of a page have kept them: at the end of training and at a few epochs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ncollapse.compare import Variant
from ncollapse.runs.epoch_snapshots import EpochSnapshots, read_epochs
from ncollapse.runs.record import SNAPSHOT, RunRecord

Snapshots = dict[Path, dict[str, np.ndarray]]
Epochs = Mapping[Path, EpochSnapshots]
MANY_SNAPSHOTS = 40
"""Up to so many runs all snapshots are read; beyond, only those of the variants that are drawn one by one."""


def load_snapshots(variants: Sequence[Variant], chosen: Sequence[Variant]) -> Snapshots:
    """The arrays behind the figures: of all runs, or of the chosen variants where runs are many.

    A run that has not finished has no snapshot of its end; the newest one of its epochs takes the place. Features, by
    far the largest, are kept only of the runs whose features are drawn.
    """
    drawn = {v.counted[0].path for v in chosen}
    wanted = [r for v in variants for r in v.counted]
    if len(wanted) > MANY_SNAPSHOTS:
        wanted = [r for v in chosen for r in v.counted[:MANY_SNAPSHOTS]]
    snapshots: Snapshots = {}
    for record in wanted:
        arrays = record.snapshot() or find_newest(record)
        if arrays is not None:
            whole = record.path in drawn
            snapshots[record.path] = {k: a for k, a in arrays.items() if whole or not k.endswith(".features")}
    return snapshots


def find_newest(record: RunRecord) -> dict[str, np.ndarray] | None:
    """The last snapshot of an unfinished run."""
    epochs = {} if record.status == "finished" else read_epochs(record.path)[0]
    return epochs[max(epochs)] if epochs else None


def load_epochs(runs: Iterable[RunRecord]) -> dict[Path, EpochSnapshots]:
    """The snapshots of single epochs of the runs that have at least two."""
    found = {run.path: read_epochs(run.path)[0] for run in runs}
    return {path: epochs for path, epochs in found.items() if len(epochs) > 1}


def find_unread(runs: Iterable[RunRecord], snapshots: Snapshots, epochs: Epochs) -> dict[Path, str]:
    """What is wrong with the snapshots of runs that have some, but none that could be read."""
    faults: dict[Path, str] = {}
    for run in runs:
        if run.path not in snapshots and (run.path / SNAPSHOT).is_file():
            faults[run.path] = str(run.read_snapshot()[1])
        elif run.path not in epochs and (problem := read_epochs(run.path)[1]):
            faults[run.path] = problem
    return faults


def histogram(snapshot: dict[str, np.ndarray] | None, name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Edges and counts of a stored histogram, None where it is missing, empty or does not fit."""
    if snapshot is None or f"{name}.edges" not in snapshot or f"{name}.counts" not in snapshot:
        return None
    edges = np.asarray(snapshot[f"{name}.edges"], dtype=np.float64)
    counts = np.asarray(snapshot[f"{name}.counts"], dtype=np.float64)
    if edges.ndim != 1 or counts.shape != (edges.size - 1,) or counts.sum() <= 0 or not np.isfinite(edges).all():
        return None
    return edges, counts
