"""A comparison on the terminal: tables that fit a hundred columns, then a sentence per loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ncollapse.compare.findings import QUANTITIES, SPEEDS, Finding, Quantity, name_early
from ncollapse.compare.seeds import Difference
from ncollapse.report.numbers import MISSING, name_all, show, show_estimate, show_with_error
from ncollapse.runs.record import RunRecord, get_nested

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDTH = 100
FOOTNOTE = (
    "±: standard deviation over seeds. Differences are paired by seed, ± half the 95 % interval, bold where it leaves "
    "zero out; rates in points. early: {early}."
)


def print_findings(output: Console, findings: Sequence[Finding], unfinished: Sequence[RunRecord]) -> None:
    """Print the tables of a comparison, what failed, and a sentence for each loss."""
    if not output.is_terminal or output.width > WIDTH:
        output.width = WIDTH
    kept = [q for q in QUANTITIES if any(f.estimates[q.key].n for f in findings)]
    if findings and len(findings) <= 2:
        _print_side_by_side(output, findings, kept)
    elif findings:
        _print_long(output, findings, kept)
    if any(f.reference for f in findings):
        output.print(FOOTNOTE.format(early=name_early(findings)), style="dim", highlight=False)
    for record in unfinished:
        reason = get_nested(record.summary or {}, "reason") or "; ".join(record.notes)
        output.print(f"{record.label}: {record.status}{f' ({reason})' if reason else ''}", style="red", markup=False)
    for finding in findings:
        output.print(f"- {finding.sentence}", markup=False, highlight=False)


def _print_side_by_side(output: Console, findings: Sequence[Finding], kept: Sequence[Quantity]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("")
    others = [f for f in findings if f.reference]
    for finding in findings:
        table.add_column(Text(f"{finding.variant.label}, n = {len(finding.variant.counted)}"), justify="right")
        if finding.phase:
            table.add_column("theory", justify="right", style="dim")
    for finding in others:
        against = finding.reference.label if finding.reference else ""
        table.add_column(Text(f"{finding.variant.label} − {against}"), justify="right")
    for q in kept:
        row: list[str | Text] = [q.title]
        for finding in findings:
            row.append(show_estimate(finding.estimates[q.key], q.percent))
            if finding.phase:
                predicted = finding.predictions.get(q.key.removeprefix("train."), float("nan"))
                row.append(show(predicted) if q.key.startswith("train.") and predicted == predicted else "")
        row += [_difference(f.differences[q.key], q.percent) for f in others]
        table.add_row(*row)
    for name, title in SPEEDS.items():
        row = [title]
        for finding in findings:
            row.append(_speed(finding, name))
            row += [""] if finding.phase else []
        table.add_row(*row, *(_difference(f.speed_differences[name]) for f in others))
    output.print(table)


def _print_long(output: Console, findings: Sequence[Finding], kept: Sequence[Quantity]) -> None:
    from rich.table import Table
    from rich.text import Text

    def make(title: str, heads: Sequence[str]) -> Table:
        table = Table(
            box=None,
            header_style="bold",
            pad_edge=False,
            padding=(0, 1, 0, 0),
            title=title,
            title_justify="left",
            title_style="bold",
        )
        table.add_column("")
        for head in heads:
            table.add_column(head, justify="right")
        return table

    parts = {
        "accuracy and features": [q for q in kept if q.key.startswith("test.") or q.key == "certificate.gap"],
        "collapse": [q for q in kept if q.key.startswith("train.") and q.better],
        "scores, theory below": [q for q in kept if not q.better and q.key.startswith("train.")],
    }
    for title, quantities in parts.items():
        if not quantities:
            continue
        table = make(title, [q.title for q in quantities])
        for f in findings:
            table.add_row(Text(f.variant.label), *(show_estimate(f.estimates[q.key], q.percent) for q in quantities))
            if title.startswith("scores") and f.phase:
                predicted = [f.predictions.get(q.key.removeprefix("train."), float("nan")) for q in quantities]
                table.add_row(Text("  theory", style="dim"), *(show(p) for p in predicted), style="dim")
        output.print(table, "")
    others = [f for f in findings if f.reference]
    said = [q for q in kept if q.key in ("test.accuracy", "test.uniform_accuracy", "train.nc1")]
    if others and said:
        table = make("paired difference to the first loss", [q.title for q in said])
        for f in others:
            table.add_row(Text(f.variant.label), *(_difference(f.differences[q.key], q.percent) for q in said))
        output.print(table, "")
    table = make("speed of collapse", list(SPEEDS.values()))
    for f in findings:
        table.add_row(Text(f.variant.label), *(_speed(f, name) for name in SPEEDS))
    output.print(table, "")


def _speed(finding: Finding, name: str) -> str:
    reached, n = finding.reached[name], len(finding.variant.counted)
    if not reached:
        return "never" if name.endswith("epoch") and finding.recorded[name] else MISSING
    found = finding.speeds[name]
    text = show_estimate(found)
    if name.startswith("log") and found.n > 1:
        text = f"{found.mean:.2f} ± {found.std:.2f}".replace("-", "−")
    return text + (f" ({reached} of {n})" if reached < n else "")


def _difference(d: Difference, percent: bool = False) -> str | Text:
    scale = 100 if percent else 1
    if d.n == 0:
        return MISSING
    if d.n == 1:
        return f"{show(scale * d.mean, 3, sign=True)}, one seed"
    if d.low == d.high:
        return f"{show(scale * d.mean, 3, sign=True)} in {name_all(d.n)}"
    text = show_with_error(scale * d.mean, scale * (d.high - d.low) / 2, sign=True)
    from rich.text import Text

    return Text(text, style="bold") if d.clear else text
