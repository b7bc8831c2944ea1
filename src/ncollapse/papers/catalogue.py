"""Every table and figure one can run, by id, with what it costs and how it stands."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ncollapse.papers import all_losses, bce_vs_ce, bce_vs_ce_early, bias_init, imbalanced_relu, mse_landscape
from ncollapse.papers.coverage import cover
from ncollapse.papers.experiment import Experiment, Point
from ncollapse.runs.record import RunRecord

if TYPE_CHECKING:
    from ncollapse.train import Recipe

STEP_SECONDS = 2.44e-3
"""One compiled and captured step of ResNet18, batch 128, 32 x 32 pixels, bf16, on one H200: results/benchmarks."""
SMALLEST_STEP = 0.6e-3
LINE_SEARCH = 25
"""Evaluations of the objective in a step of L-BFGS: torch's limit, which the strong Wolfe search reaches."""
EVALUATION = 0.18
"""What a measured sample costs of a trained one: 0.20 s for 60 000 beside 0.95 s for 50 000, same place."""
PREPARE_SECONDS = 11.0
"""Reading the data, compiling and capturing, once a run; same place."""
PACKED = 0.82
"""The time of a run with four at a time on one GPU, of that one at a time: 2.0 ms a step of a model; same place."""
GIGA_OPERATIONS = {
    "resnet18": 0.56,
    "resnet32": 0.07,
    "resnet34": 1.16,
    "resnet50": 1.31,
    "resnet101": 2.52,
    "densenet121": 0.90,
    "densenet121-small": 0.057,
    "densenet161": 2.5,
    "vit-small": 1.4,
    "mlp-1024": 0.008,
    "mlp-2048": 0.027,
    "mlp-small": 0.001,
}
"""Multiply-adds of a forward pass at 32 x 32 pixels, in 10^9; widths count squared."""


CATALOGUE: dict[str, Experiment] = {
    experiment.id: experiment
    for module in (bce_vs_ce, bce_vs_ce_early, all_losses, imbalanced_relu, mse_landscape, bias_init)
    for experiment in module.EXPERIMENTS
}
"""All experiments by id, papers in their order."""


def find(name: str) -> Experiment:
    """The experiment of that id.

    >>> len(find("bce-vs-ce/table-11").grid())
    32
    """
    if name not in CATALOGUE:
        near = difflib.get_close_matches(name, CATALOGUE, 3)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(f"no experiment {name!r}; {hint}--list names all")
    return CATALOGUE[name]


def needs(points: list[Point]) -> tuple[str, ...]:
    """The data sets the runs read."""
    return tuple(dict.fromkeys(point.recipe.data.name for point in points))


def estimate_minutes(recipe: Recipe) -> float:
    """GPU minutes of one run on an H200: the measured step of ResNet18, scaled by operations; an estimate."""
    from ncollapse.data.catalogue import INFO
    from ncollapse.train.theory import count_samples

    name = recipe.model.name
    width = 1.0
    if name.startswith("wide-"):
        name, _, factor = name.removeprefix("wide-").partition("-")
        width = float(factor or 1)
    size = recipe.data.image_size or (84 if recipe.data.name == "mini-imagenet" else 32)
    area = (size / 32) ** 2 / (16 if recipe.model.stem == "imagenet" else 1)
    operations = GIGA_OPERATIONS.get(name, 0.56) * width**2 * area / GIGA_OPERATIONS["resnet18"]
    info = INFO[recipe.data.name]
    samples = count_samples(recipe.data) or info.train
    batch = recipe.optim.batch_size
    steps = samples / batch * (LINE_SEARCH if recipe.optim.name == "lbfgs" else 1)
    epoch = steps * max(SMALLEST_STEP, STEP_SECONDS * operations * batch / 128)
    measure = EVALUATION * (samples + info.test) / 128 * STEP_SECONDS * operations / recipe.measure_every
    return (PREPARE_SECONDS + recipe.optim.epochs * (epoch + measure)) / 60


def tell_state(points: list[Point], records: Sequence[RunRecord], data_root: Path | None) -> str:
    """How the experiment of that grid stands: done here, partly (and how far), not run, data missing, or "computed".

    "partly 4/48 short" are four runs that trained for fewer epochs than asked for.
    """
    if not points:
        return "computed"
    coverage = cover(points, records)
    if coverage.complete:
        return "done here"
    if coverage.run:
        length = (
            "" if not coverage.short else " short" if coverage.short == coverage.run else f", {coverage.short} short"
        )
        return f"partly {coverage.run}/{coverage.total}{length}"
    wanted = needs(points)
    missing = [name for name in wanted if _find_fault(name, data_root)]
    if not missing:
        return "not run"
    return "data missing" if len(missing) == len(wanted) else f"data missing ({', '.join(missing)})"


def require_data_folders(points: list[Point], data_root: Path | None) -> None:
    """Raise the error that reading would raise if the folder of a data set is missing, before anything is run."""
    for name in needs(points):
        fault = _find_fault(name, data_root)
        if fault is not None:
            raise fault


def _find_fault(name: str, root: Path | None) -> Exception | None:
    from ncollapse.data.catalogue import list_files

    try:
        list_files(name, root)
    except (ValueError, FileNotFoundError) as error:
        return error
    return None
