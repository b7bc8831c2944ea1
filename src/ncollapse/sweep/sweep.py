"""A list of recipes carried out, each in the folder its configuration names; what is finished is skipped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ncollapse.output import make_folder, writing_to
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
    `PATIENCE` seconds: the workers of a sweep that was killed a moment ago are about to let go.
    """
    carry_out = get(engine)
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs={jobs}: at least one run at a time is needed")
    if time_limit is not None and time_limit <= 0:
        raise ValueError(f"time_limit={time_limit:g}: must be a number of seconds above 0")
    emit = progress or (lambda event: None)
    chosen = take_share(list({recipe.run_id: recipe for recipe in recipes}.values()), index)
    if device is not None and engine != "ray":  # whose nodes may have what this one has not
        from ncollapse.train.distributed import find_device

        find_device(device)
    folder = Path(out)
    root = None if data_root is None else str(data_root)
    deadline = None if time_limit is None else time.time() + time_limit

    def make_jobs(standing: Iterable[tuple[Recipe, str]]) -> list[Job]:
        """The jobs of those that are to be done; of the others it is said why not."""
        made = []
        for recipe, status in standing:
            if status in ("finished", "running") or (status == "failed" and not retry):
                emit({"run_id": recipe.run_id, "status": "skipped", "reason": status})
                continue
            if status == "failed":
                with writing_to(f"--out {folder}"):
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
    return [_read_back(folder, recipe) for recipe in chosen]


def _look_again(folder: Path, held: Sequence[Recipe]) -> Iterator[tuple[Recipe, str]]:
    """How runs stand that another process held, "running" only where it still does after all patience."""
    patience = time.monotonic() + PATIENCE
    for recipe in held:
        while (status := repair_status(folder / recipe.run_id, recipe)) == "running" and time.monotonic() < patience:
            time.sleep(0.05)
        yield recipe, status


def take_share(recipes: Sequence[T], index: tuple[int, int] | None) -> Sequence[T]:
    """The i-th of n shares of a list, dealt round-robin; all of it without an index.

    >>> take_share("abcdefg", (1, 3))
    'adg'
    """
    if index is None:
        return recipes
    share, shares = index
    if not 1 <= share <= shares:
        raise ValueError(f"index={share}/{shares}: the share must lie between 1 and the number of shares")
    return recipes[share - 1 :: shares]


def run_status(folder: Path) -> str:
    """The status of a run's folder, "new" where there is none."""
    return read_status(folder) if folder.is_dir() else "new"


def find_finished(out: Path) -> Callable[[Recipe], Recipe]:
    """What gives a recipe back, or that of a finished run under `out` that differs only in when it was measured."""
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
    """The status of a recipe's folder; a finished run without a configuration gets its own back."""
    status = run_status(folder)
    if status == "corrupt" and RunFolder(folder).read_finished(recipe.to_dict()) is not None:
        status = run_status(folder)
    return status


def _read_back(folder: Path, recipe: Recipe) -> RunRecord:
    if (folder / recipe.run_id).is_dir():
        return read_run(folder / recipe.run_id)
    return RunRecord(folder / recipe.run_id, recipe.run_id, recipe.to_dict(), notes=("not started",))
