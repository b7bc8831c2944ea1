"""Progress of a sweep: lines of text for files and pipes, one bar for terminals."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from ncollapse.console import progress

if TYPE_CHECKING:
    from ncollapse.train import Recipe

SHOWN = ("loss", "nc1", "accuracy", "rate")


class SweepProgress:
    """Called with the events of a sweep: prints a line when a run starts, ends, or passes a tenth of its epochs."""

    def __init__(self, recipes: Iterable[Recipe], file: TextIO | None = None) -> None:
        self.names = {recipe.run_id: describe_recipe(recipe) for recipe in recipes}
        self.tenths: dict[str, int] = {}
        self.started = time.time()
        self.file = file

    def __call__(self, event: dict[str, Any]) -> None:
        run_id = str(event.get("run_id"))
        text = ""
        if "status" in event:
            reason = event.get("reason")
            if (event["status"], reason) == ("skipped", "failed"):
                reason = "failed before; --retry runs it again"
            text = str(event["status"]) + (f" ({reason})" if reason else "")
        elif "loss" in event and event.get("epoch") and event.get("epochs"):
            tenth = int(10 * event["epoch"] / event["epochs"])
            if self.tenths.get(run_id, -1) >= tenth:
                return
            self.tenths[run_id] = tenth
            values = [(name, event.get(name)) for name in SHOWN]
            text = f"epoch {event['epoch']}/{event['epochs']} " + " ".join(
                f"{name} {value:.4g}" for name, value in values if isinstance(value, (int, float))
            )
        if text:
            line = f"[{time.time() - self.started:7.1f} s] {run_id} {self.names.get(run_id, '')}: {text}"
            print(line, file=self.file or sys.stderr, flush=True)


class SweepBar:
    """Called with the events of a sweep: one progress bar over the epochs of all runs, shown from the first event."""

    def __init__(self, recipes: Sequence[Recipe], title: str) -> None:
        self.display = progress()
        self.labels = {r.run_id: f"{r.loss.name} {r.optim.name} seed {r.seed}" for r in recipes}
        self.epochs = {r.run_id: r.optim.epochs for r in recipes}
        self.done = dict.fromkeys(self.epochs, 0)
        self.ended: set[str] = set()
        self.task = self.display.add_task(title, total=sum(self.epochs.values()), detail="")

    def __call__(self, event: dict[str, Any]) -> None:
        run = str(event.get("run_id"))
        if run not in self.done:
            return
        self.display.start()
        status, reason = event.get("status"), event.get("reason")
        if status in ("skipped", "finished", "failed"):
            self.done[run] = self.epochs[run]
            self.ended.add(run)
        elif isinstance(event.get("epoch"), int):
            self.done[run] = max(self.done[run], min(int(event["epoch"]), self.epochs[run]))
        detail = f"{len(self.ended)} of {len(self.epochs)} runs done"
        if status in ("failed", "lost"):
            line = f"{self.labels[run]} {status}: {reason or 'see its summary.json'}"
            self.display.console.print(line, markup=False)
        elif (status, reason) == ("skipped", "failed"):
            line = f"{self.labels[run]} skipped: failed before; --retry runs it again"
            self.display.console.print(line, markup=False)
        elif isinstance(event.get("nc1"), float):
            detail += f", {self.labels[run]}: NC1 {event['nc1']:.3g}"
        self.display.update(self.task, completed=sum(self.done.values()), detail=detail)

    def stop(self) -> None:
        """Leave the bar as it is."""
        if self.display.live.is_started:
            self.display.stop()


@contextmanager
def follow(recipes: Sequence[Recipe], title: str, *, quiet: bool = False) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield what a sweep's events go to: a bar on a terminal, lines in a file or pipe, nothing if `quiet`."""
    if quiet or not sys.stderr.isatty():
        yield (lambda event: None) if quiet else SweepProgress(recipes)
        return
    bar = SweepBar(recipes, title)
    try:
        yield bar
    finally:
        bar.stop()


def describe_recipe(recipe: Recipe) -> str:
    """A run in a few words."""
    parts = [
        recipe.data.name,
        recipe.model.name,
        recipe.loss.name,
        recipe.optim.name,
        f"batch {recipe.optim.batch_size}",
    ]
    return " ".join(parts + ([f"seed {recipe.seed}"] if recipe.seed else []))
