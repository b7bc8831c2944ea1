"""Every table and figure one can run, by id, with what it costs and how it stands."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from ncollapse.experiments import all_losses, bce_vs_ce, bce_vs_ce_early, imbalanced_relu, mse_landscape, own
from ncollapse.experiments.experiment import Experiment, Point
from ncollapse.experiments.runs import read_run

if TYPE_CHECKING:
    from ncollapse.train import Recipe

STEP_SECONDS = 2.54e-3
"""One compiled and captured step of ResNet18, batch 128, 32 x 32 pixels, bf16, measured on one H200."""
SMALLEST_STEP = 0.6e-3
EVALUATION = 1 / 3
"""A measured sample costs about a third of a trained one: the forward pass alone."""
GIGA_OPERATIONS = {
    "resnet18": 0.56,
    "resnet32": 0.07,
    "resnet34": 1.16,
    "resnet50": 1.31,
    "resnet101": 2.52,
    "densenet121": 0.90,
    "densenet161": 2.5,
    "vit-small": 1.4,
    "mlp-1024": 0.008,
    "mlp-2048": 0.027,
    "mlp-small": 0.001,
}
"""Multiply-adds of a forward pass at 32 x 32 pixels, in 10^9; widths count squared."""


CATALOGUE: dict[str, Experiment] = {
    experiment.id: experiment
    for module in (bce_vs_ce, bce_vs_ce_early, all_losses, imbalanced_relu, mse_landscape, own)
    for experiment in module.EXPERIMENTS
}
"""All experiments by id, papers in their order."""


def find(name: str) -> Experiment:
    """The experiment of that id.

    >>> len(find("bce-vs-ce/table-11").grid())
    32
    """
    if name not in CATALOGUE:
        near = difflib.get_close_matches(name, CATALOGUE, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"no experiment {name!r}; {hint}--list names all")
    return CATALOGUE[name]


def needs(points: list[Point]) -> tuple[str, ...]:
    """The data sets the runs read."""
    return tuple(dict.fromkeys(point.recipe.data.name for point in points))


def estimate_minutes(recipe: Recipe) -> float:
    """GPU minutes of one run on an H200: the measured step of ResNet18, scaled by operations; an estimate."""
    from ncollapse.data.catalogue import INFO

    name = recipe.model.name
    width = 1.0
    if name.startswith("wide-"):
        name, _, factor = name.removeprefix("wide-").partition("-")
        width = float(factor or 1)
    size = recipe.data.image_size or (84 if recipe.data.name == "mini-imagenet" else 32)
    area = (size / 32) ** 2 / (16 if recipe.model.stem == "imagenet" else 1)
    operations = GIGA_OPERATIONS.get(name, 0.56) * width**2 * area / GIGA_OPERATIONS["resnet18"]
    samples = INFO[recipe.data.name].train
    if recipe.data.per_class_counts is not None:
        samples = sum(recipe.data.per_class_counts)
    batch = recipe.optim.batch_size
    steps = samples / batch
    epoch = steps * max(SMALLEST_STEP, STEP_SECONDS * operations * batch / 128)
    measure = EVALUATION * samples / 128 * STEP_SECONDS * operations / recipe.measure_every
    return recipe.optim.epochs * (epoch + measure) / 60


def tell_state(points: list[Point], folders: list[Path], data_root: Path | None) -> str:
    """How an experiment stands: done here, partly (n of m), not run, or data missing."""
    if not points:
        return "computed"
    ids = list(dict.fromkeys(point.recipe.run_id for point in points))
    done = sum(any(_is_finished(folder / run_id) for folder in folders) for run_id in ids)
    if done == len(ids):
        return "done here"
    if done:
        return f"partly ({done} of {len(ids)})"
    missing = [name for name in needs(points) if not _has_data(name, data_root)]
    return f"data missing ({', '.join(missing)})" if missing else "not run"


def _is_finished(folder: Path) -> bool:
    return folder.is_dir() and read_run(folder).status == "finished"


def _has_data(name: str, root: Path | None) -> bool:
    from ncollapse.data.catalogue import INFO, find_root

    folders = INFO[name].folders
    try:
        return not folders or any((find_root(root) / folder).is_dir() for folder in folders)
    except ValueError:
        return False
