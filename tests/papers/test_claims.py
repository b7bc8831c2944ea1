"""What the papers say in words, checked on runs made by hand: each check can hold, fail and be open."""

import pytest

from ncollapse.papers import claims, publications
from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.claims import CHECKS
from ncollapse.runs.record import RunRecord


def run(seed=0, epochs=10, history=(), **final):
    """A finished run whose summary says `final`, double underscores for dots; biases and scores are means."""
    summary = {"status": "finished", "train": {}, "test": {}}
    for key, value in final.items():
        part, _, field = key.partition("__")
        spread = field in ("bias", "positive_score", "negative_score")
        summary[part][field] = {"mean": value, "std": 0.0} if spread else value
    config = {"seed": seed, "optim": {"epochs": epochs}}
    return RunRecord(None, "x", config, {}, list(history), summary, "finished")


@pytest.mark.parametrize(("bias", "holds"), [(2.0, True), (-3.0, False), (8.0, False)])
def test_the_bias_of_bce_separates_the_scores(bias, holds):
    pairs = [({"loss": "bce"}, run(train__positive_score=7.0, train__negative_score=-2.0, train__bias=bias))]
    assert claims.separates(pairs).holds is holds
    assert claims.separates(pairs).detail == f"{int(holds)} of 1 run"
    assert claims.separates([({"loss": "ce"}, pairs[0][1])]).holds is None


@pytest.mark.parametrize(("end", "holds"), [(9.98, True), (9.9, False)])
def test_ce_keeps_its_bias_without_decay(end, holds):
    pairs = [({"loss": "ce", "bias_init": 10}, run(train__bias=end)), ({"loss": "bce"}, run(train__bias=5.0))]
    assert claims.remembers(pairs).holds is holds
    assert claims.remembers(pairs[1:]).holds is None


@pytest.mark.parametrize(("end", "holds"), [(-0.02, True), (0.2, False)])
def test_ce_s_bias_vanishes_with_decay(end, holds):
    pairs = [({"loss": "ce"}, run(train__bias=end)), ({"loss": "bce"}, run(train__bias=5.0))]
    assert claims.vanishes(pairs).holds is holds
    assert claims.vanishes(pairs[1:]).holds is None


@pytest.mark.parametrize(("other", "holds"), [(0.952, True), (0.96, False)])
def test_the_losses_agree_at_one_width_and_length(other, holds):
    keys = {"width": 2, "epochs": 800}
    pairs = [({**keys, "loss": "ce"}, run(test__accuracy=0.95)), ({**keys, "loss": "mse"}, run(test__accuracy=other))]
    pairs.append(({"width": 0.25, "epochs": 100, "loss": "mse"}, run(test__accuracy=0.5)))
    assert claims.agree(pairs, 2, 800, 0.36).holds is holds
    assert claims.agree(pairs, 0.25, 100, 1.037).holds is None


def test_seeds_are_averaged_before_losses_are_compared():
    keys = {"width": 2, "epochs": 800}
    pairs = [
        ({**keys, "loss": loss}, run(seed, test__accuracy=mean + 0.002 * (seed - 1)))
        for loss, mean in (("ce", 0.95), ("mse", 0.953))
        for seed in range(3)
    ]
    found = claims.agree(pairs, 2, 800, 0.36)
    assert found.holds
    assert found.detail == "0.30 points over 2 losses"


def test_the_paper_s_own_numbers_hold_up_to_a_batch_of_1024():
    table = publications.load("bce-vs-ce")["table-11"]
    pairs = []
    for point in get_experiment("bce-vs-ce/table-11").grid():
        printed = {
            f"train__{name}": table.find(f"train.{name}", **point.keys).value
            for name in ("positive_score", "negative_score", "bias")
        }
        pairs.append((point.keys, run(**printed)))
    assert [claim.holds for claim in CHECKS["bce-vs-ce/figure-7"](pairs)] == [True, True]
    assert not claims.separates(pairs).holds, "SGD at 2048, of which the paper says nothing"


def curve(*values):
    """A history in which every NC metric takes these values."""
    return [{"epoch": e, "train": dict.fromkeys(("nc1", "nc2", "nc3"), v)} for e, v in enumerate(values, 1)]


def test_on_cifar100_metrics_fall_under_adamw_alone():
    fast, slow = (0.5, 0.2, 0.1, 0.05, 0.01, 0.01, 0.01, 0.01, 0.001, 0.001), (1.0, 0.9, *[0.8] * 8)

    def claim_of(adamw, sgd, *exceptions):
        pairs = []
        for model in ("resnet18", "resnet50", "densenet121"):
            for optimizer, values in (("adamw", adamw), ("sgd", sgd)):
                for loss, factor in (("ce", 1.0), ("bce", 2.0 if (model, optimizer) in exceptions else 0.5)):
                    history = curve(*(factor * value for value in values))
                    pairs.append(({"model": model, "optimizer": optimizer, "loss": loss}, run(history=history)))
        return [claim.holds for claim in CHECKS["bce-vs-ce/figure-6"](pairs)]

    assert claim_of(fast, slow, ("resnet50", "sgd")) == [True, True, True]
    assert claim_of(slow, slow) == [False, True, True]
    assert claim_of(fast, fast) == [True, False, True]
    most = [("resnet18", "sgd"), ("resnet50", "sgd"), ("densenet121", "sgd")]
    assert claim_of(fast, slow, *most) == [True, True, False], "half is not most"


@pytest.mark.parametrize(("value", "holds"), [(0.02, True), (0.3, False)])
def test_the_means_are_orthogonal(value, holds):
    assert claims.orthogonal([({}, run(train__mean_orthogonality=value))]).holds is holds
    assert claims.orthogonal([({}, run())]).holds is None


@pytest.mark.parametrize(("low", "holds"), [(0.6, True), (0.96, False)])
def test_mse_needs_dimensions(low, holds):
    pairs = [({"loss": "mse", "dim": d}, run(test__accuracy=a)) for d, a in ((2, low), (9, 0.95), (512, 0.951))]
    pairs.append(({"loss": "ce", "dim": 2}, run(test__accuracy=0.99)))
    assert claims.needs_dimensions(pairs).holds is holds
    assert claims.needs_dimensions(pairs[1:]).holds is None


@pytest.mark.parametrize(("fixed", "holds"), [(0.945, True), (0.93, False)])
def test_a_fixed_classifier_is_enough(fixed, holds):
    heads = (("linear", 0.95), ("etf", 0.96), ("etf", fixed))
    pairs = [({"head": head}, run(test__accuracy=value)) for head, value in heads]
    assert claims.fixed_is_enough(pairs).holds is holds
    assert claims.fixed_is_enough(pairs[1:]).holds is None


@pytest.mark.parametrize(("gain", "holds"), [(0.01, True), (-0.01, False)])
def test_bce_gains_over_ce_at_the_same_place_and_seed(gain, holds):
    def pair(loss, seed, value):
        return {"loss": loss, "augment": "DA1"}, run(seed, test__uniform_accuracy=value)

    pairs = [pair("ce", 0, 0.8), pair("bce", 0, 0.8 + gain), pair("bce", 1, 0.1)]
    found = claims.gains(pairs, "test.uniform_accuracy", "uniform accuracy")
    assert found.holds is holds
    assert found.detail == f"{100 * gain:+.2f} points"
    assert claims.gains(pairs[1:], "test.uniform_accuracy", "uniform accuracy").holds is None


def test_faster_means_lower_over_the_first_fifth():
    def falling(early, late):
        return run(history=[{"epoch": e, "train": {"nc1": early if e <= 2 else late}} for e in range(1, 11)])

    pairs = [({"loss": "ce"}, falling(1.0, 0.001)), ({"loss": "bce"}, falling(0.5, 0.01))]
    assert claims.bce_first(pairs, ("train.nc1",)).holds is True
    swapped = [({"loss": "bce"}, pairs[0][1]), ({"loss": "ce"}, pairs[1][1])]
    assert claims.bce_first(swapped, ("train.nc1",)).holds is False
    assert claims.bce_first(pairs[:1], ("train.nc1",)).holds is None


def test_faster_compares_the_epochs_that_both_runs_measured():
    def run_at(epochs, scale, length=20):
        history = [{"epoch": e, "train": {"nc1": scale * 0.5**e}} for e in epochs]
        return run(epochs=length, history=history)

    def tell(ce, bce):
        return claims.bce_first([({"loss": "ce"}, ce), ({"loss": "bce"}, bce)], ("train.nc1",)).holds

    often, seldom = range(1, 21), range(4, 21, 4)
    assert tell(run_at(seldom, 1.0), run_at(often, 0.5)) is True  # lower wherever both are known, if not on average
    assert tell(run_at(seldom, 0.5), run_at(often, 1.0)) is False
    assert tell(run_at(seldom, 1.0), run_at((1, 2, 3, 5), 0.5)) is None
    assert tell(run_at(often, 1.0), run_at(often, 0.5, length=40)) is None


@pytest.mark.parametrize("name", CHECKS)
def test_without_what_it_needs_a_claim_is_open(name):
    keys = {"loss": "none", "bias_decay": 0.0, "bias_init": 0.0, "dim": 0, "head": "none"}
    found = CHECKS[name]([(keys, run())])
    assert found
    assert all(claim.holds is None for claim in found)
