"""Run what is missing of some experiments, and judge what came out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncollapse.papers.outcome import Outcome, evaluate
from ncollapse.papers.selection import Selection
from ncollapse.runs.record import RunRecord, read_run
from ncollapse.sweep.sweep import sweep


def run_selections(
    selections: Sequence[Selection],
    out: Path,
    *,
    data_root: str | Path | None = None,
    device: str | None = None,
    time_limit: float | None = None,
    **options: Any,
) -> tuple[list[RunRecord], list[str]]:
    """Train what is not finished, then carry out the second stages; `options` go to `sweep`.

    Returns the records of all runs asked for, and what went wrong in the second stages.
    """
    recipes = [point.recipe for selection in selections for point in selection.points]
    started = time.time()
    records = sweep(recipes, out, data_root=data_root, device=device, time_limit=time_limit, **options)
    two_stage = {p.recipe.run_id for s in selections if s.experiment.protocol == "two-stage" for p in s.points}
    if not two_stage:
        return records, []
    from ncollapse.papers.rebalance import rebalance_all

    deadline = None if time_limit is None else started + time_limit
    first_stage = [record for record in records if record.run_id in two_stage]
    return records, rebalance_all(first_stage, data_root, device, deadline)


def evaluate_selection(selection: Selection, out: Path) -> Outcome:
    """The outcome of all that was asked for, whichever share of it ran here."""
    folders = [out / point.recipe.run_id for point in selection.points]
    records = [read_run(folder) for folder in folders if folder.is_dir()]
    return evaluate(selection.experiment, records, selection.asked)
