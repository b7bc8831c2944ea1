"""How far a run is that has not finished: its epoch, its rate and the time left."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from ncollapse.compare import is_number
from ncollapse.runs.record import RunRecord, get_nested

RECENT = 10


class Progress(NamedTuple):
    """A run that goes on, in words; `share` is how much of it is done."""

    run_id: str
    label: str
    loss: str
    status: str
    epoch: str
    rate: str
    left: str
    share: float


def describe_progress(record: RunRecord) -> Progress | None:
    """The progress of a run that is running or interrupted; None for one that has ended or not begun."""
    total = record.get("optim.epochs")
    if record.status not in ("running", "interrupted") or not isinstance(total, int) or total < 1:
        return None
    last = next((row["epoch"] for row in reversed(record.history) if isinstance(row.get("epoch"), int)), 0)
    seconds = epoch_seconds(record)
    running = record.status == "running" and seconds is not None
    left = f"{format_seconds(seconds * (total - last))} left" if running and seconds is not None else ""
    rate = f"{format_seconds(seconds)} per epoch" if seconds is not None else ""
    share = min(1.0, last / total)
    return Progress(record.run_id, record.label, record.loss, record.status, f"{last}/{total}", rate, left, share)


def epoch_seconds(record: RunRecord) -> float | None:
    """Seconds per epoch over the latest epochs, measuring included; None where no times are recorded."""
    rows = [(row.get("epoch"), get_nested(row, "time.elapsed_s")) for row in record.history]
    known = [(e, float(s)) for e, s in rows if isinstance(e, int) and is_number(s)][-RECENT - 1 :]
    steps = [
        (b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(known) if b[0] > a[0] and b[1] > a[1]
    ]  # a resumed run counts its seconds anew
    return sum(steps) / len(steps) if steps else None


def format_seconds(seconds: float) -> str:
    """A time in words.

    >>> format_seconds(0.31), format_seconds(75), format_seconds(7300)
    ('0.31 s', '1 min 15 s', '2 h 01 min')
    """
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
