"""What each paper alone says in words, checked on runs made by hand."""

from dataclasses import replace

import pytest

from ncollapse.papers import bce_vs_ce_claims, imbalanced_relu, publications
from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.judge import Line
from reference.paper_runs import run


@pytest.mark.parametrize(("end", "holds"), [(9.98, True), (9.9, False)])
def test_ce_keeps_its_bias_without_decay(end, holds):
    runs = [({"loss": "ce", "bias_init": 10}, run(train__bias=end)), ({"loss": "bce"}, run(train__bias=5.0))]
    assert bce_vs_ce_claims.keeps_initial_bias(runs).holds is holds
    assert bce_vs_ce_claims.keeps_initial_bias(runs[1:]).holds is None


@pytest.mark.parametrize(("end", "holds"), [(-0.02, True), (0.2, False)])
def test_the_bias_of_ce_vanishes_with_decay(end, holds):
    runs = [({"loss": "ce"}, run(train__bias=end)), ({"loss": "bce"}, run(train__bias=5.0))]
    assert bce_vs_ce_claims.bias_vanishes(runs).holds is holds
    assert bce_vs_ce_claims.bias_vanishes(runs[1:]).holds is None


@pytest.mark.parametrize(
    ("large", "small", "holds"), [(0.01, 5.0, True), (0.2, 5.0, False), (0.01, 0.01, False), (0.01, None, True)]
)
def test_the_bias_of_ce_reaches_zero_where_the_decay_is_large(large, small, holds):
    """Under SGD 5e-3 is large and 5e-4 is not; under AdamW 5e-4 is."""
    ends = {("sgd", 5e-3): large, ("adamw", 5e-4): large, ("sgd", 5e-4): small}
    runs = [
        ({"loss": "ce", "optimizer": optimizer, "bias_decay": decay}, run(train__bias=end))
        for (optimizer, decay), end in ends.items()
        if end is not None
    ]
    assert bce_vs_ce_claims.bias_vanishes_at_large_decay(runs).holds is holds
    assert bce_vs_ce_claims.bias_vanishes_at_large_decay(runs[2:]).holds is None


def test_the_paper_s_own_numbers_hold_up_to_a_batch_of_1024():
    table = publications.load("bce-vs-ce")["table-11"]
    runs = []
    for point in get_experiment("bce-vs-ce/table-11").grid():
        printed = {
            f"train__{name}": table.find(f"train.{name}", **point.keys).value
            for name in ("weight_energy", "positive_score", "negative_score", "bias")
        }
        runs.append((point.keys, run(**printed)))
    found = bce_vs_ce_claims.final_biases_by_batch(runs)
    assert [claim.holds for claim in found] == [True, True, True]
    assert found[2].detail == "by 5.6 to 139 % in 12 runs", "both optimisers, up to 1024 without 128"
    for keys, record in runs:
        if keys["loss"] == "ce" and keys["optimizer"] == "sgd" and keys["batch_size"] == 64:
            record.summary["train"]["positive_score"]["mean"] = 5.65
    assert bce_vs_ce_claims.final_biases_by_batch(runs)[2].holds is False, "as at 128"
    assert not bce_vs_ce_claims.separates_scores(runs).holds, "SGD at 2048, of which the paper says nothing"


@pytest.mark.parametrize(("largest", "holds"), [(0.02, True), (0.3, False), (-0.3, False)])
def test_the_means_are_orthogonal_if_every_two_of_them_are(largest, holds):
    """One pair that has merged is not hidden by the mean over 45."""
    record = run(train__mean_cosines={"min": min(largest, 0), "max": max(largest, 0), "mean": 0.01})
    assert imbalanced_relu.are_orthogonal([({}, record)]).holds is holds
    assert imbalanced_relu.are_orthogonal([({}, run())]).holds is None


def test_every_run_has_to_have_orthogonal_means():
    near, far = (({}, run(train__mean_cosines={"min": -low, "max": 0.01})) for low in (0.02, 0.3))
    unknown = ({}, run(train__mean_cosines={"min": float("nan"), "max": 0.9}))
    found = imbalanced_relu.are_orthogonal([near, far])
    assert found.holds is False
    assert found.detail == "largest cosine between two of them 0.0200, 0.3000"
    assert imbalanced_relu.are_orthogonal([near, unknown]).holds is True
    assert imbalanced_relu.are_orthogonal([unknown]).detail == ""
    assert imbalanced_relu.are_orthogonal([({}, run(train__mean_cosines={"min": -0.1, "max": 0.0}))]).holds is False


def test_the_optimisers_of_ours_are_told_from_the_printed_one():
    runs = [({"optimizer": name}, run()) for name in ("sgd", "sgd-momentum", "adam")]
    assert [imbalanced_relu.is_ours(keys) for keys, _ in runs] == [False, True, True]
    assert imbalanced_relu.list_ours(runs) == ["adam", "sgd-momentum"], "what collapses comes first"
    assert imbalanced_relu.list_ours(runs[:2]) == ["sgd-momentum"]


@pytest.mark.parametrize("item", ["table-12", "table-13"])
def test_the_printed_scores_lie_further_apart_under_bce(item):
    table = publications.load("bce-vs-ce")[item]
    runs = []
    for point in get_experiment(f"bce-vs-ce/{item}").grid():
        names = [f"{part}.{sign}_score" for part in ("train", "test") for sign in ("positive", "negative")]
        printed = {name.replace(".", "__"): table.find(name, **point.keys).value for name in names}
        runs.append((point.keys, run(**printed)))
    assert [claim.holds for claim in bce_vs_ce_claims.score_gaps(runs)] == [True, True]
    assert [claim.holds for claim in bce_vs_ce_claims.score_gaps(swap_losses(runs))] == [False, False]
    assert [claim.holds for claim in bce_vs_ce_claims.score_gaps(runs[:4])] == [None, None], "two pairs are too few"


def swap_losses(runs):
    return [({**keys, "loss": {"ce": "bce", "bce": "ce"}[keys["loss"]]}, record) for keys, record in runs]


def printed_biases():
    runs = []
    for item in ("table-9", "table-10"):
        table = publications.load("bce-vs-ce")[item]
        for point in get_experiment(f"bce-vs-ce/{item}").grid():
            names = ("weight_energy", "positive_score", "negative_score", "bias")
            printed = {f"train__{name}": table.find(f"train.{name}", **point.keys).value for name in names}
            runs.append((point.keys, run(**printed)))
    return runs


def test_the_printed_biases_and_scores_bear_every_claim_about_them():
    found = bce_vs_ce_claims.final_biases_and_weights(printed_biases())
    assert [claim.holds for claim in found] == [True] * 6
    assert found[1].detail == "positive 1.000, negative 0.997 over 30 runs"
    assert "by 0.9999 and 0.997" in found[1].threshold


def test_scores_that_follow_no_bias_are_told_from_those_that_do():
    """The losses exchanged: BCE's scores then do not follow its bias, and CE's do."""
    runs = swap_losses(printed_biases())
    assert bce_vs_ce_claims.scores_follow_the_bias(runs).holds is False
    assert bce_vs_ce_claims.scores_ignore_the_bias(runs).holds is False
    assert bce_vs_ce_claims.scores_follow_the_bias([]).holds is None
    assert bce_vs_ce_claims.weights_ignore_the_bias(runs).holds is False
    assert bce_vs_ce_claims.weights_ignore_the_bias([]).holds is None


def test_one_percent_around_the_scores_of_ce_is_a_threshold_of_ours():
    threshold = bce_vs_ce_claims.scores_ignore_the_bias(printed_biases()).threshold
    assert threshold.startswith("ours, for around: 1 % of the printed values")
    assert "under SGD too, where numbers of the tables have 5 %" in threshold


def on_cifar10(*gains, field="test__accuracy"):
    return [
        ({"data": "cifar10", "model": i, "loss": loss}, run(**{field: 0.9 + (gain / 100 if loss == "bce" else 0)}))
        for i, gain in enumerate(gains)
        for loss in ("ce", "bce")
    ]


@pytest.mark.parametrize(("gains", "holds"), [((0.82, 6.7), True), ((0.8, 6.7), False), ((), None)])
def test_the_least_gain_in_uniform_accuracy_on_cifar10_is_printed(gains, holds):
    runs = on_cifar10(*gains, field="test__uniform_accuracy")
    others = [({**keys, "data": "cifar100"}, record) for keys, record in on_cifar10(-9, field="test__uniform_accuracy")]
    found = bce_vs_ce_claims.least_gain_on_cifar10(runs + others)
    assert found.holds is holds
    if gains:
        assert found.detail == f"{min(gains):.2f} at least in 2 of 12 pairs of models"


@pytest.mark.parametrize(
    ("gains", "holds"),
    [((1,) * 10 + (-1, -1), True), ((1, 1, -1, -1), None), ((1, -1, -1, -1), False), ((1,) * 10, True)],
)
def test_bce_lowers_accuracy_in_two_of_twelve_pairs_on_cifar10(gains, holds):
    assert bce_vs_ce_claims.seldom_lowers_accuracy_on_cifar10(on_cifar10(*gains)).holds is holds


def test_the_printed_accuracies_bear_both_claims_about_cifar10():
    runs = []
    for point in get_experiment("bce-vs-ce-early/table-2").grid():
        names = ("test.accuracy", "test.uniform_accuracy")
        table = publications.load("bce-vs-ce-early")["table-2"]
        printed = {name.replace(".", "__"): table.find(name, **point.keys).value for name in names}
        runs.append((point.keys, run(**printed)))
    found = bce_vs_ce_claims.accuracies(runs)[-2:]
    assert [claim.holds for claim in found] == [True, True]
    assert found[0].detail.startswith("0.82 at least in 12 of 12")
    assert found[1].detail.startswith("in 2 of 12 pairs: ")


@pytest.mark.parametrize(("bias", "alpha_bias", "holds"), [(0.004, 3.5, [True, True]), (0.2, 0.0, [False, False])])
def test_the_biases_of_the_early_table_are_optimal(bias, alpha_bias, holds):
    def end(loss, value):
        record = run(train__bias=value, train__weight_energy=358.0)
        return {"loss": loss}, replace(
            record, config={**record.config, "loss": {"name": loss}, "optim": {"batch_size": 128}}
        )

    found = bce_vs_ce_claims.biases_are_optimal([end("ce", bias), end("bce", alpha_bias)])
    assert [claim.holds for claim in found] == holds
    assert [claim.holds for claim in bce_vs_ce_claims.biases_are_optimal([])] == [None, None]


def place(optimizer, augment, loss="ce"):
    return {"data": "cifar10", "model": "resnet18", "optimizer": optimizer, "augment": augment, "loss": loss}


@pytest.mark.parametrize(("uniform", "holds"), [(0.94, True), (0.84, False)])
def test_mixing_and_adamw_raise_both_accuracies(uniform, holds):
    accuracies = {"test__accuracy": 0.93, "test__uniform_accuracy": 0.85}
    runs = [
        (place("sgd", "DA1"), run(**accuracies)),
        (place("adamw", "DA1+DA2"), run(test__accuracy=0.96, test__uniform_accuracy=uniform)),
        (place("adamw", "DA1+DA2", "bce"), run(test__accuracy=0.1, test__uniform_accuracy=0.1)),
    ]
    found = bce_vs_ce_claims.mixing_and_adamw_help(runs)
    assert found.holds is holds
    assert found.detail == f"+3.00 for +2.90, {100 * uniform - 85:+.2f} for +9.14 points", (
        "92.82 to 95.72, 85.20 to 94.34"
    )
    assert bce_vs_ce_claims.mixing_and_adamw_help(runs[1:]).holds is None


def test_the_printed_spreads_of_adamw_are_as_small_as_the_early_version_says():
    table = publications.load("bce-vs-ce-early")["table-1"]
    names = ("positive_score", "negative_score", "bias")

    def printed(keys):
        cells = {name: table.find(f"train.{name}", **keys) for name in names}
        return {"train": {name: {"mean": cell.value, "std": float(cell.std)} for name, cell in cells.items()}}

    runs = [(p.keys, replace(run(), summary=printed(p.keys))) for p in get_experiment("bce-vs-ce/table-7").grid()]
    found = bce_vs_ce_claims.small_spreads(runs)[0]
    assert found.holds is True
    assert found.detail == "at most 0.290 over 6 runs"
    sgd = [({**keys, "optimizer": "adamw"}, record) for keys, record in runs if keys["optimizer"] == "sgd"]
    assert bce_vs_ce_claims.small_spreads(sgd)[0].holds is False, "those of SGD are up to 14.1"
    assert bce_vs_ce_claims.small_spreads([])[0].holds is None


def line(field, ours, printed, *, drawn=0.0, passed_at=None, other_schedule=False, **keys):
    """A number outside its tolerance: printed in percent if it is an accuracy."""
    percent = field.endswith("accuracy")
    cell = publications.Cell("", "", {}, field, printed, percent=percent)
    values = tuple(value / 100 for value in ours) if percent else ours
    more = {"drawn": drawn, "passed_at": passed_at, "other_schedule": other_schedule}
    return Line("", "", field, {"loss": "ce", **keys}, cell, values, epochs=(100,), **more)


def test_two_seeds_are_a_cause_where_they_spread_that_far():
    for ours, printed, known in (((9.0, 9.4), "10.00", True), ((9.2, 9.3), "10.00", False), ((9.0,), "10.00", False)):
        cause = bce_vs_ce_claims.find_cause(line("train.positive_score", ours, printed, optimizer="adamw"))
        assert (cause == bce_vs_ce_claims.OVER_TWO_SEEDS) is known


@pytest.mark.parametrize(
    ("augment", "epoch", "known"), [("DA1+DA2", 81, True), ("DA1+DA2", 62, False), ("DA1", 81, False)]
)
def test_scores_that_move_with_mixing_are_a_cause_late_in_the_training_alone(augment, epoch, known):
    one = line("train.positive_score", (2.3,), "2.54", optimizer="adamw", augment=augment, passed_at=epoch)
    assert (bce_vs_ce_claims.find_cause(one) == bce_vs_ce_claims.MOVING_SCORES) is known


def test_the_initial_draw_is_no_cause_of_what_is_beyond_it():
    """Where theory knows how far draws scatter a score, three standard deviations are in the tolerance."""
    for drawn, cause in ((0.0, bce_vs_ce_claims.KEPT_SCORES), (0.01, "")):
        assert (
            bce_vs_ce_claims.find_cause(line("train.negative_score", (-0.5,), "-0.63", optimizer="sgd", drawn=drawn))
            == cause
        )


@pytest.mark.parametrize(("ours", "known"), [(2.21, True), (1.0, False)])
def test_a_missing_delay_is_a_cause_where_the_bias_ends_as_it_does_without(ours, known):
    keys = {"loss": "bce", "optimizer": "adamw", "augment": "DA1", "other_schedule": True}
    assert bool(bce_vs_ce_claims.find_cause(line("train.bias", (ours,), "2.16", **keys))) is known


@pytest.mark.parametrize(
    ("field", "runs", "known"),
    [
        ("train.negative_score", ("cfa420863d23",), True),
        ("train.negative_score", ("0123456789ab",), False),
        ("train.positive_score", ("cfa420863d23",), False),
    ],
)
def test_scattered_scores_are_a_cause_in_the_run_that_was_looked_at(field, runs, known):
    one = line(field, (-3.3,), "-4.04", model="resnet50", optimizer="sgd", loss="bce")
    assert (bce_vs_ce_claims.find_cause(replace(one, runs=runs)) == bce_vs_ce_claims.SCATTERED) is known


def test_weights_that_were_not_measured_are_left_out():
    runs = [({"loss": "ce", "optimizer": "sgd"}, run(train__weight_energy=v)) for v in (218.0, float("nan"), 220.5)]
    found = bce_vs_ce_claims.weights_ignore_the_bias(runs)
    assert (found.holds, found.detail) == (True, "SGD 218.00 to 220.50 over 2 runs")
    assert bce_vs_ce_claims.weights_ignore_the_bias(runs[1:2]).holds is None


def test_scores_that_were_not_measured_are_left_out():
    ends = ((5.63, -0.63), (float("nan"), -0.63), (5.65, -0.626))
    runs = [({"loss": "ce"}, run(train__positive_score=p, train__negative_score=n)) for p, n in ends]
    found = bce_vs_ce_claims.scores_ignore_the_bias(runs)
    assert (found.holds, found.detail[:14]) == (True, "5.630 to 5.650")
    spreads = [({"optimizer": "adamw"}, run(train__positive_score=1.0, train__negative_score=1.0, train__bias=1.0))]
    spreads.append(({"optimizer": "adamw"}, run()))
    found = bce_vs_ce_claims.small_spreads(spreads)[0]
    assert (found.holds, found.detail) == (True, "at most 0.000 over 1 run")


@pytest.mark.parametrize(("energy", "holds"), [(216.82, True), (216.8, False), (221.18, True), (221.2, False)])
def test_around_is_one_percent_on_both_sides(energy, holds):
    runs = [({"loss": "ce", "optimizer": "sgd"}, run(train__weight_energy=energy))]
    assert bce_vs_ce_claims.weights_ignore_the_bias(runs).holds is holds


def test_every_bias_with_a_large_decay_reaches_zero():
    """The largest of those and the smallest of the others decide."""

    def found(large, small):
        ends = [(5e-3, end) for end in large] + [(5e-4, end) for end in small]
        keys = {"loss": "ce", "optimizer": "sgd"}
        return bce_vs_ce_claims.bias_vanishes_at_large_decay(
            [({**keys, "bias_decay": decay}, run(train__bias=end)) for decay, end in ends]
        )

    assert (found((0.01, -0.02), (4.0, 9.0)).holds, found((0.01, -0.2), (4.0, 9.0)).holds) == (True, False)
    assert found((0.01, -0.02), (4.0, 0.01)).holds is False
    assert found((0.01, -0.02), (4.0, 9.0)).detail == (
        "at most 0.0200 over 2 runs, at least 4.0000 over 2 runs with less"
    )


@pytest.mark.parametrize(("apart", "holds"), [((8, 9), None), ((8, 9, 5), True), ((8, 5, 5), False)])
def test_three_pairs_decide_which_gap_of_scores_is_larger(apart, holds):
    """The scores of CE lie 6 apart."""
    runs = [
        (
            {"model": i, "loss": loss},
            run(
                **{
                    f"{part}__{k}_score": v
                    for part in ("train", "test")
                    for k, v in (("positive", gap), ("negative", 0))
                }
            ),
        )
        for i, gaps in enumerate(apart)
        for loss, gap in (("ce", 6.0), ("bce", float(gaps)))
    ]
    found = bce_vs_ce_claims.score_gaps(runs)
    assert [claim.holds for claim in found] == [holds] * 2
    assert ", ".join(f"{gap}.00 for 6.00" for gap in apart) in found[0].detail
