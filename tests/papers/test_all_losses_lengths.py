"""What runs of all-losses show at lengths of ours, checked on runs made by hand."""

import math

import pytest

from ncollapse.papers import all_losses_lengths as lengths
from ncollapse.papers.all_losses_claims import LOSSES
from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.experiment import Point
from ncollapse.papers.matching import at_own_lengths
from ncollapse.papers.outcome import evaluate
from ncollapse.runs.record import RunRecord
from reference.paper_runs import record, run


def place(width, epochs, loss, accuracy, metric=1.0, fit=1.0):
    row = {"epoch": epochs, "train": {"nc1": metric, "nc2": metric, "nc3_centred": metric, "accuracy": fit}}
    keys = {"data": "cifar10", "width": width, "epochs": epochs, "loss": loss}
    return keys, run(0, epochs, [row], test__accuracy=accuracy)


def four(width, epochs, spread, base=0.9, **more):
    """Runs of the four losses whose accuracies lie `spread` apart."""
    return [place(width, epochs, loss, base + spread * i / 3, **more) for i, loss in enumerate(LOSSES)]


@pytest.mark.parametrize(("later", "holds", "kept"), [(0.1, True, 12), (2.0, False, 9)])
def test_metrics_end_lower_in_longer_runs(later, holds, kept):
    runs = [*four(2, 25, 0.01), *four(2, 100, 0.01, metric=0.1)]
    runs[-1] = place(2, 100, "mse", 0.9, metric=later)
    (claim,) = lengths.collapse_further(runs)
    assert claim.holds is holds
    assert claim.text == "the NC metrics end lower after 100 epochs than after 25, under every loss"
    assert claim.detail.startswith(f"{kept} of 12 curves; NC1: CE 1 to 0.1, ")


def test_each_metric_counts():
    """One metric of one loss that does not fall decides."""
    runs = [*four(2, 25, 0.01), *four(2, 100, 0.01, metric=0.1)]
    runs[-2][1].history[0]["train"]["nc3_centred"] = 1.5
    (claim,) = lengths.collapse_further(runs)
    assert (claim.holds, claim.detail.partition(" of ")[0]) == (False, "11")


def test_the_losses_differ_less_in_longer_runs():
    for long, holds in ((0.005, True), (0.03, False)):
        (claim,) = lengths.agree_further([*four(2, 25, 0.02), *four(2, 100, long)])
        assert claim.holds is holds
        assert claim.text == "the losses differ more in test accuracy after 25 epochs than after 100"
        assert claim.detail == f"2.00 against {100 * long:.2f} points"
    unfitted = [*four(2, 25, 0.02), *four(2, 100, 0.005, fit=0.98)]
    assert lengths.agree_further(unfitted)[0].holds is None, "the paper says so of networks that fit their data"


def test_the_lengths_compared_are_the_shortest_and_the_longest_that_all_losses_have():
    runs = [*four(2, 50, 0.02), *four(2, 25, 0.03), *four(2, 100, 0.01), *four(2, 200, 0.005)[:3]]
    (claim,) = lengths.agree_further(runs)
    assert claim.text.endswith("after 25 epochs than after 100")


def test_width_and_length_are_compared_where_nothing_else_differs():
    runs = [*four(0.25, 25, 0, base=0.8), *four(2, 25, 0, base=0.83), *four(2, 100, 0, base=0.9)]
    wider, longer = lengths.rise_with_width_and_epochs(runs)
    assert (wider.holds, longer.holds) == (True, True)
    assert wider.detail == "4 of 4 steps: +3.00, +3.00, +3.00, +3.00 points"
    assert longer.detail == "4 of 4 steps: +7.00, +7.00, +7.00, +7.00 points"
    assert wider.text.startswith("runs of 25 and 100 epochs: a wider network raises")
    assert [claim.holds for claim in lengths.rise_with_width_and_epochs(four(2, 100, 0) + four(2, 200, 0, 0.7))] == [
        False
    ], "what cannot be compared is no open claim"


def test_the_corners_of_what_was_run_are_compared():
    runs = [*four(0.25, 25, 0.02), *four(2, 25, 0.04, metric=1e-9), *four(2, 100, 0.005, metric=0.01)]
    less, collapsed = lengths.corners(runs)
    assert (less.holds, less.detail) == (True, "2.00 against 0.50 points")
    assert less.text.endswith("at width 0.25 and 25 epochs than at width 2 and 100 epochs")
    assert collapsed.holds is True
    assert collapsed.detail.startswith("2.0 orders of magnitude in the mean, CE 2.0, ")
    runs[0] = place(0.25, 25, "ce", 0.9, metric=0.005)
    assert lengths.corners(runs)[1].holds is False
    assert f"CE {math.log10(0.5):.1f}" in lengths.corners(runs)[1].detail


@pytest.mark.parametrize(
    "check", [lengths.collapse_further, lengths.agree_further, lengths.corners, lengths.rise_with_width_and_epochs]
)
def test_nothing_is_said_without_runs_to_compare(check):
    assert check([]) == []
    assert check(four(2, 100, 0.01)) == []
    assert check([*four(2, 24, 0.01), *four(2, 100, 0.01)]) == [], "too short for a quarter of the paper's shortest"
    assert check([*four(0.25, 24, 0.01), *four(2, 100, 0.01)]) == []


def test_a_small_network_that_trained_as_long_is_no_corner():
    assert lengths.corners([*four(0.25, 100, 0.02), *four(2, 100, 0.01)]) == []


def test_runs_come_with_their_own_length(tmp_path):
    points = get_experiment("all-losses/figure-1").grid()
    ce = next(point for point in points if point.keys["loss"] == "ce")
    runs = [record(Point({}, ce.recipe.with_epochs(n)), tmp_path / str(n)) for n in (100, 25)]
    failed = RunRecord(tmp_path, "x", runs[0].config, {}, [], {"status": "failed"}, "failed")
    exact = record(Point({}, ce.recipe.with_epochs(25).override(precision="fp32")), tmp_path / "exact")
    other = record(Point({}, ce.recipe.override(optim__batch_size=64)), tmp_path / "other")
    found = at_own_lengths(points, [exact, *runs, failed, other])
    assert [keys["epochs"] for keys, _ in found] == [25, 100]
    assert [run for _, run in found] == [runs[1], runs[0]], "in the precision asked for"
    assert all({**keys, "epochs": 800} == ce.keys for keys, _ in found)


def test_they_count_for_nothing_of_the_paper(tmp_path):
    experiment = get_experiment("all-losses/figure-2")
    records = []
    for point in experiment.grid():
        spread = {"ce": 0.02, "focal": 0.0}.get(point.keys["loss"], 0.01)
        for n in (25, 100):
            train = {"accuracy": 1.0}
            summary = {"status": "finished", "train": train, "test": {"accuracy": 0.9 + spread * (n == 25)}}
            config = point.recipe.with_epochs(n).to_dict()
            history = [{"epoch": n, "train": train}]
            records.append(RunRecord(tmp_path, f"{n}", config, {}, history, summary, "finished"))
    outcome = evaluate(experiment, records)
    assert [claim.holds for claim in outcome.beyond] == [True]
    assert all("800 epochs" in claim.text or "100 %" in claim.text for claim in outcome.claims)
    assert outcome.verdict.startswith("tried only")


def test_seeds_count_by_their_mean():
    """NC1 of three seeds, of which the median says the opposite."""
    runs = [*four(2, 25, 0.01, metric=1.0), *four(2, 100, 0.01, metric=0.1)]
    runs += [place(2, 100, "ce", 0.9, metric=value) for value in (0.1, 9.8)]
    (claim,) = lengths.collapse_further(runs)
    assert claim.holds is False
    assert "NC1: CE 1 to 3.3, " in claim.detail


def test_without_an_accuracy_of_each_loss_nothing_is_decided():
    runs = [*four(2, 25, 0.02), *four(2, 100, 0.01)]
    runs[1][1].summary["test"].clear()
    (claim,) = lengths.agree_further(runs)
    assert claim.holds is None
