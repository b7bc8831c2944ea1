"""The page of an experiment of the catalogue: verdict, the paper's own figure, numbers, curves, runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ncollapse.compare import Variant, group_runs
from ncollapse.grammar import count
from ncollapse.papers.experiment import Experiment
from ncollapse.papers.markdown import describe, describe_claim, landscape_to_markdown, to_markdown, write_text
from ncollapse.papers.outcome import Outcome
from ncollapse.report.attempts import Attempts
from ncollapse.report.content import Report, make_section
from ncollapse.report.figures import curves, feature_epochs, features, grids, margins, multiples
from ncollapse.report.figures.class_norms import draw_class_norms
from ncollapse.report.figures.experiments import (
    draw_curves,
    draw_gains,
    draw_mean_cosines,
    draw_numbers,
    draw_scores_by_setting,
)
from ncollapse.report.figures.gradients import draw_losses
from ncollapse.report.html import write_page
from ncollapse.report.index import write_index
from ncollapse.report.layout import choose_representatives, keep_filled
from ncollapse.report.panels import Figure
from ncollapse.report.paper_tables import tabulate_lines, tabulate_shape
from ncollapse.report.run_tables import tabulate_runs
from ncollapse.report.snapshots import load_epochs, load_snapshots

MINUS = re.compile(r"(?<![\w.-])-(?=\.?\d)")
"""The hyphen before a negative number, not that of an exponent, a range or a name."""
SHOWN = {
    *("train.nc1", "train.nc2", "train.nc3", "certificate.relative_gap"),
    *("train.accuracy", "validation.accuracy", "test.accuracy"),
}
"""The curves that every page has, the gap as it is."""


def write_outcome(folder: Path, outcome: Outcome) -> Path:
    """Write the pages of an experiment into a folder, as Markdown and as HTML, and the index of all pages there.

    Returns the path of the HTML page.
    """
    computed = outcome.experiment.protocol == "landscape"
    text = landscape_to_markdown(outcome) if computed else to_markdown(outcome)
    page = write_text(folder, outcome.experiment, text).with_suffix(".html")
    written = write_landscape(page, outcome) if computed else write_experiment(page, outcome)
    write_index(folder)
    return written


def write_experiment(path: Path, outcome: Outcome) -> Path:
    """Write the page of an experiment: what the paper has, what the runs gave, what theory says."""
    return write_page(make_experiment(outcome), path)


def make_experiment(outcome: Outcome) -> Report:
    """Lay out the page of an experiment; the paper's own figure comes first."""
    experiment, lines, records = outcome.experiment, outcome.lines, outcome.records
    variants = group_runs(records)
    anchors = {v.label: f"#variant-{i}" for i, v in enumerate(variants)}
    anchors |= {str(r.path): f"#run-{i}" for i, r in enumerate(records)}
    attempt = Attempts()
    own = draw_own_figures(attempt, outcome, variants)
    evolution: list[Figure | None] = []
    if len(variants) > curves.MANY:
        evolution += attempt.all("curves", multiples.draw_multiples, variants)
    else:
        for draw in (curves.draw_collapse, curves.draw_accuracy, curves.draw_gap):
            evolution.append(attempt.one("curves", draw, variants))
    drawn = {figure.id for figure in own}
    numbers = [attempt.one("table", tabulate_shape, lines), attempt.one("table", tabulate_lines, experiment, lines)]
    compared = attempt.one("numbers", draw_numbers, lines) if "scores" not in drawn else None
    sections = [
        make_section("figure", "The paper's figure" if is_figure(experiment) else "The numbers drawn", [], own),
        make_section("numbers", "Numbers", numbers, [None if "published" in drawn else compared]),
        make_section("collapse-curves", "Over the epochs", [], [f for f in evolution if f and f.id not in drawn]),
        make_section("provenance", "Runs", [tabulate_runs(variants, [], anchors)] if variants else [], []),
    ]
    return Report(
        f"{experiment.id}: {experiment.title}",
        find_subtitle(experiment),
        keep_filled(sections),
        tuple(r for v in variants for r in v.records),
        anchors,
        notes=tuple(attempt.faults),
        sentences=tuple(summarise(outcome)),
    )


def find_subtitle(experiment: Experiment) -> str:
    """What the paper's caption says, unless the title says the same."""
    caption = describe(experiment)[0]
    return "" if caption.rstrip(".").lower() == experiment.title.lower() else caption


def is_figure(experiment: Experiment) -> bool:
    """Whether the entry repeats a figure of a paper."""
    return experiment.item.startswith("figure")


def draw_own_figures(attempt: Attempts, outcome: Outcome, variants: Sequence[Variant]) -> list[Figure]:
    """The figures that the paper itself has, as far as the records hold what they need."""
    experiment, lines, records = outcome.experiment, outcome.lines, outcome.records
    found: list[Figure | None] = [attempt.one("scores", draw_scores_by_setting, lines)]
    if not set(experiment.curves) <= SHOWN:
        found.append(attempt.one("curves", draw_curves, experiment, records))
    found.append(attempt.one("gains", draw_gains, lines))
    found.append(attempt.one("class means", draw_mean_cosines, experiment, records))
    if len({point.recipe.optim.epochs for point in experiment.grid()}) > 1:
        found += attempt.all("grids", grids.draw_grids, variants)
    found.append(attempt.one("class norms", draw_class_norms, variants))
    if is_figure(experiment):
        chosen = choose_representatives(variants)
        snapshots = load_snapshots(variants, chosen)
        if (not experiment.curves and not experiment.finals) or experiment.id.endswith("early/figure-4"):
            epochs = load_epochs(v.counted[0] for v in chosen)
            found.append(attempt.one("features", features.draw_embedding, chosen, snapshots))
            found.append(attempt.one("features over the epochs", feature_epochs.draw_feature_epochs, chosen, epochs))
        if not experiment.curves:
            found += attempt.all("features in space", features.draw_space, chosen, snapshots)
        if experiment.paper == "mse-landscape":
            found.append(attempt.one("margins", margins.draw_margins, chosen, snapshots))
    return [figure for figure in found if figure is not None]


def write_landscape(path: Path, outcome: Outcome) -> Path:
    """Write the page of a figure that is computed: losses, or the size of their gradients, over norm and angle."""
    experiment = outcome.experiment
    caption, notes = describe(experiment)
    said = summarise(outcome)
    section = make_section("landscape", "Landscape", [], [draw_losses(steep=experiment.item != "figure-2")])
    title = f"{experiment.id}: {experiment.title}"
    return write_page(Report(title, caption, (section,), (), {}, sentences=(*said, *notes)), path)


def summarise(outcome: Outcome) -> list[str]:
    """The verdict, and every claim with whether it holds."""
    said = [f"Verdict: {outcome.verdict}" + (f" ({outcome.detail})." if outcome.detail else ".")]
    if outcome.verdict == "not run":
        said.append(
            f"ncollapse reproduce {outcome.experiment.id} runs it ({count(len(outcome.experiment.grid()), 'run')})."
        )
    for claim in outcome.claims:
        sentence = describe_claim(outcome, claim)
        said.append(f"{sentence[0].upper()}{sentence[1:]}.")
    said += [f"Ours, beyond the paper: {describe_claim(outcome, claim)}." for claim in outcome.beyond]
    return [MINUS.sub("−", sentence) for sentence in said]
