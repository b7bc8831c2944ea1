"""Progress of a sweep as lines of text."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO

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
            text = str(event["status"]) + (f" ({event['reason']})" if event.get("reason") else "")
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
