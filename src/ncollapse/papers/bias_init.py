"""Experiments of our own: does it help to start the bias at its predicted optimum?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from ncollapse.papers.bce_vs_ce import COLLAPSE, SCORES, train_point
from ncollapse.papers.claims import Claim, Runs, approach_zero, measure_early
from ncollapse.papers.experiment import Experiment, Point, product
from ncollapse.papers.small_networks import NARROW, perceptron_point
from ncollapse.runs.record import RunRecord


def bias_starts() -> list[Point]:
    """BCE on MNIST by setting 2, the bias starting at 0 and at its predicted optimum, with and without bias decay."""
    fixed = {"data": ("mnist",), "model": ("resnet18",), "optimizer": ("adamw",), "loss": ("bce",)}
    axes = product(**fixed, bias_decay=(0.0, 5e-4), bias_init=(0.0, "theory"))
    return [train_point(k, decays__bias=k["bias_decay"], model__bias_init=k["bias_init"]) for k in axes]


def narrow_bias_starts() -> list[Point]:
    """BCE with more classes than dimensions, the bias starting at 0 and at that of the lowest known minimum."""
    axes = product(loss=("bce",), dim=NARROW, bias_init=(0.0, "theory"))
    return [perceptron_point(k, model__feature_dim_linear=k["dim"], model__bias_init=k["bias_init"]) for k in axes]


def leaves_the_minimum(runs: Runs) -> list[Claim]:
    """From the predicted bias against from 0, means over seeds: objective, NC1 early and late, uniform accuracy."""
    found = []
    for dim in sorted({keys["dim"] for keys, _ in runs}):
        starts = split_by_start(runs, "dim", dim)
        text = f"d = {dim}: from the predicted bias, BCE"
        if not all(starts):
            found.append(Claim(f"{text} ends lower than from 0", None, "runs from both starts are needed"))
            continue
        ends = [statistics.fmean(record.final("certificate.objective") for record in some) for some in starts]
        detail = f"objective {ends[0]:.4f} against {ends[1]:.4f}"
        found.append(Claim(f"{text} ends lower than from 0", ends[0] < ends[1], detail))
        found.append(collapses_sooner(f"{text} collapses sooner than from 0", *starts))
        rates = [statistics.fmean(record.final("test.uniform_accuracy") for record in some) for some in starts]
        detail = f"{100 * rates[0]:.2f} % against {100 * rates[1]:.2f} % of the test samples"
        found.append(Claim(f"{text} has the higher uniform accuracy", rates[0] > rates[1], detail))
    predicted = [(keys, record) for keys, record in runs if keys["bias_init"] == "theory"]
    claim = approach_zero(predicted, ("train.nc1",))
    return [*found, replace(claim, text=f"from the predicted bias {claim.text}")]


def starts_at_the_optimum(runs: Runs) -> list[Claim]:
    """From the predicted bias against from 0, means over seeds: the certified gap at the end, NC1 over the training."""
    found = []
    for decay in sorted({keys["bias_decay"] for keys, _ in runs}):
        starts = split_by_start(runs, "bias_decay", decay)
        text = f"lambda_b = {decay:g}: from the predicted bias, BCE"
        if not all(starts):
            detail = "runs from both starts are needed"
            found.append(Claim(f"{text} ends closer to its optimum and collapses sooner", None, detail))
            continue
        gaps, biases = (
            [statistics.fmean(record.final(field) for record in some) for some in starts]
            for field in ("certificate.relative_gap", "train.bias.mean")
        )
        detail = (
            f"certified relative gap {gaps[0]:.3g} against {gaps[1]:.3g}, bias {biases[0]:.4f} against {biases[1]:.4f}"
        )
        found.append(Claim(f"{text} ends closer to its optimum than from 0", gaps[0] < gaps[1], detail))
        found.append(collapses_sooner(f"{text} collapses sooner than from 0", *starts))
    return found


def split_by_start(runs: Runs, axis: str, value: float) -> list[list[RunRecord]]:
    """The runs at one value of an axis: those from the predicted bias, and those from 0."""
    here = [(keys["bias_init"], record) for keys, record in runs if keys[axis] == value]
    return [[record for start, record in here if start == wanted] for wanted in ("theory", 0.0)]


def collapses_sooner(text: str, runs: Sequence[RunRecord], others: Sequence[RunRecord]) -> Claim:
    """NC1 of the first runs lies below that of the others over the first fifth of the epochs."""
    epochs, early = measure_early([*runs, *others], "train.nc1")
    if not early:
        return Claim(text, None, "runs of one length, measured at the same epochs, are needed")
    ours, theirs = statistics.fmean(early[: len(runs)]), statistics.fmean(early[len(runs) :])
    when = f"at epoch {epochs[0]:g} alone" if len(epochs) == 1 else "over the first fifth, geometric mean"
    return Claim(text, ours < theirs, f"NC1 {when}: {math.exp(ours):.3g} against {math.exp(theirs):.3g}")


EXPERIMENTS = (
    Experiment(
        "ncollapse/bias-init",
        "does BCE collapse sooner, and end closer to its optimum, from the predicted bias?",
        bias_starts,
        asks=True,
        claims=starts_at_the_optimum,
        curves=(*COLLAPSE, "certificate.relative_gap"),
        finals=(*SCORES, "certificate.relative_gap"),
        caption="ResNet18 on MNIST as in setting 2 of bce-vs-ce (AdamW, batch size 128, decays 5e-4), lambda_b = 0 and"
        " 5e-4: the bias starts at 0, or at its predicted optimum.",
    ),
    Experiment(
        "ncollapse/narrow-bias-init",
        "does the predicted bias keep BCE out of poor minima with more classes than dimensions?",
        narrow_bias_starts,
        asks=True,
        claims=leaves_the_minimum,
        curves=(*COLLAPSE, "train.uniform_accuracy"),
        finals=(*SCORES, "test.uniform_accuracy", "certificate.objective"),
        caption="A perceptron on MNIST as in setting 2 of bce-vs-ce (AdamW, batch size 128, decays 5e-4), its features"
        " projected to 2, 3 and 5 dimensions: the bias starts at 0, or at that of the lowest known minimum.",
    ),
)
