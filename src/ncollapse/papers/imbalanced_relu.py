"""The experiments of the paper on imbalanced classes and ReLU features (Dang, Tran, Nguyen, Ho)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from ncollapse.papers.claims import Claim, Runs, approach_zero, by_key
from ncollapse.papers.experiment import ClaimCause, Experiment, Extension, Point, product

COLLAPSE = ("train.nc1", "train.nc2_relu", "train.nc3_relu")
OPTIMIZERS = ("sgd", "sgd-momentum", "adam")
PRINTED = ("sgd",)
"""The optimiser that the paper names; the others are ours."""
ORTHOGONAL = 0.1


OPTIMISER_NOTES = (
    "The paper says SGD, at a rate of 1e-4 or 5e-5. The grid has SGD, SGD with momentum and Adam, judged apart.",
    "Without momentum, SGD cannot fit the data in 4000 epochs at that rate: the MLP at ten times the rate for a"
    " tenth of the epochs, which is the same distance, ended at a training accuracy of 47 % (run 971c085668ec).",
    "With a momentum of 0.9 the MLP of width 1024 fits every sample from epoch 440 on. But the rate is divided by"
    " ten at epoch 2000, before the network has collapsed: NC2 is 0.64 there and 0.63 at epoch 4000 (run"
    " 5e711ececa3a).",
    "Adam at the printed rate fits and collapses. The same authors' public code for a sister paper, on deep linear"
    " networks, trains such an MLP with it.",
)


PACE_NOTES = (
    "SGD collapses at the pace of its decays. After 4000 epochs at the printed rate they leave 99.8 % of an initial"
    " weight that the loss does not see, and 98.0 % with a momentum of 0.9 (theory.md, Sec. 7).",
    "At 400 times the rate, with momentum and for 1500 epochs (run 61025c3da5de), they leave 0.6 %, and the MLP of"
    " width 1024 collapses under SGD too: NC1 is 0.00029, NC2 0.068, NC3 0.021, no cosine between two class means is"
    " above 0.054, and the scores are 8.80 and -0.978, predicted as 8.81 and -0.979.",
)


RATE_NOTES = (
    "At the optimum of this problem NC2 is 0: the finite decays do not raise it. Under Adam it falls in two parts,"
    " and a shorter run does not see the second.",
    "At the first rate NC2 rises and falls with the spikes of the loss: the MLP of width 1024 has 0.101 at epoch"
    " 2000 (run d5d42b236b49), and ResNet18 0.053 at epoch 1000 and 0.024 at epoch 1960 (run dd937fa94dc4).",
    "Once the rate is divided by ten, at epoch 2000, NC2 falls to 0.0035 by epoch 2400 in the MLP and 0.0024 in"
    " ResNet18. It stays there: 0.0015 and 0.0025 at epoch 4000.",
)


CAUSES = (
    ClaimCause(
        "under SGD the",
        "its decays hardly act at the printed rate. What collapses is beyond the paper: Adam at that rate, see below,"
        " and SGD with momentum at 400 times that rate, see the notes",
    ),
    ClaimCause(
        "under SGD with momentum",
        "it fits every sample, but its decays hardly act at the printed rate; at 400 times that rate it collapses, see"
        " the notes",
    ),
    ClaimCause("under Adam", "the training ended before the rate was divided, see the notes", if_short=True),
)


def grid(models: Sequence[str]) -> list[Point]:
    """CE without bias on the imbalanced subset of CIFAR10, under SGD as printed, with momentum, and under Adam."""
    from ncollapse.train.recipes import imbalanced_relu

    return [
        Point({**axes, "loss": "ce"}, imbalanced_relu(axes["model"], axes["optimizer"]))
        for axes in product(data=("cifar10",), model=models, optimizer=OPTIMIZERS)
    ]


def collapse(runs: Runs) -> list[Claim]:
    """Figures 1 and 2: under SGD the three metrics converge to zero."""
    return by_key(runs, "optimizer", PRINTED, lambda some: approach_zero(some, COLLAPSE))


def orthogonal_means(runs: Runs) -> list[Claim]:
    """Figure 3: under SGD the class means are orthogonal."""
    return by_key(runs, "optimizer", PRINTED, are_orthogonal)


def is_ours(keys: dict[str, Any]) -> bool:
    """Whether a run has an optimiser of ours: the paper says SGD."""
    return keys.get("optimizer") not in PRINTED


def list_ours(runs: Runs) -> list[str]:
    """The optimisers of ours that were run."""
    return [name for name in OPTIMIZERS[::-1] if name not in PRINTED and any(k["optimizer"] == name for k, _ in runs)]


def collapse_beyond(runs: Runs) -> list[Claim]:
    """The same under the optimisers of ours."""
    return by_key(runs, "optimizer", list_ours(runs), lambda some: approach_zero(some, COLLAPSE))


def orthogonal_beyond(runs: Runs) -> list[Claim]:
    """The same under the optimisers of ours."""
    return by_key(runs, "optimizer", list_ours(runs), are_orthogonal)


def are_orthogonal(runs: Runs) -> Claim:
    """The class means are orthogonal: no two of them have a cosine of 0.1 or more; their mean would hide one pair."""
    ends = [[record.final(f"train.mean_cosines.{part}") for part in ("min", "max")] for _, record in runs]
    largest = [max(map(abs, pair)) for pair in ends if all(map(math.isfinite, pair))]
    detail = "largest cosine between two of them " + ", ".join(f"{value:.4f}" for value in largest) if largest else ""
    text = f"the class means are orthogonal: no two of them have a cosine of {ORTHOGONAL:g} or more"
    threshold = "ours: the paper shows a picture of the matrix"
    return Claim(text, max(largest) < ORTHOGONAL if largest else None, detail, threshold)


EXPERIMENTS = (
    Experiment(
        "imbalanced-relu/figure-1",
        "NC metrics of the MLP on imbalanced CIFAR10",
        partial(grid, ("mlp-1024", "mlp-2048")),
        curves=COLLAPSE,
        claims=collapse,
        beyond=Extension(is_ours, collapse_beyond),
        notes=OPTIMISER_NOTES + RATE_NOTES + PACE_NOTES,
        claim_causes=CAUSES,
    ),
    Experiment(
        "imbalanced-relu/figure-2",
        "NC metrics of ResNet18 on imbalanced CIFAR10",
        partial(grid, ("resnet18",)),
        curves=COLLAPSE,
        claims=collapse,
        beyond=Extension(is_ours, collapse_beyond),
        notes=OPTIMISER_NOTES + RATE_NOTES + PACE_NOTES,
        claim_causes=CAUSES,
    ),
    Experiment(
        "imbalanced-relu/figure-3",
        "orthogonality of the class means of the MLP",
        partial(grid, ("mlp-1024",)),
        finals=("train.mean_orthogonality",),
        claims=orthogonal_means,
        beyond=Extension(is_ours, orthogonal_beyond),
        notes=OPTIMISER_NOTES + PACE_NOTES,
        claim_causes=CAUSES[:2],
    ),
)
