"""What each paper alone says in words, checked on runs made by hand."""

import pytest

from ncollapse.papers import all_losses, bce_vs_ce_claims, imbalanced_relu, mse_landscape, publications
from ncollapse.papers.catalogue import get_experiment
from reference.paper_runs import curve, run


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
            for name in ("positive_score", "negative_score", "bias")
        }
        runs.append((point.keys, run(**printed)))
    assert [claim.holds for claim in bce_vs_ce_claims.final_biases_by_batch(runs)] == [True, True]
    assert not bce_vs_ce_claims.separates_scores(runs).holds, "SGD at 2048, of which the paper says nothing"


def test_on_cifar100_metrics_fall_under_adamw_alone():
    fast, slow = (0.5, 0.2, 0.1, 0.05, 0.01, 0.01, 0.01, 0.01, 0.001, 0.001), (1.0, 0.9, *[0.8] * 8)

    def claim_of(adamw, sgd, *exceptions):
        runs = []
        for model in ("resnet18", "resnet50", "densenet121"):
            for optimizer, values in (("adamw", adamw), ("sgd", sgd)):
                for loss, factor in (("ce", 1.0), ("bce", 2.0 if (model, optimizer) in exceptions else 0.5)):
                    history = curve(*(factor * value for value in values))
                    runs.append(({"model": model, "optimizer": optimizer, "loss": loss}, run(history=history)))
        return [claim.holds for claim in bce_vs_ce_claims.collapse_curves_cifar100(runs)[:3]]

    assert claim_of(fast, slow, ("resnet50", "sgd")) == [True, True, True]
    assert claim_of(slow, slow) == [False, True, True]
    assert claim_of(fast, fast) == [True, False, True]
    most = [("resnet18", "sgd"), ("resnet50", "sgd"), ("densenet121", "sgd")]
    assert claim_of(fast, slow, *most) == [True, True, False], "half is not most"


@pytest.mark.parametrize(
    ("accuracy", "uniform", "nc1", "holds"),
    [(2, 3, 4, True), (3, 3, 3, True), (2, 4, 3, False), (3, 2, 4, False), (2, None, None, True), (None,) * 4],
)
def test_accuracy_then_uniform_accuracy_then_collapse(accuracy, uniform, nc1, holds):
    def reached(epoch, at):
        return at is not None and epoch >= at

    history = [
        {
            "epoch": e,
            "train": {
                "accuracy": 1.0 if reached(e, accuracy) else 0.9,
                "uniform_accuracy": 1.0 if reached(e, uniform) else 0.8,
                "nc1": 1e-5 if reached(e, nc1) else 0.5,
            },
        }
        for e in range(1, 6)
    ]
    assert bce_vs_ce_claims.accuracy_comes_first([({}, run(history=history))]).holds is holds


@pytest.mark.parametrize(("value", "holds"), [(0.02, True), (0.3, False)])
def test_the_means_are_orthogonal(value, holds):
    assert imbalanced_relu.are_orthogonal([({}, run(train__mean_orthogonality=value))]).holds is holds
    assert imbalanced_relu.are_orthogonal([({}, run())]).holds is None


@pytest.mark.parametrize(("low", "holds"), [(0.6, True), (0.96, False)])
def test_mse_needs_dimensions(low, holds):
    runs = [({"loss": "mse", "dim": d}, run(test__accuracy=a)) for d, a in ((2, low), (9, 0.95), (512, 0.951))]
    runs.append(({"loss": "ce", "dim": 2}, run(test__accuracy=0.99)))
    assert mse_landscape.needs_dimensions(runs).holds is holds
    assert mse_landscape.needs_dimensions(runs[1:]).holds is None


@pytest.mark.parametrize(("low", "holds"), [(0.94, True), (0.9, False)])
def test_ce_does_not_need_dimensions(low, holds):
    runs = [({"loss": "ce", "dim": d}, run(test__accuracy=a)) for d, a in ((2, low), (512, 0.951))]
    runs.append(({"loss": "mse", "dim": 2}, run(test__accuracy=0.3)))
    assert mse_landscape.does_not_need_dimensions(runs).holds is holds
    assert mse_landscape.does_not_need_dimensions(runs[1:]).holds is None


@pytest.mark.parametrize(("fixed", "holds"), [(0.945, True), (0.93, False)])
def test_a_fixed_classifier_is_enough(fixed, holds):
    heads = (("linear", 0.95), ("etf", 0.96), ("etf", fixed))
    runs = [({"head": head}, run(test__accuracy=value)) for head, value in heads]
    assert mse_landscape.fixed_is_enough(runs)[0].holds is holds
    assert mse_landscape.fixed_is_enough(runs[1:])[0].holds is None


@pytest.mark.parametrize(("accuracies", "holds"), [((0.6, 0.7), True), ((0.7, 0.6), False)])
def test_at_three_dimensions_ce_discriminates_better(accuracies, holds):
    runs = [
        ({"loss": loss}, run(test__accuracy=value, train__cosine_margin=value))
        for loss, value in zip(("mse", "ce"), accuracies)
    ]
    assert [claim.holds for claim in mse_landscape.three_dimensions(runs)] == [holds, holds]


def test_rescaling_is_judged_along_each_parameter():
    def point(alpha, M, nc1, accuracy):
        return {"alpha": alpha, "M": M}, run(train__nc1=nc1, test__accuracy=accuracy)

    runs = [point(1.0, 1.0, 1.0, 0.6), point(5.0, 1.0, 0.5, 0.7), point(1.0, 3.0, 0.5, 0.5)]
    assert [claim.holds for claim in mse_landscape.rescaling_helps(runs)] == [True, True, True, False]


def place(width, epochs, loss, accuracy, nc1=1.0):
    return {"width": width, "epochs": epochs, "loss": loss}, run(test__accuracy=accuracy, train__nc1=nc1)


@pytest.mark.parametrize(("wider", "longer", "holds"), [(0.9, 0.9, [True, True]), (0.8, 0.7, [True, False])])
def test_width_and_length_raise_accuracy(wider, longer, holds):
    runs = [place(0.25, 100, "ce", 0.75), place(0.5, 100, "ce", wider), place(0.25, 200, "ce", longer)]
    found = all_losses.by_width_and_epochs(runs, 0.36)
    assert [claim.holds for claim in found] == [*holds, None]
    assert found[0].detail.startswith("1 of 1 step: ")


@pytest.mark.parametrize(("nc1", "holds"), [(1e-3, True), (0.1, False)])
def test_the_large_network_is_more_collapsed(nc1, holds):
    runs = [place(0.25, 100, "ce", 0.9), place(2, 800, "ce", 0.95, nc1)]
    assert all_losses.more_collapsed_when_large(runs).holds is holds
    assert all_losses.more_collapsed_when_large(runs[:1]).holds is None


@pytest.mark.parametrize(("small", "holds"), [(0.05, True), (0.001, False)])
def test_small_networks_differ_more(small, holds):
    runs = [place(0.25, 100, "ce", 0.9), place(0.25, 100, "mse", 0.9 + small)]
    runs += [place(2, 800, "ce", 0.95), place(2, 800, "mse", 0.96)]
    assert all_losses.less_agreement_when_small(runs).holds is holds


@pytest.mark.parametrize(("fit", "holds"), [(1.0, True), (0.9, False)])
def test_every_loss_fits_the_training_data(fit, holds):
    runs = [({"loss": loss}, run(train__accuracy=fit, test__accuracy=0.9)) for loss in ("ce", "mse")]
    assert [claim.holds for claim in all_losses.equal_when_large(runs, 0.36)] == [holds, True]
