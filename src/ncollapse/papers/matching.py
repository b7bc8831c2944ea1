"""Which finished runs belong to which point of a grid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ncollapse.papers.experiment import Point
from ncollapse.runs.identity import point_key
from ncollapse.runs.record import RunRecord

TRIAL_SHARE = 0.25
"""Runs that trained for less than this share of the epochs asked for are trials: they decide no verdict."""


@dataclass(frozen=True)
class Match:
    """A point of a grid and its finished runs, all of one length, one for each seed."""

    point: Point
    records: tuple[RunRecord, ...] = ()

    @property
    def asked_epochs(self) -> int:
        """How long the experiment asks its runs to be."""
        return self.point.recipe.optim.epochs

    @property
    def epochs(self) -> int:
        """How long the runs were; as long as asked for where there are none."""
        return epochs_of(self.records[0]) if self.records else self.asked_epochs

    @property
    def is_short(self) -> bool:
        """Whether the runs trained for fewer epochs than asked for."""
        return self.epochs < self.asked_epochs

    @property
    def is_longer(self) -> bool:
        """Whether the runs trained for more epochs than asked for."""
        return self.epochs > self.asked_epochs

    @property
    def is_trial(self) -> bool:
        """Whether they are too short to decide a verdict."""
        return is_trial(self.epochs, self.asked_epochs)


def is_trial(epochs: int, asked: int) -> bool:
    """Whether a run of so many epochs is a trial only.

    >>> is_trial(2, 200), is_trial(50, 200)
    (True, False)
    """
    return epochs < TRIAL_SHARE * asked


def match(points: Sequence[Point], records: Iterable[RunRecord]) -> list[Match]:
    """The points, each once whatever its seed, with their finished runs of one length, one for each seed.

    The length is the one asked for, if there are such runs; else the next longer one; else the longest shorter one.
    If one of them follows the schedule with the lag asked for, only those count. Of several runs of one seed, the one
    in the precision asked for counts, and then the one measured most often. If the grid itself varies the length, a run
    belongs to the point of the nearest length.
    """
    pool = group_by_point(records)
    lengths: dict[str, dict[int, Point]] = {}
    for point in points:
        lengths.setdefault(point_key(point.recipe.to_dict()), {}).setdefault(point.recipe.optim.epochs, point)
    return [
        Match(point, _choose(point, [r for r in pool.get(key, ()) if _nearest(by_length, epochs_of(r)) == length]))
        for key, by_length in lengths.items()
        for length, point in by_length.items()
    ]


def at_own_lengths(points: Sequence[Point], records: Iterable[RunRecord]) -> list[tuple[dict[str, Any], RunRecord]]:
    """The finished runs of any length that a grid has, but for its length; their key "epochs" is their own length.

    Of several runs of one seed and length, the one in the precision asked for counts, and then the one measured most
    often.
    """
    pool = group_by_point(records)
    recipes = {point_key(point.recipe.to_dict()): point for point in points}
    found = []
    for key, point in recipes.items():
        keys = {name: value for name, value in point.keys.items() if name != "seed"}
        best: dict[tuple[int, int | None], RunRecord] = {}
        for record in _in_order(pool.get(key, ()), point.recipe.precision):
            best.setdefault((epochs_of(record), record.seed), record)
        found += [({**keys, "epochs": epochs}, record) for (epochs, _), record in sorted(best.items(), key=_by_length)]
    return found


def _by_length(item: tuple[tuple[int, int | None], RunRecord]) -> tuple[int, int]:
    (epochs, seed), _ = item
    return epochs, seed or 0


def _in_order(records: Iterable[RunRecord], precision: str) -> list[RunRecord]:
    """Those in this precision first, then those measured most often."""
    return sorted(records, key=lambda r: (r.get("precision") != precision, -len(r.history)))


def group_by_point(records: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    """Finished records by what they trained, whatever their seed and length."""
    pool: dict[str, list[RunRecord]] = {}
    for record in records:
        if record.status == "finished":
            pool.setdefault(point_key(record.config), []).append(record)
    return pool


def epochs_of(record: RunRecord) -> int:
    """How many epochs a run was asked to train for."""
    return int(record.get("optim.epochs", 0))


def lag_of(record: RunRecord) -> int:
    """By how many epochs the schedule of a run was delayed; recipes from before that field had no delay."""
    return int(record.get("schedule.lag", 0))


def _choose(point: Point, records: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
    asked = point.recipe.optim.epochs
    length = max(map(epochs_of, records), key=lambda epochs: (min(epochs, asked), -epochs), default=0)
    chosen = [r for r in records if epochs_of(r) == length]
    chosen = [r for r in chosen if lag_of(r) == point.recipe.schedule.lag] or chosen
    best: dict[int | None, RunRecord] = {}
    for record in _in_order(chosen, point.recipe.precision):
        best.setdefault(record.seed, record)
    return tuple(record for record in chosen if record is best[record.seed])


def _nearest(lengths: Iterable[int], length: int) -> int:
    return min(lengths, key=lambda other: abs(math.log(other / max(length, 1))))
