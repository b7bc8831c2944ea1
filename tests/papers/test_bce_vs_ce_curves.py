"""What bce-vs-ce says of the course of its trainings, on runs made by hand."""

from dataclasses import replace

import pytest

from ncollapse.papers import bce_vs_ce_curves as claims
from ncollapse.papers import publications
from ncollapse.papers.catalogue import get_experiment
from reference.paper_runs import curve, run


def test_on_cifar100_metrics_fall_under_adamw_alone():
    fast, slow = (0.5, 0.2, 0.1, 0.05, 0.01, 0.01, 0.01, 0.01, 0.001, 0.001), (1.0, 0.9, *[0.8] * 8)

    def claim_of(adamw, sgd, *exceptions, under_sgd=None):
        runs = []
        for model in ("resnet18", "resnet50", "densenet121"):
            for optimizer, values in (("adamw", adamw), ("sgd", sgd)):
                for loss, factor in (("ce", 1.0), ("bce", 2.0 if (model, optimizer) in exceptions else 0.5)):
                    if optimizer == "sgd":
                        values = (under_sgd or {}).get((model, loss), sgd)
                    history = curve(*(factor * value for value in values))
                    runs.append(({"model": model, "optimizer": optimizer, "loss": loss}, run(history=history)))
        return [claim.holds for claim in claims.collapse_curves_cifar100(runs)[:3]]

    assert claim_of(fast, slow, ("resnet50", "sgd")) == [True, True, True]
    assert claim_of(slow, slow) == [False, True, True]
    assert claim_of(fast, fast) == [True, False, True]
    one = {("resnet18", "ce"): fast}
    assert claim_of(fast, slow, under_sgd=one) == [True, False, True], "every model, not one of them"
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
    assert claims.accuracy_comes_first([({}, run(history=history))]).holds is holds


def test_under_sgd_it_is_counted_which_models_stay_above_zero():
    """NC1 falls far in both; of one run NC3 stays as well, of the other nothing does."""
    rows = [{"epoch": e, "train": {"nc1": a, "nc2": a, "nc3": b}} for e, a, b in ((1, 1.0, 1.0), (2, 0.01, 0.9))]
    runs = [({"optimizer": "sgd"}, run(history=rows))]
    found = claims.stays_above_zero(runs)
    assert found.holds is True
    assert found.detail == "in 1 of 1 model; 1 of 3 curves stay up"
    found = claims.stays_above_zero([*runs, ({"optimizer": "sgd"}, run(history=curve(1.0, 0.01)))])
    assert found.holds is False
    assert found.detail == "in 1 of 2 models; 1 of 6 curves stay up"
    assert claims.stays_above_zero([]).holds is None


def course(*rows):
    """A run whose epochs have these accuracies, uniform accuracies and NC1."""
    names = ("accuracy", "uniform_accuracy", "nc1")
    return {}, run(history=[{"epoch": e, "train": dict(zip(names, row, strict=True))} for e, row in enumerate(rows, 1)])


@pytest.mark.parametrize(
    ("rows", "holds"),
    [
        (((0.9, 0.9, 1.0), (1.0, 1.0, 1e-3), (1.0, 1.0, 1e-5)), True),
        (((0.9, 0.9, 1.0), (1.0, 0.9, 1e-3)), True),
        (((0.9, 0.9, 1.0), (1.0, 0.9, 1e-5)), False),
        (((0.9, 0.9, 1.0), (0.9, 0.9, 1e-5)), False),
        (((0.9, 0.9, 1.0),), None),
    ],
)
def test_the_early_version_says_only_that_collapse_comes_after_zero_error(rows, holds):
    """Uniform accuracy does not matter there; the claim that has it is the final version's."""
    found = get_experiment("bce-vs-ce-early/figure-2").claims([course(*rows)])[-1]
    assert found.holds is holds
    assert "uniform" not in found.text
    assert [claims.collapse_curves([course(*rows)])[-1].text.count("uniform")] == [1]


@pytest.mark.parametrize(
    ("rows", "holds"),
    [
        (((1.0, 0.99, 1.0), (1.0, 1.0, 1e-3)), True),
        (((0.9, 0.99, 1.0), (1.0, 1.0, 1e-3)), None),
        (((1.0, 0.99, 1.0), (1.0, 1.0, 1e-5)), None),
        (((1.0, 0.99997, 1.0), (1.0, 1.0, 1e-3)), None),
    ],
)
def test_both_reverses_are_seen_to_be_false_in_some_run(rows, holds):
    """That no run shows one of them does not decide it: another model may. 99.997 % prints as 100.00."""
    assert claims.reverses_are_not_true([course(*rows)]).holds is holds
    assert claims.reverses_are_not_true([]).holds is None


@pytest.mark.parametrize(
    ("accuracy", "std", "nc1", "holds"),
    [(1.0, 2.5, 0.1, True), (1.0, 0.1, 0.1, False), (1.0, 2.5, 1e-5, False), (0.999, 0.1, 0.1, None)],
)
def test_models_that_fit_every_sample_need_not_collapse(accuracy, std, nc1, holds):
    keys, record = course((0.9, 0.9, 1.0), (accuracy, 0.9, nc1))
    spread = {f"{sign}_score": {"mean": 1.0, "std": std} for sign in ("positive", "negative")}
    record = replace(record, summary={"status": "finished", "train": spread})
    assert claims.fits_without_collapse([(keys, record)]).holds is holds


def test_the_printed_spreads_of_models_that_fit_every_sample_are_large():
    table = publications.load("bce-vs-ce")["table-12"]
    runs = []
    for point in get_experiment("bce-vs-ce/table-12").grid():
        accuracy = table.find("train.accuracy", **point.keys).value
        cells = {f"{sign}_score": table.find(f"train.{sign}_score", **point.keys) for sign in ("positive", "negative")}
        train = {name: {"mean": cell.value, "std": float(cell.std)} for name, cell in cells.items()}
        runs.append((point.keys, replace(course((accuracy, accuracy, 0.1))[1], summary={"train": train})))
    found = claims.classified_on_cifar10(runs)[-1]
    assert found.holds is True
    assert found.detail == "standard deviations of 2.67 at least, collapse in 0 of 3 runs"


@pytest.mark.parametrize("number", [4, 5])
def test_the_causes_of_sgd_name_where_the_text_contradicts_itself(number):
    (cause,) = get_experiment(f"bce-vs-ce/figure-{number}").claim_causes
    assert "erratum 37" in cause.why
    assert claims.collapse_curves([])[1].text.startswith(cause.start)
