"""What a page shows, before it is written: sections of tables and figures, and what exports take them from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ncollapse.compare import Comparison
from ncollapse.report.panels import Figure
from ncollapse.report.tables import Table
from ncollapse.runs.record import RunRecord


@dataclass(frozen=True)
class Section:
    """A part of the page: a line on what it leaves out, tables, then figures."""

    id: str
    title: str
    lead: str
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True)
class Report:
    """Everything that the page shows.

    `comparison` holds the comparison behind the answer card, None for pages that compare nothing; `sentences` stand in
    its place there.
    """

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    records: tuple[RunRecord, ...]
    anchors: dict[str, str]
    comparison: Comparison | None = None
    notes: tuple[str, ...] = field(default=())
    sentences: tuple[str, ...] = ()

    @property
    def tables(self) -> list[Table]:
        """All tables in the page's order."""
        return [table for section in self.sections for table in section.tables]

    @property
    def figures(self) -> list[Figure]:
        """All figures in the page's order."""
        return [figure for section in self.sections for figure in section.figures]


def make_section(
    id: str, title: str, tables: Sequence[Table | None], figures: Sequence[Figure | None], lead: str = ""
) -> Section:
    """A section without the tables and figures that came to nothing."""
    return Section(id, title, lead, tuple(t for t in tables if t), tuple(f for f in figures if f))
