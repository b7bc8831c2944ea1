"""What "Are All Losses Created Equal" says in words of its figures, and the numbers that it prints there."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ncollapse.grammar import count
from ncollapse.papers.claims import MOSTLY, Claim, Runs, approach_zero, by_key, of_one_length
from ncollapse.papers.judge import read_last
from ncollapse.papers.matching import epochs_of
from ncollapse.runs.record import RunRecord

LOSSES = ("ce", "focal", "ls", "mse")
METRICS = ("train.nc1", "train.nc2", "train.nc3_centred")
SMALL, LARGE = {"width": 0.25, "epochs": 100}, {"width": 2, "epochs": 800}
AT_SMALL, AT_LARGE = "at width 0.25 and 100 epochs", "at width 2 and 800 epochs"
PRINTED_RANGE = {"small": 1.037, "large": 0.36}
"""Points between the most and the least accurate loss on CIFAR10 (App. A.1), from means over three seeds."""
PRINTED_SEEDS = 3
ALIKE = 1.0
FULL_FIT, FITTED = 0.999, 0.99
FAR_APART = 0.05
ORDERS = 2.0
ALL_LOSSES = "runs of all four losses, equally long, are needed"
THREE_SEEDS = "runs of all four losses at full length, over three seeds as in the paper, are needed"
THRESHOLDS = {
    "alike": "ours, for largely the same or identical: the four accuracies that are printed and called so"
    " (miniImageNet) lie within 0.9 points",
    "range": "printed, from means over three seeds; three standard errors are allowed, from our spread over seeds",
    "fit": "ours: 99.9 % for what the paper calls one hundred percent",
    "orders": "ours: two orders for what the paper calls around three",
    "apart": "ours: NC2 of the class means at most 0.05, as for every metric on this page that approaches zero",
    "falls": "ours: the paper says that they still decrease",
    "slowest": "ours: orders of magnitude from the first measurement to the last, mean over the metrics",
}


def has(place: dict[str, Any], keys: dict[str, Any]) -> bool:
    """Whether keys are those of a configuration."""
    return all(keys.get(key) == value for key, value in place.items())


def collapse(runs: Runs) -> list[Claim]:
    """Figure 1: the three metrics end at a small value, under each loss; the features are maximally separated."""
    return [*by_key(runs, "loss", LOSSES, lambda some: approach_zero(some, METRICS)), separates_maximally(runs)]


def separates_maximally(runs: Runs) -> Claim:
    """Sec. 4.1: under every loss the class means lie as far apart as possible, once the training data are fitted."""
    text = "the features are maximally separable under every loss: their class means form a simplex ETF"

    def judge(values: list[float]) -> tuple[bool, str]:
        return max(values) <= FAR_APART, f"NC2 of the means at most {max(values):.2g}"

    claim = _check_every_loss(runs, lambda record: record.final("train.nc2_means"), text, judge, THRESHOLDS["apart"])
    return once_fitted(claim, runs)


def collapse_on_cifar100(runs: Runs) -> list[Claim]:
    """Figure 5: under LS and MSE the metrics approach zero, under CE and FL they still fall, FL's the slowest."""
    return [
        *by_key(runs, "loss", ("ls", "mse"), lambda some: approach_zero(some, METRICS)),
        *by_key(runs, "loss", ("ce", "focal"), still_falling),
        focal_is_slowest(runs),
    ]


def still_falling(runs: Runs) -> Claim:
    """Every metric is lower at the last measurement than at the last one in the first nine tenths of the training."""
    kept, total = 0, 0
    for _, record in runs:
        for field in METRICS:
            points = list(zip(*record.series(field)))
            before = [value for epoch, value in points if epoch <= 0.9 * points[-1][0]]
            if before:
                total += 1
                kept += points[-1][1] < before[-1]
    text = "the NC metrics still fall at the end: they are below their value at nine tenths of the training"
    detail = f"{kept} of {count(total, 'curve')}" if total else ""
    return Claim(text, kept == total if total else None, detail, THRESHOLDS["falls"])


def focal_is_slowest(runs: Runs) -> Claim:
    """Of the four losses, the metrics of FL have fallen least, in the mean of their logarithms."""
    text = "the NC metrics of Focal fall the slowest of the four losses"
    fallen: dict[str, list[float]] = {}
    for keys, record in of_one_length(runs):
        ratios = []
        for field in METRICS:
            curve = [value for value in record.series(field)[1] if value > 0]
            ratios += [math.log10(curve[0] / curve[-1])] if len(curve) > 1 else []
        if len(ratios) == len(METRICS):
            fallen.setdefault(str(keys.get("loss")), []).append(statistics.fmean(ratios))
    if not set(LOSSES) <= set(fallen):
        return Claim(text, None, ALL_LOSSES, THRESHOLDS["slowest"])
    means = {loss: statistics.fmean(fallen[loss]) for loss in LOSSES}
    detail = "orders of magnitude: " + ", ".join(f"{loss} {value:.2f}" for loss, value in means.items())
    return Claim(text, min(means, key=means.__getitem__) == "focal", detail, THRESHOLDS["slowest"])


def equal(runs: Runs) -> list[Claim]:
    """Figures 2 and 6: the training data are fitted under every loss; validation and test accuracies agree."""
    return [fits(runs), losses_agree(runs, "validation.accuracy"), losses_agree(runs)]


def fits(runs: Runs) -> Claim:
    """Training accuracy reaches 100 % by the end, under every loss; the reported epoch may be an earlier one."""
    text = "training accuracy reaches 100 % under every loss"

    def judge(values: list[float]) -> tuple[bool, str]:
        return min(values) >= FULL_FIT, f"at least {100 * min(values):.2f} %"

    return _check_every_loss(runs, lambda record: read_last(record, "train.accuracy"), text, judge, THRESHOLDS["fit"])


def _check_every_loss(
    runs: Runs,
    read: Callable[[RunRecord], float],
    text: str,
    judge: Callable[[list[float]], tuple[bool, str]],
    threshold: str,
) -> Claim:
    """A claim about one number of each run; `judge` gives whether it holds and a detail."""
    found = [(str(keys.get("loss")), read(record)) for keys, record in runs]
    found = [(loss, value) for loss, value in found if math.isfinite(value)]
    if not found:
        return Claim(text, None, "", threshold)
    holds, said = judge([value for _, value in found])
    claim = Claim(text, holds, f"{said} over {count(len(found), 'run')}", threshold)
    return _of_every_loss(claim, {loss for loss, _ in found})


def _of_every_loss(claim: Claim, losses: set[str]) -> Claim:
    """A claim about every loss is open as long as one of them is missing and the others agree with it."""
    missing = not set(LOSSES) <= losses
    return replace(claim, holds=None, detail=f"{claim.detail}; {ALL_LOSSES}") if claim.holds and missing else claim


def once_fitted(claim: Claim, runs: Runs) -> Claim:
    """The claim, open as long as one of the runs has not fitted its training data by its last epoch.

    The paper says that the losses agree "as long as the optimization procedure converges to the NC global solution".
    """
    if claim.holds is None:
        return claim
    least = min((read_last(record, "train.accuracy") for _, record in runs), key=lambda x: (math.isfinite(x), x))
    if least >= FITTED:
        return claim
    said = f"training accuracy only {100 * least:.1f} %" if math.isfinite(least) else "training accuracy not measured"
    return replace(claim, holds=None, detail=f"{claim.detail}; {said}")


def losses_agree(
    runs: Runs, field: str = "test.accuracy", place: dict[str, Any] = LARGE, where: str = AT_LARGE
) -> Claim:
    """The range over the four losses of the accuracies (means over seeds) at one place is at most a point."""
    what = field.replace(".accuracy", " accuracies")
    text = f"the {what} of the losses {where} are largely the same: within {ALIKE:g} point"
    spread, here = spread_over_losses(runs, place, field), at_place(runs, place)
    if spread is None:
        return Claim(text, None, ALL_LOSSES, THRESHOLDS["alike"])
    detail = f"{spread:.2f} points over {len(LOSSES)} losses"
    return once_fitted(Claim(text, spread <= ALIKE, detail, THRESHOLDS["alike"]), here)


def at_place(runs: Runs, place: dict[str, Any]) -> Runs:
    """The runs of one configuration that can be compared."""
    return of_one_length([run for run in runs if has(place, run[0])])


def spread_over_losses(runs: Runs, place: dict[str, Any], field: str = "test.accuracy") -> float | None:
    """The range over the four losses of accuracies in points; None where one of them is missing."""
    here: dict[str, list[float]] = {}
    for keys, record in at_place(runs, place):
        here.setdefault(str(keys.get("loss")), []).append(record.final(field))
    means = [statistics.fmean(here[loss]) for loss in LOSSES if loss in here]
    means = [mean for mean in means if math.isfinite(mean)]
    # accuracies are counts over samples: a range of exactly one point must not depend on rounding
    return round(100 * (max(means) - min(means)), 9) if len(means) == len(LOSSES) else None


def range_as_printed(runs: Runs, size: str) -> Claim:
    """Figure 4: the losses differ by the printed 1.037 points where the network is small, by 0.36 where it is large.

    Either range is of means over three seeds. Ours may be off by three standard errors of a difference of two such
    ranges, from our spread over seeds. If that is as much as the small network's range itself, nothing is decided.
    """
    small, printed = size == "small", PRINTED_RANGE[size]
    place, where = (SMALL, AT_SMALL) if small else (LARGE, AT_LARGE)
    text = f"the test accuracies of the losses {where} lie {'' if small else 'at most '}{printed:g} points apart"
    here, spread = at_place(runs, place), spread_over_losses(runs, place)
    seeds = [[100 * r.final("test.accuracy") for k, r in here if k.get("loss") == loss] for loss in LOSSES]
    whole = all(epochs_of(record) >= place["epochs"] for _, record in here)
    if spread is None or not whole or min(map(len, seeds)) < PRINTED_SEEDS:
        return Claim(text, None, THREE_SEEDS, THRESHOLDS["range"])
    variance = statistics.fmean(map(statistics.variance, seeds))
    error = 3 * math.sqrt(variance * (2 / min(map(len, seeds)) + 2 / PRINTED_SEEDS))
    detail = f"{spread:.2f} points over {len(LOSSES)} losses, three standard errors {error:.2f}"
    if not small:
        return once_fitted(Claim(text, spread <= printed + error, detail, THRESHOLDS["range"]), here)
    holds = None if error >= printed else abs(spread - printed) <= error
    return Claim(text, holds, detail, THRESHOLDS["range"])


def by_width_and_epochs(runs: Runs) -> list[Claim]:
    """Figure 3: width and epochs raise test accuracy; the losses agree where both are large."""
    return [raises(runs, "width", "a wider network"), raises(runs, "epochs", "longer training"), losses_agree(runs)]


def raises(runs: Runs, axis: str, what: str, *, mostly: bool = False) -> Claim:
    """Test accuracy, averaged over seeds, rises with one key where all others are equal, from each value to the next.

    With `mostly`, in more than half of three steps or more.
    """
    averages = average_over_seeds(of_one_length(runs))
    gains, losses = [], set()
    for keys, accuracy in averages:
        above = [
            (other[axis], rival)
            for other, rival in averages
            if {**other, axis: 0} == {**keys, axis: 0} and other[axis] > keys[axis]
        ]
        if above:
            gains.append(100 * (min(above)[1] - accuracy))
            losses.add(str(keys.get("loss")))
    text = f"{what} raises the mean test accuracy over seeds under every loss" + ", in most cases" * mostly
    threshold = MOSTLY * mostly
    if not gains:
        return Claim(text, None, "", threshold)
    kept = sum(gain > 0 for gain in gains)
    detail = f"{kept} of {count(len(gains), 'step')}: " + ", ".join(f"{gain:+.2f}" for gain in gains) + " points"
    if mostly and len(gains) < 3:
        return Claim(text, None, f"{detail}; three steps are needed", threshold)
    holds = kept > len(gains) / 2 if mostly else kept == len(gains)
    return _of_every_loss(Claim(text, holds, detail, threshold), losses)


def average_over_seeds(runs: Runs) -> list[tuple[dict[str, Any], float]]:
    """The test accuracy of every configuration, the mean over its seeds."""
    found: list[tuple[dict[str, Any], list[float]]] = []
    for keys, record in runs:
        same = next((values for others, values in found if others == keys), None)
        if same is None:
            found.append((keys, [record.final("test.accuracy")]))
        else:
            same.append(record.final("test.accuracy"))
    return [(keys, statistics.fmean(values)) for keys, values in found]


def collapse_and_agreement(runs: Runs) -> list[Claim]:
    """Figure 4: the two printed ranges over the losses, their order, and NC1 of the small and the large network."""
    return [
        range_as_printed(runs, "small"),
        range_as_printed(runs, "large"),
        less_agreement_when_small(runs),
        more_collapsed_when_large(runs),
    ]


def more_collapsed_when_large(runs: Runs) -> Claim:
    """NC1 at width 0.25 and 100 epochs is about three orders of magnitude (two at least) above width 2 and 800.

    At the last epoch: the accuracies are of the epoch that validates best, a collapse is of the end of the training.
    """
    orders, runs = [], of_one_length(runs)
    for keys, record in runs:
        if has(SMALL, keys):
            rivals = [r for k, r in runs if has({**LARGE, "loss": keys["loss"]}, k) and r.seed == record.seed]
            orders += [math.log10(read_last(record, "train.nc1") / read_last(rival, "train.nc1")) for rival in rivals]
    text = "NC1 of the small network is around three orders of magnitude above that of the large one (two at least)"
    detail = (
        f"{statistics.fmean(orders):.1f} orders in the mean over {count(len(orders), 'pair')} of runs" if orders else ""
    )
    return Claim(text, min(orders) >= ORDERS if orders else None, detail, THRESHOLDS["orders"])


def less_agreement_when_small(runs: Runs) -> Claim:
    """Figures 4, 7 and 8: the range over the losses is larger where the network is small and trained briefly."""
    small, large = (spread_over_losses(runs, place) for place in (SMALL, LARGE))
    text = f"the losses differ more {AT_SMALL} than {AT_LARGE}"
    if small is None or large is None:
        return Claim(text, None, ALL_LOSSES)
    claim = Claim(text, small > large, f"{small:.2f} against {large:.2f} points")
    return once_fitted(claim, at_place(runs, LARGE))


def cifar100_by_width_and_epochs(runs: Runs) -> list[Claim]:
    """Figure 7: as figures 3 and 4, "in most cases"; of the large network the paper admits small differences."""
    return [
        raises(runs, "width", "a wider network", mostly=True),
        raises(runs, "epochs", "longer training", mostly=True),
        more_collapsed_when_large(runs),
        less_agreement_when_small(runs),
    ]


def mini_imagenet(runs: Runs) -> list[Claim]:
    """Figure 8: the large network collapses, and the losses agree there more than where the network is small."""
    large = [run for run in runs if has(LARGE, run[0])]
    return [
        approach_zero(large, ("train.nc1",)),
        losses_agree(runs),
        less_agreement_when_small(runs),
    ]
