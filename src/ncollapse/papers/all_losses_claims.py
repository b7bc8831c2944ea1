"""What "Are All Losses Created Equal" says in words of its figures, and the numbers that it prints there."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

from ncollapse.grammar import count
from ncollapse.papers.claims import Claim, Runs, approach_zero, by_key, of_one_length
from ncollapse.runs.record import RunRecord

LOSSES = ("ce", "focal", "ls", "mse")
METRICS = ("train.nc1", "train.nc2", "train.nc3_centred")
SMALL, LARGE = {"width": 0.25, "epochs": 100}, {"width": 2, "epochs": 800}
AT_SMALL, AT_LARGE = "at width 0.25 and 100 epochs", "at width 2 and 800 epochs"
PRINTED_RANGE = {"small": 1.037, "large": 0.36}
"""Points between the most and the least accurate loss on CIFAR10 (App. A.1), from means over three seeds."""
ALIKE = 1.0
FULL_FIT = 0.999
ORDERS = 2.0
ALL_LOSSES = "runs of all four losses, equally long, are needed"
THRESHOLDS = {
    "printed": "printed, from means over three seeds",
    "alike": "ours, for accuracies called largely the same: the four that are printed and called so (miniImageNet) lie"
    " within 0.9 points",
    "near": "ours: within a point of the printed 1.037, as for every accuracy on this page",
    "fit": "ours: 99.9 % for what the paper calls one hundred percent",
    "orders": "ours: two orders for what the paper calls around three",
}


def has(place: dict[str, Any], keys: dict[str, Any]) -> bool:
    """Whether keys are those of a configuration."""
    return all(keys.get(key) == value for key, value in place.items())


def collapse(runs: Runs) -> list[Claim]:
    """Figure 1: the three metrics end at a small value, under each loss."""
    return by_key(runs, "loss", LOSSES, lambda some: approach_zero(some, METRICS))


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
    return Claim(text, kept == total if total else None, f"{kept} of {count(total, 'curve')}" if total else "")


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
        return Claim(text, None, ALL_LOSSES)
    means = {loss: statistics.fmean(fallen[loss]) for loss in LOSSES}
    detail = "orders of magnitude: " + ", ".join(f"{loss} {value:.2f}" for loss, value in means.items())
    return Claim(text, min(means, key=means.__getitem__) == "focal", detail)


def equal_on_cifar10(runs: Runs) -> list[Claim]:
    """Figure 2: the training data are fitted under every loss; validation and test accuracies agree."""
    test = losses_agree(runs, PRINTED_RANGE["large"], LARGE, AT_LARGE, threshold=THRESHOLDS["printed"])
    return [*equal_on_cifar100(runs)[:2], test]


def equal_on_cifar100(runs: Runs) -> list[Claim]:
    """Figure 6: as figure 2; no accuracy is printed."""
    return [
        fits(runs),
        losses_agree(runs, ALIKE, LARGE, AT_LARGE, "validation.accuracy", THRESHOLDS["alike"]),
        losses_agree(runs, ALIKE, LARGE, AT_LARGE, threshold=THRESHOLDS["alike"]),
    ]


def fits(runs: Runs) -> Claim:
    """Training accuracy reaches 100 % by the end, under every loss; the reported epoch may be an earlier one."""
    found = [(str(keys.get("loss")), _last(record, "train.accuracy")) for keys, record in runs]
    found = [(loss, value) for loss, value in found if math.isfinite(value)]
    text = "training accuracy reaches 100 % under every loss"
    if not found:
        return Claim(text, None, "", THRESHOLDS["fit"])
    least = min(value for _, value in found)
    detail = f"at least {100 * least:.2f} % over {count(len(found), 'run')}"
    return _of_every_loss(Claim(text, least >= FULL_FIT, detail, THRESHOLDS["fit"]), {loss for loss, _ in found})


def _of_every_loss(claim: Claim, losses: set[str]) -> Claim:
    """A claim about every loss is open as long as one of them is missing and the others agree with it."""
    missing = not set(LOSSES) <= losses
    return replace(claim, holds=None, detail=f"{claim.detail}; {ALL_LOSSES}") if claim.holds and missing else claim


def _last(record: RunRecord, field: str) -> float:
    return record.series(field)[1][-1] if record.series(field)[1] else record.final(field)


def losses_agree(
    runs: Runs, points: float, place: dict[str, Any], where: str, field: str = "test.accuracy", threshold: str = ""
) -> Claim:
    """The range over the four losses of the accuracies (means over seeds) at one place is at most `points`."""
    what = field.replace(".accuracy", " accuracies")
    text = f"the {what} of the losses {where} lie within {points:g} point{'' if points == 1 else 's'}"
    spread = spread_over_losses(runs, place, field)
    if spread is None:
        return Claim(text, None, ALL_LOSSES, threshold)
    return Claim(text, spread <= points, f"{spread:.2f} points over {len(LOSSES)} losses", threshold)


def spread_over_losses(runs: Runs, place: dict[str, Any], field: str = "test.accuracy") -> float | None:
    """The range over the four losses of accuracies in points; None where one of them is missing."""
    here: dict[str, list[float]] = {}
    for keys, record in of_one_length([run for run in runs if has(place, run[0])]):
        here.setdefault(str(keys.get("loss")), []).append(record.final(field))
    means = [statistics.fmean(here[loss]) for loss in LOSSES if loss in here]
    means = [mean for mean in means if math.isfinite(mean)]
    return 100 * (max(means) - min(means)) if len(means) == len(LOSSES) else None


def range_as_printed(runs: Runs) -> Claim:
    """Figure 4: at width 0.25 and 100 epochs the losses differ by about the printed 1.037 points."""
    text = f"the test accuracies of the losses {AT_SMALL} lie {PRINTED_RANGE['small']:g} points apart, to a point"
    spread = spread_over_losses(runs, SMALL)
    if spread is None:
        return Claim(text, None, ALL_LOSSES, THRESHOLDS["near"])
    detail = f"{spread:.2f} points over {len(LOSSES)} losses"
    return Claim(text, abs(spread - PRINTED_RANGE["small"]) <= 1, detail, THRESHOLDS["near"])


def by_width_and_epochs(runs: Runs) -> list[Claim]:
    """Figure 3: width and epochs raise test accuracy; the losses agree where both are large."""
    agree = losses_agree(runs, PRINTED_RANGE["large"], LARGE, AT_LARGE, threshold=THRESHOLDS["printed"])
    return [raises(runs, "width", "a wider network"), raises(runs, "epochs", "longer training"), agree]


def raises(runs: Runs, axis: str, what: str, *, mostly: bool = False) -> Claim:
    """Test accuracy rises with one key where all others and the seed are equal, from each value to the next.

    With `mostly`, in more than half of three steps or more.
    """
    gains, losses, runs = [], set(), of_one_length(runs)
    for keys, record in runs:
        above = [
            (other[axis], rival)
            for other, rival in runs
            if {**other, axis: 0} == {**keys, axis: 0} and other[axis] > keys[axis] and rival.seed == record.seed
        ]
        if above:
            nearest = min(above, key=lambda pair: pair[0])[1]
            gains.append(100 * (nearest.final("test.accuracy") - record.final("test.accuracy")))
            losses.add(str(keys.get("loss")))
    text = f"{what} raises test accuracy under every loss" + ", in most cases" * mostly
    if not gains:
        return Claim(text, None, "")
    kept = sum(gain > 0 for gain in gains)
    detail = f"{kept} of {count(len(gains), 'step')}: " + ", ".join(f"{gain:+.2f}" for gain in gains) + " points"
    if mostly and len(gains) < 3:
        return Claim(text, None, f"{detail}; three steps are needed")
    return _of_every_loss(Claim(text, kept > len(gains) / 2 if mostly else kept == len(gains), detail), losses)


def collapse_and_agreement(runs: Runs) -> list[Claim]:
    """Figure 4: the two printed ranges over the losses, their order, and NC1 of the small and the large network."""
    return [
        range_as_printed(runs),
        losses_agree(runs, PRINTED_RANGE["large"], LARGE, AT_LARGE, threshold=THRESHOLDS["printed"]),
        less_agreement_when_small(runs),
        more_collapsed_when_large(runs),
    ]


def more_collapsed_when_large(runs: Runs) -> Claim:
    """NC1 at width 0.25 and 100 epochs is about three orders of magnitude (two at least) above width 2 and 800."""
    orders, runs = [], of_one_length(runs)
    for keys, record in runs:
        if has(SMALL, keys):
            rivals = [r for k, r in runs if has({**LARGE, "loss": keys["loss"]}, k) and r.seed == record.seed]
            orders += [math.log10(record.final("train.nc1") / rival.final("train.nc1")) for rival in rivals]
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
    return Claim(text, small > large, f"{small:.2f} against {large:.2f} points")


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
        losses_agree(runs, ALIKE, LARGE, AT_LARGE, threshold=THRESHOLDS["alike"]),
        less_agreement_when_small(runs),
    ]
