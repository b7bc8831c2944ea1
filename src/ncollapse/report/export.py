"""Tables as CSV and LaTeX, figures as SVG, PDF and PNG, ready for a paper."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncollapse.console import clean
from ncollapse.output import find_file_in_the_way
from ncollapse.report.content import Report
from ncollapse.report.panels import Figure, arrange, for_print
from ncollapse.report.tables import Table

FORMATS = ("svg", "pdf", "png")
WIDTH = 1000
SPECIAL = {
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "|": "$|$",
    "<": "$<$",
    ">": "$>$",
    '"': "''",
}
SIGNS = {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$", "·": r"$\cdot$", "–": "--"}
GREEK = {
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "γ": r"$\gamma$",
    "α": r"$\alpha$",
    "κ": r"$\kappa$",
    "β": r"$\beta$",
    "₀": "$_0$",
}
RAISED = dict(zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))


def export_report(report: Report, out: str | Path) -> list[Path]:
    """Write every table (.csv, .tex) and every figure (.svg, .pdf, .png) of a report into a folder.

    Figures need the `export` extra and a Chromium or Chrome on this machine; ImportError names the extra.
    """
    folder = Path(out)
    blocked = find_file_in_the_way(folder)
    if blocked:
        raise NotADirectoryError(f"export: {str(blocked)!r} is a file; give a folder")
    load_kaleido()
    folder.mkdir(parents=True, exist_ok=True)
    written = [path for table in report.tables for path in export_table(table, folder)]
    drawn = [(figure, [folder / f"{figure.id}.{kind}" for kind in FORMATS]) for figure in report.figures]
    return [*written, *render(drawn)]


def render(figures: Sequence[tuple[Figure, Sequence[Path]]]) -> list[Path]:
    """Draw each figure for print into its files (.svg, .pdf or .png); return the paths."""
    kaleido = load_kaleido()
    jobs: list[dict[str, Any]] = []
    for figure, paths in figures:
        spec = for_print(figure.spec)
        if "meta" in spec["layout"]:
            spec = arrange(spec, WIDTH)
        spec["layout"] |= {"paper_bgcolor": "white", "plot_bgcolor": "white"}
        size = {"width": WIDTH, "height": spec["layout"].get("height", 480)}
        for path in paths:
            kind = path.suffix.removeprefix(".")
            scale = 2 if kind == "png" else 1
            jobs.append({"fig": spec, "path": path, "opts": {"format": kind, "scale": scale, **size}})
    if jobs:
        # No mathematics is typeset, so nothing needs to be fetched for it.
        page = kaleido.PageGenerator(mathjax=False)
        kaleido.write_fig_from_object_sync(jobs, kopts={"page_generator": page})
    written: list[Path] = [job["path"] for job in jobs]
    for path in (path for path in written if path.suffix == ".svg"):
        path.write_text(fix_ids(path.read_text(encoding="utf-8")), encoding="utf-8")
    return written


def load_kaleido() -> Any:
    """The library that draws; ImportError names the extra it comes with."""
    try:
        import kaleido
    except ImportError:
        raise ImportError("exporting figures needs kaleido: pip install 'ncollapse[export]'") from None
    return kaleido


def fix_ids(svg: str) -> str:
    """A drawing whose random ids follow from its content instead: the same figure gives the same file.

    >>> one, other = (f'<defs id="defs-{tag}"/><g clip-path="url(#clip{tag}xy)"/>' for tag in ("0a1b2c", "ffee00"))
    >>> fix_ids(one) == fix_ids(other) != one
    True
    """
    traces = list(dict.fromkeys(re.findall(r"\btrace[0-9a-f]{6}\b", svg)))
    svg = re.sub(r"\btrace[0-9a-f]{6}\b", lambda name: f"trace{traces.index(name[0]):06x}", svg)
    found = re.search(r'id="defs-([0-9a-f]{6})"', svg)
    if found is None:
        return svg
    tag = re.compile(rf"(?<=defs-){found[1]}|(?<=[a-z]){found[1]}")
    return tag.sub(hashlib.sha256(tag.sub("", svg).encode()).hexdigest()[:6], svg)


def export_table(table: Table, folder: Path) -> list[Path]:
    """Write a table as CSV (every number in a column of its own) and as a LaTeX tabular (booktabs)."""
    numbers, text = folder / f"{table.id}.csv", folder / f"{table.id}.tex"
    with numbers.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(spread_numbers(table))
    text.write_text(format_latex(table), encoding="utf-8")
    return [numbers, text]


def spread_numbers(table: Table) -> list[list[Any]]:
    """The rows of a CSV file: a column per number a cell holds, its text where it holds none."""
    keys = [list(dict.fromkeys(k for row in table.rows for k in row[i].numbers)) for i in range(len(table.columns))]
    head: list[Any] = []
    for column, names in zip(table.columns, keys):
        head += [f"{column.text} {name}" if len(names) > 1 else column.text for name in names] or [column.text]
    rows = [head]
    for row in table.rows:
        line: list[Any] = []
        for cell, names in zip(row, keys):
            line += [clean(cell.numbers.get(name)) for name in names] if names else [cell.text]
        rows.append(line)
    return rows


def format_latex(table: Table) -> str:
    """A tabular with booktabs rules; lines below a cell's main text go into rows of their own."""
    lines = [f"% {table.title}", rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}", r"\toprule"]
    lines += [" & ".join(escape_latex(c.text) for c in table.columns) + r" \\", r"\midrule"]
    for row in table.rows:
        lines.append(" & ".join(escape_latex(c.text) for c in row) + r" \\")
        for extra in range(max(len(c.lines) for c in row)):
            below = [rf"{{\footnotesize {escape_latex(c.lines[extra])}}}" if extra < len(c.lines) else "" for c in row]
            lines.append(" & ".join(below) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def escape_latex(text: str) -> str:
    """Text with LaTeX's special characters and ours made safe.

    >>> escape_latex("1.2·10⁻⁴ ± 3 %")
    '1.2$\\\\cdot$10$^{-4}$ $\\\\pm$ 3 \\\\%'
    """
    marks = {**SPECIAL, **SIGNS, **GREEK}
    raised = f"[{''.join(RAISED)}]+"
    parts = re.split(f"({raised})", text)
    words = [
        "$^{" + "".join(RAISED[c] for c in part) + "}$"
        if re.fullmatch(raised, part)
        else "".join(marks.get(c, c) for c in part)
        for part in parts
    ]
    return "".join(words)
