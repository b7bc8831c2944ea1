"""What all-losses says in words, checked on runs made by hand and on the numbers it prints."""

import pytest

from ncollapse.papers import all_losses_claims as claims
from ncollapse.papers import publications
from ncollapse.papers.catalogue import get_experiment
from reference.paper_runs import run

SMALL, LARGE = (0.25, 100), (2, 800)


def place(width, epochs, loss, accuracy, nc1=1.0, share=1.0):
    record = run(epochs=int(share * epochs), test__accuracy=accuracy, validation__accuracy=accuracy, train__nc1=nc1)
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


@pytest.mark.parametrize(("small", "holds"), [(0.05, True), (0.001, False)])
def test_small_networks_differ_more(small, holds):
    runs = four(SMALL, small) + four(LARGE, 0.01)
    assert claims.less_agreement_when_small(runs).holds is holds
    assert claims.less_agreement_when_small(runs[1:]).holds is None, "the range over three losses is another number"


@pytest.mark.parametrize(("spread", "holds"), [(0.0104, True), (0.0, False), (0.03, False)])
def test_the_printed_range_is_met_to_a_point(spread, holds):
    """Both ways: losses that do not differ at all contradict the paper as well."""
    found = claims.range_as_printed(four(SMALL, spread))
    assert found.holds is holds
    assert claims.range_as_printed(four(SMALL, spread)[:3]).holds is None


@pytest.mark.parametrize(("spread", "holds"), [(0.0035, True), (0.01, False)])
def test_the_losses_agree_within_the_range(spread, holds):
    runs = four(LARGE, spread) + four(SMALL, 0.2)
    found = claims.losses_agree(runs, 0.36, claims.LARGE, "there")
    assert found.holds is holds
    assert found.detail == f"{100 * spread:.2f} points over 4 losses"
    assert claims.losses_agree(runs[1:], 0.36, claims.LARGE, "there").holds is None


def test_seeds_are_averaged_before_losses_are_compared():
    runs = [
        ({"loss": loss, **claims.LARGE}, run(seed, 800, test__accuracy=0.95 + 0.001 * i + 0.02 * (seed - 1)))
        for i, loss in enumerate(claims.LOSSES)
        for seed in range(3)
    ]
    assert claims.losses_agree(runs, 0.36, claims.LARGE, "there").detail == "0.30 points over 4 losses"


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
        (point.keys, run(epochs=point.keys["epochs"], test__accuracy=table.find("test.accuracy", **point.keys).value))
        for point in get_experiment("all-losses/figure-8").grid()
    ]
    assert [claim.holds for claim in claims.mini_imagenet(runs)] == [None, True, True]
    assert f"within {claims.spread_over_losses(runs, claims.LARGE):.1f} points" in claims.THRESHOLDS["alike"]


def test_the_printed_ranges_are_those_of_the_paper():
    cells = publications.load("all-losses")["figure-4"].cells
    assert [100 * cell.value for cell in cells] == pytest.approx(list(claims.PRINTED_RANGE.values()))
