"""How much of an experiment was run: a verdict on a part of a table says that it is one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ncollapse.grammar import count, join
from ncollapse.papers.experiment import Point
from ncollapse.papers.judge import match
from ncollapse.runs.record import RunRecord


@dataclass(frozen=True)
class Coverage:
    """Of `total` runs that an experiment asks for (one seed each) `run` are finished, with `seeds` runs in all.

    `short` of them trained for fewer epochs than the experiment asks for: `lengths` are pairs (ours, asked for).
    """

    total: int
    run: int = 0
    seeds: int = 0
    short: int = 0
    lengths: tuple[tuple[int, int], ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every run is finished at full length."""
        return self.run == self.total and not self.short

    @property
    def epochs(self) -> str:
        """How long the shortened runs were, "" where there are none.

        >>> Coverage(48, 4, 4, 4, ((60, 100), (20, 100), (50, 100), (40, 200))).epochs
        '20, 50 and 60 of 100 and 40 of 200 epochs'
        """
        by_asked: dict[int, list[int]] = {}
        for ours, asked in sorted(self.lengths):
            by_asked.setdefault(asked, []).append(ours)
        said = " and ".join(f"{join(ours)} of {asked}" for asked, ours in sorted(by_asked.items()))
        return f"{said} epochs" if said else ""

    @property
    def detail(self) -> str:
        """In numbers, "" where nothing was run.

        >>> Coverage(48, 4, 12, 4, ((20, 100),)).detail
        '4 of 48 runs, 12 with all seeds, at 20 of 100 epochs'
        """
        if not self.run:
            return ""
        parts = [f"{self.run} of {count(self.total, 'run')}"]
        if self.seeds > self.run:
            parts.append(f"{self.seeds} with all seeds")
        if self.short:
            parts.append(f"{'' if self.short == self.run else f'{self.short} '}at {self.epochs}")
        return ", ".join(parts)

    def qualify(self, verdict: str) -> str:
        """The verdict with what it does not rest on.

        >>> Coverage(12, 2, 2).qualify("reproduced")
        'reproduced, as far as run'
        >>> Coverage(48, 4, 4, 4, ((20, 100),)).qualify("reproduced in direction")
        'reproduced in direction at 20 of 100 epochs, as far as run'
        """
        if verdict in ("not run", "partly run", "no bar"):
            return verdict
        if self.short:
            verdict += f"{'' if self.short == self.run else ' in part'} at {self.epochs}"
        return verdict if self.run == self.total else f"{verdict}, as far as run"


def cover(grid: Sequence[Point], records: Iterable[RunRecord]) -> Coverage:
    """What the finished runs among `records` cover of the whole grid of an experiment."""
    total = run = seeds = short = 0
    lengths: dict[tuple[int, int], None] = {}
    for point, found in match(grid, records):
        total += 1
        asked = point.recipe.optim.epochs
        ours = max((int(record.get("optim.epochs", 0)) for record in found), default=asked)
        run += bool(found)
        seeds += len(found)
        if ours < asked:
            short += 1
            lengths[ours, asked] = None
    return Coverage(total, run, seeds, short, tuple(lengths))
