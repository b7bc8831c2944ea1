"""The experiments of the paper on imbalanced classes and ReLU features (Dang, Tran, Nguyen, Ho)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ncollapse.experiments.experiment import Experiment, Point

COLLAPSE = ("train.nc1", "train.nc2_relu", "train.nc3_relu")


def grid(models: Sequence[str]) -> list[Point]:
    """CE without bias on the imbalanced subset of CIFAR10."""
    from ncollapse.train import recipes

    return [
        Point({"data": "cifar10", "model": model, "loss": "ce"}, recipes.get(f"imbalanced-relu/{model}"))
        for model in models
    ]


EXPERIMENTS = (
    Experiment(
        "imbalanced-relu/figure-1",
        "NC metrics of the MLP on imbalanced CIFAR10",
        partial(grid, ("mlp-1024", "mlp-2048")),
        curves=COLLAPSE,
    ),
    Experiment(
        "imbalanced-relu/figure-2",
        "NC metrics of ResNet18 on imbalanced CIFAR10",
        partial(grid, ("resnet18",)),
        curves=COLLAPSE,
    ),
    Experiment(
        "imbalanced-relu/figure-3",
        "orthogonality of the class means of the MLP",
        partial(grid, ("mlp-1024",)),
        finals=("train.mean_orthogonality",),
    ),
)
