"""What several papers say in words, checked on runs made by hand: each check can hold, fail and be open."""

import math
import re
from types import SimpleNamespace

import pytest

from ncollapse.papers import claims
from ncollapse.papers.catalogue import CATALOGUE
from ncollapse.papers.matching import Match
from reference.paper_runs import curve, run


@pytest.mark.parametrize(
    ("positive", "negative", "bias", "holds"),
    [(5.0, -1.0, (2.0, 2.1), True), (2.05, -1.0, (2.0, 2.1), False), (5.0, 2.0, (1.9, 2.1), False)],
)
def test_the_bias_of_bce_separates_the_scores_of_every_sample(positive, negative, bias, holds):
    """The means lie on the right sides in all three: it is the extremes that decide."""
    pairs = [({"loss": "bce"}, run())]
    pairs[0][1].summary["train"] = {
        "positive_score": {"mean": 7.0, "min": positive},
        "negative_score": {"mean": -2.0, "max": negative},
        "bias": {"mean": 2.05, "min": bias[0], "max": bias[1]},
    }
    found = claims.separates_scores(pairs)
    assert found.holds is holds
    assert found.detail.startswith(f"{int(holds)} of 1 run;")
    assert claims.separates_scores([({"loss": "ce"}, pairs[0][1])]).holds is None


@pytest.mark.parametrize(("gain", "holds"), [(0.01, True), (-0.01, False)])
def test_bce_gains_over_ce_at_the_same_keys_and_seed(gain, holds):
    def pair(loss, seed, value):
        return {"loss": loss, "augment": "DA1"}, run(seed, test__uniform_accuracy=value)

    pairs = [pair("ce", 0, 0.8), pair("bce", 0, 0.8 + gain), pair("bce", 1, 0.1)]
    found = claims.higher_under_bce(pairs, "test.uniform_accuracy", "uniform accuracy")
    assert found.holds is holds
    assert found.detail == f"{100 * gain:+.2f} points"
    assert claims.higher_under_bce(pairs[1:], "test.uniform_accuracy", "uniform accuracy").holds is None


@pytest.mark.parametrize(("gains", "holds"), [((1, 2), None), ((1, 2, -3), True), ((1, -2, -0.5), False)])
def test_most_cases_are_more_than_half_of_three_or_more(gains, holds):
    pairs = [
        ({"loss": loss, "model": i}, run(test__accuracy=0.5 + (0.01 * gain if loss == "bce" else 0.0)))
        for i, gain in enumerate(gains)
        for loss in ("ce", "bce")
    ]
    assert claims.higher_under_bce(pairs, "test.accuracy", "accuracy", mostly=True).holds is holds


def test_seeds_of_one_case_count_once_by_their_mean():
    """The gains of two seeds are -1 and -3 points; those of two other networks outvote them."""

    def pair(model, seed, gain):
        ends = {"ce": 0.5, "bce": 0.5 + gain}
        return [({"loss": loss, "model": model}, run(seed, test__accuracy=end)) for loss, end in ends.items()]

    pairs = pair("a", 0, -0.01) + pair("a", 1, -0.03) + pair("b", 0, 0.01) + pair("c", 0, 0.02)
    found = claims.higher_under_bce(pairs, "test.accuracy", "accuracy", mostly=True)
    assert found.holds is True
    assert found.detail == "-2.00, +1.00, +2.00 points, 1 of them over several seeds"
    pairs[3][1].summary["test"]["accuracy"] = float("nan")
    found = claims.higher_under_bce(pairs, "test.accuracy", "accuracy", mostly=True)
    assert found.detail == "-1.00, +1.00, +2.00 points", "a seed that was not measured is left out"


def test_faster_means_lower_over_the_first_fifth():
    def falling(early, late):
        return run(history=[{"epoch": e, "train": {"nc1": early if e <= 2 else late}} for e in range(1, 11)])

    pairs = [({"loss": "ce"}, falling(1.0, 0.001)), ({"loss": "bce"}, falling(0.5, 0.01))]
    assert claims.faster_under_bce(pairs, ("train.nc1",)).holds is True
    swapped = [({"loss": "bce"}, pairs[0][1]), ({"loss": "ce"}, pairs[1][1])]
    assert claims.faster_under_bce(swapped, ("train.nc1",)).holds is False
    assert claims.faster_under_bce(pairs[:1], ("train.nc1",)).holds is None


def test_faster_compares_the_epochs_that_both_runs_measured():
    def run_at(epochs, scale, length=20):
        history = [{"epoch": e, "train": {"nc1": scale * 0.5**e}} for e in epochs]
        return run(epochs=length, history=history)

    def tell(ce, bce):
        return claims.faster_under_bce([({"loss": "ce"}, ce), ({"loss": "bce"}, bce)], ("train.nc1",)).holds

    often, seldom = range(1, 21), range(4, 21, 4)
    assert tell(run_at(seldom, 1.0), run_at(often, 0.5)) is True  # lower wherever both are known, if not on average
    assert tell(run_at(seldom, 0.5), run_at(often, 1.0)) is False
    assert tell(run_at(seldom, 1.0), run_at((1, 2, 3, 5), 0.5)) is None
    assert tell(run_at(often, 1.0), run_at(often, 0.5, length=40)) is None


@pytest.mark.parametrize(("name", "start", "end", "holds"), [("nc3", 0.157, 0.0189, True), ("nc3", 0.3, 0.06, False)])
def test_distances_may_end_small_instead_of_falling_far(name, start, end, holds):
    """NC3 of BCE on MNIST is small after one epoch and levels off where the optimum for unequal classes has it."""
    rows = [{"epoch": e, "train": {name: v, "nc1": 1.0 / e**4}} for e, v in ((1, start), (100, end))]
    assert claims.approach_zero([({}, run(history=rows))], ("train.nc1", f"train.{name}")).holds is holds
    slow = run(history=[{"epoch": e, "train": {"nc1": 0.04 / e}} for e in (1, 2)])
    assert claims.approach_zero([({}, slow)], ("train.nc1",)).holds is False, "NC1 has no such scale"


def test_a_metric_of_exactly_zero_says_nothing_of_an_approach():
    """Zeros, as of a network that was still constant, have no logarithm: neither a start nor an end."""
    for values, holds in (((0.0, 1.0, 0.01), True), ((1.0, 0.5, 0.0), False), ((0.0, 0.0, 1.0), None)):
        rows = [{"epoch": e, "train": {"nc1": value}} for e, value in enumerate(values, 1)]
        assert claims.approach_zero([({}, run(history=rows))], ("train.nc1",)).holds is holds


@pytest.mark.parametrize(
    ("first", "nc1", "nc3", "holds"),
    [(20, 0.002, 0.04, None), (20, 0.0001, 0.04, True), (20, 0.002, 0.06, False), (1, 0.002, 0.04, False)],
)
def test_an_nc1_that_was_first_measured_late_stays_open(first, nc1, nc3, holds):
    """It has most of its fall behind it by then; a distance that ends large fails all the same."""
    rows = [{"epoch": e, "train": {"nc1": a, "nc3": b}} for e, a, b in ((first, 0.003, 0.1), (100, nc1, nc3))]
    found = claims.approach_zero([({}, run(history=rows))], ("train.nc1", "train.nc3"))
    assert found.holds is holds
    assert ("1 first measured late" in found.detail) is (first > 1 and nc1 > 0.0003)


@pytest.mark.parametrize(("end", "holds"), [(0.01, True), (0.5, False)])
def test_orders_of_magnitude_are_counted_from_the_largest_value(end, holds):
    found = claims.falls_by_orders([({}, run(history=curve(1.0, 4.0, end)))])
    assert found.holds is holds
    assert found.detail == f"by {math.log10(4 / end):.1f} orders over 1 run"
    assert claims.falls_by_orders([({}, run(history=curve(1.0)))]).holds is None


@pytest.mark.parametrize(("end", "other", "holds"), [(0.5, None, None), (0.01, None, True), (0.5, 0.9, False)])
def test_a_small_fall_says_nothing_where_the_start_was_not_measured(end, other, holds):
    rows = [{"epoch": epoch, "train": {"nc1": value}} for epoch, value in ((10, 1.0), (50, end))]
    runs = [({}, run(history=rows))]
    if other is not None:
        runs.append(({}, run(history=curve(1.0, other))))
    found = claims.falls_by_orders(runs)
    assert found.holds is holds
    assert ("the start of 1 run was not measured" in found.detail) is (end == 0.5)


def test_runs_are_compared_with_runs_of_their_length():
    runs = [({"loss": loss}, run(epochs=n)) for loss, n in (("ce", 40), ("bce", 100), ("ls", 100), ("mse", 40))]
    assert [keys["loss"] for keys, _ in claims.of_one_length(runs)] == ["bce", "ls"], "of equals the longest"
    assert [keys["loss"] for keys, _ in claims.of_one_length(runs[1:] + runs[:1] * 2)] == ["mse", "ce", "ce"]
    assert claims.of_one_length([]) == []
    asked = [({"epochs": 100}, run(epochs=25)), ({"epochs": 800}, run(epochs=200)), ({"epochs": 400}, run(epochs=25))]
    assert [keys["epochs"] for keys, _ in claims.of_one_length(asked)] == [100, 800], "a quarter of each"


def test_losses_are_paired_at_one_length():
    runs = [
        ({"loss": "ce"}, run(epochs=100, test__accuracy=0.9)),
        ({"loss": "bce"}, run(epochs=40, test__accuracy=0.8)),
    ]
    assert claims.higher_under_bce(runs, "test.accuracy", "accuracy").holds is None
    runs.append(({"loss": "bce"}, run(epochs=100, test__accuracy=0.95)))
    assert claims.higher_under_bce(runs, "test.accuracy", "accuracy").holds is True


@pytest.mark.parametrize(("accuracies", "holds"), [((0.7, 0.8, 0.9), True), ((0.8, 0.7, 0.9), False)])
def test_two_fields_order_the_runs_alike(accuracies, holds):
    pairs = [({}, run(train__nc4=place, test__accuracy=value)) for place, value in enumerate(accuracies)]
    found = claims.ordered_alike(pairs, "train.nc4", "test.accuracy", "text")
    assert found.holds is holds
    assert found.detail.startswith(f"{3 if holds else 2} of 3 pairs of runs")
    assert claims.ordered_alike(pairs[:1], "train.nc4", "test.accuracy", "text").holds is None


@pytest.mark.parametrize("name", [name for name, e in CATALOGUE.items() if e.claims and e.protocol != "landscape"])
def test_without_what_it_needs_a_claim_is_open(name):
    keys = {"loss": "none", "bias_decay": 0.0, "bias_init": 0.0, "dim": 0, "head": "none", "width": 1, "epochs": 1}
    found = CATALOGUE[name].claims([(keys, run())])
    assert found
    assert all(claim.holds is None for claim in found)


ON_A_SCALE = (
    "in most cases|faster|slowest|similar|approach|largely|clearly|hardly|zero|around|still|correlation|discriminative"
    "|diverse|overlap|needs d|at least|at most|within|less than|as test accuracy does|turns|steeper|separable|[0-9] %"
)


@pytest.mark.parametrize("name", [name for name, e in CATALOGUE.items() if e.claims and not e.asks])
def test_what_has_a_measure_says_whose_it_is(name):
    """Where the paper has no number for "faster" or "most", the threshold is ours, and in square brackets."""
    keys = {"loss": "none", "bias_decay": 0.0, "bias_init": 0.0, "dim": 0, "head": "none", "width": 1, "epochs": 1}
    experiment = CATALOGUE[name]
    found = experiment.claims([(keys, run())])
    for claim in found:
        if re.search(ON_A_SCALE, claim.text):
            assert claim.threshold.startswith(("ours", "printed")), claim.text
        assert claim.threshold.startswith(("ours", "printed")) or not claim.threshold


def test_gains_below_three_standard_errors_are_counted():
    def pair(gain, samples=10_000, seed=0):
        return [
            ({"loss": loss}, run(seed, test__accuracy=0.9 + more, test__num_samples=samples))
            for loss, more in (("ce", 0.0), ("bce", gain))
        ]

    said = "1 of them less than three standard errors"
    assert said in claims.higher_under_bce(pair(0.012), "test.accuracy", "accuracy").detail, "they are 1.24 points"
    assert said not in claims.higher_under_bce(pair(0.013), "test.accuracy", "accuracy").detail
    assert said not in claims.higher_under_bce(pair(0.012, samples=20_000), "test.accuracy", "accuracy").detail
    assert said not in claims.higher_under_bce(pair(0.012) + pair(0.012, seed=1), "test.accuracy", "accuracy").detail


def test_orders_of_magnitude_of_several_runs_are_a_range():
    runs = [({}, run(history=curve(1.0, end))) for end in (1e-2, 1e-5, 1e-3)]
    found = claims.falls_by_orders(runs)
    assert (found.holds, found.detail) == (True, "by 2.0 to 5.0 orders over 3 runs")


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [((3, 2, 1), (0.9, 0.8, 0.7), 3), ((3, 2, 1), (0.7, 0.8, 0.9), 0), ((2, 3, 1), (0.8, 0.9, 0.85), 2)],
)
def test_pairs_are_ordered_alike_in_whichever_order_the_runs_come(first, second, kept):
    pairs = [({}, run(train__nc4=a, test__accuracy=b)) for a, b in zip(first, second)]
    found = claims.ordered_alike(pairs, "train.nc4", "test.accuracy", "text")
    assert (found.holds, found.detail[:6]) == (kept == 3, f"{kept} of 3")


def test_of_trials_the_share_that_most_have_counts_and_of_equals_the_longest():
    def matched(asked, ran, name):
        point = SimpleNamespace(keys={"name": name}, recipe=SimpleNamespace(optim=SimpleNamespace(epochs=asked)))
        return Match(point, (run(epochs=ran, test__accuracy=0.5),))

    def chosen(*matches):
        seen = []
        experiment = SimpleNamespace(claims=lambda runs: seen.extend(runs) or [], beyond=None)
        claims.check_claims(experiment, matches)
        return "".join(keys["name"] for keys, _ in seen)

    tenths, fifths = [matched(100, 10, "a"), matched(200, 20, "b")], [matched(100, 20, "c"), matched(50, 10, "d")]
    assert chosen(*tenths, fifths[0]) == "ab"
    assert chosen(tenths[0], *fifths) == "cd"
    assert chosen(*tenths, *fifths) == chosen(*fifths, *tenths) == "cd"
    assert chosen(*tenths, *fifths, matched(100, 25, "e")) == "e", "a quarter is no trial"
    assert Match(tenths[0].point).epochs == 100, "without runs: as long as asked for"
