"""The page: records in, one self-contained HTML file out."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ncollapse import __version__
from ncollapse.compare.findings import QUANTITIES, Finding, compare_runs, say_ranges
from ncollapse.compare.seeds import is_number
from ncollapse.compare.variants import CASES, LOSSES, Variant, gather_copies, group_runs, measured
from ncollapse.grammar import join
from ncollapse.output import find_file_in_the_way
from ncollapse.report.figures import curves, distributions, features, frames, grids, theory
from ncollapse.report.figures.distributions import Snapshots
from ncollapse.report.numbers import embed, keep
from ncollapse.report.panels import Figure
from ncollapse.report.published import find_published
from ncollapse.report.style import look
from ncollapse.report.tables import (
    Table,
    pretty,
    tabulate_classes,
    tabulate_runs,
    tabulate_speed,
    tabulate_summary,
)
from ncollapse.runs.files import write_atomic
from ncollapse.runs.record import RunRecord, get_nested, read_runs

REPRESENTATIVES = 6
SNAPSHOT = "snapshot.safetensors"


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
    """Everything the page shows, before it is written: also what an export takes its tables and figures from."""

    title: str
    subtitle: str
    findings: tuple[Finding, ...]
    sections: tuple[Section, ...]
    records: tuple[RunRecord, ...]
    anchors: dict[str, str]
    notes: tuple[str, ...] = field(default=())
    sentences: tuple[str, ...] = ()
    """What a page says in short that does not compare variants."""

    @property
    def tables(self) -> list[Table]:
        """All tables in the page's order."""
        return [table for section in self.sections for table in section.tables]

    @property
    def figures(self) -> list[Figure]:
        """All figures in the page's order."""
        return [figure for section in self.sections for figure in section.figures]


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the page for a folder of runs and return its path (`folder/report.html` if none is given)."""
    return write_page(make_report(folder), Path(folder) / "report.html" if out is None else Path(out))


def write_page(report: Report, path: Path) -> Path:
    """Write a report's page; the file is replaced in one step, so that a reader never sees half of it."""
    check_place(path)
    text = render(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode(errors="backslashreplace"))  # a path may hold bytes that are no UTF-8
    return path


def check_place(path: Path) -> None:
    """Whether a page can stand at a path: not where a folder is, nor below a file."""
    if path.is_dir():
        raise ValueError(f"out: {str(path)!r} is a folder; give a file, such as {str(path / 'report.html')!r}")
    blocked = find_file_in_the_way(path.parent)
    if blocked:
        raise NotADirectoryError(f"out: {str(blocked)!r} is a file, so there can be no {str(path)!r}")


def make_report(folder: str | Path) -> Report:
    """Read the runs of a folder and lay out every section their data allow."""
    records = read_runs(folder)
    if not records:
        raise ValueError(
            f"no runs in {str(folder)!r}: a run is a folder with a config.json, as train and compare write it"
        )
    variants = group_runs(records)
    copies = note_copies(records, Path(folder))
    others = [r for r in records if not r.loss]
    records = [*(r for v in variants for r in v.records), *others]  # in the order of the tables
    findings = compare_runs(records)
    anchors = {v.label: f"#variant-{i}" for i, v in enumerate(variants)}
    anchors |= {str(r.path): f"#run-{i}" for i, r in enumerate(records)}
    chosen = choose(variants)
    snapshots = load_snapshots(variants, chosen)
    first = "Of many variants, the first of each loss is shown." if len(chosen) < len(variants) else ""
    numbers = [*tabulate_summary(findings, find_published(variants), anchors), tabulate_speed(findings, anchors)]
    evolution = [curves.draw_collapse(variants), curves.draw_accuracy(variants), curves.draw_gap(variants)]
    spreads = [distributions.draw_scores(variants, snapshots), distributions.draw_margins(variants, snapshots)]
    heat = [frames.draw_frames(v, i, snapshots, theory.ideal_frame(v)) for i, v in enumerate(chosen)]
    clouds = [features.draw_embedding(chosen, snapshots), *features.draw_space(chosen, snapshots)]
    sections = [
        lay_section("numbers", "Numbers", numbers, [curves.draw_differences(findings)]),
        lay_section("collapse-curves", "Collapse", [], evolution),
        lay_section("distributions", "Scores and margins", [], spreads),
        lay_section("frames", "Frames", [], heat, first),
        lay_section("features", "Features", [], clouds, first),
        lay_section("grids", "Width and length", [], grids.draw_grids(variants)),
        lay_section("theory", "Theory", [], [theory.draw_phases(variants), theory.draw_landscapes(variants)]),
        lay_section("per-class", "Classes", [tabulate_classes(chosen, snapshots)], [], first),
        lay_section("provenance", "Runs", [tabulate_runs(variants, others, anchors)], []),
    ]
    title, subtitle = name_folder(variants, Path(folder))
    kept = tuple(s for s in sections if s.tables or s.figures)
    unread = [r for v in variants for r in v.counted if (r.path / SNAPSHOT).is_file() and r.path not in snapshots]
    notes = (*copies, *collect_notes(records, unread))
    return Report(title, subtitle, tuple(findings), kept, tuple(records), anchors, notes)


def render(report: Report, live: str = "") -> str:
    """The page as text; `live` is the fingerprint a served page compares itself with."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=PackageLoader("ncollapse.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "look": look,
        "embed": embed,
        "pretty": pretty,
        "get_nested": get_nested,
        "say_ranges": say_ranges,
        "keep": keep,
    }
    loader = environment.loader
    assert loader is not None
    return environment.get_template("page.html").render(
        report=report,
        css=loader.get_source(environment, "page.css")[0],
        js=loader.get_source(environment, "page.js")[0],
        plotly=get_plotlyjs().replace("</script", "<\\/script"),
        live=live,
        version=__version__,
        written=datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        statuses=Counter(r.status for r in report.records),
    )


def choose(variants: Sequence[Variant], limit: int = REPRESENTATIVES) -> list[Variant]:
    """The variants that get figures of their own: all of a few, else the first with finished runs of each loss."""
    ready = [v for v in variants if v.counted]
    if len(ready) <= limit:
        return ready
    by_loss: dict[str, Variant] = {}
    for variant in sorted(ready, key=lambda v: v.provisional):
        by_loss.setdefault(variant.loss, variant)
    return list(by_loss.values())[:limit]


def load_snapshots(variants: Sequence[Variant], chosen: Sequence[Variant]) -> Snapshots:
    """The arrays behind the figures; features, by far the largest, only of the runs whose features are drawn."""
    drawn = {v.counted[0].path for v in chosen}
    snapshots: Snapshots = {}
    for record in (r for v in variants for r in v.counted):
        arrays = record.snapshot()
        if arrays is not None:
            keep = record.path in drawn
            snapshots[record.path] = {k: a for k, a in arrays.items() if keep or not k.endswith(".features")}
    return snapshots


def name_folder(variants: Sequence[Variant], folder: Path) -> tuple[str, str]:
    """A title from the losses and the data, a subtitle from the settings all runs share."""
    if not variants:
        return folder.resolve().name, ""
    records = [r for v in variants for r in v.records]

    def shared(key: str) -> Any:
        values = {str(r.get(key)) for r in records}
        return values.pop() if len(values) == 1 else None

    losses = [LOSSES.get(loss, loss) for loss in dict.fromkeys(v.loss for v in variants)]
    names = join(losses)
    data = join(list(dict.fromkeys(str(r.get("data.name")) for r in records if r.get("data.name")))[:4])
    optimiser = shared("optim.name")
    parts = [shared("model.name"), CASES.get(optimiser, optimiser)]
    parts += [f"{shared(key)} {word}" for key, word in (("optim.epochs", "epochs"),) if shared(key)]
    parts += [f"batch {shared('optim.batch_size')}" if shared("optim.batch_size") else None]
    seeds = len({r.seed for r in records})
    parts.append("one seed" if seeds == 1 else f"{seeds} seeds")
    return f"{names} on {data}" if data else names, " · ".join(str(p) for p in parts if p)


def note_copies(records: Sequence[RunRecord], folder: Path) -> list[str]:
    """Which runs stand in several folders."""
    notes = []
    for same in gather_copies(records):
        if len(same) > 1:
            times = "twice" if len(same) == 2 else f"{len(same)} times"
            paths = ", ".join(str(r.path.relative_to(folder)) for r in same)
            notes.append(f"Run {same[0].run_id} is there {times} ({paths}); it is counted once.")
    return notes


def collect_notes(records: Sequence[RunRecord], unread: Sequence[RunRecord] = ()) -> list[str]:
    """What went wrong with runs, for the reader to see first."""
    notes = [f"Run {r.run_id}: {r.read_snapshot()[1]}; some figures go without it." for r in unread]
    for record in records:
        reason = get_nested(record.summary or {}, "reason")
        if record.status == "failed":
            notes.append(f"Run {record.run_id} failed: {reason or 'no reason recorded'}. The others go on without it.")
        if record.status == "corrupt":
            why = "; ".join(record.notes) or "no reason known"
            notes.append(f"Run {record.run_id} cannot be read in full ({why}); it is left out of the numbers.")
        elif record.notes:
            notes.append(f"Run {record.run_id}: {'; '.join(record.notes)}.")
        if record.status == "finished":
            void = [q.title for q in QUANTITIES if q.better and not math.isfinite(measured(record, q.key))]
            if void:
                notes.append(f"Run {record.run_id} has no number for {', '.join(void)}; means leave it out there.")
        if gaps := missing_epochs(record):
            notes.append(f"Run {record.run_id}: {gaps}; its curves have gaps there, and speeds leave it out.")
    return notes


def missing_epochs(record: RunRecord) -> str:
    """Which epochs a history lacks or holds without a number, in words; nothing where it is whole."""
    rows = record.history
    lost = record.missing_epochs()
    void = [row["epoch"] for row in rows if row["epoch"] > 0 and not is_number(get_nested(row, "train.nc1"))]
    parts = []
    if lost:
        count = sum(map(len, lost))
        parts.append(f"{_count(count, 'is', 'are')} missing from its history (first {lost[0][0]})")
    if void and len(void) < len(rows):
        parts.append(f"{_count(len(void), 'has', 'have')} no NC1 (first {void[0]})")
    return ", ".join(parts)


def _count(epochs: int, one: str, more: str) -> str:
    return f"one epoch {one}" if epochs == 1 else f"{epochs} epochs {more}"


def lay_section(
    id: str, title: str, tables: Sequence[Table | None], figures: Sequence[Figure | None], lead: str = ""
) -> Section:
    """A section without the tables and figures that came to nothing."""
    return Section(id, title, lead, tuple(t for t in tables if t), tuple(f for f in figures if f))
