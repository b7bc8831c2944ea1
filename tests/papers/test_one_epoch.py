"""Numbers of a run read at one and the same tied epoch, on runs made by hand."""

from dataclasses import replace

import pytest

from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.experiment import expand
from ncollapse.papers.judge import Line, tolerance
from ncollapse.papers.one_epoch import Number, choose_epoch, count_at_one_epoch, is_reproduced_at
from ncollapse.papers.outcome import evaluate
from ncollapse.papers.publications import Cell
from reference.paper_runs import record

RHO, POSITIVE, NEGATIVE = "train.weight_energy", "train.positive_score.mean", "train.negative_score.mean"
WHERE = {"model": ("resnet18",), "optimizer": ("adamw",), "augment": ("DA1",), "loss": ("ce",)}


def make_run(folder, values, selected=1, accuracies=None):
    """A run of Table 12 with these numbers {field: [one an epoch]}; all epochs are tied unless `accuracies` say so."""
    experiment = get_experiment("bce-vs-ce/table-12")
    points = expand(experiment, WHERE)
    epochs = range(1, 1 + len(next(iter(values.values()))))
    accuracies = accuracies or [0.9] * len(epochs)
    rows = []
    for e, accuracy in zip(epochs, accuracies):
        train = {}
        for field, numbers in values.items():
            _, name, *mean = field.split(".")
            train[name] = {"mean": numbers[e - 1], "std": 0.01} if mean else numbers[e - 1]
        rows.append({"epoch": e, "train": train, "test": {"accuracy": accuracy}})
    run = record(points[0], folder)
    test = {"accuracy": accuracies[selected - 1], "num_samples": 10_000}
    summary = {**run.summary, "train": rows[selected - 1]["train"], "selected_epoch": selected, "test": test}
    return experiment, points, replace(run, history=rows, summary=summary)


def count(folder, values, **options):
    """How many numbers are reproduced: each at a tied epoch of its own, and all at one."""
    experiment, points, run = make_run(folder, values, **options)
    outcome = evaluate(experiment, [run], points)
    return sum(line.verdict == "reproduced" for line in outcome.lines), count_at_one_epoch([outcome])


def test_the_numbers_of_a_run_share_an_epoch(tmp_path):
    """Each number is printed at an epoch of its own, or two at the third."""
    cells = {c.field: c.value for c in evaluate_cells()}
    rho, positive, negative = (cells[name] for name in (RHO, "train.positive_score", "train.negative_score"))
    apart = {RHO: [rho, 0, 0], POSITIVE: [0, positive, 0], NEGATIVE: [9, 9, negative]}
    assert count(tmp_path, apart) == (3, 1)
    two = {RHO: [rho, 0, rho], POSITIVE: [0, positive, 0], NEGATIVE: [9, 9, negative]}
    assert count(tmp_path, two) == (3, 2)
    assert count(tmp_path, two, selected=2) == (3, 2), "whichever of them is reported"
    assert count(tmp_path, two, accuracies=[0.9, 0.9, 0.8]) == (2, 1), "the third is not tied"


def evaluate_cells():
    experiment = get_experiment("bce-vs-ce/table-12")
    return [line.published for line in evaluate(experiment, [], expand(experiment, WHERE)).lines if line.published]


def test_numbers_of_a_second_stage_keep_their_verdicts(tmp_path):
    """They report no epoch: what the curves of the first stage say of them does not count."""
    rho = next(c.value for c in evaluate_cells() if c.field == RHO)
    experiment, points, run = make_run(tmp_path, {RHO: [0, rho]})
    outcome = evaluate(experiment, [run], points)
    (line,) = (line for line in outcome.lines if line.field == RHO)
    staged = replace(outcome, experiment=replace(experiment, protocol="two-stage"))
    for verdict in ("reproduced", "not reproduced"):
        found = replace(staged, lines=[replace(line, verdict=verdict)])
        assert count_at_one_epoch([found]) == (verdict == "reproduced")


def number(records, changes, published=100, values=(100.0,), field=RHO):
    line = Line("", "", field, {}, Cell("", "", {}, field, f"{published}"), values)
    return Number(line, tuple(records), changes)


def test_of_equal_epochs_the_nearest_to_all_numbers_is_chosen(tmp_path):
    """Distances count in tolerances: 1 of 100, and 0.01 of 1."""
    _, _, run = make_run(tmp_path, {RHO: [100.0] * 3, POSITIVE: [1.0] * 3})
    rho = number([run], {run.run_id: {1: 0.9, 2: 0.5, 3: 0.2}})
    score = number([run], {run.run_id: {1: 0.0, 2: 0.001, 3: 0.009}}, "1.000", field="train.positive_score")
    assert tolerance(rho.line) == 1.0
    assert tolerance(score.line) == 0.01
    assert choose_epoch(run.run_id, [rho]) == 3
    assert choose_epoch(run.run_id, [score]) == 1
    assert choose_epoch(run.run_id, [rho, score]) == 2, "0.9, 0.6 and 1.1 tolerances in all"
    edge = number([run], {run.run_id: {1: 1.0, 2: 5.0, 3: 5.0}})
    far = number([run], {run.run_id: {1: 9.0, 2: 1.5, 3: 1.5}})
    assert choose_epoch(run.run_id, [edge, far]) == 1, "one number at the edge of its tolerance; the others none"


def test_a_number_is_judged_in_the_mean_over_its_runs(tmp_path):
    runs = [make_run(tmp_path / name, {RHO: [100.0, 100.0]})[2] for name in "ab"]
    a, b = (run.run_id for run in runs)
    both = number(runs, {a: {1: 2.0, 2: 3.5}, b: {1: 0.0, 2: 5.0}})
    assert is_reproduced_at(both, {a: 1, b: 1}), "off by 2 and 0: as far as the tolerance of 1 allows"
    assert not is_reproduced_at(both, {a: 2, b: 1}), "off by 3.5 and 0"
    without_epochs = number(runs, {a: {}, b: {}})
    assert is_reproduced_at(without_epochs, {a: None, b: None})
    assert not is_reproduced_at(number(runs, {a: {}, b: {}}, published=98), {a: None, b: None})
    assert is_reproduced_at(without_epochs, {a: 1, b: 2}), "numbers without a curve stay what they are"


@pytest.mark.parametrize("verdict", ["reproduced", "not reproduced"])
def test_without_runs_the_verdict_stands(verdict):
    found = number([], {})
    assert is_reproduced_at(found._replace(line=replace(found.line, verdict=verdict)), {}) is (verdict == "reproduced")
