"""Which runs of which experiments a request asks for: ID@EPOCHS/EVERY:KEY=VALUE and the common filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.cost import estimate_minutes
from ncollapse.papers.experiment import Experiment, Point, expand, parse_only
from ncollapse.sweep.sweep import run_status, take_share

if TYPE_CHECKING:
    from ncollapse.train import Recipe


@dataclass(frozen=True)
class Selection:
    """An experiment and the points of it that were asked for: as in its grid, and as they are run.

    `asked` has the seeds and epochs of the grid, `points` those of the request.
    """

    experiment: Experiment
    asked: list[Point]
    points: list[Point]
    measured: bool = False
    """Whether the request says how often to measure."""


def select_runs(
    word: str,
    *,
    only: Sequence[str] = (),
    seeds: int | None = None,
    epochs: int | None = None,
    **changes: Any,
) -> Selection:
    """What ID@EPOCHS/EVERY:KEY=VALUE:... asks for, measured every so many epochs.

    Its own filters, epochs and EVERY take precedence over `only`, `epochs` and the `measure_every` among the changes.
    """
    head, *own = word.split(":")
    name, length, every = split_head(head)
    experiment, filters = get_experiment(name), parse_only(only) | parse_only(own)
    if every is not None:
        changes["measure_every"] = every
    points = expand(experiment, filters, seeds, epochs if length is None else length, **changes)
    if experiment.grid() and not points:
        said = " ".join(f"{key}={','.join(values)}" for key, values in filters.items())
        raise ValueError(f"only: expected filters that a run fits, but no run of {name} has all of {said}")
    return Selection(experiment, expand(experiment, filters), points, changes.get("measure_every") is not None)


def split_head(head: str) -> tuple[str, int | None, int | None]:
    """The id, the epochs and how often to measure, of ID@EPOCHS/EVERY; all but the id may be left out.

    >>> split_head("bce-vs-ce/table-9@40/5"), split_head("bce-vs-ce/table-9@/5"), split_head("bce-vs-ce/table-9@40")
    (('bce-vs-ce/table-9', 40, 5), ('bce-vs-ce/table-9', None, 5), ('bce-vs-ce/table-9', 40, None))
    """
    name, sign, rest = head.partition("@")
    length, slash, every = rest.partition("/")
    if (sign and not slash and not length.isdecimal()) or (length and not length.isdecimal()):
        raise ValueError(f"experiment: expected a number of epochs after @, as in {name}@40, got {head!r}")
    if slash and (not every.isdecimal() or int(every) < 1):
        raise ValueError(f"experiment: expected a number of epochs from 1 on after /, as in {name}@40/5, got {head!r}")
    return name, int(length) if length else None, int(every) if slash else None


def use_finished(selection: Selection, finished: Callable[[Recipe], Recipe]) -> Selection:
    """The selection with each recipe replaced by that of a finished run that differs only in when it was measured."""
    return replace(selection, points=[replace(point, recipe=finished(point.recipe)) for point in selection.points])


def merge_selections(selections: Sequence[Selection]) -> list[Selection]:
    """One selection for each experiment: named again with other filters or epochs, it still has one page."""
    found: dict[str, Selection] = {}
    for selection in selections:
        known = found.setdefault(selection.experiment.id, Selection(selection.experiment, [], []))
        for to, points in ((known.asked, selection.asked), (known.points, selection.points)):
            here = {point.recipe.run_id for point in to}
            to += [point for point in points if point.recipe.run_id not in here]
    return list(found.values())


def recipes_to_run(
    selections: Sequence[Selection], out: Path, index: tuple[int, int] | None = None, *, retry: bool = False
) -> list[Recipe]:
    """The recipes that a sweep would train now: of its share, neither finished nor failed (unless `retry`)."""
    recipes = {p.recipe.run_id: p.recipe for selection in selections for p in selection.points}
    skipped = ("finished", "running") if retry else ("finished", "running", "failed")
    share = take_share(list(recipes.values()), index)
    return [recipe for recipe in share if run_status(out / recipe.run_id) not in skipped]


def plan_rows(selections: Sequence[Selection], out: Path, index: tuple[int, int] | None = None) -> list[dict[str, Any]]:
    """The runs that the selections expand to, each once, with its keys, its estimated GPU minutes and its state."""
    plan: dict[str, tuple[str, Point]] = {}
    for selection in selections:
        for point in selection.points:
            plan.setdefault(point.recipe.run_id, (selection.experiment.id, point))
    return [
        {
            "id": name,
            "run": run_id,
            **point.keys,
            "epochs": point.recipe.optim.epochs,
            "gpu_minutes": round(estimate_minutes(point.recipe), 2),
            "state": run_status(out / run_id),
        }
        for run_id, (name, point) in take_share(list(plan.items()), index)
    ]
