"""The main job: the same network under several losses, optimisers and seeds, each run once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncollapse.compare.findings import Finding, compare_runs
from ncollapse.runs.record import RunRecord, read_run
from ncollapse.sweep.sweep import sweep

if TYPE_CHECKING:
    from ncollapse.train import Recipe

LEARNING_RATES = {"sgd": 0.01, "adam": 0.001, "adamw": 0.001, "lbfgs": 0.01}
"""The papers' rates, for optimisers that are not the recipe's own."""


def compare(
    recipes: Sequence[Recipe],
    out: str | Path,
    *,
    progress: Callable[[dict[str, Any]], None] | None = None,
    **options: Any,
) -> tuple[list[RunRecord], list[Finding]]:
    """Run what is not finished yet and lay the results side by side; `options` go to `sweep`.

    A run that fails is recorded with its reason while the others go on; an interrupt leaves folders that the same call
    continues.
    """
    load_unfinished_data(recipes, Path(out), options.get("data_root"))
    records = sweep(recipes, out, progress=progress, **options)
    return records, compare_runs(records)


def load_unfinished_data(recipes: Sequence[Recipe], out: Path, data_root: str | Path | None) -> None:
    """Load the data of unfinished runs once before any starts, so that a wrong file is one error, not one for each."""
    from ncollapse.data.loader_factory import check_form
    from ncollapse.train.build import load_splits

    waiting = [r for r in recipes if read_run(out / r.run_id).status != "finished"]
    for recipe in {json.dumps(asdict(r.data)): r for r in waiting}.values():
        for part in load_splits(recipe, data_root).values():
            check_form(part, recipe.data.image_size, recipe.data.channels)


def plan(
    data: str = "digits",
    losses: Sequence[str] = ("ce", "bce"),
    optimisers: Sequence[str] = (),
    seeds: int = 3,
    recipe: str | None = None,
    epochs: int | None = None,
    image_size: int | None = None,
    channels: int | None = None,
) -> list[Recipe]:
    """The recipes of a comparison: losses x optimisers x seeds 0 to `seeds` - 1, all else equal.

    `recipe` names the settings they share (a name or a file); by default the small network for digits and for arrays,
    and bce-vs-ce's AdamW setting for images. Without `optimisers` the recipe's own is used; for another one the rate is
    the papers' (0.01 for SGD and L-BFGS, 0.001 for Adam and AdamW). `image_size` and `channels` replace the recipe's;
    folders of images need a size.

    >>> [r.loss.name for r in plan(losses=("ce", "bce"), seeds=1)]
    ['ce', 'bce']
    """
    from ncollapse.data.catalogue import KNOWN, is_known
    from ncollapse.losses import LOSS_NAMES

    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    if not losses:
        raise ValueError("losses is empty: give at least one, such as ce bce")
    if not is_known(data):
        raise ValueError(f"data: no data set {data!r}; there are {KNOWN}")
    for loss in losses:
        if loss not in LOSS_NAMES:
            raise ValueError(f"losses: {loss!r} is none of {', '.join(LOSS_NAMES)}")
    for optimiser in optimisers:
        if optimiser not in LEARNING_RATES:
            raise ValueError(f"optimisers: {optimiser!r} is none of {', '.join(LEARNING_RATES)}")
    planned = []
    for loss in dict.fromkeys(losses):
        base = choose_recipe(data, loss, recipe)
        form = {"data__image_size": image_size, "data__channels": channels}
        base = base.override(**{key: value for key, value in form.items() if value is not None})
        if epochs is not None:
            base = base.with_epochs(epochs)
        for optimiser in dict.fromkeys(optimisers) or [base.optim.name]:
            own = optimiser == base.optim.name
            lr = base.optim.lr if own else LEARNING_RATES[optimiser]
            tuned = base.override(optim__name=optimiser, optim__lr=lr)
            planned += [tuned.override(seed=seed) for seed in range(seeds)]
    return planned


def choose_recipe(data: str, loss: str, recipe: str | None) -> Recipe:
    """The recipe that the runs of one loss share."""
    from ncollapse.train import Recipe, recipes
    from ncollapse.train.recipe import LossSpec

    small = data.partition(":")[0] in ("digits", "gaussian", "npz")
    name = recipe or ("digits" if small else "bce-vs-ce/setting-2")
    if name.endswith((".toml", ".json")):
        base = Recipe.from_file(name)
    else:
        base = recipes.choose(name, loss=loss, data=data)
    spec = base.loss if base.loss.name == loss else LossSpec(loss)
    return base.override(loss=spec, data__name=data)
