"""The runs of a comparison: the same network under several losses, optimisers and seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncollapse.compare.comparison import Comparison, compare_records
from ncollapse.runs.record import read_run
from ncollapse.sweep.preview import COLLAPSE_RECIPE
from ncollapse.sweep.sweep import sweep

if TYPE_CHECKING:
    from ncollapse.train import Recipe

LEARNING_RATES = {"sgd": 0.01, "adam": 0.001, "adamw": 0.001, "lbfgs": 0.01}
"""The papers' rates, for optimisers that are not the recipe's own."""
VECTOR_RECIPE, IMAGE_RECIPE = "digits", COLLAPSE_RECIPE
"""The recipes of data sets without one of their own: for small images and vectors, and for images."""


def compare(
    recipes: Sequence[Recipe],
    out: str | Path,
    *,
    index: tuple[int, int] | None = None,
    progress: Callable[[dict[str, Any]], None] | None = None,
    **options: Any,
) -> Comparison:
    """Run what is not finished yet and compare the results; `options` go to `sweep`.

    A run that fails is recorded with its reason while the others go on; after an interrupt the same call continues.
    With `index` one share of the runs is carried out here, and all that are there are compared.
    """
    records = sweep(recipes, out, index=index, progress=progress, **options)
    if index is not None:
        own = {record.run_id for record in records}
        others = [read_run(Path(out) / recipe.run_id) for recipe in recipes if recipe.run_id not in own]
        records = [*records, *(record for record in others if record.status == "finished")]
    return compare_records(records)


def plan(
    data: str = "digits",
    losses: Sequence[str] = ("ce", "bce"),
    optimisers: Sequence[str] = (),
    seeds: int = 3,
    recipe: str | None = None,
    epochs: int | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    *,
    augment: Sequence[str] = (),
    **changes: Any,
) -> list[Recipe]:
    """Return the recipes of a comparison: losses x optimisers x seeds 0 to `seeds` - 1, all else equal.

    Args:
        recipe: the settings that all runs share, a name or a file; by default the small network for digits and for
            arrays, and bce-vs-ce's setting 2 (AdamW, decays in the loss, no augmentation) for images.
        optimisers: the recipe's own if there are none; for another one the rate is the papers' (0.01 for SGD and
            L-BFGS, 0.001 for Adam and AdamW) unless `lr` is given.
        augment, changes: what replaces the recipe's augmentation and fields, by the names of
            `ncollapse.train.changes` (model, batch_size, lr, weight_decay, precision, measure_every, normalise).

    >>> [r.loss.name for r in plan(losses=("ce", "bce"), seeds=1)]
    ['ce', 'bce']
    >>> plan(seeds=1, model="mlp-100", lr=0.2)[0].optim.lr
    0.2
    """
    from ncollapse.train.changes import apply_changes

    check_plan(data, losses, optimisers, seeds)
    if epochs is not None and not isinstance(epochs, int):
        raise TypeError(f"epochs: expected a whole number, got {epochs!r}")
    changes |= {"epochs": epochs, "image_size": image_size, "channels": channels}
    planned = []
    for loss in dict.fromkeys(losses):
        base = choose_recipe(data, loss, recipe, changes.get("model"))
        base = apply_changes(base, changes, augment)
        for optimiser in dict.fromkeys(optimisers) or [base.optim.name]:
            own = optimiser == base.optim.name or changes.get("lr") is not None
            lr = base.optim.lr if own else LEARNING_RATES[optimiser]
            variant = base.override(optim__name=optimiser, optim__lr=lr)
            planned += [variant.override(seed=seed) for seed in range(seeds)]
    return planned


def check_plan(data: str, losses: Sequence[str], optimisers: Sequence[str], seeds: int) -> None:
    """Raise ValueError for what cannot be planned."""
    from ncollapse.data.catalogue import KNOWN, is_known, suggest_name
    from ncollapse.losses import LOSS_NAMES, is_loss_name

    if not isinstance(data, str):
        raise TypeError(f"data: expected the name of a data set, got {data!r}")
    if not isinstance(seeds, int) or seeds < 1:
        raise ValueError(f"seeds: expected at least 1, got {seeds!r}")
    if isinstance(losses, str) or not isinstance(losses, Sequence):
        raise TypeError(f"losses: expected a list of names, such as ['ce', 'bce'], got {losses!r}")
    if not losses:
        raise ValueError("losses: expected at least one, such as ce bce, got none")
    if not is_known(data):
        raise ValueError(f"data: expected one of {KNOWN}, got {data!r}{suggest_name(data)}")
    for loss in losses:
        if not is_loss_name(loss):
            apart = ", separated by spaces" if "," in loss else ""
            raise ValueError(f"losses: expected some of {', '.join(LOSS_NAMES)}{apart}, got {loss!r}")
    for optimiser in optimisers:
        if optimiser not in LEARNING_RATES:
            raise ValueError(f"optimisers: expected some of {', '.join(LEARNING_RATES)}, got {optimiser!r}")


def choose_recipe(data: str, loss: str, recipe: str | None, model: str | None = None) -> Recipe:
    """Return the recipe that the runs of one loss share."""
    from ncollapse.losses.calls import split_call
    from ncollapse.train import Recipe, recipes
    from ncollapse.train.recipe import LossSpec

    name = recipe or default_recipe(data)
    if name.endswith((".toml", ".json")):
        base = Recipe.from_file(name)
    else:
        wishes = {"loss": split_call(loss)[0], "data": data} | ({} if model is None else {"model": model})
        base = recipes.choose(name, **wishes)
    spec = base.loss if base.loss.name == loss else LossSpec(loss)  # which may have parameters in its name
    return base.override(loss=spec, data__name=data)


def default_recipe(data: str) -> str:
    """Return the name of the recipe that a data set is trained by unless another one is asked for."""
    small = data.partition(":")[0] in ("digits", "gaussian", "npz")
    return VECTOR_RECIPE if small else IMAGE_RECIPE
