"""The experiments of "On the Optimization Landscape of Neural Collapse under MSE Loss" (Zhou et al.; ICML 2022)."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from functools import partial

from ncollapse.grammar import count
from ncollapse.papers.claims import Claim, Runs, approach_zero, falls_by_orders, ordered_alike
from ncollapse.papers.experiment import Experiment, Point, product

JUDGED = ("train.nc1", "train.nc2", "train.nc3")
COLLAPSE = (*JUDGED, "train.nc2_uncentred")
ACCURACIES = ("train.accuracy", "test.accuracy")
MARGIN = "train.cosine_margin"
DIMENSIONS = (2, 3, 5, 8, 9, 10, 512)
NUM_CLASSES = 10
SCALE = (
    "The authors' code averages the squared errors over the classes and does not halve them, and so do these runs: that"
    " is 2/K of the loss in the paper's equations. Summed over the classes, the loss diverges at the printed rate of"
    " 0.05 within six steps."
)
CENTRED = "The authors' code centres W for NC2 (nc2), which the paper's definition does not: both are shown."


def optimizers() -> list[Point]:
    """Figure 3: the plain MSE under three optimisers, without augmentation."""
    from ncollapse.train import recipes

    return [
        Point({"data": "cifar10", "optimizer": name, "loss": "mse"}, recipes.get(f"mse-landscape/{name}"))
        for name in ("sgd", "adam", "lbfgs")
    ]


def dimensions(dims: Sequence[int]) -> list[Point]:
    """Figures 4 and 7: features of different dimension, under MSE and CE."""
    from ncollapse.train import recipes

    return [
        Point(keys, recipes.get("mse-landscape/augmented", loss=keys["loss"]).override(model__feature_dim=keys["dim"]))
        for keys in product(data=("cifar10",), loss=("mse", "ce"), dim=dims)
    ]


def classifiers() -> list[Point]:
    """Figure 5: a learned classifier and a fixed simplex ETF, with d = 512 and d = K, the bias learned in all."""
    from ncollapse.train import recipes

    base = recipes.get("mse-landscape/augmented")
    points = []
    for head, dim in (("linear", 512), ("etf", 512), ("linear", 10), ("etf", 10)):
        changes = {"model__head": head, "model__feature_dim": dim}
        points.append(Point({"data": "cifar10", "loss": "mse", "head": head, "dim": dim}, base.override(**changes)))
    return points


def rescaled() -> list[Point]:
    """Figure 6: alpha with M = 1 and M with alpha = 1, on miniImageNet."""
    from ncollapse.train import recipes

    pairs = [(alpha, 1.0) for alpha in (1.0, 5.0, 15.0, 20.0)] + [(1.0, M) for M in (3.0, 5.0, 7.0, 10.0)]
    return [
        Point(
            {"data": "mini-imagenet", "loss": "mse", "alpha": alpha, "M": M},
            recipes.get("mse-landscape/mini-imagenet", alpha=alpha, M=M),
        )
        for alpha, M in pairs
    ]


def random_labels() -> list[Point]:
    """Random labels (Sec. 2.2 cites them for the model's assumption): MSE and CE on CIFAR10 without augmentation."""
    from ncollapse.train import recipes

    return [
        Point(
            {"data": "cifar10", "loss": loss},
            recipes.get("mse-landscape/sgd", loss=loss).override(data__random_labels=True),
        )
        for loss in ("mse", "ce")
    ]


def nothing() -> list[Point]:
    """No runs: the figure is computed."""
    return []


def collapse_and_margin(runs: Runs) -> list[Claim]:
    """Figure 3: every optimiser leads to collapse, and the cosine margin aligns with test accuracy."""
    text = "the cosine margin orders the optimisers as test accuracy does"
    return [
        approach_zero(runs, JUDGED),
        falls_by_orders(runs),
        ordered_alike(runs, f"{MARGIN}.mean", "test.accuracy", text),
    ]


def dimension_matters(runs: Runs) -> list[Claim]:
    """Figure 4: MSE needs d >= K - 1, CE does not; both collapse."""
    return [needs_dimensions(runs), does_not_need_dimensions(runs), falls_by_orders(runs)]


def needs_dimensions(runs: Runs) -> Claim:
    """Under MSE the best test accuracy with d < K - 1 is below the worst with d >= K - 1."""
    low, high = split_by_dimension(runs, "mse")
    if not low or not high:
        return Claim("MSE needs d >= K - 1", None, "")
    detail = f"at best {100 * max(low):.2f} % below, at worst {100 * min(high):.2f} % from K - 1 on"
    return Claim("MSE needs d >= K - 1", max(low) < min(high), detail)


def does_not_need_dimensions(runs: Runs) -> Claim:
    """Under CE test accuracy with d < K - 1 is within 2 points of that with d >= K - 1."""
    low, high = split_by_dimension(runs, "ce")
    text = "CE does not need d >= K - 1: its test accuracies lie within 2 points"
    if not low or not high:
        return Claim(text, None, "")
    spread = 100 * (max(low + high) - min(low + high))
    return Claim(text, spread <= 2, f"{spread:.2f} points over {count(len(low + high), 'dimension')}")


def split_by_dimension(runs: Runs, loss: str) -> tuple[list[float], list[float]]:
    """Test accuracies of the runs of a loss with d < K - 1 and with d >= K - 1."""
    mine = [(keys["dim"], record.final("test.accuracy")) for keys, record in runs if keys.get("loss") == loss]
    return [a for d, a in mine if d < NUM_CLASSES - 1], [a for d, a in mine if d >= NUM_CLASSES - 1]


def fixed_is_enough(runs: Runs) -> list[Claim]:
    """Figure 5: a fixed simplex ETF tests within a point of the learned classifier."""
    text = "a fixed ETF tests as well as a learned classifier"
    learned = [r.final("test.accuracy") for k, r in runs if k["head"] == "linear"]
    fixed = [r.final("test.accuracy") for k, r in runs if k["head"] == "etf"]
    if not learned or not fixed:
        return [Claim(text, None, "")]
    gap = 100 * (statistics.fmean(learned) - min(fixed))
    return [Claim(text, gap < 1, f"at worst {gap:.2f} points below")]


def rescaling_helps(runs: Runs) -> list[Claim]:
    """Figure 6: with the other parameter at 1, larger alpha or M gives less NC1 and more accuracy."""
    found = []
    for axis, other in (("alpha", "M"), ("M", "alpha")):
        mine = sorted((keys[axis], record) for keys, record in runs if keys.get(other) == 1.0 and axis in keys)
        for field, sign, what in (("train.nc1", -1, "lowers NC1"), ("test.accuracy", 1, "raises test accuracy")):
            values = [record.final(field) for _, record in mine]
            steps = [sign * (b - a) > 0 for a, b in itertools.pairwise(values)]
            detail = ", ".join(f"{value:.4g}" for value in values)
            found.append(Claim(f"a larger {axis} {what}", all(steps) if steps else None, detail if steps else ""))
    return found


def three_dimensions(runs: Runs) -> list[Claim]:
    """Figure 7: at d = 3 the features of CE discriminate better: larger margin, larger accuracy."""
    found = []
    for field, what in ((f"{MARGIN}.mean", "mean cosine margin"), ("test.accuracy", "test accuracy")):
        means = {}
        for loss in ("mse", "ce"):
            values = [record.final(field) for keys, record in runs if keys.get("loss") == loss]
            means[loss] = statistics.fmean(values) if values else math.nan
        known = all(map(math.isfinite, means.values()))
        detail = f"{means['ce']:.4f} against {means['mse']:.4f}" if known else ""
        text = f"with d = 3 the features of CE discriminate better than those of MSE: {what}"
        found.append(Claim(text, means["ce"] > means["mse"] if known else None, detail))
    return found


def random_labels_collapse(runs: Runs) -> list[Claim]:
    """NC1 approaches zero though the labels are random."""
    return [approach_zero(runs, ("train.nc1",))]


EXPERIMENTS = (
    Experiment("mse-landscape/figure-2", "losses over norm and angle of one feature", nothing, protocol="landscape"),
    Experiment(
        "mse-landscape/figure-3",
        "collapse under SGD, Adam and L-BFGS",
        optimizers,
        curves=(*COLLAPSE, *ACCURACIES),
        finals=("train.nc1", MARGIN, "test.accuracy"),
        claims=collapse_and_margin,
        notes=(
            "Without augmentation the authors' code has ImageNet's stem; its commands run L-BFGS at a rate of 0.1, the"
            " paper says 0.01, and so do we.",
            SCALE,
            CENTRED,
        ),
    ),
    Experiment(
        "mse-landscape/figure-4",
        "MSE and CE by feature dimension",
        partial(dimensions, DIMENSIONS),
        curves=("train.nc1", *ACCURACIES),
        finals=("train.nc1", MARGIN, *ACCURACIES),
        claims=dimension_matters,
        notes=(
            "The dimensions 2 and 3 are our choice, the others those of the authors' commands. The output of the last"
            " block is narrowed, no other layer: the features are ReLU outputs of that width.",
            SCALE,
        ),
    ),
    Experiment(
        "mse-landscape/figure-5",
        "learned classifier against a fixed simplex ETF",
        classifiers,
        curves=("train.nc1", "train.nc3", *ACCURACIES),
        finals=("train.nc1", *ACCURACIES),
        claims=fixed_is_enough,
        notes=(SCALE,),
    ),
    Experiment(
        "mse-landscape/figure-6",
        "rescaled MSE on miniImageNet by alpha and M",
        rescaled,
        curves=("train.nc1", *ACCURACIES),
        finals=("train.nc1", *ACCURACIES),
        claims=rescaling_helps,
        notes=("The values of alpha and M are those of the authors' commands.", SCALE),
    ),
    Experiment(
        "mse-landscape/figure-7",
        "features of dimension 3 under MSE and CE",
        partial(dimensions, (3,)),
        finals=(MARGIN, "test.accuracy"),
        claims=three_dimensions,
    ),
    Experiment("mse-landscape/figure-8", "gradients over norm and angle of one feature", nothing, protocol="landscape"),
    Experiment(
        "mse-landscape/random-labels",
        "collapse on random labels (discussed in Sec. 2.2)",
        random_labels,
        curves=COLLAPSE,
        finals=("train.nc1", "train.accuracy"),
        claims=random_labels_collapse,
        notes=(SCALE,),
    ),
)
