"""The experiments of the version of "BCE vs. CE in Deep Feature Learning" that was under review: runs it shares."""

from __future__ import annotations

from functools import partial
from typing import Any

from ncollapse.papers import bce_vs_ce_claims as claims
from ncollapse.papers import bce_vs_ce_curves as curves
from ncollapse.papers import bce_vs_ce_discussion as discussion
from ncollapse.papers.bce_vs_ce import (
    ACCURACIES,
    CIFARS,
    COLLAPSE,
    CORRECT_ONLY,
    MIXED,
    SCORES,
    SGD_STAYS,
    SIMILARITIES,
    UNSETTLED,
    classification,
    collapse,
    figure_3,
)
from ncollapse.papers.experiment import Experiment, Point


def figure_4() -> list[Point]:
    """ResNet18 on CIFAR10 with AdamW and both augmentations."""
    return classification(("cifar10",), ("resnet18",), optimizer=("adamw",), augment=("DA1+DA2",))


def entry(item: str, title: str, grid: Any, **kw: Any) -> Experiment:
    """An experiment of this version."""
    return Experiment(f"bce-vs-ce-early/{item}", title, grid, **claims.EXCEPTIONS, **kw)


EXPERIMENTS = (
    entry(
        "table-1",
        "scores and biases on CIFAR10 (table 7 of the final version)",
        partial(collapse, "cifar10"),
        finals=(*SCORES[1:], "alpha", "train.accuracy"),
        claims=claims.small_spreads,
    ),
    entry(
        "table-2",
        "accuracy and uniform accuracy (table 1 of the final version)",
        partial(classification, CIFARS),
        finals=ACCURACIES,
        claims=claims.accuracies,
        notes=MIXED,
    ),
    entry(
        "table-3",
        "compactness and distinctiveness (table 2 of the final version)",
        partial(classification, CIFARS),
        finals=SIMILARITIES,
        claims=claims.similarities,
        notes=CORRECT_ONLY,
    ),
    entry(
        "figure-2",
        "NC metrics of ResNet18 on CIFAR10",
        partial(collapse, "cifar10", ("resnet18",)),
        curves=COLLAPSE,
        claims=curves.collapse_curves_early,
        notes=UNSETTLED,
        claim_causes=SGD_STAYS,
    ),
    entry(
        "figure-3",
        "biases and scores by initial bias and lambda_b",
        figure_3,
        finals=SCORES,
        claims=claims.final_biases,
    ),
    entry(
        "figure-4",
        "t-SNE of the test features, CE and BCE",
        figure_4,
        finals=ACCURACIES,
        claims=discussion.cat_and_dog,
        notes=("A t-SNE has no scale of its own: what the paper reads off it is checked on the features themselves.",),
    ),
)
