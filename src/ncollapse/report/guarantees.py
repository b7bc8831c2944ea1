"""What the certified gap of each variant guarantees about its last layer, beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ncollapse.compare import Variant, estimate
from ncollapse.compare.numbers import MISSING, show, show_estimate
from ncollapse.report.figures.bounds import TRIVIAL
from ncollapse.report.tables import Cell, Table
from ncollapse.runs.record import RunRecord, get_nested


class Guarantee(NamedTuple):
    """A bound of the certificate and the measured number that it bounds."""

    key: str
    title: str
    upper: bool
    """Whether the number is at most the bound, rather than at least."""
    measured: Callable[[RunRecord], float]
    percent: bool = False


def within_class_scatter(record: RunRecord) -> float:
    """The mean of |h - class mean|^2 over the training samples: their energy less that of the class means."""
    summary = record.summary or {}
    norms, counts = get_nested(summary, "train.mean_norms"), get_nested(summary, "train.counts")
    energy = record.final("train.feature_energy")
    if not isinstance(norms, list) or not isinstance(counts, list) or len(norms) != len(counts) or not sum(counts):
        return math.nan
    # an empty class has no mean
    between = sum(n * r * r for n, r in zip(counts, norms) if n and r is not None) / sum(counts)
    return float(max(0.0, energy - between))


def _final(key: str) -> Callable[[RunRecord], float]:
    return lambda record: record.final(f"train.{key}")


GUARANTEES = (
    Guarantee("within_class_bound", "spread within classes", True, within_class_scatter),
    Guarantee("nc1_bound", "NC1", True, _final("nc1")),
    Guarantee("nc2_bound", "NC2", True, _final("nc2")),
    Guarantee("nc3_bound", "NC3", True, _final("nc3")),
    Guarantee("duality_bound", "distance of W to the class means", True, lambda _: math.nan),
    Guarantee("accuracy_bound", "accuracy", False, _final("accuracy"), True),
    Guarantee("uniform_accuracy_bound", "uniform accuracy", False, _final("uniform_accuracy"), True),
)


def tabulate_guarantees(variants: Sequence[Variant]) -> Table | None:
    """A row for each variant with a certificate: the relative gap, then every bound beside the measured number."""
    certified = [v for v in variants if any(find_bounds(r) for r in v.finished)]
    held = [g for g in GUARANTEES if any(math.isfinite(_bound(r, g)) for v in certified for r in v.finished)]
    if not held:
        return None
    rows = []
    for variant in certified:
        runs = [r for r in variant.finished if find_bounds(r)]
        gap = estimate([r.final("certificate.relative_gap") for r in runs])
        relative = Cell(f"{show(100 * gap.mean, 3)} %", numbers={"relative_gap": gap.mean})
        bounds = [_guarantee_cell(runs, guarantee) for guarantee in held]
        rows.append((Cell(variant.label, loss=variant.loss), relative, *bounds))
    return Table(
        "guarantees",
        "What the certified gap guarantees",
        "The gap is how far the training objective lies above a proven lower bound. Whatever the network, a small gap "
        "implies the bounds below each measured number: it is at most (≤) or at least (≥) the bound. Training set; "
        "measured numbers are means over seeds, bounds the weakest of all seeds. The spread within classes is the mean "
        "of |h − h̄ₖ|².",
        tuple(map(Cell, ("runs", "gap / objective", *(guarantee.title for guarantee in held)))),
        tuple(rows),
        "docs/theory.md, section 5",
    )


def find_bounds(record: RunRecord) -> dict[str, float]:
    """The bounds that a run's certificate holds."""
    found = {guarantee.key: _bound(record, guarantee) for guarantee in GUARANTEES}
    return {key: value for key, value in found.items() if math.isfinite(value)}


def _bound(record: RunRecord, guarantee: Guarantee) -> float:
    """A bound of a run, NaN where there is none or where it holds for every network."""
    found = record.final(f"certificate.{guarantee.key}")
    trivial = TRIVIAL.get(guarantee.key.removesuffix("_bound"), math.inf)
    return math.nan if guarantee.upper and found >= trivial else found


def _guarantee_cell(runs: Sequence[RunRecord], guarantee: Guarantee) -> Cell:
    values = [value for r in runs if math.isfinite(value := guarantee.measured(r))]
    bounds = [value for r in runs if math.isfinite(value := _bound(r, guarantee))]
    measured = show_estimate(estimate(values), percent=guarantee.percent) if values else ""
    if not bounds:
        return Cell(measured or MISSING)
    bound = max(bounds) if guarantee.upper else min(bounds)
    said = f"{'≤' if guarantee.upper else '≥'} {show(bound, 3, percent=guarantee.percent)}"
    numbers = {"measured": estimate(values).mean if values else math.nan, "bound": bound}
    return Cell(measured or said, (said,) if measured else (), numbers=numbers)
