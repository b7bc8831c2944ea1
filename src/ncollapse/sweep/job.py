"""A job: one run with everything that a worker needs to carry it out, as plain data."""

from __future__ import annotations

import json
import queue
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ncollapse.runs.folder import RunFolder
from ncollapse.runs.lock import FolderInUse


class OutOfTime(Exception):
    """The time limit of the sweep has passed.

    Raised in `progress`, it stops a run at the end of its epoch, with a checkpoint.
    """


@dataclass(frozen=True)
class Job:
    """A recipe (as plain values), the folder that holds its run folder, and how to run it.

    `deadline` is a value of time.time().
    """

    run_id: str
    recipe: dict[str, Any]
    out: str
    data_root: str | None = None
    device: str | None = None
    deterministic: bool = False
    deadline: float | None = None

    def to_json(self) -> str:
        """Return one line for a worker's standard input."""
        return json.dumps(asdict(self))


def line_up(jobs: Iterable[Job]) -> queue.SimpleQueue[Job]:
    """Put the jobs into a queue that workers take from."""
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    return waiting


def drain(
    events: queue.SimpleQueue[dict[str, Any] | None], workers: int, emit: Callable[[dict[str, Any]], None]
) -> None:
    """Pass the workers' events on until each worker has sent None, its last event."""
    while workers:
        event = events.get()
        if event is None:
            workers -= 1
        else:
            emit(event)


def execute(job: Job, emit: Callable[[dict[str, Any]], None], device: str | None = None) -> str:
    """Carry out one job in this thread and return its status: finished, failed or interrupted.

    A failure is recorded in the run's summary.json with its traceback. Only an interrupt is raised.
    """
    from ncollapse.train import Recipe, run

    def progress(event: dict[str, Any]) -> None:
        emit({"run_id": job.run_id, **event})
        if job.deadline is not None and time.time() > job.deadline:
            raise OutOfTime

    if job.deadline is not None and time.time() > job.deadline:
        emit({"run_id": job.run_id, "status": "interrupted"})
        return "interrupted"
    emit({"run_id": job.run_id, "status": "started"})
    try:
        summary = run(
            Recipe.from_dict(job.recipe),
            job.out,
            data_root=job.data_root,
            device=device or job.device,
            deterministic=job.deterministic,
            progress=progress,
        )
        status = str(summary.get("status", "finished"))
    except OutOfTime:
        status = "interrupted"
    except FolderInUse as error:
        emit({"run_id": job.run_id, "status": "interrupted", "reason": str(error)})
        return "interrupted"
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        record_failure(job, reason, traceback.format_exc())
        emit({"run_id": job.run_id, "status": "failed", "reason": reason})
        return "failed"
    emit({"run_id": job.run_id, "status": status})
    return status


def record_failure(job: Job, reason: str, trace: str | None) -> None:
    """Write the failure into the run's folder, unless the run did so itself or the folder cannot be written."""
    RunFolder(Path(job.out) / job.run_id).fail(job.recipe, reason, trace)
