"""Every table and figure one can run, by id, with the data it needs and how far it was run."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncollapse.papers import (
    all_losses,
    bce_vs_ce,
    bce_vs_ce_early,
    bias_init,
    class_sizes,
    imbalanced_relu,
    mse_landscape,
    small_networks,
    weak_decays,
)
from ncollapse.papers.cost import estimate_minutes
from ncollapse.papers.coverage import measure_coverage
from ncollapse.papers.experiment import Experiment, Point, expand
from ncollapse.papers.matching import match
from ncollapse.runs.record import RunRecord

if TYPE_CHECKING:
    from ncollapse.train import Recipe

PAPERS = (bce_vs_ce, bce_vs_ce_early, all_losses, imbalanced_relu, mse_landscape)
OURS = (bias_init, small_networks, class_sizes, weak_decays)
CATALOGUE: dict[str, Experiment] = {
    experiment.id: experiment for module in (*PAPERS, *OURS) for experiment in module.EXPERIMENTS
}
"""All experiments by id, papers in their order."""


def get_experiment(name: str) -> Experiment:
    """The experiment of that id.

    >>> len(get_experiment("bce-vs-ce/table-11").grid())
    32
    """
    if name not in CATALOGUE:
        raise ValueError(f"experiment: expected an id that --list prints, got {name!r}{_suggest(name)}")
    return CATALOGUE[name]


def _suggest(name: str) -> str:
    """What may have been meant: entries of a paper, an item without its paper, or ids that are spelt alike."""
    if list_ids(name):
        return f", which is a paper: --list {name} prints its ids"
    near = [found for found, experiment in CATALOGUE.items() if experiment.item == name]
    near = near or difflib.get_close_matches(name, CATALOGUE, 3)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def list_ids(paper: str) -> list[str]:
    """The ids of a paper, in its order; none if there is no such paper."""
    return [name for name, experiment in CATALOGUE.items() if experiment.paper == paper]


def data_names(points: Sequence[Point]) -> tuple[str, ...]:
    """The data sets that the runs read."""
    return tuple(dict.fromkeys(point.recipe.data.name for point in points))


def describe_state(points: list[Point], records: Sequence[RunRecord], data_root: Path | None) -> str:
    """How far an experiment of that grid was run: done here, partly, not run, data missing, or "computed".

    "partly 4/48 short" means four runs that trained for fewer epochs than asked for.
    """
    if not points:
        return "computed"
    coverage = measure_coverage(match(points, records))
    if coverage.complete:
        return "done here"
    if coverage.run:
        length = (
            "" if not coverage.short else " short" if coverage.short == coverage.run else f", {coverage.short} short"
        )
        length += f", {coverage.longer} longer" if coverage.longer else ""
        return f"partly {coverage.run}/{coverage.total}{length}"
    wanted = data_names(points)
    missing = [name for name in wanted if find_missing_data(name, data_root)]
    if not missing:
        return "not run"
    return "data missing" if len(missing) == len(wanted) else f"data missing ({', '.join(missing)})"


def require_data(recipes: Sequence[Recipe], data_root: Path | None) -> None:
    """Raise one error that names every missing file, before anything is run."""
    names = dict.fromkeys(recipe.data.name for recipe in recipes)
    faults = [fault for name in names if (fault := find_missing_data(name, data_root))]
    if faults:
        raise FileNotFoundError("; ".join(faults))


def find_missing_data(name: str, data_root: Path | None) -> str:
    """Which files of a data set are not there, "" if all are; a compressed file may lie there unpacked."""
    from ncollapse.data.catalogue import list_files

    try:
        files = list_files(name, data_root)
    except (ValueError, FileNotFoundError) as error:
        return str(error)
    missing = [file for file in files if not (file.exists() or Path(str(file).removesuffix(".gz")).exists())]
    if not missing:
        return ""
    return f"{name}: {', '.join(file.name for file in missing)} not found in {missing[0].parent}"


def list_entries(
    experiments: Iterable[Experiment],
    records: Sequence[RunRecord],
    data_root: Path | None,
    only: dict[str, tuple[str, ...]] | None = None,
) -> list[dict[str, Any]]:
    """For each experiment its id, title, number of runs, data, estimated GPU minutes and state.

    With filters `only` the runs that fit them count, and experiments that have none are left out.
    """
    rows = []
    for experiment in experiments:
        try:
            points = expand(experiment, only)
        except ValueError:  # it has no such key or value
            continue
        if only and not points:
            continue
        rows.append(
            {
                "id": experiment.id,
                "title": experiment.title,
                "runs": len(points),
                "data": data_names(points),
                "gpu_minutes": round(sum(estimate_minutes(point.recipe) for point in points), 1),
                "state": describe_state(points, records, data_root),
            }
        )
    return rows
