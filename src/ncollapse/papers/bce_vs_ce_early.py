"""The experiments of the version of "BCE vs. CE in Deep Feature Learning" that was under review: runs it shares."""

from __future__ import annotations

from functools import partial

from ncollapse.papers.bce_vs_ce import (
    ACCURACIES,
    CIFARS,
    COLLAPSE,
    SCORES,
    UNSETTLED,
    classification,
    collapse,
    figure_3,
)
from ncollapse.papers.experiment import Experiment, Point


def figure_4() -> list[Point]:
    """ResNet18 on CIFAR10 with AdamW and both augmentations."""
    return classification(("cifar10",), ("resnet18",), optimizer=("adamw",), augment=("DA1+DA2",))


EXPERIMENTS = (
    Experiment(
        "bce-vs-ce-early/table-1",
        "scores and biases on CIFAR10 (table 7 of the final version)",
        partial(collapse, "cifar10"),
        finals=(*SCORES[1:], "alpha", "train.accuracy"),
    ),
    Experiment(
        "bce-vs-ce-early/table-2",
        "accuracy and uniform accuracy (table 1 of the final version)",
        partial(classification, CIFARS),
        finals=ACCURACIES,
    ),
    Experiment(
        "bce-vs-ce-early/table-3",
        "compactness and distinctiveness (table 2 of the final version)",
        partial(classification, CIFARS),
        finals=("test.compactness", "test.distinctiveness"),
    ),
    Experiment(
        "bce-vs-ce-early/figure-2",
        "NC metrics of ResNet18 on CIFAR10",
        partial(collapse, "cifar10", ("resnet18",)),
        curves=COLLAPSE,
        notes=UNSETTLED,
    ),
    Experiment("bce-vs-ce-early/figure-3", "biases and scores by initial bias and lambda_b", figure_3, finals=SCORES),
    Experiment("bce-vs-ce-early/figure-4", "t-SNE of the test features, CE and BCE", figure_4, finals=ACCURACIES),
)
