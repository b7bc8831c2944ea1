"""A table or figure of a paper as an experiment: a grid of points, each a recipe with the keys that name it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ncollapse.papers.claims import Claim, Runs
    from ncollapse.papers.judge import Line
    from ncollapse.train import Recipe


@dataclass(frozen=True)
class Point:
    """One run of an experiment: its recipe, and the keys that distinguish it from the other runs."""

    keys: dict[str, Any]
    recipe: Recipe


@dataclass(frozen=True)
class ClaimCause:
    """Why claims that begin with `start` do not hold, or what was tried; with `if_short` only of shortened runs."""

    start: str
    why: str
    if_short: bool = False


@dataclass(frozen=True)
class Extension:
    """Runs of a grid in settings of ours, which the paper did not make, and what is checked on them.

    `covers` tells their keys from those of the paper's runs. Their claims are shown apart, and neither the verdict nor
    the count of the paper's claims has them.
    """

    covers: Callable[[dict[str, Any]], bool]
    claims: Callable[[Runs], list[Claim]]


@dataclass(frozen=True)
class Experiment:
    """One entry of the catalogue.

    `grid` makes its points (one seed each). `protocol` says what is done with them: "runs" (training, then the
    numbers), "two-stage" (training, then a classifier re-balanced on frozen features) or "landscape" (nothing is
    trained). `curves` are the fields of the history that a figure shows, `finals` the final numbers that a figure or
    table compares. `claims` checks what the paper says in words, `beyond`
    the same in settings of ours, and `at_other_lengths` between
    runs of whatever length (the key "epochs" is their own). `is_unsettled(keys, field)` is true for the numbers
    that had not converged in the paper's own run and so cannot be judged. `find_cause(line)` says why a number
    was not reproduced, "" if that is not known; `claim_causes` say the same of claims that do not hold. `asks` marks a
    question of our own, where other experiments repeat what a paper reports. `caption` says what is shown where no
    paper has a caption for it. `missing` names what is needed besides the data.
    """

    id: str
    title: str
    grid: Callable[[], list[Point]]
    protocol: Literal["runs", "two-stage", "landscape"] = "runs"
    curves: tuple[str, ...] = ()
    finals: tuple[str, ...] = ()
    claims: Callable[[Runs], list[Claim]] | None = None
    beyond: Extension | None = None
    at_other_lengths: Callable[[Runs], list[Claim]] | None = None
    is_unsettled: Callable[[dict[str, Any], str], bool] | None = None
    find_cause: Callable[[Line], str] | None = None
    claim_causes: tuple[ClaimCause, ...] = ()
    asks: bool = False
    notes: tuple[str, ...] = ()
    caption: str = ""
    missing: str = ""

    @property
    def paper(self) -> str:
        """The part of the id before the slash."""
        return self.id.partition("/")[0]

    @property
    def item(self) -> str:
        """The part of the id after the slash, such as "table-6"."""
        return self.id.partition("/")[2]


def product(**axes: Sequence[Any]) -> list[dict[str, Any]]:
    """Every combination of the axes, the last varying fastest.

    >>> product(loss=("ce", "bce"), seed=(0,))
    [{'loss': 'ce', 'seed': 0}, {'loss': 'bce', 'seed': 0}]
    """
    return [dict(zip(axes, values)) for values in itertools.product(*axes.values())]


def expand(
    experiment: Experiment,
    only: dict[str, tuple[str, ...]] | None = None,
    seeds: int | None = None,
    epochs: int | None = None,
    **changes: Any,
) -> list[Point]:
    """The points of an experiment that pass the filter, for seeds 0 to `seeds` - 1 and with `epochs`, if given.

    `changes` to the recipes (measure_every, precision) are made unless they are None. If the grid has no seeds itself,
    the filter may name them. Shortened runs keep the shape of their schedule: the epochs at which the rate changes
    shrink in proportion.
    """
    points, only = experiment.grid(), dict(only or {})
    wanted: Sequence[int] | None = None if seeds is None else range(seeds)
    if "seed" in only and not any("seed" in point.keys for point in points):
        wanted = parse_seeds(only.pop("seed"))
    points = select(points, only, experiment.id)
    if epochs is not None:
        points = [replace(p, recipe=p.recipe.with_epochs(epochs)) for p in points]
        points = list({p.recipe.run_id: p for p in reversed(points)}.values())[::-1]
    changes = {key: value for key, value in changes.items() if value is not None}
    if changes:
        points = [replace(p, recipe=p.recipe.override(**changes)) for p in points]
    if wanted is None:
        return points
    if not wanted:
        raise ValueError(f"seeds: expected at least 1, got {seeds}")
    return [Point({**p.keys, "seed": seed}, p.recipe.override(seed=seed)) for p in points for seed in wanted]


def parse_seeds(words: Sequence[str]) -> list[int]:
    """Seeds by their numbers, each once.

    >>> parse_seeds(["1", "2", "1"])
    [1, 2]
    """
    for word in words:
        if not word.isdecimal():
            raise ValueError(f"only: expected seed = a number from 0 on, got seed={word}")
    return sorted({int(word) for word in words})


def select(points: list[Point], only: dict[str, tuple[str, ...]], name: str) -> list[Point]:
    """The points whose keys have one of the values asked for; an unknown key or value is an error."""
    for key, wanted in only.items():
        known = sorted({k for point in points for k in point.keys})
        if key not in known:
            raise ValueError(f"only: expected one of the keys {', '.join(known) or '(none)'} of {name}, got {key!r}")
        values = list(dict.fromkeys(point.keys[key] for point in points if key in point.keys))
        for value in wanted:
            if not any(same(value, other) for other in values):
                raise ValueError(f"only: expected {key} = {', '.join(map(str, values))} for {name}, got {value!r}")
    return [
        point
        for point in points
        if all(key in point.keys and any(same(v, point.keys[key]) for v in wanted) for key, wanted in only.items())
    ]


def parse_only(words: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Filters from "key=value" words; commas and repeated keys are alternatives.

    >>> parse_only(["model=resnet18", "batch_size=32,64"])
    {'model': ('resnet18',), 'batch_size': ('32', '64')}
    """
    only: dict[str, tuple[str, ...]] = {}
    for word in words:
        key, sign, values = word.partition("=")
        if not sign or not key or not values:
            raise ValueError(f"only: expected KEY=VALUE, such as model=resnet18, got {word!r}")
        key = key.replace("-", "_")
        only[key] = only.get(key, ()) + tuple(values.split(","))
    return only


def same(word: str, value: Any) -> bool:
    """Whether a word of the command line means a key's value: 5e-4 is 0.0005, AdamW is adamw.

    >>> same("5e-4", 0.0005), same("AdamW", "adamw")
    (True, True)
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(word) == float(value)
        except ValueError:
            return False
    return word.lower() == str(value).lower()
