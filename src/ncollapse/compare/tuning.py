"""A setting chosen for each loss on validation data, so that a comparison is fair to every loss.

Losses do not share their best learning rate. Each loss is trained once with every candidate, on the training set
without a validation share; the candidate with the highest balanced accuracy on that share is the one all seeds use.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncollapse.runs.files import LARGEST_JSON, parse_json, read_bounded, write_atomic
from ncollapse.runs.identity import ADDED_LATER, settings_of
from ncollapse.runs.record import RunRecord, read_run
from ncollapse.sweep.preview import TUNING
from ncollapse.sweep.sweep import sweep

if TYPE_CHECKING:
    from ncollapse.train import Recipe

FILE = "tuning.json"
VALIDATION = 0.1
"""The share held out for tuning where the recipe holds out none."""
WHOLE = ("optim.batch_size", "optim.epochs", "decays.weak_epochs")
"""Settings that are whole numbers."""


class TuningError(RuntimeError):
    """A candidate could not be trained to its end."""


@dataclass(frozen=True)
class Choice:
    """The candidates of one loss and optimiser, with their scores, and the one that was chosen."""

    loss: str
    optimiser: str
    candidates: tuple[dict[str, Any], ...]
    scores: tuple[float, ...]
    chosen: int

    @property
    def values(self) -> dict[str, Any]:
        """The chosen values by dotted name."""
        return self.candidates[self.chosen]

    def describe(self) -> str:
        """Return a line for people: what was chosen, and what the others scored."""
        named = [", ".join(f"{key.split('.')[-1]} {value:g}" for key, value in c.items()) for c in self.candidates]
        others = [
            f"{name}: {_percent(score)}" for i, (name, score) in enumerate(zip(named, self.scores)) if i != self.chosen
        ]
        best = f"{self.loss} {self.optimiser}: {named[self.chosen]} ({_percent(self.scores[self.chosen])}"
        line = f"{best}; {', '.join(others)})" if others else f"{best})"
        ends = [key for key in self.values if self._at_end(key)]
        return line + (f"; the best {' and '.join(ends)} is at the end of the list: try further values" if ends else "")

    def _at_end(self, key: str) -> bool:
        """Whether a chosen value is the smallest or the largest tried, and scores best alone."""
        tried = sorted({candidate[key] for candidate in self.candidates})
        alone = self.scores.count(self.scores[self.chosen]) == 1
        return alone and len(tried) > 1 and self.values[key] in (tried[0], tried[-1])


def parse_grid(words: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Read KEY=VALUE,VALUE,... into the values to try of each field, by dotted name.

    >>> parse_grid(["lr=0.01,0.1", "optim.weight_decay=0,5e-4"])
    {'optim.lr': (0.01, 0.1), 'optim.weight_decay': (0.0, 0.0005)}
    """
    from ncollapse.train.changes import SHORT_NAMES
    from ncollapse.train.recipe import Recipe

    known = [*SHORT_NAMES, *settings_of(Recipe().to_dict()), *ADDED_LATER]
    grid: dict[str, tuple[float, ...]] = {}
    for word in words:
        name, _, text = word.partition("=")
        short = name.replace("-", "_")
        key = SHORT_NAMES.get(short, short)
        try:
            values = tuple(dict.fromkeys(float(part) for part in text.split(",")))
        except ValueError:
            raise ValueError(f"tune: expected KEY=NUMBER,NUMBER,... such as lr=0.01,0.03,0.1, got {word!r}") from None
        if not all(map(math.isfinite, values)):
            raise ValueError(f"tune: expected finite numbers, got {word!r}")
        near = [] if key in known else get_close_matches(short, known, 1)
        if near:
            raise ValueError(f"tune: expected a setting of the recipe, got {name!r}; did you mean {near[0]}?")
        if key in WHOLE and not all(value.is_integer() for value in values):
            raise ValueError(f"tune: expected whole numbers of {name}, got {word!r}")
        grid[key] = values
    return grid


def check_tuning(
    recipes: Sequence[Recipe], grid: dict[str, tuple[float, ...]], index: tuple[int, int] | None
) -> list[Recipe]:
    """Return the runs of a tuning, none without a grid; raise where tuning is not possible."""
    if grid and index is not None:
        raise ValueError("tune: cannot be shared between the jobs of --index; tune first, without --index")
    return [run for _, runs in plan_tuning(recipes, grid) for run in runs] if grid else []


def plan_tuning(recipes: Sequence[Recipe], grid: dict[str, tuple[float, ...]]) -> list[tuple[Recipe, list[Recipe]]]:
    """Return the first seed of each variant with the runs that try every combination of the grid on it."""
    variants = list({_variant(recipe): recipe for recipe in reversed(recipes)}.values())[::-1]
    tried = []
    for recipe in variants:
        held = recipe if recipe.data.validation else recipe.override(data__validation=VALIDATION)
        held = held.override(select="last")
        tried.append((recipe, [_change(held, point) for point in list_points(grid)]))
    return tried


def tune(
    recipes: Sequence[Recipe],
    grid: dict[str, tuple[float, ...]],
    out: str | Path,
    *,
    progress: Callable[[dict[str, Any]], None] | None = None,
    **options: Any,
) -> tuple[list[Recipe], list[Choice]]:
    """Choose the values of the grid for every loss and optimiser; return all recipes with them, and the choices.

    `options` go to `sweep`. The runs are kept under OUT/tuning/runs and the choices in OUT/tuning.json; finished ones
    are not run again. A tie goes to the higher uniform accuracy, then to the candidate named first. A candidate that
    diverged scores NaN.
    """
    out = Path(out)
    tried = plan_tuning(recipes, grid)
    records = sweep([run for _, runs in tried for run in runs], out / TUNING, progress=progress, **options)
    by_id = {record.run_id: record for record in records}
    choices = {
        _variant(recipe): choose(recipe, list_points(grid), [by_id[run.run_id] for run in runs])
        for recipe, runs in tried
    }
    content = [asdict(choice) for choice in choices.values()]
    write_atomic(out / FILE, json.dumps(content, indent=1).encode())
    return [_change(recipe, choices[_variant(recipe)].values) for recipe in recipes], list(choices.values())


def apply_earlier(recipes: Sequence[Recipe], grid: dict[str, tuple[float, ...]], out: str | Path) -> list[Recipe]:
    """Return the recipes with what an earlier tuning in `out` chose; those whose tuning is open stay as they are."""
    values: dict[str, dict[str, Any]] = {}
    for recipe, runs in plan_tuning(recipes, grid) if grid else ():
        with suppress(TuningError):
            records = [read_run(Path(out) / TUNING / run.run_id) for run in runs]
            values[_variant(recipe)] = choose(recipe, list_points(grid), records).values
    return [_change(recipe, values.get(_variant(recipe), {})) for recipe in recipes]


def read_tuned(records: Sequence[RunRecord]) -> list[str]:
    """Return the settings, by dotted name, that a tuning chose for each loss in the folders of these runs."""
    names: set[str] = set()
    for folder in {record.path.parent for record in records}:
        with suppress(OSError, ValueError, KeyError, TypeError, IndexError):  # none, or damaged
            for choice in parse_json(read_bounded(folder / FILE, LARGEST_JSON)):
                names.update(key for key in choice["candidates"][0] if isinstance(key, str))
    return sorted(names)


def list_points(grid: dict[str, tuple[float, ...]]) -> list[dict[str, Any]]:
    """Return every combination of the values of a grid.

    >>> list_points({"optim.lr": (0.1, 1.0)})
    [{'optim.lr': 0.1}, {'optim.lr': 1.0}]
    """
    return [dict(zip(grid, point)) for point in product(*grid.values())]


def choose(recipe: Recipe, candidates: list[dict[str, Any]], records: Sequence[RunRecord]) -> Choice:
    """Return the candidate whose run has the highest balanced accuracy on the validation share."""
    open_runs = [record for record in records if record.status not in ("finished", "failed")]
    if open_runs:
        raise TuningError(f"tuning: {len(open_runs)} of {len(records)} runs are unfinished; the same command continues")
    scores = [record.final("validation_by_class.balanced_accuracy") for record in records]
    ties = [record.final("validation.uniform_accuracy") for record in records]
    ranked = [(-score, -tie, i) for i, (score, tie) in enumerate(zip(scores, ties)) if math.isfinite(score)]
    if not ranked:
        reason = (records[0].summary or {}).get("reason") or "no validation accuracy"
        raise TuningError(f"tuning: every candidate of {recipe.loss.name} failed ({reason})")
    return Choice(recipe.loss.name, recipe.optim.name, tuple(candidates), tuple(scores), min(ranked)[2])


def _variant(recipe: Recipe) -> str:
    return replace(recipe, seed=0).run_id


def _change(recipe: Recipe, values: dict[str, Any]) -> Recipe:
    from ncollapse.train.changes import apply_changes

    whole = {key: int(value) if key in WHOLE else value for key, value in values.items()}
    return apply_changes(recipe, whole)


def _percent(score: float) -> str:
    return f"{100 * score:.2f} %" if math.isfinite(score) else "failed"
