"""Carry out a list of recipes, each in the folder that its configuration names; finished runs are skipped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ncollapse.output import make_folder, refuse_file
from ncollapse.runs.folder import RunFolder
from ncollapse.runs.identity import measured_whenever
from ncollapse.runs.record import RunRecord, read_run, read_runs, read_status
from ncollapse.sweep.engines import Job, get

if TYPE_CHECKING:
    from ncollapse.train import Recipe

T = TypeVar("T")
PATIENCE = 3.0
"""Seconds for which a run that another process holds may still become free."""


def sweep(
    recipes: Sequence[Recipe],
    out: str | Path,
    *,
    engine: str = "local",
    jobs: int | None = None,
    device: str | None = None,
    data_root: str | Path | None = None,
    index: tuple[int, int] | None = None,
    retry: bool = False,
    deterministic: bool = False,
    time_limit: float | None = None,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> list[RunRecord]:
    """Carry out every recipe that is not finished under `out`, and read all of them back, in the order given.

    `engine` is "local" (processes), "packed" (threads sharing one GPU) or "ray"; `jobs` how many runs at a time.
    `index=(i, n)` takes the i-th of n equal shares (1-based), for job arrays. Failed runs are skipped unless `retry`.
    `time_limit` (seconds) stops every run at the end of the epoch it is in, to be resumed by the same call.
    `progress` gets the runs' own events and {"run_id", "status"} when one is skipped, started, lost or has ended.

    An interrupt or a crash of any process leaves folders that the same call resumes: each run keeps a checkpoint and a
    lock that ends with its process. A run that another process holds is looked at again when the others are done, for
    `PATIENCE` seconds: the workers of a sweep that was killed a moment ago are about to let go. A run that cannot be
    written (a file where its folder should be, a full disk) is returned as failed, with the reason; the others go on.
    """
    check_options(out, engine, jobs, device, index, time_limit)
    carry_out = get(engine)
    failures: dict[str, str] = {}

    def emit(event: dict[str, Any]) -> None:
        if event.get("status") == "failed":
            failures[str(event.get("run_id"))] = str(event.get("reason") or "no reason is known")
        if progress is not None:
            progress(event)

    chosen = take_share(list({recipe.run_id: recipe for recipe in recipes}.values()), index)
    folder = Path(out)
    root = None if data_root is None else str(data_root)
    deadline = None if time_limit is None else time.time() + time_limit

    def make_jobs(standing: Iterable[tuple[Recipe, str]]) -> list[Job]:
        """Make the jobs of the runs to carry out; report why the others are skipped."""
        made = []
        for recipe, status in standing:
            if status in ("finished", "running") or (status == "failed" and not retry):
                emit({"run_id": recipe.run_id, "status": "skipped", "reason": status})
                continue
            if status == "failed":
                with suppress(OSError):  # if it cannot be removed, the run cannot be written, and says so itself
                    (folder / recipe.run_id / "summary.json").unlink(missing_ok=True)
            made.append(Job(recipe.run_id, recipe.to_dict(), str(folder), root, device, deterministic, deadline))
        return made

    standing = [(recipe, repair_status(folder / recipe.run_id, recipe)) for recipe in chosen]
    todo = make_jobs((recipe, status) for recipe, status in standing if status != "running")
    if todo or not folder.is_dir():
        make_folder(folder, folder)
    if todo:
        carry_out(todo, jobs, emit)
    held = [recipe for recipe, status in standing if status == "running"]
    late = make_jobs(_look_again(folder, held))
    if late:
        carry_out(late, jobs, emit)
    return [_read_back(folder, recipe, failures.get(recipe.run_id)) for recipe in chosen]


def check_options(
    out: str | Path,
    engine: str = "local",
    jobs: int | None = None,
    device: str | None = None,
    index: tuple[int, int] | None = None,
    time_limit: float | None = None,
) -> None:
    """Raise what `sweep` would raise for these options, before anything is read or run."""
    get(engine)
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs: expected at least 1 run at a time, got {jobs}")
    if time_limit is not None and not 0 < time_limit < math.inf:
        raise ValueError(f"time_limit: expected a finite number of seconds above 0, got {time_limit:g}")
    if device is not None and engine != "ray":  # whose nodes may have what this one has not
        from ncollapse.train.distributed import find_device

        find_device(device)
    take_share((), index)
    refuse_file(Path(out), Path(out))


def _look_again(folder: Path, held: Sequence[Recipe]) -> Iterator[tuple[Recipe, str]]:
    """Yield the status of runs that another process held: "running" only if it still does after `PATIENCE` seconds."""
    patience = time.monotonic() + PATIENCE
    for recipe in held:
        while (status := repair_status(folder / recipe.run_id, recipe)) == "running" and time.monotonic() < patience:
            time.sleep(0.05)
        yield recipe, status


def take_share(recipes: Sequence[T], index: tuple[int, int] | None) -> Sequence[T]:
    """Return the i-th of n shares of a list, dealt round-robin; the whole list without an index.

    >>> take_share("abcdefg", (1, 3))
    'adg'
    """
    if index is None:
        return recipes
    if not isinstance(index, (tuple, list)) or len(index) != 2 or not all(isinstance(item, int) for item in index):
        raise TypeError(f"index: expected a share and the number of shares, such as (1, 4), got {index!r}")
    share, shares = index
    if not 1 <= share <= shares:
        raise ValueError(f"index: expected a share between 1 and the number of shares, got {share}/{shares}")
    return recipes[share - 1 :: shares]


def run_status(folder: Path) -> str:
    """Return the status of a run's folder, "new" if there is none."""
    return read_status(folder) if folder.is_dir() else "new"


def find_finished(out: Path) -> Callable[[Recipe], Recipe]:
    """Return a function that replaces a recipe by that of a finished run under `out` that was measured at other epochs.

    It returns the recipe itself if there is no such run.
    """
    from ncollapse.train import Recipe

    done: dict[str, Recipe] = {}
    for record in read_runs(out) if out.is_dir() else ():
        if record.status == "finished":
            with suppress(ValueError):  # a recipe of another version, with settings this one does not know
                recipe = Recipe.from_dict(record.config)
                done[measured_whenever(record.config)] = recipe

    def find(recipe: Recipe) -> Recipe:
        if run_status(out / recipe.run_id) == "finished":
            return recipe
        return done.get(measured_whenever(recipe.to_dict()), recipe)

    return find


def repair_status(folder: Path, recipe: Recipe) -> str:
    """Return the status of a recipe's folder; a finished run whose configuration is damaged gets it back."""
    status = run_status(folder)
    if status not in ("corrupt", "finished"):
        return status
    done = RunFolder(folder).read_finished(recipe.to_dict())  # which also removes leftovers
    return status if status == "finished" or done is None else run_status(folder)


def _read_back(folder: Path, recipe: Recipe, failure: str | None) -> RunRecord:
    """Read a run's folder; a failure that could not be recorded there (a full disk, a file in the way) still counts."""
    place = folder / recipe.run_id
    if place.is_dir():
        record = read_run(place)
        if failure is None or record.status in ("finished", "failed", "running"):
            return record
        return replace(record, status="failed", summary={"status": "failed", "reason": failure})
    if failure is None:
        return RunRecord(place, recipe.run_id, recipe.to_dict(), notes=("not started",))
    summary = {"status": "failed", "run_id": recipe.run_id, "reason": failure}
    return RunRecord(place, recipe.run_id, recipe.to_dict(), summary=summary, status="failed")
