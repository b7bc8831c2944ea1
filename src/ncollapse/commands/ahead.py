"""The slow parts of a page, computed while the runs of a comparison still train."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncollapse.processes import importing

if TYPE_CHECKING:
    from ncollapse.train import Recipe

SLOW_IMPORTS = ("ncollapse.report", "sklearn.manifold")
"""The page, and what its t-SNE needs and takes a second to import."""


@contextmanager
def drawing_ahead(recipes: Sequence[Recipe], out: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield what the events of a sweep in this block go to; a thread then draws ahead for runs that have finished.

    These are the first runs of each variant, which the page shows. The figures keep what they computed, so that a page
    of the same runs, made afterwards in this process, need not compute it again. At its end the block waits for what
    is under way and drops the rest.
    """
    lowest = min((recipe.seed for recipe in recipes), default=0)
    shown = {recipe.run_id for recipe in recipes if recipe.seed == lowest}
    finished: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
    stop = threading.Event()

    def work() -> None:
        with suppress(ImportError):
            prepare_page()
        while (folder := finished.get()) is not None and not stop.is_set():
            with suppress(Exception):  # the page itself says what is wrong with a run
                draw_ahead(folder)

    def see(event: dict[str, Any]) -> None:
        if event.get("status") == "finished" and event.get("run_id") in shown:
            finished.put(out / str(event["run_id"]))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield see
        finished.put(None)
        thread.join()
    finally:
        stop.set()
        finished.put(None)


def prepare_page() -> None:
    """Import what a page needs, and compile its templates."""
    with importing():
        for name in SLOW_IMPORTS:
            import_module(name)
    from ncollapse.report.html import load_environment

    load_environment()


def draw_ahead(folder: Path) -> None:
    """Compute what takes long about the figures of a finished run: its t-SNE, and the phase diagram of its loss."""
    from ncollapse.compare import group_runs
    from ncollapse.report.figures import features, phases
    from ncollapse.runs.record import read_run

    record = read_run(folder)
    features.embed(record, "test")
    phases.draw_phases(group_runs([record]))
