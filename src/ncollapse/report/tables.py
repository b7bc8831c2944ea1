"""The page's tables, as cells that know their text, their numbers and the runs behind them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ncollapse.compare import QUANTITIES, SPEEDS, Finding, Quantity, name_early
from ncollapse.compare.numbers import MISSING, deviation, show, show_difference, show_estimate, show_images, show_ratio
from ncollapse.grammar import join
from ncollapse.report.figures.phases import PHASES
from ncollapse.report.published import Published

FEW = 4
MOST_ROWS = 100
"""Beyond so many variants a table shows the first; an export has them all."""
FEW_LINKS = 24
"""Up to so many variants every number leads to its runs; beyond, only the name of the variant does."""
ARROWS = {"higher": "\u00a0↑", "lower": "\u00a0↓", "": ""}
"""Which way is better."""


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
    method: str
    columns: tuple[Cell, ...]
    rows: tuple[tuple[Cell, ...], ...]
    source: str = ""
    notes: tuple[str, ...] = ()
    in_words: bool = False
    """Whether its cells hold words, which read better from the left."""


def tabulate_summary(findings: Sequence[Finding], published: Published, anchors: dict[str, str]) -> list[Table]:
    """Measured, predicted and published numbers: quantities down for a few variants, variants down for many."""
    kept = [q for q in QUANTITIES if any(f.estimates[q.key].n for f in findings)]
    if not findings or not kept:
        return []
    notes = seed_notes(findings)
    if len(findings) > MOST_ROWS:
        left_out = f"The first {MOST_ROWS} of {len(findings)} variants; the table of runs has all runs."
        findings, notes = findings[:MOST_ROWS], (left_out, *notes)
    heads = [
        Cell(
            f"{f.variant.label}, n = {len(f.variant.counted)}",
            (f"theory: {PHASES.get(f.phase, (f.phase,))[0]}",) if f.phase and len(findings) <= FEW else (),
            anchors[f.variant.label],
            f.variant.loss,
        )
        for f in findings
    ]
    summary = _Summary(findings, kept, heads, published, anchors, notes)
    return [_tabulate_few(summary)] if len(findings) <= FEW else _tabulate_many(summary)


class _Summary(NamedTuple):
    """What the tables of a summary hold; `heads` name the findings."""

    findings: Sequence[Finding]
    quantities: Sequence[Quantity]
    heads: Sequence[Cell]
    published: Published
    anchors: dict[str, str]
    notes: tuple[str, ...]


def _tabulate_few(summary: _Summary) -> Table:
    """A row a quantity, a column a variant, and the differences from the variant of reference."""
    findings, quantities, heads, published, anchors, notes = summary
    others = [f for f in findings if f.reference]
    columns = [Cell("quantity"), *heads]
    columns += [Cell(f"{f.variant.label} − {f.reference.label}") for f in others if f.reference]
    rows = []
    for q in quantities:
        row = [name_quantity(q), *(summary_cell(f, q, published, anchors) for f in findings)]
        row += [difference_cell(f, q) for f in others]
        rows.append(tuple(row))
    method = explain(rows)
    if others:
        method += (
            "; last the paired difference with its 95 % interval: rates in percentage points and images, NC1 to NC3 as "
            "ratios"
        )
    title = "Measured" + (", predicted" if "theory" in method else "") + (", published" if "paper" in method else "")
    return Table("summary", title, method + ".", tuple(columns), tuple(rows), notes=notes)


def _tabulate_many(summary: _Summary) -> list[Table]:
    """A row a variant, a column a quantity, in a table for each kind of quantity."""
    findings, quantities, heads, published, anchors, notes = summary
    scores = ("positive_score", "negative_score", "bias", "weight_energy", "feature_energy")
    parts = {
        "summary": ("Accuracy and features", [q for q in quantities if q.key.startswith("test.") or q.percent]),
        "summary-collapse": (
            "Collapse",
            [q for q in quantities if q.title.startswith("train NC") or q.key == "certificate.gap"],
        ),
        "summary-scores": ("Scores against theory", [q for q in quantities if q.key.split(".")[-1] in scores]),
    }
    tables: list[Table] = []
    for id, (title, mine) in parts.items():
        if mine:
            columns = [Cell("runs"), *(name_quantity(q) for q in mine)]
            links = anchors if len(findings) <= FEW_LINKS else {}
            rows = [(head, *(summary_cell(f, q, published, links) for q in mine)) for head, f in zip(heads, findings)]
            tables.append(
                Table(id, title, explain(rows) + ".", tuple(columns), tuple(rows), notes=notes if not tables else ())
            )
    return tables


def name_quantity(quantity: Quantity) -> Cell:
    """A quantity's name with an arrow in the better direction and a link to its definition."""
    link = f"#define-{quantity.key.replace('.', '-')}" if quantity.meaning else ""
    return Cell(quantity.title + ARROWS[quantity.better], href=link)


def explain(rows: Sequence[Sequence[Cell]]) -> str:
    """How to read the cells of a summary, as far as they hold it."""
    held = {name for row in rows for cell in row for name in cell.numbers}
    several = any(cell.numbers.get("n", 0) > 1 for row in rows for cell in row)
    method = "Mean ± standard deviation over seeds" if several else "The numbers of one seed"
    if "predicted" in held:
        method += f"; below it what theory predicts and how far the {'mean' if several else 'number'} lies from that"
    if "published" in held:
        method += f"; {'then' if 'predicted' in held else 'below it'} the paper's number"
    return method


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
    return Cell(
        show_estimate(found, quantity.percent), tuple(lines), anchors.get(finding.variant.label, ""), numbers=numbers
    )


def difference_cell(finding: Finding, quantity: Quantity) -> Cell:
    """The paired difference to the reference, or the ratio, with its interval; says where it is clear."""
    d = finding.effect(quantity)
    numbers = {"difference": d.mean, "low": d.low, "high": d.high, "p": d.p_value, "n": d.n}
    if quantity.ratio:
        numbers = {"log ratio" if name == "difference" else name: value for name, value in numbers.items()}
    head, tail = show_ratio(d) if quantity.ratio else show_difference(d, quantity.percent)
    lines: tuple[str, ...] = (tail,) if tail else ()
    if d.clear and quantity.better:
        good = (d.mean > 0) == (quantity.better == "higher")
        lines = (f"{tail} {'better' if good else 'worse'}",)
    if d.resolution and d.mean:
        lines += (show_images(d),)
    return Cell(head, lines, numbers=numbers)


def tabulate_speed(findings: Sequence[Finding], anchors: dict[str, str]) -> Table | None:
    """How fast each variant collapsed on the training set."""
    if not any(e.n for f in findings for e in f.speeds.values()):
        return None
    columns = (Cell("runs"), *(Cell(title) for title in SPEEDS.values()))
    rows = []
    for f in findings[:MOST_ROWS]:
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
    compared = any("difference" in cell.numbers for row in rows for cell in row)
    return Table(
        "speed",
        "How fast each loss collapses",
        "First epoch at which every training sample is right, at which one threshold separates all scores, at which "
        f"NC1 falls below 0.1; then the mean log10 of the metrics over {name_early(findings)} (lower is faster)."
        + (" Below, the paired difference to the reference with its 95 % interval." if compared else ""),
        columns,
        tuple(rows),
        "bce-vs-ce Sec. 4.1",
        speed_notes(findings),
    )


def speed_notes(findings: Sequence[Finding]) -> tuple[str, ...]:
    """What the speeds leave open: numbers that no history has, and epochs that were not measured."""
    titles = {"accuracy_epoch": "accuracy", "uniform_accuracy_epoch": "uniform accuracy"}
    titles |= {f"log_{nc}": nc.upper() for nc in ("nc1", "nc2", "nc3")}
    lacking = {
        f.variant.label: join(missing)
        for f in findings
        if (missing := [titles[name] for name in titles if f.recorded[name] < len(f.variant.counted)])
    }
    notes = [
        f"{list_few([label for label, own in lacking.items() if own == missing])}: {missing} over the epochs not "
        "recorded, or not by all runs."
        for missing in dict.fromkeys(lacking.values())
    ]
    rates = {f.variant.label: sorted({str(r.get("measure_every", 1)) for r in f.variant.counted}) for f in findings}
    if len({rate for own in rates.values() for rate in own}) > 1:
        if len(rates) <= FEW:
            said = ", ".join(f"{label} every {' or '.join(own)}" for label, own in rates.items())
        else:
            steps = sorted({int(rate) for own in rates.values() for rate in own if rate.isdecimal()})
            said = f"every {' or '.join(map(str, steps))}"
        notes.append(
            f"Measured at different epochs ({said}), so first epochs are known to within as many; differences take the "
            "epochs that both runs measured."
        )
    return tuple(notes)


def seed_notes(findings: Sequence[Finding]) -> tuple[str, ...]:
    """What a reader must know about the seeds: too few for an interval, or runs that have not finished."""
    notes = []
    if all(len(f.variant.counted) == 1 for f in findings):
        chance = "; differences may be chance" if any(f.reference for f in findings) else ""
        notes.append(f"One seed per variant: no standard deviation and no interval can be given{chance}.")
    elif single := [f.variant.label for f in findings if len(f.variant.counted) == 1]:
        notes.append(f"One seed only, so no interval: {list_few(single)}.")
    if unfinished := [f.variant.label for f in findings if f.variant.provisional]:
        notes.append(f"Not finished yet, numbers of the last measured epoch: {list_few(unfinished)}.")
    return tuple(notes)


def list_few(labels: Sequence[str]) -> str:
    """The labels of a few variants, the number of many.

    >>> list_few(["CE", "BCE"]), list_few(["CE"] * 103)
    ('CE, BCE', '103 variants')
    """
    return ", ".join(labels) if len(labels) <= FEW else f"{len(labels)} variants"


def format_json(value: Any) -> str:
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
