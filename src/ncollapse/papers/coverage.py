"""How much of an experiment was run, so that a verdict on a part of it says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ncollapse.grammar import count, join
from ncollapse.papers.matching import Match, is_trial


@dataclass(frozen=True)
class Coverage:
    """Of `total` runs that an experiment asks for (one seed each), `run` are finished, with `seeds` runs in all.

    `short` of them trained for fewer epochs than the experiment asks for, and `trial` of those for so few that they
    decide no verdict; `lengths` are pairs (ours, asked for). `longer` of them trained for more epochs than asked for.
    """

    total: int
    run: int = 0
    seeds: int = 0
    short: int = 0
    lengths: tuple[tuple[int, int], ...] = ()
    trial: int = 0
    longer: int = 0

    @property
    def complete(self) -> bool:
        """Whether every run is finished at the length asked for."""
        return self.run == self.total and not self.short and not self.longer

    @property
    def only_trials(self) -> bool:
        """Whether every finished run is too short to decide a verdict."""
        return 0 < self.run == self.trial

    @property
    def epochs(self) -> str:
        """How long the shortened runs were, "" if there are none.

        >>> Coverage(48, 4, 4, 4, ((60, 100), (20, 100), (50, 100), (40, 200))).epochs
        '20, 50 and 60 of 100 and 40 of 200 epochs'
        """
        by_asked: dict[int, list[int]] = {}
        for ours, asked in sorted(self.lengths):
            by_asked.setdefault(asked, []).append(ours)
        said = " and ".join(f"{join(ours)} of {asked}" for asked, ours in sorted(by_asked.items()))
        return f"{said} epochs" if said else ""

    @property
    def deciding_epochs(self) -> str:
        """How long the shortened runs that decide were, without the trials, "" if there are none."""
        return replace(self, lengths=tuple(pair for pair in self.lengths if not is_trial(*pair))).epochs

    @property
    def detail(self) -> str:
        """In numbers, "" if nothing was run.

        >>> Coverage(48, 4, 12, 4, ((30, 100),)).detail
        '4 of 48 runs, 12 with all seeds, at 30 of 100 epochs'
        """
        if not self.run:
            return ""
        parts = [f"{self.run} of {count(self.total, 'run')}"]
        if self.seeds > self.run:
            parts.append(f"{self.seeds} with all seeds")
        if self.short:
            parts.append(f"{'' if self.short == self.run else f'{self.short} '}at {self.epochs}")
        if self.longer:
            parts.append(f"{self.longer} trained for longer than asked for")
        if self.trial and not self.only_trials:
            parts.append(f"{self.trial} of them too short to judge")
        return ", ".join(parts)

    def qualify(self, verdict: str) -> str:
        """The verdict, followed by what limits it.

        >>> Coverage(12, 2, 2).qualify("reproduced")
        'reproduced, as far as run'
        >>> Coverage(48, 4, 4, 4, ((30, 100),)).qualify("reproduced in direction")
        'reproduced in direction at 30 of 100 epochs, as far as run'
        >>> Coverage(3, 1, 1, 1, ((2, 200),), 1).qualify("reproduced")
        'tried only, at 2 of 200 epochs'
        >>> Coverage(3, 3, 3, 3, ((2, 200), (50, 200)), 1).qualify("reproduced")
        'reproduced at 50 of 200 epochs'
        >>> Coverage(2, 2, 2, longer=2).qualify("reproduced")
        'reproduced, runs longer than asked for'
        """
        if verdict == "not run":
            return verdict
        if self.only_trials:
            return f"tried only, at {self.epochs}"
        if self.short > self.trial:
            verdict += f"{'' if self.short == self.run else ', some runs'} at {self.deciding_epochs}"
        if self.longer:
            verdict += f", {'some runs' if self.longer < self.run else 'runs'} longer than asked for"
        if verdict.startswith(("partly run", "not judged")):
            return verdict
        return verdict if self.run == self.total else f"{verdict}, as far as run"


def measure_coverage(matches: Sequence[Match]) -> Coverage:
    """What the finished runs cover of the grid of an experiment."""
    run = [found for found in matches if found.records]
    short = [found for found in run if found.is_short]
    lengths = dict.fromkeys((found.epochs, found.asked_epochs) for found in short)
    return Coverage(
        total=len(matches),
        run=len(run),
        seeds=sum(len(found.records) for found in run),
        short=len(short),
        lengths=tuple(lengths),
        trial=sum(found.is_trial for found in run),
        longer=sum(found.is_longer for found in run),
    )
