"""Which verdicts on numbers could turn with another seed: those within three standard deviations of their tolerance."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from ncollapse.papers.judge import JUDGED, Line, tolerance
from ncollapse.papers.standard_error import count_measured, error_of_rate

SEEDS = 3
"""From so many seeds on, three standard deviations over them are in the tolerance itself."""
MARGIN = 0.25
"""Where neither seeds nor a count of samples give a standard deviation: this part of the tolerance instead of three."""


def find_close_calls(lines: Iterable[Line]) -> list[Line]:
    """The judged numbers of fewer than three seeds that are within three standard deviations of their tolerance."""
    judged = [line for line in lines if line.verdict in JUDGED and len(line.values) < SEEDS]
    return [line for line in judged if abs(tolerance(line) - line.distance) < measure_reach(line)]


def measure_reach(line: Line) -> float:
    """Three standard deviations of a number.

    Over its two seeds, if it has them; of an accuracy, the standard error from the number of samples; else unknown, and
    a quarter of the tolerance stands for it.
    """
    if len(line.values) > 1:
        return 3 * statistics.stdev(line.values)
    if line.field.endswith("accuracy") and line.ours is not None:
        return 3 * error_of_rate(line.ours, count_measured(line.field, str(line.keys.get("data"))))
    return MARGIN * tolerance(line)
