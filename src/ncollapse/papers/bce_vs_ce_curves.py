"""What "BCE vs. CE in Deep Feature Learning" says of the course of its trainings: what falls, and what comes first."""

from __future__ import annotations

import math
from collections.abc import Callable

from ncollapse.grammar import count
from ncollapse.papers.bce_vs_ce_claims import score_gaps
from ncollapse.papers.claims import NEAR_ZERO, Claim, Runs, approach_zero, by_key, faster_under_bce
from ncollapse.runs.record import RunRecord

NC = ("train.nc1", "train.nc2", "train.nc3")
PRINTED_AS_100, COLLAPSED = 0.99995, 1e-4
NO_VALUE = "ours, for collapse: the paper gives no value"
LARGE_STD = 0.5


def collapse_curves(runs: Runs) -> list[Claim]:
    """Figures 2, 4, 5: the metrics approach zero, BCE's faster."""
    fell = by_key(runs, "optimizer", ("adamw", "sgd"), lambda some: approach_zero(some, NC))
    return [*fell, faster_under_bce(runs, NC), accuracy_comes_first(runs)]


def collapse_curves_cifar10(runs: Runs) -> list[Claim]:
    """Figure 5: as figures 2 and 4; its runs also show that neither of the two implications can be reversed."""
    return [*collapse_curves(runs), reverses_are_not_true(runs)]


def collapse_curves_early(runs: Runs) -> list[Claim]:
    """Figure 2 of the early version, which says only that collapse comes after zero classification error."""
    return [*collapse_curves(runs)[:-1], collapse_comes_last(runs)]


def collapse_curves_cifar100(runs: Runs) -> list[Claim]:
    """Figure 6: on CIFAR100 the metrics fall to zero under AdamW, not under SGD; BCE is first in most cases."""
    (fell,) = by_key(runs, "optimizer", ("adamw",), lambda some: approach_zero(some, NC))
    (stay,) = by_key(runs, "optimizer", ("sgd",), stays_above_zero)
    return [fell, stay, faster_under_bce(runs, NC, mostly=True), accuracy_comes_first(runs)]


def stays_above_zero(runs: Runs) -> Claim:
    """Of every model at least one metric does not approach zero, as `approach_zero` has it."""
    found = [approach_zero([run], NC).holds for run in runs]
    curves = [approach_zero([run], (field,)).holds for run in runs for field in NC]
    text = "the NC metrics of no model decrease to zero: at least one of the three stays above it"
    if not found:
        return Claim(text, None, "", NEAR_ZERO)
    detail = f"in {found.count(False)} of {count(len(found), 'model')}"
    detail += f"; {curves.count(False)} of {len(curves)} curves stay up"
    return Claim(text, False if True in found else None if None in found else True, detail, NEAR_ZERO)


def accuracy_comes_first(runs: Runs) -> Claim:
    """Accuracy reaches 100.00 % no later than uniform accuracy does, and that no later than NC1 falls below 1e-4."""
    text = f"zero error comes before zero uniform error, and that before collapse (NC1 < {COLLAPSED:g})"
    return _keep_order(runs, text, lambda accuracy, uniform, nc1: accuracy <= uniform <= nc1)


def collapse_comes_last(runs: Runs) -> Claim:
    """NC1 falls below 1e-4, if it does, later than accuracy reaches 100.00 %."""
    text = f"after zero classification error it takes further training to collapse (NC1 < {COLLAPSED:g})"
    return _keep_order(runs, text, lambda accuracy, _, nc1: accuracy < nc1)


def _keep_order(runs: Runs, text: str, in_order: Callable[[float, float, float], bool]) -> Claim:
    """Whether the first epochs of zero error, zero uniform error and collapse are in order, in the runs that have one.

    Runs without the first and the last of them do not count.
    """
    kept, total = 0, 0
    for _, record in runs:
        accuracy = first_epoch(record, "train.accuracy", lambda value: value >= PRINTED_AS_100)
        uniform = first_epoch(record, "train.uniform_accuracy", lambda value: value >= PRINTED_AS_100)
        nc1 = first_epoch(record, "train.nc1", lambda value: value < COLLAPSED)
        if accuracy < math.inf or nc1 < math.inf:
            total += 1
            kept += in_order(accuracy, uniform, nc1)
    detail = f"{kept} of {count(total, 'run')}" if total else ""
    return Claim(text, kept == total if total else None, detail, NO_VALUE)


def reverses_are_not_true(runs: Runs) -> Claim:
    """Some model has A = 100.00 % and A_Uni below it, and some has A_Uni = 100.00 % and NC1 above 1e-4; else open."""
    ahead, uncollapsed = 0, 0
    for _, record in runs:
        names = ("train.accuracy", "train.uniform_accuracy", "train.nc1")
        curves = [dict(zip(*record.series(name))) for name in names]
        rows = [[curve[epoch] for curve in curves] for epoch in set(curves[0]).intersection(*curves)]
        ahead += any(accuracy >= PRINTED_AS_100 > uniform for accuracy, uniform, _ in rows)
        uncollapsed += any(uniform >= PRINTED_AS_100 and nc1 >= COLLAPSED for _, uniform, nc1 in rows)
    text = "some models reach zero error but not zero uniform error, others reach that but do not collapse"
    detail = f"the first in {ahead} of {count(len(runs), 'run')}, the second in {uncollapsed}" if runs else ""
    return Claim(text, True if ahead and uncollapsed else None, detail, NO_VALUE)


def first_epoch(record: RunRecord, field: str, reached: Callable[[float], bool]) -> float:
    """The first measured epoch at which a field has reached something, infinity if it never has."""
    return min((epoch for epoch, value in zip(*record.series(field)) if reached(value)), default=math.inf)


def classified_on_cifar10(runs: Runs) -> list[Claim]:
    """Table 12: the gaps of the scores, and that models that fit every sample have not collapsed."""
    return [*score_gaps(runs), fits_without_collapse(runs)]


def fits_without_collapse(runs: Runs) -> Claim:
    """App. B.3: of the models that reach A = 100.00 % in training, none collapses, and their scores spread."""
    spreads, collapsed = [], 0
    for _, record in runs:
        if first_epoch(record, "train.accuracy", lambda value: value >= PRINTED_AS_100) < math.inf:
            spreads.append(min(record.final(f"train.{sign}_score.std") for sign in ("positive", "negative")))
            collapsed += first_epoch(record, "train.nc1", lambda value: value < COLLAPSED) < math.inf
    spreads = [spread for spread in spreads if math.isfinite(spread)]
    text = "models that classify every training sample correctly at some epoch do not collapse: their scores spread"
    threshold = f"ours, for large: {LARGE_STD:g}, as App. B.2 has it of failed runs; for collapse: NC1 < {COLLAPSED:g}"
    if not spreads:
        return Claim(text, None, "", threshold)
    detail = (
        f"standard deviations of {min(spreads):.2f} at least, collapse in {collapsed} of {count(len(spreads), 'run')}"
    )
    return Claim(text, min(spreads) > LARGE_STD and not collapsed, detail, threshold)
