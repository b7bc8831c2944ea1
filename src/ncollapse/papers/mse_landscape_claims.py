"""What "On the Optimization Landscape of Neural Collapse under MSE Loss" says in words of its figures."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ncollapse.grammar import count
from ncollapse.papers.archive import find_gram
from ncollapse.papers.claims import Claim, Runs, approach_zero, by_key, falls_by_orders, of_one_length, ordered_alike
from ncollapse.runs.record import RunRecord

METRICS = ("train.nc1", "train.nc2", "train.nc3")
MARGIN = "train.cosine_margin"
NUM_CLASSES = 10
SIMILAR, CONTRAST, NOTABLE, COMPARABLE, FITTED, ON_BOUNDARY = 2.0, 0.1, 1.0, 1.0, 0.99, 0.1
IN_NUMBERS = "ours: the number that it is read from, where the paper shows pictures"
QUANTILES = {"min": 0.0, "q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95, "max": 1.0}


def collapse_and_margin(runs: Runs) -> list[Claim]:
    """Figure 3: every optimiser leads to collapse; they generalise differently, and the cosine margin as well."""
    text = "the cosine margin orders the optimisers as test accuracy does"
    return [
        *by_key(runs, "optimizer", ("sgd", "adam", "lbfgs"), lambda some: approach_zero(some, METRICS)),
        generalise_differently(runs),
        ordered_alike(runs, f"{MARGIN}.mean", "test.accuracy", text),
    ]


def generalise_differently(runs: Runs) -> Claim:
    """The test accuracies of the optimisers differ by more than a point."""
    values = [record.final("test.accuracy") for _, record in of_one_length(runs)]
    values = [100 * value for value in values if math.isfinite(value)]
    text = f"the optimisers generalise notably differently: their test accuracies differ by more than {NOTABLE:g} point"
    threshold = "ours, for notably: the tolerance of accuracies on this page"
    if len(values) < 2:
        return Claim(text, None, "", threshold)
    spread = max(values) - min(values)
    return Claim(text, spread > NOTABLE, f"{spread:.2f} points over {count(len(values), 'run')}", threshold)


def dimension_matters(runs: Runs) -> list[Claim]:
    """Figure 4: MSE needs d >= K - 1 to fit and to generalise, CE does not; every d collapses."""
    return [
        needs_dimensions(runs, "train.accuracy", "fit the training data"),
        needs_dimensions(runs, "test.accuracy", "generalise"),
        more_on_the_boundary(runs),
        does_not_need_dimensions(runs),
        loses_less_than_mse(runs),
        falls_by_orders(runs),
    ]


def needs_dimensions(runs: Runs, field: str, what: str) -> Claim:
    """Under MSE the best accuracy with d < K - 1 is below the worst with d >= K - 1."""
    low, high = split_by_dimension(runs, "mse", field)
    text = f"MSE needs d >= K - 1 to {what}"
    threshold = "ours, for crucial: every d below is worse than every d from there on"
    if not low or not high:
        return Claim(text, None, "runs on both sides of K - 1, equally long, are needed", threshold)
    detail = f"accuracy at best {100 * max(low):.2f} % below, at worst {100 * min(high):.2f} % from K - 1 on"
    return Claim(text, max(low) < min(high), detail, threshold)


def more_on_the_boundary(runs: Runs) -> Claim:
    """Under MSE the share of training samples with a cosine margin near 0 falls from each d < K - 1 to the next d.

    That share is read off the quantiles of the margin in the record.
    """
    shares: dict[int, list[float]] = {}
    for keys, record in of_one_length([run for run in runs if run[0].get("loss") == "mse"]):
        share = share_on_boundary(record)
        if math.isfinite(share):
            shares.setdefault(keys["dim"], []).append(share)
    means = [(dim, statistics.fmean(shares[dim])) for dim in sorted(shares)]
    steps = [(a, b) for (dim, a), (_, b) in itertools.pairwise(means) if dim < NUM_CLASSES - 1]
    text = f"under MSE more samples lie on the decision boundary (cosine margin within {ON_BOUNDARY:g} of 0) as d falls"
    threshold = "ours: the paper says a margin of 0"
    if not steps:
        return Claim(text, None, "", threshold)
    detail = ", ".join(f"{100 * share:.0f} % at d = {dim}" for dim, share in means)
    return Claim(text, all(b < a for a, b in steps), detail, threshold)


def share_on_boundary(record: RunRecord) -> float:
    """The share of training samples whose cosine margin is within 0.1 of 0, interpolated between its quantiles."""
    values = [record.final(f"{MARGIN}.{name}") for name in QUANTILES]
    if not all(map(math.isfinite, values)):
        return math.nan
    below, above = np.interp([-ON_BOUNDARY, ON_BOUNDARY], values, list(QUANTILES.values()), left=0.0, right=1.0)
    return float(above - below)


def does_not_need_dimensions(runs: Runs) -> Claim:
    """Under CE test accuracy with d < K - 1 is within 2 points of that with d >= K - 1."""
    low, high = split_by_dimension(runs, "ce", "test.accuracy")
    text = f"CE does not need d >= K - 1: its test accuracies lie within {SIMILAR:g} points"
    threshold = "ours, for similar: the paper plots them and prints none"
    if not low or not high:
        return Claim(text, None, "", threshold)
    spread = 100 * (max(low + high) - min(low + high))
    return Claim(text, spread <= SIMILAR, f"{spread:.2f} points over {count(len(low + high), 'run')}", threshold)


def loses_less_than_mse(runs: Runs) -> Claim:
    """What CE loses in test accuracy from the largest d to the smallest is at most a tenth of what MSE loses."""
    accuracies: dict[tuple[str, int], list[float]] = {}
    for keys, record in of_one_length(runs):
        accuracies.setdefault((keys["loss"], keys["dim"]), []).append(record.final("test.accuracy"))
    dims = sorted(d for loss, d in accuracies if loss == "ce" and ("mse", d) in accuracies)
    text = "that is in sharp contrast to MSE: from the largest d to the smallest CE loses at most a tenth as much"
    threshold = "ours, for sharp"
    if not dims or not dims[0] < NUM_CLASSES - 1 <= dims[-1]:
        return Claim(text, None, "runs of both losses on both sides of K - 1, equally long, are needed", threshold)
    ce, mse = (
        100 * (statistics.fmean(accuracies[loss, dims[-1]]) - statistics.fmean(accuracies[loss, dims[0]]))
        for loss in ("ce", "mse")
    )
    detail = f"CE {ce:.2f} points, MSE {mse:.2f}, from d = {dims[-1]} to {dims[0]}"
    return Claim(text, mse > 0 and ce <= CONTRAST * mse, detail, threshold)


def split_by_dimension(runs: Runs, loss: str, field: str) -> tuple[list[float], list[float]]:
    """Accuracies of the runs of a loss with d < K - 1 and with d >= K - 1."""
    mine = [(k["dim"], r.final(field)) for k, r in of_one_length([run for run in runs if run[0].get("loss") == loss])]
    mine = [(dim, accuracy) for dim, accuracy in mine if math.isfinite(accuracy)]
    return [a for d, a in mine if d < NUM_CLASSES - 1], [a for d, a in mine if d >= NUM_CLASSES - 1]


def fixed_is_enough(runs: Runs) -> list[Claim]:
    """Figure 5: a fixed simplex ETF, d = K, or both, cost no accuracy against the learned classifier with d = 512."""
    text = f"fixing the classifier as an ETF, or d = K, costs at most {COMPARABLE:g} point of test accuracy"
    threshold = "ours, for not sacrificing: the tolerance of accuracies on this page"
    found: dict[tuple[str, int], list[float]] = {}
    for keys, record in of_one_length(runs):
        accuracy = record.final("test.accuracy")
        if math.isfinite(accuracy):
            found.setdefault((keys["head"], keys["dim"]), []).append(accuracy)
    learned = found.pop(("linear", 512), None)
    if learned is None or not found:
        detail = "a learned classifier with d = 512 and another one, equally long, are needed"
        return [Claim(text, None, detail, threshold)]
    costs = {place: 100 * (statistics.fmean(learned) - statistics.fmean(values)) for place, values in found.items()}
    names = {"linear": "learned", "etf": "fixed"}
    detail = "costs " + ", ".join(f"{cost:+.2f} points ({names[h]}, d = {d})" for (h, d), cost in costs.items())
    return [Claim(text, max(costs.values()) <= COMPARABLE, detail, threshold)]


def rescaling_helps(runs: Runs) -> list[Claim]:
    """Figure 6: with the other parameter at 1, alpha and M each correlate with collapse and with both accuracies."""
    fields = (
        ("train.nc1", -1, "collapse (a smaller NC1)"),
        ("train.accuracy", 1, "training accuracy"),
        ("test.accuracy", 1, "test accuracy"),
    )
    found = []
    for axis, other in (("alpha", "M"), ("M", "alpha")):
        chosen = of_one_length([run for run in runs if run[0].get(other) == 1.0 and axis in run[0]])
        for field, sign, what in fields:
            points = sorted((float(keys[axis]), record.final(field)) for keys, record in chosen)
            points = [(place, value) for place, value in points if math.isfinite(value)]
            found.append(_correlates(axis, what, sign, points))
    return found


def _correlates(axis: str, what: str, sign: int, points: list[tuple[float, float]]) -> Claim:
    """The rank correlation of a parameter and a number, times `sign`, is above 0 over three values or more."""
    text = f"{axis} has a positive correlation with {what}"
    threshold = "ours: the correlation of the ranks, over three values or more"
    places, values = ([pair[k] for pair in points] for k in (0, 1))
    if len(set(places)) < 3:
        return Claim(text, None, "three values of it are needed, in runs of one length", threshold)
    detail = ", ".join(f"{value:.4g}" for value in values) + f" at {axis} = {', '.join(f'{x:g}' for x in places)}"
    if len(set(values)) == 1:
        return Claim(text, False, detail, threshold)
    ranks = [
        [statistics.fmean(i for i, y in enumerate(sorted(row)) if y == x) for x in row] for row in (places, values)
    ]
    correlation = sign * statistics.correlation(*ranks)
    return Claim(text, correlation > 0, f"{correlation:.2f}: {detail}", threshold)


def three_dimensions(runs: Runs) -> list[Claim]:
    """Figure 7: at d = 3 the features of CE are more discriminative and more diverse than those of MSE."""
    text = "with d = 3 the features of CE are more {} than those of MSE: {}"
    return [
        _exceeds_mse(runs, lambda r: r.final(f"{MARGIN}.mean"), text.format("discriminative", "mean cosine margin")),
        _exceeds_mse(runs, lambda r: r.final("test.accuracy"), text.format("discriminative", "test accuracy")),
        _exceeds_mse(
            runs, find_smallest_angle, text.format("diverse", "smallest angle between two centred class means, degrees")
        ),
    ]


def _exceeds_mse(runs: Runs, read: Callable[[RunRecord], float], text: str) -> Claim:
    """The mean over seeds of a number is larger under CE than under MSE, in runs of one length."""
    values: dict[str, list[float]] = {"mse": [], "ce": []}
    for keys, record in of_one_length(runs):
        if keys.get("loss") in values and math.isfinite(read(record)):
            values[keys["loss"]].append(read(record))
    if not all(values.values()):
        return Claim(text, None, "runs of both losses, equally long, are needed", IN_NUMBERS)
    mse, ce = (statistics.fmean(values[loss]) for loss in ("mse", "ce"))
    return Claim(text, ce > mse, f"{ce:.4g} against {mse:.4g}", IN_NUMBERS)


def find_smallest_angle(record: RunRecord) -> float:
    """The smallest angle between two class means of the training set, centred, in degrees; NaN if it is unknown."""
    gram = find_gram(record)
    if gram is None:
        return math.nan
    norms = np.asarray(gram["norms"], dtype=np.float64)
    inner = np.asarray(gram["cosines"], dtype=np.float64) * np.outer(norms, norms)
    inner = inner - inner.mean(0) - inner.mean(1)[:, None] + inner.mean()
    lengths = np.sqrt(np.maximum(np.diag(inner), 1e-300))
    cosines = (inner / np.outer(lengths, lengths))[~np.eye(len(norms), dtype=bool)]
    return float(np.degrees(np.arccos(np.clip(cosines.max(), -1, 1))))


def random_labels_collapse(runs: Runs) -> list[Claim]:
    """Sec. 2.2: random labels are fitted, and the features collapse."""
    return [
        *by_key(runs, "loss", ("mse", "ce"), _fits_random_labels),
        *by_key(runs, "loss", ("mse", "ce"), lambda some: approach_zero(some, ("train.nc1",))),
    ]


def _fits_random_labels(runs: Runs) -> Claim:
    values = [record.final("train.accuracy") for _, record in runs]
    values = [value for value in values if math.isfinite(value)]
    text = f"the network fits the random labels: training accuracy of at least {100 * FITTED:g} %"
    claim = Claim(text, None, "", "ours: the paper says that the network will fit them")
    if not values:
        return claim
    return replace(claim, holds=min(values) >= FITTED, detail=f"{100 * min(values):.2f} %")
