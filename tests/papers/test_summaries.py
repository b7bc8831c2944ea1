"""What the page says of all runs and numbers together, on runs made by hand."""

from dataclasses import replace

import pytest

from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.experiment import expand
from ncollapse.papers.judge import Line
from ncollapse.papers.matching import match
from ncollapse.papers.outcome import evaluate
from ncollapse.papers.publications import Cell
from ncollapse.papers.summaries import (
    name_kind,
    summarise_lags,
    summarise_runs,
    summarise_sgd,
    summarise_spreads,
)
from reference.paper_runs import record

GPU = {"hardware": {"gpu": "H200"}, "versions": {"torch": "2.7", "python": "3.12"}}
CPU = {"hardware": {"cores": 8}, "versions": {"torch": "2.6", "python": "3.11"}}


@pytest.fixture
def points():
    experiment = get_experiment("bce-vs-ce/table-6")
    where = {"model": ("resnet18",), "optimizer": ("adamw",), "data": ("mnist",)}
    return experiment, expand(experiment, where)


def make(point, folder, seed=0, seconds=60.0, env=GPU, **changes):
    point = replace(point, recipe=point.recipe.override(seed=seed, **changes))
    found = record(point, folder / str(seed), weight_energy=1.0)
    return replace(found, env=env, run_id=point.recipe.run_id, summary={**found.summary, "time": {"wall_s": seconds}})


def test_runs_are_counted_by_machine_and_seed(points, tmp_path):
    _, (first, second) = points[0], points[1][:2]
    runs = [make(first, tmp_path, seed, 90.0 + seed) for seed in range(3)] + [make(second, tmp_path, 0, 600.0, CPU)]
    said = summarise_runs(runs)
    assert said.startswith("4 runs: 3 on H200, torch 2.7, Python 3.12; 1 on 8 CPU cores, torch 2.6, Python 3.11.")
    assert "They took 5 GPU minutes" in said, "90, 91 and 92 seconds"
    assert "The 2 configurations that are judged have 2.00 seeds on average; 1 has more than one." in said
    assert summarise_runs([]) == "No runs are recorded."
    runs.append(make(second, tmp_path, 1))
    assert "have 2.50 seeds on average; 2 have more than one." in summarise_runs(runs)


def test_runs_with_another_lag_are_counted_once(points, tmp_path):
    experiment, (first, second) = points[0], points[1][:2]
    lag = first.recipe.schedule.lag
    early = make(first, tmp_path, schedule__lag=lag + 1)
    late = make(second, tmp_path, 1)
    matches = match(experiment.grid(), [early, late])
    assert sum(bool(found.records) for found in matches) >= 2
    assert summarise_lags([*matches, *matches]).startswith("1 of the 2 runs that are judged")
    assert summarise_lags(match(experiment.grid(), [late])) == ""


def of_sgd(ours, **more):
    cell = Cell("", "", {}, "train.weight_energy", "100.0", std=more.pop("std", None))
    keys = {"optimizer": more.pop("optimizer", "sgd"), "loss": "bce"}
    return Line("", "", "train.weight_energy", keys, cell, (ours,), verdict="reproduced", **more)


def of_lines(experiment, *lines):
    """An outcome with these numbers, each of a run of its own."""
    found = evaluate(experiment, [])
    return replace(found, lines=[replace(line, runs=(str(i),)) for i, line in enumerate(lines)])


def test_numbers_of_sgd_are_held_to_one_percent_as_well(points):
    lines = [of_sgd(100.9), of_sgd(101.0), of_sgd(101.1), of_sgd(104.0, drawn=9.0), of_sgd(100.0, optimizer="adamw")]
    lines.append(replace(of_sgd(120.0), verdict="not reproduced"))
    said = summarise_sgd([of_lines(points[0], *lines)])
    assert said.startswith("Of the 5 numbers of runs with SGD that have a relative tolerance, 4 are reproduced")
    assert "and 2 to the 1 % that other runs have to reach" in said, "whatever the initial draws"
    assert summarise_sgd([of_lines(points[0], lines[4])]) == ""


def test_spreads_are_near_to_a_tenth_or_a_unit_of_the_last_digit(points):
    whole = [of_sgd(100.0, std="2.0", spread=value) for value in (1.81, 2.19, 2.21, 1.79)]
    whole += [of_sgd(100.0, std="0.3", spread=value) for value in (0.21, 0.39, 0.41)]
    short = [of_sgd(100.0, std="2.0", spread=value, epochs=(40,), asked=100) for value in (2.1, 5.0)]
    unknown = [of_sgd(100.0, std="2.0"), of_sgd(100.0, spread=1.0)]
    said = summarise_spreads([of_lines(points[0], *whole, *short, *unknown)])
    assert "in 4 of 7 where our runs are as long as the paper's, and in 1 of 2 where they are shorter." in said
    assert summarise_spreads([of_lines(points[0], *unknown)]) == ""


@pytest.mark.parametrize(
    ("field", "loss", "kind"),
    [
        ("train.bias", "ce", "b of CE"),
        ("train.bias", "bce", "b of BCE"),
        ("test.accuracy", "ce", "accuracies of test samples"),
        ("train.uniform_accuracy", "ce", "accuracies of training samples"),
        ("test.compactness", "ce", "E_com and E_dis"),
        ("test.distinctiveness", "bce", "E_com and E_dis"),
    ],
)
def test_kinds_of_numbers(field, loss, kind):
    assert name_kind(Line("", "", field, {"loss": loss}, None)) == kind
