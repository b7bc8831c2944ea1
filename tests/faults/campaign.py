"""The campaign: families of cases, each a function of a seed, and the table of what became of them."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

SKIPPED = "skipped: "
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where the cases have their folders: in memory where possible, since they wait for the disk thousands of times."""


@dataclass(frozen=True)
class Family:
    """Cases of one kind.

    check(seed, folder) returns "" where the promise holds, `SKIPPED` and a reason, or what went wrong; an exception is
    a failure too. `folder` is empty and removed afterwards. cases: how many the long form runs; short: the short one.
    """

    name: str
    promise: str
    cases: int
    short: int
    check: Callable[[int, Path], str]


@dataclass
class Tally:
    """What became of the cases of a family."""

    name: str
    cases: int = 0
    skipped: int = 0
    seconds: float = 0.0
    failures: list[tuple[int, str]] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)

    def add(self, other: Tally) -> None:
        self.cases += other.cases
        self.skipped += other.skipped
        self.seconds += other.seconds
        self.failures += other.failures
        self.reasons |= other.reasons


def run_cases(family: Family, seeds: Iterable[int]) -> Tally:
    """Run the cases of these seeds."""
    tally = Tally(family.name)
    began = time.perf_counter()
    logging.disable(logging.CRITICAL)
    try:
        for seed in seeds:
            folder = Path(tempfile.mkdtemp(prefix="faults-", dir=MEMORY))
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    said = family.check(seed, folder)
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            tally.cases += 1
            if said.startswith(SKIPPED):
                tally.skipped += 1
                tally.reasons.add(said.removeprefix(SKIPPED))
            elif said:
                tally.failures.append((seed, said))
    finally:
        logging.disable(logging.NOTSET)
    tally.seconds = time.perf_counter() - began
    return tally


def format_table(tallies: Iterable[Tally], promises: dict[str, str]) -> str:
    """The table of a campaign in Markdown."""
    lines = ["| family | cases | failures | skipped | seconds | promise |", "| --- | --: | --: | --: | --: | --- |"]
    total = Tally("all")
    for tally in tallies:
        total.add(tally)
        lines.append(_row(tally, promises.get(tally.name, "")))
    lines.append(_row(total, ""))
    lines += [f"\nSkipped: {reason}." for reason in sorted(total.reasons)]
    for tally in tallies:
        lines += [f"\nFAILED {tally.name}, seed {seed}: {said[:500]}" for seed, said in tally.failures[:5]]
    return "\n".join(lines)


def _row(tally: Tally, promise: str) -> str:
    counts = f"{tally.cases} | {len(tally.failures)} | {tally.skipped} | {tally.seconds:.0f}"
    return f"| {tally.name} | {counts} | {promise} |"
