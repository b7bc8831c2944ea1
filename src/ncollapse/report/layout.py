"""The page of a folder of runs: which tables and figures it has, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncollapse.compare import Comparison, Variant, compare_records, name_losses, name_optimiser
from ncollapse.compare.classes import tabulate_classes as compare_classes
from ncollapse.grammar import count, join
from ncollapse.one_thread import one_thread
from ncollapse.report.attempts import Attempts
from ncollapse.report.content import Report, Section, make_section
from ncollapse.report.figures import (
    agreement,
    bounds,
    curves,
    depth,
    differences,
    feature_epochs,
    features,
    frames,
    grids,
    ideal,
    landscapes,
    margins,
    multiples,
    phases,
    scores,
)
from ncollapse.report.figures.class_norms import draw_class_norms
from ncollapse.report.guarantees import tabulate_guarantees
from ncollapse.report.html import write_page
from ncollapse.report.long_tail import draw_rare, tabulate_groups, tabulate_rare
from ncollapse.report.notes import collect_notes
from ncollapse.report.panels import Figure
from ncollapse.report.published import find_published
from ncollapse.report.run_tables import tabulate_classes, tabulate_runs
from ncollapse.report.snapshots import (
    MANY_SNAPSHOTS,
    Epochs,
    Snapshots,
    find_unread,
    load_epochs,
    load_snapshots,
)
from ncollapse.report.tables import MOST_ROWS, tabulate_speed, tabulate_summary
from ncollapse.runs.record import SNAPSHOT, RunRecord, find_runs, get_nested, read_run

REPRESENTATIVES = 6


def write_report(folder: str | Path, out: str | Path | None = None, comparison: Comparison | None = None) -> Path:
    """Write the page for a folder of runs and return its path (`folder/report.html` if none is given).

    `comparison` is the comparison of these runs where it has been made already, so that nothing is read twice.
    """
    with one_thread():  # on arrays this small several threads mostly wait for each other
        report = make_report(folder, comparison)
    return write_page(report, Path(folder) / "report.html" if out is None else Path(out))


def make_report(folder: str | Path, comparison: Comparison | None = None) -> Report:
    """Read the runs of a folder and lay out every section that their data allow."""
    comparison = complete_comparison(Path(folder), comparison)
    variants, findings = comparison.variants, comparison.findings
    others = [r for r in comparison.records if not r.loss]
    records = [*(r for v in variants for r in v.records), *others]  # in the order of the tables
    anchors = {v.label: f"#variant-{i}" for i, v in enumerate(variants)}
    anchors |= {str(r.path): f"#run-{i}" for i, r in enumerate(records)}
    chosen = choose_representatives(variants)
    snapshots = load_snapshots(variants, chosen)
    drawn = [v for v in variants if any(r.path in snapshots for r in v.counted)]
    epochs = load_epochs(find_sliding(drawn, chosen))
    measured = sum(bool(v.counted) for v in variants)
    first = "Of many variants, the first of each loss is shown." if len(chosen) < measured else ""
    attempt = Attempts()
    published = attempt.one("published numbers", find_published, variants) or {}
    moving = attempt.one("features over the epochs", feature_epochs.draw_feature_epochs, chosen, epochs)
    sections = [
        make_section(
            "numbers",
            "Numbers",
            [
                *attempt.all("summary", tabulate_summary, findings, published, anchors),
                attempt.one("speeds", tabulate_speed, findings, anchors),
            ],
            [attempt.one("differences", differences.draw_differences, findings)],
        ),
        lay_out_collapse(attempt, variants, chosen),
        make_section(
            "distributions",
            "Scores and margins",
            [],
            [
                attempt.one("scores", scores.draw_scores, drawn, snapshots, epochs),
                None if are_many(variants) else attempt.one("scores over epochs", curves.draw_scores, variants),
                attempt.one("agreement", agreement.draw_agreement, findings),
                attempt.one("margins", margins.draw_margins, drawn, snapshots),
            ],
            first if len(drawn) < measured else "",
        ),
        make_section("frames", "Frames", [], draw_frames(attempt, chosen, snapshots, epochs), first),
        make_section(
            "features",
            "Features",
            [],
            [
                moving,
                attempt.one("features", features.draw_embedding, chosen, snapshots, "test", moving is None),
                *attempt.all("features in space", features.draw_space, chosen, snapshots),
            ],
            first,
        ),
        make_section("grids", "Width and length", [], attempt.all("grids", grids.draw_grids, variants)),
        lay_out_theory(attempt, variants),
        lay_out_classes(attempt, comparison, chosen, snapshots, first),
        make_section("provenance", "Runs", [tabulate_runs(variants, others, anchors)], []),
    ]
    title, subtitle = name_folder(variants, Path(folder))
    looked_at = {r.path: r for v in drawn for r in v.counted} | {r.path: r for v in chosen for r in v.counted[:1]}
    if len(records) <= MANY_SNAPSHOTS:
        looked_at |= {r.path: r for v in variants for r in v.counted}
    unread = find_unread(looked_at.values(), snapshots, epochs)
    notes = (*collect_notes(comparison.records, Path(folder), unread), *attempt.faults)
    return Report(title, subtitle, keep_filled(sections), tuple(records), anchors, comparison, notes)


def are_many(variants: Sequence[Variant]) -> bool:
    """Whether there are too many variants for a curve each in one panel."""
    return len(variants) > curves.MANY


def lay_out_collapse(attempt: Attempts, variants: Sequence[Variant], chosen: Sequence[Variant]) -> Section:
    """Metrics and accuracies over the epochs; of many variants in small panels."""
    found: list[Figure | None] = []
    if are_many(variants):
        found += attempt.all("collapse curves", multiples.draw_multiples, variants)
    else:
        found += [attempt.one("curves", draw, variants) for draw in (curves.draw_collapse, curves.draw_accuracy)]
        found.append(attempt.one("gap", curves.draw_gap, variants))
    found.append(attempt.one("depth", draw_profiles, chosen))
    return make_section("collapse-curves", "Collapse", [], found)


def lay_out_theory(attempt: Attempts, variants: Sequence[Variant]) -> Section:
    """What the certificate guarantees, and where the runs lie in the theory's diagrams."""
    return make_section(
        "theory",
        "Theory",
        [attempt.one("guarantees", tabulate_guarantees, variants[:MOST_ROWS])],
        [
            attempt.one("bounds", bounds.draw_bounds, variants),
            attempt.one("phases", phases.draw_phases, variants),
            attempt.one("landscapes", landscapes.draw_landscapes, variants),
        ],
    )


def lay_out_classes(
    attempt: Attempts, comparison: Comparison, chosen: Sequence[Variant], snapshots: Snapshots, note: str
) -> Section:
    """Class by class, and what becomes of classes of unlike size."""
    by_class = attempt.all("classes of unlike size", compare_classes, comparison.findings)
    return make_section(
        "per-class",
        "Classes",
        [
            *attempt.all("groups of classes", tabulate_groups, by_class),
            *attempt.all("rare classes", tabulate_rare, by_class),
            attempt.one("classes", tabulate_classes, chosen, snapshots),
        ],
        [
            attempt.one("rare classes", draw_rare, by_class),
            attempt.one("class norms", draw_class_norms, comparison.variants),
        ],
        note,
    )


def complete_comparison(folder: Path, comparison: Comparison | None) -> Comparison:
    """The comparison of all runs of a folder; runs that are known already are not read again."""
    known = {record.path: record for record in (comparison.records if comparison else ())}
    paths = find_runs(folder)
    if not paths:
        raise ValueError(
            f"no runs in {str(folder)!r}: a run is a folder with a config.json, as train and compare write it"
        )
    if comparison is not None and set(paths) == set(known):
        return comparison
    return compare_records([known[path] if path in known else read_run(path) for path in paths])


def draw_profiles(chosen: Sequence[Variant]) -> Figure | None:
    """Collapse over depth, one line a variant, where the summary of a run holds `layers`, as `measure_layers` gives."""
    found = {v.label: get_nested(v.counted[0].summary or {}, "layers") for v in chosen}
    profiles = {label: layers for label, layers in found.items() if isinstance(layers, dict) and layers}
    return depth.draw_depth(profiles) if profiles else None


def find_sliding(drawn: Sequence[Variant], chosen: Sequence[Variant]) -> list[RunRecord]:
    """The runs whose epochs can be slid through: the first of each chosen variant, and all drawn ones of a few."""
    runs = [r for v in drawn for r in v.counted]
    return [*(runs if len(runs) <= scores.MOST_SLIDING else ()), *(v.counted[0] for v in chosen)]


def draw_frames(
    attempt: Attempts, chosen: Sequence[Variant], snapshots: Snapshots, epochs: Epochs
) -> list[Figure | None]:
    """The heat maps of each chosen variant beside those of its predicted optimum."""
    figures = []
    for number, variant in enumerate(chosen):
        target = attempt.one("ideal frame", ideal.ideal_frame, variant)
        figures.append(attempt.one("frames", frames.draw_frames, variant, number, snapshots, target, epochs))
    return figures


def keep_filled(sections: Sequence[Section]) -> tuple[Section, ...]:
    """The sections that hold anything."""
    return tuple(s for s in sections if s.tables or s.figures)


def choose_representatives(variants: Sequence[Variant], limit: int = REPRESENTATIVES) -> list[Variant]:
    """The variants that get figures of their own: all of a few, else the first with finished runs of each loss.

    Variants that have kept their snapshots come first.
    """
    ready = [v for v in variants if v.counted]
    if len(ready) <= limit:
        return ready
    by_loss: dict[str, Variant] = {}
    for variant in sorted(ready, key=lambda v: (v.provisional, not (v.counted[0].path / SNAPSHOT).is_file())):
        by_loss.setdefault(variant.loss, variant)
    return list(by_loss.values())[:limit]


def name_folder(variants: Sequence[Variant], folder: Path) -> tuple[str, str]:
    """A title from the losses and the data, a subtitle from the settings that all runs share."""
    if not variants:
        return folder.resolve().name, ""
    records = [r for v in variants for r in v.records]

    def shared(key: str) -> Any:
        values = {str(r.get(key)) for r in records if r.get(key) is not None}
        return values.pop() if len(values) == 1 else None

    losses = list(name_losses(v.loss for v in variants).values())
    data = list(dict.fromkeys(str(r.get("data.name")) for r in records if r.get("data.name")))
    listed = join(data) if len(data) <= 4 else f"{', '.join(data[:3])} and {len(data) - 3} more data sets"
    optimiser = shared("optim.name")
    parts = [shared("model.name"), name_optimiser(optimiser)]
    epochs = shared("optim.epochs")
    parts += [count(int(epochs), "epoch") if epochs else None]
    parts += [f"batch {shared('optim.batch_size')}" if shared("optim.batch_size") else None]
    seeds = len({r.seed for r in records})
    parts += [count(len(records), "run"), "one seed" if seeds == 1 else f"{seeds} seeds"]
    return f"{join(losses)} on {listed}" if data else join(losses), " · ".join(str(p) for p in parts if p)
