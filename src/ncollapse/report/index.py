"""The index of the pages of experiments in a folder: every page with its verdict, paper by paper."""

from __future__ import annotations

import re
from pathlib import Path

from ncollapse.papers import publications
from ncollapse.papers.catalogue import CATALOGUE
from ncollapse.papers.experiment import Experiment
from ncollapse.report.content import Report, make_section
from ncollapse.report.html import write_page
from ncollapse.report.tables import Cell, Table


def write_index(folder: Path) -> Path:
    """Write `index.html` into a folder of pages; experiments without a page are counted."""
    tables = []
    waiting = 0
    for paper in dict.fromkeys(e.paper for e in CATALOGUE.values()):
        entries = [e for e in CATALOGUE.values() if e.paper == paper]
        there = [e for e in entries if _page(folder, e).is_file()]
        waiting += len(entries) - len(there)
        if there:
            known = paper in publications.PAPERS
            title = publications.title(paper) if known else "Questions of our own"
            rows = tuple(
                (Cell(e.id, href=_page(folder, e).name), Cell(e.title), Cell(_verdict(folder, e))) for e in there
            )
            columns = (Cell("experiment"), Cell("what"), Cell("verdict"))
            tables.append(Table(paper, title, "Follow an id to its page.", columns, rows, in_words=True))
    section = make_section("experiments", "Experiments", tables, [])
    left = (
        f"{waiting} experiments of the catalogue have no page here; the command ncollapse reproduce --list names them."
    )
    sentences = (left,) if waiting else ()
    return write_page(Report("Reproduction", "", (section,), (), {}, sentences=sentences), folder / "index.html")


def _page(folder: Path, experiment: Experiment) -> Path:
    return folder / f"{experiment.id.replace('/', '-')}.html"


def _verdict(folder: Path, experiment: Experiment) -> str:
    """The verdict as the Markdown of the page states it."""
    try:
        text = _page(folder, experiment).with_suffix(".md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    found = re.search(r"^Verdict: \*\*(.+?)\*\*", text, re.M)
    return found[1] if found else ""
