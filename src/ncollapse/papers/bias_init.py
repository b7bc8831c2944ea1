"""Experiments of our own."""

from __future__ import annotations

from ncollapse.papers.bce_vs_ce import COLLAPSE, SCORES, train_point
from ncollapse.papers.experiment import Experiment, Point, product


def bias_starts() -> list[Point]:
    """BCE on MNIST by setting 2, the bias starting at 0 and at its predicted optimum, with and without bias decay."""
    fixed = {"data": ("mnist",), "model": ("resnet18",), "optimizer": ("adamw",), "loss": ("bce",)}
    axes = product(**fixed, bias_decay=(0.0, 5e-4), bias_init=(0.0, "theory"))
    return [train_point(k, decays__bias=k["bias_decay"], model__bias_init=k["bias_init"]) for k in axes]


EXPERIMENTS = (
    Experiment(
        "ncollapse/bias-init",
        "does BCE collapse sooner, and end closer to its optimum, from the predicted bias?",
        bias_starts,
        curves=(*COLLAPSE, "certificate.relative_gap"),
        finals=(*SCORES, "certificate.relative_gap"),
        caption="ResNet18 on MNIST as in setting 2 of bce-vs-ce (AdamW, batch size 128, decays 5e-4), lambda_b = 0 and"
        " 5e-4: the bias starts at 0, or where theory has its optimum.",
    ),
)
