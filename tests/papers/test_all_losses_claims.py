"""What all-losses says in words, checked on runs made by hand and on the numbers it prints."""

from dataclasses import replace

import pytest

from ncollapse.papers import all_losses_claims as claims
from ncollapse.papers import publications
from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.judge import read_value
from reference.paper_runs import run

SMALL, LARGE = (0.25, 100), (2, 800)


def place(width, epochs, loss, accuracy, nc1=1.0, share=1.0, fit=1.0, seed=0):
    values = {"validation__accuracy": accuracy, "train__nc1": nc1, "train__accuracy": fit}
    record = run(seed, int(share * epochs), test__accuracy=accuracy, **values)
    return {"width": width, "epochs": epochs, "loss": loss}, record


def four(where, spread, **more):
    """Runs of the four losses whose accuracies lie `spread` apart."""
    return [place(*where, loss, 0.9 + spread * i / 3, **more) for i, loss in enumerate(claims.LOSSES)]


def steps(wider, longer, losses=claims.LOSSES):
    """A small network, a wider one and one that trained for longer, under each of these losses."""
    return [
        place(*where, loss, accuracy)
        for loss in losses
        for where, accuracy in (((0.25, 100), 0.75), ((0.5, 100), wider), ((0.25, 200), longer))
    ]


@pytest.mark.parametrize(("wider", "longer", "holds"), [(0.9, 0.9, [True, True]), (0.8, 0.7, [True, False])])
def test_width_and_length_raise_accuracy(wider, longer, holds):
    found = claims.by_width_and_epochs(steps(wider, longer))
    assert [claim.holds for claim in found] == [*holds, None]
    assert found[0].detail.startswith("4 of 4 steps: ")


def test_means_over_seeds_are_compared():
    """One seed falls and the mean rises; a seed that the other network lacks counts, too."""
    for seeds, accuracies, holds in ((2, (0.7, 0.9), True), (2, (0.7, 0.72), False), (1, (0.9,), True)):
        runs = [place(0.25, 100, loss, 0.75, seed=s) for loss in claims.LOSSES for s in range(2)]
        runs += [place(0.5, 100, loss, a, seed=s) for loss in claims.LOSSES for s, a in zip(range(seeds), accuracies)]
        found = claims.raises(runs, "width", "a wider network")
        assert found.holds is holds
        assert found.detail.startswith(f"{4 * holds} of 4 steps")


def test_what_is_said_of_every_loss_is_open_until_all_were_run():
    """One loss can contradict it, but not decide it."""
    found = claims.by_width_and_epochs(steps(0.9, 0.7, ("ce", "focal", "ls")))
    assert [claim.holds for claim in found] == [None, False, None]
    assert found[0].detail.endswith("points; runs of all four losses, equally long, are needed")
    one, three = ([({"loss": loss}, run(train__accuracy=1.0)) for loss in claims.LOSSES[:number]] for number in (1, 3))
    assert claims.fits(one).holds is claims.fits(three).holds is None
    assert claims.fits([*three, ({"loss": "mse"}, run(train__accuracy=0.9))]).holds is False


def test_most_steps_are_most_of_three_or_more():
    for losses, holds in ((("ce",), None), (("ce", "mse"), None), (claims.LOSSES, True)):
        found = claims.raises(steps(0.9, 0.9, losses), "width", "a wider network", mostly=True)
        assert found.holds is holds
    one_fell = steps(0.9, 0.9)[:-3] + steps(0.7, 0.9, ("mse",))
    assert claims.raises(one_fell, "width", "a wider network", mostly=True).holds is True
    assert claims.raises(one_fell, "width", "a wider network").holds is False


def test_a_wider_network_that_trained_for_a_smaller_share_is_no_rival():
    runs = [place(0.25, 100, loss, 0.75) for loss in claims.LOSSES]
    runs += [place(0.25, 200, loss, 0.8) for loss in claims.LOSSES]
    runs += [place(0.5, 100, loss, 0.7, share=0.25) for loss in claims.LOSSES]
    assert [claim.holds for claim in claims.by_width_and_epochs(runs)] == [None, True, None]


@pytest.mark.parametrize(("nc1", "holds"), [(1e-3, True), (0.1, False)])
def test_the_large_network_is_more_collapsed(nc1, holds):
    runs = [place(*SMALL, "ce", 0.9), place(*LARGE, "ce", 0.95, nc1)]
    assert claims.more_collapsed_when_large(runs).holds is holds
    assert claims.more_collapsed_when_large(runs[:1]).holds is None
    late = [{"epoch": epoch, "train": {"nc1": value}} for epoch, value in ((400, 1.0), (800, nc1))]
    keys, reported = place(*LARGE, "ce", 0.95, nc1=1.0)
    runs[1] = keys, replace(reported, history=late)
    assert claims.more_collapsed_when_large(runs).holds is holds, "at the last epoch, whichever is reported"


@pytest.mark.parametrize(("small", "holds"), [(0.05, True), (0.001, False)])
def test_small_networks_differ_more(small, holds):
    runs = four(SMALL, small) + four(LARGE, 0.01)
    assert claims.less_agreement_when_small(runs).holds is holds
    assert claims.less_agreement_when_small(runs[1:]).holds is None, "the range over three losses is another number"


def over_seeds(where, spread, scatter=0.001, number=3, **more):
    """Runs as those of `four`, over seeds whose standard deviation is `scatter`."""
    return [
        place(*where, loss, 0.9 + spread * i / 3 + scatter * (seed - 1), seed=seed, **more)
        for i, loss in enumerate(claims.LOSSES)
        for seed in range(number)
    ]


@pytest.mark.parametrize(("spread", "holds"), [(0.0104, True), (0.0, False), (0.02, False), (0.0135, True)])
def test_the_printed_range_of_the_small_network_is_met_to_three_standard_errors(spread, holds):
    """Both ways: losses that do not differ at all contradict the paper as well."""
    found = claims.range_as_printed(over_seeds(SMALL, spread), "small")
    assert found.holds is holds
    assert found.detail == f"{100 * spread:.2f} points over 4 losses, three standard errors 0.35", "0.1 sqrt(4 / 3) 3"


def test_the_printed_ranges_are_of_three_seeds_at_full_length():
    assert claims.range_as_printed(over_seeds(SMALL, 0.0104, number=2), "small").holds is None
    assert claims.range_as_printed(over_seeds(SMALL, 0.0104, share=0.25), "small").holds is None
    assert claims.range_as_printed(over_seeds(SMALL, 0.0104)[3:], "small").holds is None, "three losses"
    assert claims.range_as_printed(over_seeds(SMALL, 0.0104, scatter=0.003), "small").holds is None, "0 would pass"


@pytest.mark.parametrize(("spread", "holds"), [(0.001, True), (0.007, True), (0.0075, False)])
def test_the_printed_range_of_the_large_network_is_a_bound(spread, holds):
    assert claims.range_as_printed(over_seeds(LARGE, spread), "large").holds is holds
    found = claims.range_as_printed(over_seeds(LARGE, spread, fit=0.98), "large")
    assert found.holds is None
    assert found.detail.endswith("; training accuracy only 98.0 %")


@pytest.mark.parametrize(("spread", "holds"), [(0.0095, True), (0.0105, False)])
def test_largely_the_same_is_one_rule_in_every_figure(spread, holds):
    runs = four(LARGE, spread) + four(SMALL, 0.2)
    agree = [claims.equal(runs)[1:], claims.by_width_and_epochs(runs)[2:], claims.mini_imagenet(runs)[1:2]]
    for found in (claim for some in agree for claim in some):
        assert found.holds is holds
        assert found.detail == f"{100 * spread:.2f} points over 4 losses"
        assert found.threshold == claims.THRESHOLDS["alike"]
        assert "within 1 point" in found.text
    assert claims.losses_agree(runs[1:]).holds is None


@pytest.mark.parametrize(("fit", "said"), [(0.985, "only 98.5 %"), (float("nan"), "not measured")])
def test_networks_that_have_not_fitted_their_data_decide_no_agreement(fit, said):
    """The losses agree "as long as the optimization procedure converges to the NC global solution"."""
    for spread in (0.001, 0.2):
        runs = four(LARGE, spread)[1:] + [place(*LARGE, "ce", 0.9, fit=fit)] + four(SMALL, 0.1, fit=0.5)
        found = [claims.losses_agree(runs), claims.losses_agree(runs, "validation.accuracy")]
        for claim in [*found, claims.less_agreement_when_small(runs)]:
            assert claim.holds is None
            assert f"; training accuracy {said}" in claim.detail
    fitted = four(LARGE, 0.001) + four(SMALL, 0.1, fit=0.5)
    assert claims.less_agreement_when_small(fitted).holds is True, "the small network need not fit"


@pytest.mark.parametrize(("apart", "fit", "holds"), [(0.04, 1.0, True), (0.3, 1.0, False), (0.3, 0.9, None)])
def test_the_class_means_are_maximally_separated_under_every_loss(apart, fit, holds):
    runs = [({"loss": loss}, run(train__nc2_means=apart, train__accuracy=fit)) for loss in claims.LOSSES]
    assert claims.separates_maximally(runs).holds is holds
    assert claims.separates_maximally(runs[1:]).holds is (False if holds is False else None)


def test_seeds_are_averaged_before_losses_are_compared():
    runs = [
        place(*LARGE, loss, 0.95 + 0.001 * i + 0.02 * (seed - 1), seed=seed)
        for i, loss in enumerate(claims.LOSSES)
        for seed in range(3)
    ]
    assert claims.losses_agree(runs).detail == "0.30 points over 4 losses"


@pytest.mark.parametrize(("fit", "holds"), [(1.0, True), (0.9, False)])
def test_every_loss_fits_the_training_data_by_the_end(fit, holds):
    """The reported epoch is the one that validates best, which is an earlier one."""
    history = [{"epoch": epoch, "train": {"accuracy": value}} for epoch, value in ((10, 0.8), (20, fit))]
    runs = [({"loss": loss}, run(history=history, train__accuracy=0.8)) for loss in claims.LOSSES]
    assert claims.fits(runs).holds is holds
    runs = [({"loss": loss}, run(train__accuracy=fit)) for loss in claims.LOSSES]
    assert claims.fits(runs).holds is holds, "records without a history"


def falling(*values):
    fields = ("nc1", "nc2", "nc3_centred")
    return [{"epoch": epoch, "train": dict.fromkeys(fields, value)} for epoch, value in enumerate(values, 1)]


@pytest.mark.parametrize(("focal", "holds"), [(0.5, True), (0.001, False)])
def test_on_cifar100_focal_is_slowest_and_still_falling(focal, holds):
    runs = [
        ({"loss": loss}, run(history=falling(1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, end)))
        for loss, end in (("ce", 0.1), ("focal", focal), ("ls", 0.01), ("mse", 0.01))
    ]
    found = {claim.text.partition(":")[0]: claim.holds for claim in claims.collapse_on_cifar100(runs)}
    assert found["the NC metrics of Focal fall the slowest of the four losses"] is holds
    assert found["under LS the NC metrics approach zero"] is True
    assert found["under CE the NC metrics still fall at the end"] is True
    assert found["under Focal the NC metrics still fall at the end"] is not holds, "0.5 has stopped"


def test_the_printed_accuracies_bear_the_claims_of_figure_8():
    table = publications.load("all-losses")["figure-8"]
    runs = [
        place(
            *(point.keys[key] for key in ("width", "epochs", "loss")), table.find("test.accuracy", **point.keys).value
        )
        for point in get_experiment("all-losses/figure-8").grid()
    ]
    assert [claim.holds for claim in claims.mini_imagenet(runs)] == [None, True, True]
    assert f"within {claims.spread_over_losses(runs, claims.LARGE):.1f} points" in claims.THRESHOLDS["alike"]


def test_the_printed_ranges_are_those_of_the_paper():
    cells = publications.load("all-losses")["figure-4"].cells
    assert [100 * cell.value for cell in cells] == pytest.approx(list(claims.PRINTED_RANGE.values()))


@pytest.mark.parametrize("item", ["figure-4", "figure-7"])
def test_the_tables_show_nc1_of_the_last_epoch(item):
    (field, _) = get_experiment(f"all-losses/{item}").finals
    record = run(history=[{"epoch": e, "train": {"nc1": value}} for e, value in ((1, 0.5), (2, 0.25))], train__nc1=0.5)
    assert read_value(record, field) == 0.25
    assert read_value(run(train__nc1=0.5), field) == 0.5, "a record without a history"


def test_the_allowance_of_the_printed_range_is_three_standard_errors():
    """Two ranges, each of means over three seeds: 3 s sqrt(2/3 + 2/3), s = 1 point; over six seeds, 3 s sqrt(1)."""
    found = claims.range_as_printed(over_seeds(LARGE, 0.01, 0.01), "large")
    assert found.detail == "1.00 points over 4 losses, three standard errors 3.46"
    six = over_seeds(LARGE, 0.01, 0.01) + [
        place(*LARGE, loss, 0.9 + 0.01 * i / 3 + 0.01 * s, seed=4 + s)
        for i, loss in enumerate(claims.LOSSES)
        for s in (-1, 0, 1)
    ]
    error = 3 * (0.8 * (1 / 3 + 2 / 3)) ** 0.5  # the variance over six of these is 4/5
    assert claims.range_as_printed(six, "large").detail.endswith(f"three standard errors {error:.2f}")


def test_steps_are_told_in_points():
    (first, *_) = claims.by_width_and_epochs(steps(0.9, 0.7))
    assert first.detail == "4 of 4 steps: +15.00, +15.00, +15.00, +15.00 points"


def test_half_of_the_steps_are_not_most_of_them():
    half = steps(0.9, 0.9, claims.LOSSES[:2]) + steps(0.7, 0.9, claims.LOSSES[2:])
    found = claims.raises(half, "width", "a wider network", mostly=True)
    assert (found.holds, found.detail[:6]) == (False, "2 of 4")


def test_every_pair_of_a_small_and_a_large_network_counts():
    runs = [place(*SMALL, "ce", 0.9), place(*LARGE, "ce", 0.95, 1e-4), place(*SMALL, "mse", 0.9)]
    runs += [place(*LARGE, "mse", 0.95, 0.1)]
    found = claims.more_collapsed_when_large(runs)
    assert (found.holds, found.detail) == (False, "2.5 orders in the mean over 2 pairs of runs")


def test_metrics_that_vanish_or_were_measured_once_have_not_fallen():
    """A value of 0 has no logarithm; without all three metrics a loss has no fall."""
    ends = {"ce": 0.1, "focal": 0.5, "ls": 0.01, "mse": 0.01}
    runs = [({"loss": loss}, run(history=falling(1.0, end, 0.0))) for loss, end in ends.items()]
    found = claims.focal_is_slowest(runs)
    assert found.holds is True
    assert found.detail == "orders of magnitude: ce 1.00, focal 0.30, ls 2.00, mse 2.00"
    assert claims.focal_is_slowest([*runs[:3], ({"loss": "mse"}, run(history=falling(1.0)))]).holds is None
    assert claims.still_falling(runs).detail == "12 of 12 curves"
    assert claims.still_falling([({}, run(history=falling(1.0)))]).detail == ""


def test_a_range_of_exactly_one_point_is_within_one_point():
    """As in four runs on CIFAR10, whose 5000 validation samples give 95.22, 94.38, 95.24 and 94.24 %."""
    runs = [place(*LARGE, loss, right / 5000) for loss, right in zip(claims.LOSSES, (4761, 4719, 4762, 4712))]
    assert 100 * (4762 / 5000 - 4712 / 5000) > 1, "by rounding alone"
    assert claims.losses_agree(runs, "validation.accuracy").holds is True
    runs[-1] = place(*LARGE, "mse", 4711 / 5000)
    assert claims.losses_agree(runs, "validation.accuracy").holds is False
