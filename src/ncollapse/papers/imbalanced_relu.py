"""The experiments of the paper on imbalanced classes and ReLU features (Dang, Tran, Nguyen, Ho)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ncollapse.papers.experiment import Experiment, Point, product

COLLAPSE = ("train.nc1", "train.nc2_relu", "train.nc3_relu")


READINGS = (
    "The paper says SGD, at a rate of 1e-4 or 5e-5. Taken at its word, without momentum, that cannot fit the data in"
    " 4000 epochs: the MLP at ten times the rate for a tenth of the epochs, which goes as far, ended at a training"
    " accuracy of 47 % (run 971c085668ec). Adam at the printed rate fits and collapses, and the same authors' public"
    " code for a sister paper, on deep linear networks, trains such an MLP by it. Both readings are in the grid and"
    " judged apart.",
)


def grid(models: Sequence[str]) -> list[Point]:
    """CE without bias on the imbalanced subset of CIFAR10, under SGD as printed and under Adam at the same rate."""
    from ncollapse.train.recipes import imbalanced_relu

    return [
        Point({**axes, "loss": "ce"}, imbalanced_relu(axes["model"], axes["optimizer"]))
        for axes in product(data=("cifar10",), model=models, optimizer=("sgd", "adam"))
    ]


EXPERIMENTS = (
    Experiment(
        "imbalanced-relu/figure-1",
        "NC metrics of the MLP on imbalanced CIFAR10",
        partial(grid, ("mlp-1024", "mlp-2048")),
        curves=COLLAPSE,
        notes=READINGS,
    ),
    Experiment(
        "imbalanced-relu/figure-2",
        "NC metrics of ResNet18 on imbalanced CIFAR10",
        partial(grid, ("resnet18",)),
        curves=COLLAPSE,
        notes=READINGS,
    ),
    Experiment(
        "imbalanced-relu/figure-3",
        "orthogonality of the class means of the MLP",
        partial(grid, ("mlp-1024",)),
        finals=("train.mean_orthogonality",),
        notes=READINGS,
    ),
)
