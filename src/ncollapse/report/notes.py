"""Notes on the records of a page: what is damaged, missing, copied or unfinished, folded where many say the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ncollapse.compare import QUANTITIES, gather_copies, is_number, measured
from ncollapse.grammar import count, join
from ncollapse.runs.record import RunRecord, get_nested
from ncollapse.train.initial_values import share_unseen
from ncollapse.train.recipe import Recipe

MOST = 0.7
"""Where SGD keeps more than this of the initial weights that no loss sees, its decays have hardly acted."""
NAMED = 3
"""Up to so many runs with the same kind of fault get a note each; more are counted in one note."""


def collect_notes(records: Sequence[RunRecord], folder: Path, unread: Mapping[Path, str] | None = None) -> list[str]:
    """What a reader must know about the records, first of all those that failed or cannot be read.

    `unread` says, by the folder of a run, what is wrong with its snapshots.
    """
    broken = unread or {}
    kinds: list[tuple[str, Callable[[RunRecord], str]]] = [
        ("failed", _describe_failure),
        ("cannot be read in full and are left out of the numbers", _describe_damage),
        ("have damaged files", _describe_faults),
        ("have numbers missing, which means leave out", _describe_missing_numbers),
        ("have gaps in their curves", _describe_gaps),
        ("have decays that hardly acted, so that the prediction may be far away", _describe_decays),
        (
            "have a snapshot that cannot be read",
            lambda r: f"Run {r.run_id}: {broken[r.path]}; some figures go without it." if r.path in broken else "",
        ),
    ]
    notes = note_copies(records, folder)
    for summary, describe in kinds:
        notes += fold([(record, text) for record in records if (text := describe(record))], summary)
    return notes


def fold(faults: Sequence[tuple[RunRecord, str]], summary: str) -> list[str]:
    """A note for each fault, or one for all where they are many."""
    if len(faults) <= NAMED:
        return [text for _, text in faults]
    names = [record.run_id for record, _ in faults]
    reasons = list(dict.fromkeys(text.partition(": ")[2] for _, text in faults if ": " in text))
    said = f" First: {reasons[0]}" if reasons else ""
    listed = f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"
    return [f"{count(len(names), 'run')} {summary}: {listed}.{said} The table of runs shows them all."]


def note_copies(records: Sequence[RunRecord], folder: Path) -> list[str]:
    """Which runs stand in several folders."""
    notes, copied = [], [same for same in gather_copies(records) if len(same) > 1]
    for same in copied[:NAMED]:
        times = "twice" if len(same) == 2 else f"{len(same)} times"
        paths = ", ".join(_relative(r.path, folder) for r in same)
        notes.append(f"Run {same[0].run_id} is there {times} ({paths}); it is counted once.")
    if len(copied) > NAMED:
        notes.append(f"{count(len(copied) - NAMED, 'more run')} stand in several folders and are counted once.")
    return notes


def missing_epochs(record: RunRecord) -> str:
    """Which epochs a history lacks or holds without a number, in words; nothing where it is complete."""
    rows = [row for row in record.history if isinstance(row.get("epoch"), int)]
    lost = record.missing_epochs()
    void = [row["epoch"] for row in rows if row["epoch"] > 0 and not is_number(get_nested(row, "train.nc1"))]
    parts = []
    if lost:
        parts.append(f"{_count(sum(map(len, lost)), 'is', 'are')} missing from its history (first {lost[0][0]})")
    if void and len(void) < len(rows):
        parts.append(f"{_count(len(void), 'has', 'have')} no NC1 (first {void[0]})")
    return ", ".join(parts)


def _describe_failure(record: RunRecord) -> str:
    reason = get_nested(record.summary or {}, "reason") or "no reason recorded"
    return f"Run {record.run_id} failed: {reason}." if record.status == "failed" else ""


def _describe_damage(record: RunRecord) -> str:
    why = "; ".join(record.notes) or "no reason known"
    left_out = f"Run {record.run_id} cannot be read in full ({why}); it is left out of the numbers."
    return left_out if record.status == "corrupt" else ""


def _describe_faults(record: RunRecord) -> str:
    return f"Run {record.run_id}: {'; '.join(record.notes)}." if record.notes and record.status != "corrupt" else ""


def _describe_missing_numbers(record: RunRecord) -> str:
    if record.status != "finished":
        return ""
    void = [q.title for q in QUANTITIES if q.better and not math.isfinite(measured(record, q.key))]
    return f"Run {record.run_id} has no number for {join(void)}; means leave it out there." if void else ""


def _describe_gaps(record: RunRecord) -> str:
    gaps = missing_epochs(record)
    return f"Run {record.run_id}: {gaps}; its curves have gaps there, and speeds leave it out." if gaps else ""


def _describe_decays(record: RunRecord) -> str:
    """The predicted optimum balances loss and decays; SGD reaches it only in the time that its decays need."""
    if record.status != "finished" or not get_nested(record.summary or {}, "prediction"):
        return ""
    try:
        recipe = Recipe.from_dict(record.config)
        trained = bool(record.history) and record.history[-1].get("epoch") == recipe.optim.epochs
        samples = get_nested(record.summary, "train.num_samples")
        share = share_unseen(recipe, "weight", samples) if trained else None
    except Exception:  # a record may hold anything; then this is not known, but there is a page
        return ""
    if share is None or share < MOST:
        return ""
    return (
        f"Run {record.run_id}: SGD's decays hardly acted: they leave {100 * share:.0f} % of an initial weight that the"
        " loss does not see. The predicted optimum needs longer training or a higher rate."
    )


def _relative(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _count(epochs: int, one: str, more: str) -> str:
    return f"one epoch {one}" if epochs == 1 else f"{epochs} epochs {more}"
