"""The page's tables, as cells that know their text, their numbers and the runs behind them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ncollapse.compare.findings import QUANTITIES, SPEEDS, Finding, Quantity, name_early
from ncollapse.compare.variants import Variant, measured
from ncollapse.grammar import join
from ncollapse.report.figures.distributions import Snapshots
from ncollapse.report.figures.theory import PHASES
from ncollapse.report.numbers import MISSING, deviation, show, show_difference, show_estimate
from ncollapse.report.published import Published
from ncollapse.runs.record import RunRecord, get_nested

FEW = 4


@dataclass(frozen=True)
class Cell:
    """One cell: a main line, smaller lines below it, a link to the runs behind it, and its numbers for CSV."""

    text: str
    lines: tuple[str, ...] = ()
    href: str = ""
    loss: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)
    anchor: str = ""


@dataclass(frozen=True)
class Table:
    """A table of the page; the first column names the rows."""

    id: str
    title: str
    aid: str
    columns: tuple[Cell, ...]
    rows: tuple[tuple[Cell, ...], ...]
    source: str = ""
    notes: tuple[str, ...] = ()


def tabulate_summary(findings: Sequence[Finding], published: Published, anchors: dict[str, str]) -> list[Table]:
    """Measured, predicted and published numbers: quantities down for a few variants, variants down for many."""
    kept = [q for q in QUANTITIES if any(f.estimates[q.key].n for f in findings)]
    if not findings or not kept:
        return []
    notes = seed_notes(findings)
    heads = [
        Cell(
            f"{f.variant.label}, n = {len(f.variant.counted)}",
            (f"theory: {PHASES.get(f.phase, (f.phase,))[0]}",) if f.phase and len(findings) <= FEW else (),
            anchors[f.variant.label],
            f.variant.loss,
        )
        for f in findings
    ]
    if len(findings) <= FEW:
        others = [f for f in findings if f.reference]
        columns = [Cell("quantity"), *heads]
        columns += [Cell(f"{f.variant.label} − {f.reference.label}") for f in others if f.reference]
        rows = []
        for q in kept:
            row = [Cell(q.title), *(summary_cell(f, q, published, anchors) for f in findings)]
            row += [difference_cell(f, q) for f in others]
            rows.append(tuple(row))
        aid = explain(rows)
        if others:
            aid += "; last the paired difference with its 95 % interval (rates in percentage points)"
        title = "Measured" + (", predicted" if "theory" in aid else "") + (", published" if "paper" in aid else "")
        return [Table("summary", title, aid + ".", tuple(columns), tuple(rows), notes=notes)]
    tables: list[Table] = []
    parts = {
        "summary": ("Accuracy and features", [q for q in kept if q.key.startswith("test.") or q.percent]),
        "summary-collapse": (
            "Collapse",
            [q for q in kept if q.title.startswith("train NC") or q.key == "certificate.gap"],
        ),
        "summary-scores": (
            "Scores against theory",
            [
                q
                for q in kept
                if q.key.split(".")[-1]
                in ("positive_score", "negative_score", "bias", "weight_energy", "feature_energy")
            ],
        ),
    }
    for id, (title, quantities) in parts.items():
        if quantities:
            columns = [Cell("runs"), *(Cell(q.title) for q in quantities)]
            rows = [
                (head, *(summary_cell(f, q, published, anchors) for q in quantities))
                for head, f in zip(heads, findings)
            ]
            tables.append(
                Table(id, title, explain(rows) + ".", tuple(columns), tuple(rows), notes=notes if not tables else ())
            )
    return tables


def explain(rows: Sequence[Sequence[Cell]]) -> str:
    """How to read the cells of a summary, as far as they hold it."""
    held = {name for row in rows for cell in row for name in cell.numbers}
    aid = "Mean ± standard deviation over seeds"
    if "predicted" in held:
        aid += "; below it what theory predicts and how far the mean lies from that"
    if "published" in held:
        aid += f"; {'then' if 'predicted' in held else 'below it'} the paper's number"
    return aid


def summary_cell(finding: Finding, quantity: Quantity, published: Published, anchors: dict[str, str]) -> Cell:
    """A mean over seeds above the predicted and the published value, each with the relative deviation from it."""
    found = finding.estimates[quantity.key]
    numbers: dict[str, Any] = {"mean": found.mean, "std": found.std, "n": found.n}
    lines = []
    predicted = (
        finding.predictions.get(quantity.key.removeprefix("train."), math.nan)
        if quantity.key.startswith("train.")
        else math.nan
    )
    if math.isfinite(predicted) and found.n:
        numbers["predicted"] = predicted
        lines.append(f"theory {show(predicted)}{_apart(found.mean, predicted)}")
    printed = published.get(finding.variant.label, {}).get(quantity.key)
    if printed and found.n:
        numbers["published"] = printed.value
        apart = _apart(found.mean, printed.value, quantity.percent)
        lines.append(f"paper {show(printed.value, percent=quantity.percent)}{apart}")
    return Cell(show_estimate(found, quantity.percent), tuple(lines), anchors[finding.variant.label], numbers=numbers)


def difference_cell(finding: Finding, quantity: Quantity) -> Cell:
    """The paired difference to the reference with its interval, and whether it leaves zero out."""
    d = finding.differences[quantity.key]
    numbers = {"difference": d.mean, "low": d.low, "high": d.high, "p": d.p_value, "n": d.n}
    head, tail = show_difference(d, quantity.percent)
    lines: tuple[str, ...] = (tail,) if tail else ()
    if d.n > 1 and d.clear and quantity.better:
        good = (d.mean > 0) == (quantity.better == "higher")
        lines = (f"{tail} {'better' if good else 'worse'}",)
    return Cell(head, lines, numbers=numbers)


def tabulate_speed(findings: Sequence[Finding], anchors: dict[str, str]) -> Table | None:
    """How fast each variant collapsed on the training set."""
    if not any(e.n for f in findings for e in f.speeds.values()):
        return None
    columns = (Cell("runs"), *(Cell(title) for title in SPEEDS.values()))
    rows = []
    for f in findings:
        n = len(f.variant.counted)
        row = [Cell(f.variant.label, href=anchors[f.variant.label], loss=f.variant.loss)]
        for name in SPEEDS:
            found, reached = f.speeds[name], f.reached[name]
            text = (
                show_estimate(found) if reached else "never" if name.endswith("epoch") and f.recorded[name] else MISSING
            )
            lines: tuple[str, ...] = (f"in {reached} of {n} runs",) if 0 < reached < n else ()
            numbers: dict[str, Any] = {"mean": found.mean, "std": found.std, "reached": reached}
            difference = f.speed_differences.get(name)
            if difference is not None and difference.n:
                size, interval = show_difference(difference)
                lines += (f"{size} {interval}" if interval.startswith("[") else f"{size}, {interval}",)
                numbers |= {"difference": difference.mean, "low": difference.low, "high": difference.high}
            row.append(Cell(text, lines, numbers=numbers))
        rows.append(tuple(row))
    return Table(
        "speed",
        "How fast each loss collapses",
        "First epoch at which every training sample is right, at which one threshold separates all scores, at which "
        f"NC1 falls below 0.1; then the mean log10 of the metrics over {name_early(findings)} (lower is faster). "
        "Below, the paired difference to the reference with its 95 % interval.",
        columns,
        tuple(rows),
        "bce-vs-ce Sec. 4.1",
        speed_notes(findings),
    )


def speed_notes(findings: Sequence[Finding]) -> tuple[str, ...]:
    """What the speeds leave open: numbers that no history has, and epochs that were not measured."""
    titles = {"accuracy_epoch": "accuracy", "uniform_accuracy_epoch": "uniform accuracy"}
    titles |= {f"log_{nc}": nc.upper() for nc in ("nc1", "nc2", "nc3")}
    notes = [
        f"{f.variant.label}: {join(lacking)} over the epochs not recorded, or not by all runs."
        for f in findings
        if (lacking := [titles[name] for name in titles if f.recorded[name] < len(f.variant.counted)])
    ]
    rates = {f.variant.label: sorted({str(r.get("measure_every", 1)) for r in f.variant.counted}) for f in findings}
    if len({rate for own in rates.values() for rate in own}) > 1:
        said = ", ".join(f"{label} every {' or '.join(own)}" for label, own in rates.items())
        notes.append(
            f"Measured at different epochs ({said}), so first epochs are known to within as many; differences take the "
            "epochs that both runs measured."
        )
    return tuple(notes)


def tabulate_classes(variants: Sequence[Variant], snapshots: Snapshots) -> Table | None:
    """Accuracy, norms and bias of each class, for the first run of each variant."""
    columns = [Cell("class")]
    stacks: list[list[Cell]] = []
    counts: list[Any] = []
    for variant in variants:
        record = next((r for r in variant.finished if get_nested(r.summary or {}, "test.class_accuracy")), None)
        if record is None:
            continue
        accuracy = get_nested(record.summary or {}, "test.class_accuracy")
        counts = counts or list(get_nested(record.summary or {}, "train.counts", []))
        stacks.append([Cell(show(_float(a), percent=True), numbers={"accuracy": _float(a)}) for a in accuracy])
        columns.append(Cell(f"{variant.label}: test accuracy", loss=variant.loss))
        snapshot = snapshots.get(record.path, {})
        for title, values in class_arrays(record, snapshot).items():
            if len(values) == len(accuracy):
                stacks.append([Cell(show(_float(v)), numbers={title: _float(v)}) for v in values])
                columns.append(Cell(f"{variant.label}: {title}"))
    if not stacks:
        return None
    height = max(len(stack) for stack in stacks)
    if len(counts) == height:
        columns.insert(1, Cell("training samples"))
        stacks.insert(0, [Cell(show(_float(c), 6), numbers={"samples": c}) for c in counts])
    rows = [(Cell(str(k)), *(stack[k] if k < len(stack) else Cell(MISSING) for stack in stacks)) for k in range(height)]
    return Table(
        "classes",
        "Class by class",
        "First seed of each loss: |w| is the norm of a class's row of the classifier, |class mean| that of its mean "
        "training feature. Equal norms and equal biases across classes are signs of collapse.",
        tuple(columns),
        tuple(rows),
        "imbalanced-relu Sec. 5",
    )


def class_arrays(record: RunRecord, snapshot: dict[str, Any]) -> dict[str, Any]:
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
    first = {v.label: anchors[v.label][1:] for v in variants}
    for record, label, loss in listed:
        epoch = get_nested(record.summary or {}, "epoch") or (record.history[-1].get("epoch") if record.history else 0)
        wall = get_nested(record.summary or {}, "time.wall_s")
        row = [
            Cell(record.run_id, href=anchors[str(record.path)], anchor=first.pop(label, "")),
            Cell(label, loss=loss),
            Cell(MISSING if record.seed is None else str(record.seed), numbers={"seed": record.seed}),
            Cell(record.status),
            Cell(f"{epoch} of {record.get('optim.epochs', MISSING)}"),
        ]
        for q in keys:
            value = measured(record, q.key)
            row.append(Cell(show(value, percent=q.percent), href=anchors[str(record.path)], numbers={"value": value}))
        row.append(Cell(f"{wall:.1f} s" if isinstance(wall, (int, float)) else MISSING))
        rows.append(tuple(row))
    return Table(
        "runs",
        "All runs",
        "Follow a run's name to its configuration and provenance.",
        tuple(map(Cell, columns)),
        tuple(rows),
    )


def seed_notes(findings: Sequence[Finding]) -> tuple[str, ...]:
    """What a reader must know about the seeds: too few for an interval, or runs that have not finished."""
    notes = []
    if all(len(f.variant.counted) == 1 for f in findings):
        notes.append(
            "One seed per variant: no standard deviation and no interval can be given; differences may be chance."
        )
    elif single := [f.variant.label for f in findings if len(f.variant.counted) == 1]:
        notes.append(f"One seed only, so no interval: {', '.join(single)}.")
    if unfinished := [f.variant.label for f in findings if f.variant.provisional]:
        notes.append(f"Not finished yet, numbers of the last measured epoch: {', '.join(unfinished)}.")
    return tuple(notes)


def pretty(value: Any) -> str:
    """A configuration as indented JSON."""
    return json.dumps(value, indent=1, ensure_ascii=False, default=str)


def _apart(value: float, reference: float, percent: bool = False) -> str:
    if percent:
        return f", {show(100 * (value - reference), 2, sign=True)} points"
    relative = deviation(value, reference)
    if not math.isfinite(relative):
        return f", off by {show(value - reference, 2, sign=True)}"
    if 0 < abs(relative) < 5e-5:
        return ", within 0.01 %"
    return f", {show(100 * relative, 2, sign=True)} %"


def _float(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
