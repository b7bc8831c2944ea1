"""How many numbers stand if all numbers of a run are read at one and the same of its tied epochs.

`judge` lets every number have its own range over the tied epochs. That is lenient: the paper's numbers of a run come
from one epoch. Here each run gets one tied epoch, the one at which most of its numbers are reproduced.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import NamedTuple

from ncollapse.papers.judge import Line, is_within, read_value, tolerance
from ncollapse.papers.outcome import Outcome, list_judged
from ncollapse.papers.tied_epochs import find_tied_epochs, read_changes
from ncollapse.runs.record import RunRecord


class Number(NamedTuple):
    """A judged number, the runs behind it, and for each of them how it changes from the reported to each tied epoch."""

    line: Line
    records: tuple[RunRecord, ...]
    changes: dict[str, dict[int, float]]


def count_at_one_epoch(outcomes: Iterable[Outcome]) -> int:
    """How many judged numbers are reproduced if each run is read at one of its tied epochs."""
    numbers = collect_numbers(outcomes)
    by_run: dict[str, list[Number]] = {}
    for number in numbers:
        for record in number.records:
            by_run.setdefault(record.run_id, []).append(number)
    chosen = {run: choose_epoch(run, mine) for run, mine in by_run.items()}
    return sum(is_reproduced_at(number, chosen) for number in numbers)


def collect_numbers(outcomes: Iterable[Outcome]) -> list[Number]:
    """The judged numbers of experiments with their runs; those of a second stage report no epoch and have none."""
    found = []
    for outcome, line in list_judged(outcomes):
        trained = outcome.experiment.protocol == "runs"
        records = tuple(record for record in outcome.records if trained and record.run_id in line.runs)
        changes = {r.run_id: read_changes(r, line.field) if r.get("select") != "last" else {} for r in records}
        found.append(Number(line, records, changes))
    return found


def choose_epoch(run: str, numbers: Iterable[Number]) -> int | None:
    """The tied epoch of a run at which most of its numbers are reproduced; of equals the one nearest to them."""
    numbers = list(numbers)
    records = {record.run_id: record for number in numbers for record in number.records}
    epochs = sorted(find_tied_epochs(records[run]))

    def rate(epoch: int) -> tuple[int, float]:
        misses = [abs(_read_at(number, records[run], epoch)) / tolerance(number.line) for number in numbers]
        return sum(miss <= 1 for miss in misses), -sum(misses)

    return max(epochs, key=rate, default=None)


def is_reproduced_at(number: Number, epochs: dict[str, int | None]) -> bool:
    """Whether a number, in the mean over its runs at these epochs, is as published."""
    if not number.records:
        return number.line.verdict == "reproduced"
    off = [_read_at(number, record, epochs[record.run_id]) for record in number.records]
    return is_within(abs(statistics.fmean(off)), tolerance(number.line))


def _read_at(number: Number, record: RunRecord, epoch: int | None) -> float:
    """How far a number of a run at that epoch is from the published one."""
    published = number.line.published.value if number.line.published else 0.0
    change = 0.0 if epoch is None else number.changes[record.run_id].get(epoch, 0.0)
    return read_value(record, number.line.field) + change - published
