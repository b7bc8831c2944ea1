"""The page of an experiment of the catalogue, in the style of the report: verdict, numbers, figures, runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ncollapse.compare.variants import group_runs
from ncollapse.grammar import count
from ncollapse.papers import landscapes
from ncollapse.papers.experiment import Experiment
from ncollapse.papers.judge import Line
from ncollapse.papers.markdown import HEAD, describe, landscape_to_markdown, mark, rows, to_markdown, write_text
from ncollapse.papers.outcome import Outcome
from ncollapse.report.figures import curves
from ncollapse.report.figures.experiments import draw_axes, draw_curves, draw_lines, draw_means
from ncollapse.report.numbers import compact, compact_matrix
from ncollapse.report.page import Report, lay_section, write_page
from ncollapse.report.panels import Figure, Panel, build, escape
from ncollapse.report.style import FAINT, SEQUENTIAL
from ncollapse.report.tables import Cell, Table, tabulate_runs

SHOWN = {
    *("train.nc1", "train.nc2", "train.nc3", "certificate.relative_gap"),
    *("train.accuracy", "validation.accuracy", "test.accuracy"),
}
"""The curves that every page has, the gap as it is."""


def write_outcome(folder: Path, outcome: Outcome) -> Path:
    """Write the pages of an experiment into a folder, as Markdown and as HTML; the path of the latter."""
    computed = outcome.experiment.protocol == "landscape"
    text = landscape_to_markdown(outcome) if computed else to_markdown(outcome)
    page = write_text(folder, outcome.experiment, text).with_suffix(".html")
    return write_landscape(page, outcome) if computed else write_experiment(page, outcome)


def write_experiment(path: Path, outcome: Outcome) -> Path:
    """Write the page of an experiment: what the paper has, what the runs gave, what theory says."""
    experiment, lines, records = outcome.experiment, outcome.lines, outcome.records
    variants = group_runs(records)
    anchors = {v.label: f"#variant-{i}" for i, v in enumerate(variants)}
    anchors |= {str(r.path): f"#run-{i}" for i, r in enumerate(records)}
    evolution = [curves.draw_collapse(variants), curves.draw_accuracy(variants), curves.draw_gap(variants)]
    if not set(experiment.curves) <= SHOWN:  # the paper has others: they come first
        evolution.insert(0, draw_curves(experiment, records))
    numbers = [draw_axes(lines) or draw_lines(lines), draw_means(experiment, records)]
    sections = [
        lay_section("numbers", "Numbers", [tabulate_lines(experiment, lines)], numbers),
        lay_section("collapse-curves", "Over the epochs", [], evolution),
        lay_section("provenance", "Runs", [tabulate_runs(variants, [], anchors)] if variants else [], []),
    ]
    report = Report(
        f"{experiment.id}: {experiment.title}",
        describe(experiment)[0],
        (),
        tuple(s for s in sections if s.tables or s.figures),
        tuple(r for v in variants for r in v.records),
        anchors,
        sentences=tuple(summarise(outcome)),
    )
    return write_page(report, path)


def write_landscape(path: Path, outcome: Outcome) -> Path:
    """Write the page of a figure that is computed: losses, or the size of their gradients, over norm and angle."""
    experiment = outcome.experiment
    caption, notes = describe(experiment)
    steep = experiment.item != "figure-2"
    shown = "size of the gradient" if steep else "loss"
    panels, said = [], [f"Verdict: {outcome.verdict} ({outcome.detail})."]
    for name, field in landscapes.compute_panels().items():
        values = np.hypot(field.d_norm, field.d_angle) if steep else field.value
        contour = {
            "type": "contour",
            "x": compact(field.norms, 4),
            "y": compact(np.degrees(field.angles), 4),
            "z": compact_matrix(values, 4),
            "colorscale": SEQUENTIAL,
            "showscale": False,
            "ncontours": 16,
            "line": {"width": 0.5, "color": FAINT},
            "hovertemplate": f"norm %{{x:.3g}}, angle %{{y:.0f}}°: {shown} %{{z:.4g}}<extra></extra>",
        }
        angle = {"title": {"text": "angle"}, "ticksuffix": "°", "showgrid": False}
        norm = {"title": {"text": "norm of the feature", "standoff": 4}}
        panels.append(Panel(escape(name), [contour], norm, angle))
        said.append(f"{name}: {landscapes.share_of_angle(field):.3f} of the gradient turns the feature, in the mean.")
    aid = (
        f"The {shown} over the norm of one feature and its angle to its class in a simplex ETF of 10 unit vectors; "
        "darker is lower."
    )
    figure = Figure("landscape", "Over norm and angle", aid, build(panels, columns=2, row_height=320, min_width=300))
    section = lay_section("landscape", "Landscape", [], [figure])
    title = f"{experiment.id}: {experiment.title}"
    return write_page(Report(title, caption, (), (section,), (), {}, sentences=(*said, *notes)), path)


def summarise(outcome: Outcome) -> list[str]:
    """The verdict, and every claim with whether it holds."""
    said = [f"Verdict: {outcome.verdict}" + (f" ({outcome.detail})." if outcome.detail else ".")]
    for claim in outcome.claims:
        stands = mark(claim)
        said.append(f"{stands[0].upper()}{stands[1:]}: {claim.text}" + (f" ({claim.detail})." if claim.detail else "."))
    return said


def tabulate_lines(experiment: Experiment, lines: Sequence[Line]) -> Table | None:
    """Published, ours and predicted, a row a number; columns that would be empty are left out."""
    shown = [line for line in lines if line.values]
    if not shown:
        return None
    cells = rows(shown)
    columns = [i for i in range(2, len(HEAD)) if any(row[i] for row in cells)]
    body = [
        (Cell(f"{row[0]}, {row[1]}", loss=str(line.keys.get("loss", ""))), *(_cell(row[i], i, line) for i in columns))
        for line, row in zip(shown, cells)
    ]
    notes = list(describe(experiment)[1])
    waiting = sum(line.published is not None and not line.values for line in lines)
    if waiting:
        notes.append(f"{count(waiting, 'published number')} not run are left out.")
    return Table(
        "published",
        "Published, ours, predicted",
        "As printed, the mean over seeds, and what theory predicts without fitting. ± is a spread over samples or "
        "classes, in brackets over seeds. Reproduced: within 1 % (5 % under SGD) or three standard deviations over "
        "seeds, accuracies within one point; in direction: the losses are ordered as published.",
        tuple(Cell(text) for text in ("number", *(HEAD[i] for i in columns))),
        tuple(body),
        notes=tuple(notes),
    )


def _cell(text: str, column: int, line: Line) -> Cell:
    value = {"published": line.published and line.published.value, "ours": line.ours, "predicted": line.predicted}
    number = value.get(HEAD[column])
    signed = number is not None or HEAD[column] == "off by"
    return Cell(text.replace("-", "−") if signed else text, numbers={} if number is None else {HEAD[column]: number})
