"""A comparison on the terminal: the verdict first, then tables that fit its width, then a sentence per loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ncollapse.compare import QUANTITIES, SPEEDS, Comparison, Finding, Quantity, name_early
from ncollapse.compare.numbers import MISSING, name_all, show, show_estimate, show_ratio, show_with_error
from ncollapse.compare.seeds import Difference
from ncollapse.compare.sentences import describe_ranges
from ncollapse.runs.record import get_nested

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDTH = 100
MANY = 12
"""Beyond so many variants the terminal gives ranges alone; the page has the numbers."""
FOOTNOTE = (
    "±: standard deviation over seeds. Differences are paired by seed, ± half the 95 % interval; NC1 to NC3 are "
    "compared by their ratio, with its 95 % interval. Bold: clear. Rates are in points. early: {early}."
)


def print_comparison(output: Console, comparison: Comparison) -> None:
    """Print the verdict, the tables of a comparison, what has not finished, and a sentence for each loss."""
    if not output.is_terminal or output.width > WIDTH:
        output.width = WIDTH if not output.is_terminal else min(WIDTH, output.width)
    findings = comparison.findings
    output.print(comparison.verdict, style="bold", highlight=False, markup=False)
    output.print("")
    if findings and len(findings) <= MANY:
        print_tables(output, findings)
        output.print("")
        if any(f.reference for f in findings):
            output.print(FOOTNOTE.format(early=name_early(findings)), style="dim", highlight=False)
    for record in (r for r in comparison.records if r.status != "finished"):
        reason = get_nested(record.summary or {}, "reason") or "; ".join(record.notes)
        output.print(f"{record.label}: {record.status}{f' ({reason})' if reason else ''}", style="red", markup=False)
    sentences = (
        [finding.sentence for finding in findings]
        if len(findings) <= MANY
        else [sentence for _, sentence in describe_ranges(findings)]
    )
    for sentence in sentences:
        output.print(f"- {sentence}", markup=False, highlight=False)


def print_tables(output: Console, findings: Sequence[Finding]) -> None:
    """Quantities down and variants across for two variants; else variants down, quantities across."""
    kept = [q for q in QUANTITIES if any(f.estimates[q.key].n for f in findings)]
    scores = [q for q in kept if not q.better and q.key.startswith("train.")]
    plain = [q for q in kept if q not in scores]
    others = [f for f in findings if f.reference]
    if len(findings) <= 2:
        heads = [f"{f.variant.label}, n = {len(f.variant.counted)}" for f in findings]
        heads += [f"{f.variant.label} against {f.reference.label}" for f in others if f.reference]
        rows = [[q.title, *(_measured(f, q) for f in findings), *(_effect(f, q) for f in others)] for q in plain] + [
            [title, *(_speed(f, name) for f in findings), *(_difference(f.speed_differences[name]) for f in others)]
            for name, title in SPEEDS.items()
        ]
        print_packed(output, "", ["", *heads], rows)
        heads = [word for f in findings for word in (f.variant.label, "theory") if word != "theory" or f.phase]
        rows = [
            [
                q.title,
                *(
                    text
                    for f in findings
                    for text in ((_measured(f, q), _theory(f, q)) if f.phase else (_measured(f, q),))
                ),
            ]
            for q in scores
        ]
        print_packed(output, "scores against theory", ["", *heads], rows)
        return
    labels = [f.variant.label for f in findings]
    for title, quantities in (
        ("accuracy and features", [q for q in plain if q.split == "test"]),
        ("collapse on the training set", [q for q in plain if q.split != "test"]),
    ):
        rows = [[label, *(_measured(f, q) for q in quantities)] for label, f in zip(labels, findings)]
        print_packed(output, title, ["", *(q.short for q in quantities)], rows)
    rows = []
    for label, f in zip(labels, findings):
        rows.append([label, *(_measured(f, q) for q in scores)])
        if f.phase:
            rows.append(["  theory", *(_theory(f, q) for q in scores)])
    print_packed(output, "scores, theory below", ["", *(q.title for q in scores)], rows)
    compared = [q for q in kept if q.better and (q.key == "test.accuracy" or any(f.effect(q).clear for f in others))]
    rows = [[f.variant.label, *(_effect(f, q) for q in compared)] for f in others]
    print_packed(output, "difference to the first loss, where any is clear", ["", *(q.title for q in compared)], rows)
    rows = [[label, *(_speed(f, name) for name in SPEEDS)] for label, f in zip(labels, findings)]
    print_packed(output, "speed of collapse", ["", *SPEEDS.values()], rows)


def print_packed(output: Console, title: str, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table of strings and texts, its columns spread over several tables where they do not fit; nothing is split."""
    from rich.table import Table
    from rich.text import Text

    if not rows or len(heads) < 2:
        return
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    first = min(30, max(len(row[0]) for row in cells))
    widths = [max(_longest_word(heads[i]), *(len(row[i]) for row in cells)) for i in range(1, len(heads))]
    start = 1
    while start < len(heads):
        end, used = start, first
        while end < len(heads) and (end == start or used + 1 + widths[end - 1] <= output.width):
            used += 1 + widths[end - 1]
            end += 1
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("", width=first, overflow="fold")
        for i in range(start, end):
            head = heads[i] if len(heads[i]) <= widths[i - 1] else heads[i].replace(", n =", "\nn =")
            table.add_column(Text(head), justify="right", width=widths[i - 1], overflow="fold")
        for row in cells:
            table.add_row(row[0], *row[start:end])
        if title:  # a title of the table itself would be broken to the table's width
            output.print("")
            output.print(title if start == 1 else f"{title}, continued", style="bold", highlight=False, markup=False)
        output.print(table)
        start = end


def _longest_word(text: str) -> int:
    return max(map(len, text.replace(" = ", "_=_").split()), default=0)


def _measured(finding: Finding, quantity: Quantity) -> str:
    return show_estimate(finding.estimates[quantity.key], quantity.percent)


def _theory(finding: Finding, quantity: Quantity) -> Text:
    from rich.text import Text

    predicted = finding.predictions.get(quantity.key.removeprefix("train."), float("nan"))
    return Text(show(predicted) if predicted == predicted else "", style="dim")


def _effect(finding: Finding, quantity: Quantity) -> Text:
    if not quantity.ratio:
        return _difference(finding.differences[quantity.key], quantity.percent)
    from rich.text import Text

    d = finding.ratios[quantity.key]
    if d.n == 0:
        return Text(MISSING)
    head, interval = show_ratio(d, 2)
    text = f"{head} {interval.replace('×', '')}" if d.has_interval else head
    return Text(text, style="bold" if d.clear else "")


def _speed(finding: Finding, name: str) -> str:
    reached, n = finding.reached[name], len(finding.variant.counted)
    if not reached:
        return "never" if name.endswith("epoch") and finding.recorded[name] else MISSING
    found = finding.speeds[name]
    text = show_estimate(found)
    if name.startswith("log") and found.n > 1 and found.std >= 0.005:  # a smaller one would read "± 0.00"
        text = f"{round(found.mean, 2) + 0.0:.2f} ± {found.std:.2f}".replace("-", "−")
    return text + (f" ({reached} of {n})" if reached < n else "")


def _difference(d: Difference, percent: bool = False) -> Text:
    from rich.text import Text

    scale = 100 if percent else 1
    if d.n == 0:
        return Text(MISSING)
    if d.n == 1:
        return Text(f"{show(scale * d.mean, 3, sign=True)}, one seed")
    if not d.has_interval:
        return Text(f"{show(scale * d.mean, 3, sign=True)} in {name_all(d.n)}")
    text = show_with_error(scale * d.mean, scale * (d.high - d.low) / 2, sign=True)
    return Text(text, style="bold" if d.clear else "")
