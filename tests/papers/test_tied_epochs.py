"""Numbers of tables that report the epoch with the best test accuracy count with their range over the tied epochs."""

from dataclasses import replace

import pytest

from ncollapse.papers import markdown
from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.experiment import expand
from ncollapse.papers.outcome import evaluate
from ncollapse.papers.tied_epochs import find_tied_epochs, find_tied_range
from ncollapse.runs.record import RunRecord
from reference.paper_runs import record


def run_with_ties(tmp_path, accuracies):
    """A run of Table 12 (AdamW, DA1, CE; rho 85.52 is printed) whose rho is 80, 81 and so on, epoch by epoch."""
    experiment = get_experiment("bce-vs-ce/table-12")
    keys = {"model": ("resnet18",), "optimizer": ("adamw",), "augment": ("DA1",), "loss": ("ce",)}
    points = expand(experiment, keys)
    best = max(range(len(accuracies)), key=lambda i: accuracies[i])
    run = record(points[0], tmp_path, weight_energy=80.0 + best)
    rows = [
        {"epoch": i + 1, "train": {"weight_energy": 80.0 + i}, "test": {"accuracy": a}}
        for i, a in enumerate(accuracies)
    ]
    summary = {**run.summary, "selected_epoch": best + 1, "test": {"accuracy": accuracies[best], "num_samples": 10_000}}
    run = replace(run, history=rows, summary=summary)
    outcome = evaluate(experiment, [run], points)
    return next(x for x in outcome.lines if x.field == "train.weight_energy"), outcome


def test_a_number_counts_with_its_range_over_tied_epochs(tmp_path):
    """The standard error at 0.90 of 10,000 samples is 0.003: epochs 2, 5, 6 and 8 are tied, with a rho of 81 to 87."""
    line, _ = run_with_ties(tmp_path, (0.80, 0.899, 0.80, 0.896, 0.898, 0.90, 0.80, 0.8975))
    assert line.ours == 85.0
    assert line.tied == (-4.0, 2.0)
    assert line.distance == 0.0
    assert line.verdict == "reproduced"
    assert not line.needs_ties  # 85.0 is within 1 % of 85.52


def test_the_range_decides_and_is_shown(tmp_path):
    line, _ = run_with_ties(tmp_path, (0.80, 0.80, 0.90, 0.80, 0.898, 0.80))
    assert line.ours == 82.0
    assert line.tied == (0.0, 2.0)
    assert line.distance == pytest.approx(1.52)
    assert line.verdict != "reproduced"
    line, outcome = run_with_ties(tmp_path, (0.80, 0.80, 0.90, 0.80, 0.80, 0.898))
    assert line.verdict == "reproduced"
    assert line.needs_ties
    assert "-4.12 % (tied epochs: -4.12 % to -0.61 %)" in markdown.to_markdown(outcome)
    assert "1 of 1 number reproduced (1 at a tied epoch)" in outcome.detail
    assert "tied" not in "".join(markdown.to_text(outcome.lines))


def test_epochs_that_are_worse_are_not_tied(tmp_path):
    line, _ = run_with_ties(tmp_path, (0.80, 0.80, 0.90, 0.80, 0.80, 0.8965))
    assert line.tied == (0.0, 0.0)
    assert line.verdict != "reproduced"


def test_without_a_history_there_are_no_ties(tmp_path):
    line, _ = run_with_ties(tmp_path, (0.9,))
    assert line.tied == (0.0, 0.0)
    experiment = get_experiment("bce-vs-ce/table-7")  # reports the last epoch
    points = expand(experiment, {"model": ("resnet18",), "optimizer": ("adamw",), "loss": ("ce",)})
    run = record(points[0], tmp_path, weight_energy=1.0)
    rows = [{"epoch": i, "train": {"weight_energy": float(i)}, "test": {"accuracy": 0.9}} for i in (1, 2)]
    run = replace(run, history=rows, summary={**run.summary, "selected_epoch": 1, "test": {"num_samples": 100}})
    assert all(line.tied == (0.0, 0.0) for line in evaluate(experiment, [run], points).lines)


def test_test_scores_move_as_training_scores_do():
    rows = [{"epoch": 1, "train": {"positive_score": {"mean": 3.0}}, "test": {"accuracy": 0.9}}]
    rows += [{"epoch": 2, "train": {"positive_score": {"mean": 3.5}}, "test": {"accuracy": 0.9}}]
    summary = {"selected_epoch": 1, "test": {"num_samples": 100}}
    run = RunRecord(None, "run", {}, history=rows, summary=summary, status="finished")
    assert find_tied_range(run, "train.positive_score") == (0.0, 0.5)
    assert find_tied_range(run, "test.positive_score") == (0.0, 0.5)
    rows[1]["test"]["positive_score"] = {"mean": 2.0}
    rows[0]["test"]["positive_score"] = {"mean": 2.25}
    assert find_tied_range(run, "test.positive_score") == (-0.25, 0.0)


def make(epochs, selected, accuracies, scores, samples=100):
    """A run with an accuracy and, at some of the epochs, a score."""
    rows = [{"epoch": e, "train": {}, "test": {}} for e in epochs]
    for row, accuracy, score in zip(rows, accuracies, scores):
        row["test"] |= {} if accuracy is None else {"accuracy": accuracy}
        row["train"] |= {} if score is None else {"positive_score": {"mean": score}}
    summary = {"selected_epoch": selected, "test": {"num_samples": samples}}
    return RunRecord(None, "run", {}, history=rows, summary=summary, status="finished")


def test_one_standard_error_is_still_tied():
    """At 0.5 of 100 samples it is 0.05."""
    record = make((1, 2, 3), 2, (0.45, 0.5, 0.449), (1.0, 2.0, 3.0))
    assert find_tied_epochs(record) == {1, 2}
    assert find_tied_range(record, "train.positive_score") == (-1.0, 0.0)


@pytest.mark.parametrize(
    "record",
    [
        make((1, 2), 1, (None, None), (1.0, 2.0)),
        make((1, 2), 1, (0.5, 0.5), (1.0, 2.0), samples=0),
        make((1, 2), 3, (0.5, 0.5), (1.0, 2.0)),
        make((1, 2), 1, (0.5, 0.5), (1.0, None)),
        make((1, 2), 2, (0.5, 0.5), (1.0, None)),
    ],
    ids=["no accuracy", "no samples", "selected not measured", "tied without a score", "selected without a score"],
)
def test_what_was_not_measured_widens_nothing(record):
    assert find_tied_range(record, "train.positive_score") == (0.0, 0.0)
