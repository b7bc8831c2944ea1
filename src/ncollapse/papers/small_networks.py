"""Experiments of our own that need no GPU: what the papers say, on perceptrons that are trained to the end."""

from __future__ import annotations

import math
from typing import Any

from ncollapse.grammar import count
from ncollapse.papers.all_losses_claims import LOSSES, METRICS, fits, losses_agree
from ncollapse.papers.bce_vs_ce import ACCURACIES, COLLAPSE, SCORES, train_point
from ncollapse.papers.claims import Claim, Runs, approach_zero, by_key, faster_under_bce, higher_under_bce
from ncollapse.papers.experiment import ClaimCause, Experiment, Point, product
from ncollapse.papers.mse_landscape_claims import generalise_differently
from ncollapse.runs.record import RunRecord

NARROW = (2, 3, 5)
NEAR = 0.02
PARAMETERS: dict[str, dict[str, Any]] = {
    "ce": {},
    "focal": {"loss__gamma": 3.0},
    "ls": {"loss__alpha": 0.1},
    "mse": {"loss__kappa": 1.0, "loss__beta": 15.0, "loss__class_reduction": "mean"},
}
"""Those of the recipe of all-losses."""


NARROW_CAUSES = (
    ClaimCause(
        "under BCE NC1",
        "in five dimensions BCE ends in a local minimum: its objective is 0.340, that of the lowest known one 0.294"
        " (results/theory/narrow-optima.json). The rows of W less their mean have four dimensions there (NC2 0.8165 is"
        " that of such a frame); the fifth carries what all classes share, and NC1 counts it too. Started at the"
        " predicted bias BCE does not end there, see ncollapse/narrow-bias-init",
    ),
    ClaimCause(
        "BCE's NC1 falls",
        "its bias starts at 0 and has to reach 5.2 to 8.3 (results/theory/narrow-optima.json); from the predicted bias"
        " NC1 falls sooner, see ncollapse/narrow-bias-init",
    ),
    ClaimCause(
        "BCE raises uniform accuracy",
        "it does in two dimensions; in three and five that of CE is within 0.3 points of its accuracy already",
    ),
)
SLOW_CAUSES = (
    ClaimCause(
        "under MSE the mean scores",
        "W is still shrinking after 100 epochs; after 300 (run d26365cbd3bb) |W|^2 is 0.06 % from the optimum and the"
        " mean scores 0.5 %",
    ),
)


def perceptron_point(keys: dict[str, Any], **changes: Any) -> Point:
    """A perceptron on MNIST, its images as they are, by setting 2 of bce-vs-ce (AdamW, decays of W, features and b)."""
    images = {"data__image_size": None, "data__channels": None, "precision": "fp32"}
    return train_point({"data": "mnist", "model": "mlp-128", "optimizer": "adamw", **keys}, **images, **changes)


def other_loss(loss: str, keys: dict[str, Any], **changes: Any) -> Point:
    """The perceptron under a loss that bce-vs-ce does not have."""
    point = perceptron_point({"loss": "ce"}, loss__name=loss, **changes)
    return Point({**point.keys, "loss": loss, **keys}, point.recipe)


def four_losses() -> list[Point]:
    """CE, focal loss, label smoothing and the rescaled MSE."""
    return [other_loss(loss, {}, **changes) for loss, changes in PARAMETERS.items()]


def three_optimisers() -> list[Point]:
    """MSE on 500 images of each class; batches of one size, so that theory sees one problem."""
    few = {"data__samples_per_class": 500, "optim__batch_size": 500, "optim__momentum": 0.9}
    mse = {"loss__kappa": 1.0, "loss__beta": 1.0}
    plain = {"optim__epochs": 2000, "measure_every": 20}
    search = {"optim__epochs": 200, "measure_every": 5, "schedule__name": "constant"}  # it chooses its steps itself
    points = []
    for name, rate, pace in (("sgd", 0.05, plain), ("adam", 1e-3, plain), ("lbfgs", 0.01, search)):
        keys = {"optimizer": name, "epochs": pace["optim__epochs"]}
        points.append(other_loss("mse", keys, optim__name=name, optim__lr=rate, **few, **mse, **pace))
    return points


def more_classes_than_dimensions() -> list[Point]:
    """CE and BCE, the features projected to fewer dimensions than classes."""
    axes = product(loss=("ce", "bce"), dim=NARROW)
    return [perceptron_point(keys, model__feature_dim_linear=keys["dim"]) for keys in axes]


def losses_end_alike(runs: Runs) -> list[Claim]:
    """What all-losses says of each loss (it fits, collapses, tests as the others do), and where each of them ends."""
    return [
        fits(runs),
        *by_key(runs, "loss", LOSSES, lambda some: approach_zero(some, METRICS)),
        *by_key(runs, "loss", LOSSES, ends_at_the_optimum),
        losses_agree(runs, place={}, where="at the end"),
    ]


def optimisers_end_alike(runs: Runs) -> list[Claim]:
    """Where each optimiser ends; and, as mse-landscape says of its Figure 3, whether it matters for the test set."""
    return [*by_key(runs, "optimizer", ("sgd", "adam", "lbfgs"), ends_at_the_optimum), generalise_differently(runs)]


def ends_at_the_optimum(runs: Runs) -> Claim:
    """The mean scores and |W|^2 of every run end within 2 % of its predicted optimum."""
    errors = [error for _, record in runs for error in measure_errors(record)]
    text = f"the mean scores and |W|^2 end within {100 * NEAR:g} % of the predicted optimum"
    threshold = "ours; of a score as a share of the distance of the two"
    if not errors:
        return Claim(text, None, "", threshold)
    return Claim(
        text, max(errors) <= NEAR, f"at most {100 * max(errors):.2f} % over {count(len(runs), 'run')}", threshold
    )


def measure_errors(record: RunRecord) -> list[float]:
    """How far scores and |W|^2 are from the prediction in the record, relative; empty without one."""
    names = ("positive_score.mean", "negative_score.mean", "weight_energy")
    ours = [record.final(f"train.{name}") for name in names]
    best = [record.final(f"prediction.{name.removesuffix('.mean')}") for name in names]
    if not all(map(math.isfinite, (*ours, *best))):
        return []
    gap = best[0] - best[1]
    return [abs(x - y) / scale for x, y, scale in zip(ours, best, (gap, gap, best[2]))]


def narrow_collapse(runs: Runs) -> list[Claim]:
    """What bce-vs-ce speculates of K > d (Sec. 5): BCE collapses as CE does, is the faster, and keeps its advantage."""
    return [
        *by_key(runs, "loss", ("ce", "bce"), lambda some: approach_zero(some, ("train.nc1",))),
        faster_under_bce(runs, ("train.nc1",), mostly=True),
        higher_under_bce(runs, "test.uniform_accuracy", "uniform accuracy"),
    ]


EXPERIMENTS = (
    Experiment(
        "ncollapse/k-greater-than-d",
        "does BCE collapse as CE does, and sooner, with more classes than dimensions?",
        more_classes_than_dimensions,
        asks=True,
        curves=COLLAPSE,
        finals=(*SCORES, *ACCURACIES),
        claims=narrow_collapse,
        claim_causes=NARROW_CAUSES,
        caption="A perceptron on MNIST as in setting 2 of bce-vs-ce (AdamW, batch size 128, decays 5e-4), its features"
        " projected to 2, 3 and 5 dimensions.",
    ),
    Experiment(
        "ncollapse/four-losses",
        "do four losses end where theory says, and test alike?",
        four_losses,
        asks=True,
        curves=(*METRICS, *ACCURACIES),
        finals=(*SCORES, *ACCURACIES),
        claims=losses_end_alike,
        claim_causes=SLOW_CAUSES,
        caption="A perceptron on MNIST as in setting 2 of bce-vs-ce (AdamW, batch size 128, decays 5e-4), under the"
        " losses of all-losses with its parameters.",
    ),
    Experiment(
        "ncollapse/three-optimisers",
        "do SGD, Adam and L-BFGS end at one optimum?",
        three_optimisers,
        asks=True,
        curves=(*METRICS, "train.accuracy", "test.accuracy"),
        finals=(*SCORES, *ACCURACIES),
        claims=optimisers_end_alike,
        caption="A perceptron on 500 images of each class of MNIST under MSE, with a batch size of 500 and decays of W,"
        " features and b of 5e-4: 2000 epochs of SGD and Adam, 200 of L-BFGS, whose steps have up to 25 evaluations."
        " mse-landscape compares these optimisers on ResNet18 (Figure 3).",
    ),
)
