"""Tables of single runs: class by class, and the list of all runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ncollapse.compare import QUANTITIES, Variant, measured
from ncollapse.compare.classes import read_block
from ncollapse.compare.numbers import MISSING, show
from ncollapse.report.snapshots import Snapshots
from ncollapse.report.tables import Cell, Table
from ncollapse.runs.record import RunRecord, get_nested

MANY_RUNS = 200
"""Beyond so many runs their configurations are left out of the page; a run's folder has them."""


def tabulate_classes(variants: Sequence[Variant], snapshots: Snapshots) -> Table | None:
    """Accuracy, norms and bias of each class, for the first run of each variant."""
    columns = [Cell("class")]
    stacks: list[list[Cell]] = []
    counts: list[Any] = []
    names: list[Any] = []
    for variant in variants:
        record = next((r for r in variant.finished if get_nested(r.summary or {}, "test.class_accuracy")), None)
        if record is None:
            continue
        accuracy = get_nested(record.summary or {}, "test.class_accuracy")
        counts = counts or list(get_nested(record.summary or {}, "train.counts", []))
        names = names or (read_block(record) or {}).get("names", [])
        stacks.append([Cell(show(_float(a), percent=True), numbers={"accuracy": _float(a)}) for a in accuracy])
        columns.append(Cell(f"{variant.label}: test accuracy", loss=variant.loss))
        snapshot = snapshots.get(record.path, {})
        for title, values in find_class_arrays(record, snapshot).items():
            if len(values) == len(accuracy):
                floats = [_float(v) for v in values]
                stacks.append([Cell(t, numbers={title: v}) for t, v in zip(show_column(floats), floats)])
                columns.append(Cell(f"{variant.label}: {title}"))
    if not stacks:
        return None
    height = max(len(stack) for stack in stacks)
    if len(counts) == height:
        columns.insert(1, Cell("training samples"))
        stacks.insert(0, [Cell(show(_float(c), 6), numbers={"samples": c}) for c in counts])
    titles = names if len(names) == height else range(height)
    rows = [
        (Cell(str(titles[k])), *(stack[k] if k < len(stack) else Cell(MISSING) for stack in stacks))
        for k in range(height)
    ]
    return Table(
        "classes",
        "Accuracy, norms and bias of each class",
        "First seed of each loss: |w| is the norm of a class's row of the classifier, |class mean| that of its mean "
        "training feature. Equal norms and equal biases across classes are signs of collapse.",
        tuple(columns),
        tuple(rows),
        "imbalanced-relu Sec. 5",
    )


def find_class_arrays(record: RunRecord, snapshot: dict[str, Any]) -> dict[str, Any]:
    """Norms of classifier rows and class means, and biases, one value a class."""
    arrays = {}
    summary = record.summary or {}
    for title, key in (("|w|", "train.weight_norms"), ("|class mean|", "train.mean_norms")):
        values = get_nested(summary, key)
        if isinstance(values, list):
            arrays[title] = values
    if "bias" in snapshot:
        arrays["bias"] = snapshot["bias"].tolist()
    return arrays


def show_column(values: Sequence[float]) -> list[str]:
    """Numbers of one column with as many decimals as give the largest four digits, so that they can be compared.

    >>> show_column([1.67, 16.0, -0.052]), show_column([0.0, math.nan])
    (['1.67', '16.00', '−0.05'], ['0', '–'])
    """
    largest = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    if not 1e-3 <= largest < 1e4:
        return [show(v) for v in values]
    decimals = 3 - math.floor(math.log10(largest))
    return [f"{v:.{decimals}f}".replace("-", "−") if math.isfinite(v) else MISSING for v in values]


def tabulate_runs(variants: Sequence[Variant], others: Sequence[RunRecord], anchors: dict[str, str]) -> Table:
    """Every run: seed, status, progress, headline numbers."""
    keys = [
        q
        for q in QUANTITIES
        if q.key in ("test.accuracy", "test.uniform_accuracy", "train.nc1", "train.nc2", "train.nc3")
    ]
    columns = ("run", "what", "seed", "status", "epochs", *(q.title for q in keys), "time")
    rows = []
    listed = [(r, v.label, v.loss) for v in variants for r in v.records] + [(r, r.name, "") for r in others]
    many = len(listed) > MANY_RUNS
    first = {v.label: anchors[v.label][1:] for v in variants}
    for record, label, loss in listed:
        epoch = get_nested(record.summary or {}, "epoch") or (record.history[-1].get("epoch") if record.history else 0)
        wall = get_nested(record.summary or {}, "time.wall_s")
        href = "" if many else anchors[str(record.path)]
        row = [
            Cell(record.run_id, href=href, anchor=first.pop(label, "")),
            Cell(label, loss=loss),
            Cell(MISSING if record.seed is None else str(record.seed), numbers={"seed": record.seed}),
            Cell(record.status),
            Cell(f"{epoch} of {record.get('optim.epochs', MISSING)}"),
        ]
        for q in keys:
            value = measured(record, q.key)
            row.append(Cell(show(value, percent=q.percent), numbers={"value": value}))
        row.append(Cell(f"{wall:.1f} s" if isinstance(wall, (int, float)) else MISSING))
        rows.append(tuple(row))
    return Table(
        "runs",
        "All runs",
        "A run's folder has its configuration and provenance."
        if many
        else "Follow a run's name to its configuration and provenance.",
        tuple(map(Cell, columns)),
        tuple(rows),
    )


def _float(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
