"""What the page of reproductions says of all runs and numbers together, a paragraph each."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ncollapse.compare.variants import LOSSES
from ncollapse.grammar import count, join
from ncollapse.papers import markdown
from ncollapse.papers.archive import gpu_minutes
from ncollapse.papers.catalogue import CATALOGUE
from ncollapse.papers.judge import Line, compare, is_within, tolerance, tolerance_in_points
from ncollapse.papers.matching import Match, epochs_of, group_by_point, is_trial, lag_of, match
from ncollapse.papers.outcome import Outcome, list_judged
from ncollapse.runs.identity import point_key
from ncollapse.runs.record import RunRecord


def summarise_runs(records: Sequence[RunRecord]) -> str:
    """How many runs there are, what they ran on, how long they took, and how many seeds they have."""
    if not records:
        return "No runs are recorded."
    kinds: dict[str, int] = {}
    for record in records:
        hardware, versions = record.env.get("hardware", {}), record.env.get("versions", {})
        place = hardware.get("gpu") or f"{hardware.get('cores', '?')} CPU cores"
        kind = f"{place}, torch {versions.get('torch', '?')}, Python {versions.get('python', '?')}"
        kinds[kind] = kinds.get(kind, 0) + 1
    said = "; ".join(f"{number} on {kind}" for kind, number in kinds.items())
    minutes = [gpu_minutes(record) for record in records]
    seeds: dict[str, int] = {}
    for found in (found for e in CATALOGUE.values() for found in match(e.grid(), records) if found.records):
        seeds[found.records[0].run_id] = max(len(found.records), seeds.get(found.records[0].run_id, 0))
    several = sum(number > 1 for number in seeds.values())
    return (
        f"{count(len(records), 'run')}: {said}. They took {sum(minutes):.0f} GPU minutes of wall-clock time in all;"
        f" runs that shared a GPU are counted separately. The {len(seeds)} configurations that are judged have"
        f" {statistics.fmean(seeds.values()):.2f} seeds on average; {several} {'has' if several == 1 else 'have'} more"
        " than one."
    )


def summarise_sgd(outcomes: Iterable[Outcome]) -> str:
    """How many numbers of SGD runs are within their own tolerance of 5 %, and how many within that of the others."""
    judged = [line for _, line in list_judged(outcomes) if tolerance_in_points(line.field) is None]
    lines = [line for line in judged if line.keys.get("optimizer") == "sgd"]
    if not lines:
        return ""
    strict = [replace(line, keys={**line.keys, "optimizer": "adamw"}, drawn=0.0) for line in lines]
    kept = sum(line.verdict == "reproduced" for line in lines)
    strictly = sum(is_within(line.distance, tolerance(line)) for line in strict)
    return (
        f"Of the {len(lines)} numbers of runs with SGD that have a relative tolerance, {kept} are reproduced, to 5 %"
        f" or within the spread of initial draws, and {strictly} to the 1 % that other runs have to reach."
    )


def name_kind(line: Line) -> str:
    """What sort of number it is, as the summary of kinds has them."""
    part, _, name = line.field.rpartition(".")
    if tolerance_in_points(line.field) is None:
        loss = f" of {LOSSES.get(str(line.keys.get('loss')), '')}" if name == "bias" else ""
        return f"{markdown.NAMES.get(line.field, line.field)}{loss}"
    if not name.endswith("accuracy"):
        return "E_com and E_dis"
    return f"accuracies of {'training' if part == 'train' else 'test'} samples"


def summarise_kinds(outcomes: Iterable[Outcome]) -> str:
    """How many numbers of each kind are reproduced, since some kinds could hardly fail."""
    kinds: dict[str, list[bool]] = {}
    for _, line in list_judged(outcomes):
        kinds.setdefault(name_kind(line), []).append(line.verdict == "reproduced")
    if not kinds:
        return ""
    said = join([f"{kind} {sum(held)} of {len(held)}" for kind, held in kinds.items()])
    return (
        f"The numbers of bce-vs-ce by kind: {said}. Two kinds are easy to reproduce: accuracies of training samples,"
        " most of which are above 99 %, and biases of CE, most of which are smaller than their printed spread."
    )


def summarise_spreads(outcomes: Iterable[Outcome]) -> str:
    """How far our spreads are from the printed ones, of runs at full length and of shortened ones."""
    near: dict[bool, list[bool]] = {False: [], True: []}
    for _, line in list_judged(outcomes):
        if line.spread is not None and line.published is not None and line.published.std is not None:
            printed, digits = float(line.published.std), len(line.published.std.partition(".")[2])
            near[line.short].append(is_within(abs(line.spread - printed), max(0.1 * printed, 10.0**-digits)))
    whole, short = near[False], near[True]
    if not whole and not short:
        return ""
    return (
        f"Our ± is within 10 % of the printed one, or one unit of its last digit, in {sum(whole)} of {len(whole)}"
        f" where our runs are as long as the paper's, and in {sum(short)} of {len(short)} where they are shorter."
    )


def summarise_passed_over(outcomes: Iterable[Outcome], records: Sequence[RunRecord]) -> str:
    """How many runs of the tables are not judged since there are better ones, and what they would miss."""
    pool = group_by_point(records)
    runs: set[str] = set()
    missed: dict[tuple[str, ...], bool] = {}
    for outcome in outcomes:
        kept = {(line.field, line.published.mean) for line in outcome.lines if line.published and is_kept(line)}
        for found in match(outcome.experiment.grid(), records) if kept else ():
            others = [r for r in pool.get(point_key(found.point.recipe.to_dict()), ()) if r not in found.records]
            for record in others:
                if is_trial(epochs_of(record), found.asked_epochs):
                    continue
                runs.add(record.run_id)
                lines = compare(outcome.experiment, [replace(found, records=(record,))])
                fell = {(x.field, x.published.mean) for x in lines if x.published and x.values and not is_kept(x)}
                missed |= {(record.run_id, *number): epochs_of(record) < found.epochs for number in fell & kept}
    if not runs:
        return ""
    return (
        "Runs of the tables that are not judged, because there are other runs of the same settings that are longer,"
        f" follow the schedule of the authors' code or have the recipe's own precision: {len(runs)}. Judged by each of"
        f" them alone, numbers that are reproduced would be missed {len(missed)} times, {sum(missed.values())} of them"
        " by shorter runs."
    )


def is_kept(line: Line) -> bool:
    """Whether a number is reproduced."""
    return line.verdict == "reproduced"


def summarise_lags(matches: Iterable[Match]) -> str:
    """How many of the runs that are judged follow their schedule with another lag than asked for."""
    judged = {run.run_id: lag_of(run) == found.point.recipe.schedule.lag for found in matches for run in found.records}
    early = len(judged) - sum(judged.values())
    if not early:
        return ""
    return (
        f"{early} of the {len(judged)} runs that are judged lower their learning rate one epoch earlier than the"
        " authors' code does (recipes.md). Converged quantities are unaffected; those still changing at the end shift"
        " slightly (theory.md, Sec. 7)."
    )
