"""What a paper says in words, checked on runs: the checks that several papers share.

A check takes runs, each with the keys of its point, and returns a `Claim`. What only one paper says is in that paper's
own module.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ncollapse.compare.variants import name_loss, name_optimiser
from ncollapse.grammar import count
from ncollapse.papers.experiment import Experiment
from ncollapse.papers.matching import Match, epochs_of
from ncollapse.papers.standard_error import error_of_mean
from ncollapse.runs.record import RunRecord

BOTH_LOSSES = "runs of both losses, equally long, are needed"
NEAR_ZERO = "ours"
MOSTLY = "ours, for most: more than half of three or more"
FASTER = "ours, for faster: lower in the mean logarithm over these epochs (20 of 100 in bce-vs-ce)"


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, whether it holds in our runs (None: not decided), and the numbers behind that.

    `threshold` says where the number that decides comes from, "" if none is needed, such as for an order. `lengths` are
    those of the runs behind it in epochs, where it is of a part of them.
    """

    text: str
    holds: bool | None
    detail: str
    threshold: str = ""
    lengths: tuple[int, ...] = ()


Runs = list[tuple[dict[str, Any], RunRecord]]


def check_claims(experiment: Experiment, matches: Sequence[Match]) -> list[Claim]:
    """The claims about an experiment, checked; none if the paper makes none that a number decides, or nothing was run.

    Trials, which trained for less than a quarter of the epochs, count only if there is nothing longer, and then only
    those that trained for the same share of the epochs asked for: the share that most of them have.
    """
    if experiment.claims is None:
        return []
    runs = _choose_runs(of_the_paper(experiment, matches))
    return experiment.claims(runs) if runs else []


def check_beyond(experiment: Experiment, matches: Sequence[Match]) -> list[Claim]:
    """What is checked in settings of ours, which the paper did not run; none if there are none, or nothing was run."""
    if experiment.beyond is None:
        return []
    runs = _choose_runs(of_ours(experiment, matches))
    return experiment.beyond.claims(runs) if runs else []


def of_the_paper(experiment: Experiment, matches: Sequence[Match]) -> list[Match]:
    """The points of the grid that the paper ran."""
    ours = of_ours(experiment, matches)
    return [match for match in matches if match not in ours]


def of_ours(experiment: Experiment, matches: Sequence[Match]) -> list[Match]:
    """The points of the grid in settings of ours."""
    beyond = experiment.beyond
    return [match for match in matches if beyond is not None and beyond.covers(match.point.keys)]


def _choose_runs(matches: Sequence[Match]) -> Runs:
    found = [match for match in matches if match.records]
    found = [match for match in found if not match.is_trial] or _of_one_share(found)
    return [(without_seed(match.point.keys), record) for match in found for record in match.records]


def _of_one_share(matches: Sequence[Match]) -> list[Match]:
    by_share: dict[float, list[Match]] = {}
    for match in matches:
        by_share.setdefault(match.epochs / match.asked_epochs, []).append(match)
    return max(by_share.items(), key=lambda item: (len(item[1]), item[0]), default=(0.0, []))[1]


def without_seed(keys: dict[str, Any]) -> dict[str, Any]:
    """The keys of a point except its seed, which its runs have themselves."""
    return {key: value for key, value in keys.items() if key != "seed"}


def of_one_length(runs: Runs) -> Runs:
    """The runs that can be compared: those of the length that most of them have, of equals the longest.

    Where the grid itself varies the length (a key "epochs"), that is the share of it that was run.
    """
    by_length: dict[float, Runs] = {}
    for keys, record in runs:
        by_length.setdefault(epochs_of(record) / keys.get("epochs", 1), []).append((keys, record))
    return max(by_length.items(), key=lambda item: (len(item[1]), item[0]), default=(0.0, []))[1]


def pair_losses(runs: Runs) -> Iterator[tuple[dict[str, Any], RunRecord, RunRecord]]:
    """(keys without the loss, run of CE, run of BCE) for every two runs of one seed and length that differ in it."""
    for keys, ce in runs:
        if keys.get("loss") == "ce":
            rivals = [r for k, r in runs if k == {**keys, "loss": "bce"} and r.seed == ce.seed]
            bce = [r for r in rivals if epochs_of(r) == epochs_of(ce)]
            if bce:
                yield {key: value for key, value in keys.items() if key != "loss"}, ce, bce[0]


def list_cases(runs: Runs) -> list[tuple[dict[str, Any], list[tuple[RunRecord, RunRecord]]]]:
    """The pairs of `pair_losses` by what they train: runs that differ in their seed alone are one case."""
    cases: list[tuple[dict[str, Any], list[tuple[RunRecord, RunRecord]]]] = []
    for keys, ce, bce in pair_losses(runs):
        same = next((pairs for others, pairs in cases if others == keys), None)
        if same is None:
            cases.append((keys, [(ce, bce)]))
        else:
            same.append((ce, bce))
    return cases


def mean_gain(pairs: Sequence[tuple[RunRecord, RunRecord]], field: str) -> float:
    """The final value under BCE less that under CE, averaged over the seeds of a case."""
    return statistics.fmean(bce.final(field) - ce.final(field) for ce, bce in pairs)


def approach_zero(runs: Runs, fields: Sequence[str], by: float = 10.0, small: float = 0.05) -> Claim:
    """Every metric ends below a tenth of its first measurement, or, if it is a distance (not NC1), below 0.05.

    The first measurement follows the first epoch, after which a fast loss has already made most of its progress. The
    distances are between unit matrices, so 0.05 is an angle of 3 degrees. NC1 has no such scale; if it was first
    measured later and did not fall that far from there, it is not decided.
    """
    kept, far, late, total = 0, 0, 0, 0
    ends: dict[str, float] = {}
    for _, record in runs:
        for field in fields:
            curve = [(epoch, value) for epoch, value in zip(*record.series(field)) if value > 0]
            if len(curve) < 2:
                continue
            (first, start), (_, end) = curve[0], curve[-1]
            name, fell = field.rpartition(".")[2], end < start / by
            total += 1
            far += fell
            late += not fell and name == "nc1" and first > 1
            kept += fell or (name != "nc1" and end < small)
            ends[name] = max(end, ends.get(name, 0.0))
    text = (
        f"the NC metrics approach zero: they end below 1/{by:g} of where they started, NC2 and NC3 else below {small:g}"
    )
    if tuple(fields) == ("train.nc1",):
        text = f"NC1 approaches zero: it ends below 1/{by:g} of where it started"
    if not total:
        return Claim(text, None, "", NEAR_ZERO)
    detail = f"{kept} of {count(total, 'curve')}, {far} of them below 1/{by:g}"
    detail += f", {late} first measured late" if late else ""
    detail += f"; at the end at most {', '.join(f'{name} {value:.2g}' for name, value in ends.items())}"
    holds = False if kept + late < total else None if late else True
    return Claim(text, holds, detail, NEAR_ZERO)


def falls_by_orders(runs: Runs, field: str = "train.nc1", orders: float = 1.0) -> Claim:
    """NC1 ends at least `orders` orders of magnitude below its largest measured value, in every run.

    Where the first tenth of the training was not measured, a smaller fall says nothing.
    """
    fallen, unseen = [], 0
    for _, record in runs:
        points = [(epoch, value) for epoch, value in zip(*record.series(field)) if value > 0]
        if len(points) > 1:
            fall = math.log10(max(value for _, value in points) / points[-1][1])
            late = points[0][0] > max(1.0, points[-1][0] / 10)
            unseen += late and fall < orders
            fallen += [] if late and fall < orders else [fall]
    text = f"NC1 falls by orders of magnitude: by {orders:g} at least"
    threshold = "ours: the paper plots the curves and prints no value"
    if not fallen and not unseen:
        return Claim(text, None, "", threshold)
    ends = dict.fromkeys(f"{end:.1f}" for end in (min(fallen), max(fallen))) if fallen else {}
    detail = f"by {' to '.join(ends)} orders over {count(len(fallen), 'run')}" if fallen else ""
    if unseen:
        detail += f"{', ' if fallen else ''}the start of {count(unseen, 'run')} was not measured"
    failed = bool(fallen) and min(fallen) < orders
    return Claim(text, False if failed else None if unseen else True, detail, threshold)


def faster_under_bce(runs: Runs, fields: Sequence[str], *, mostly: bool = False) -> Claim:
    """Over the first fifth of the epochs (20 of 100), the metrics of BCE lie below those of CE in geometric mean.

    Runs of one length are compared at the epochs at which both were measured. All of them must agree, or, with
    `mostly`, more than half.
    """
    kept, total, once = 0, 0, 0
    for _, ce, bce in pair_losses(runs):
        for field in fields:
            epochs, early = measure_early([ce, bce], field)
            if early:
                total += 1
                once += len(epochs) == 1
                kept += early[1] < early[0]
    what = "NC1 falls" if tuple(fields) == ("train.nc1",) else "NC metrics fall"
    text = f"BCE's {what} faster than CE's in the first fifth of the training" + ", in most cases" * mostly
    threshold = FASTER + "; for most: more than half" * mostly
    if not total:
        return Claim(text, None, BOTH_LOSSES, threshold)
    detail = f"{kept} of {count(total, 'curve')}" + f", {once} of them measured once in that time" * bool(once)
    return Claim(text, kept > total / 2 if mostly else kept == total, detail, threshold)


def higher_under_bce(runs: Runs, field: str, what: str, *, mostly: bool = False) -> Claim:
    """BCE is above CE in that field in every case, or, with `mostly`, in more than half of three or more.

    A case is what was trained; several seeds of it count once, by their mean.
    """
    measured = [[pair for pair in pairs if math.isfinite(mean_gain([pair], field))] for _, pairs in list_cases(runs)]
    cases = [pairs for pairs in measured if pairs]
    gains = [100 * mean_gain(pairs, field) for pairs in cases]
    text = f"BCE raises {what} over CE" + " in most cases" * mostly
    threshold = MOSTLY * mostly
    if not gains:
        return Claim(text, None, BOTH_LOSSES, threshold)
    raised = sum(gain > 0 for gain in gains)
    detail = ", ".join(f"{gain:+.2f}" for gain in gains) + " points"
    repeated = sum(len(pairs) > 1 for pairs in cases)
    detail += f", {repeated} of them over several seeds" if repeated else ""
    unsure = sum(abs(gain) < 300 * error_of_mean(pairs, field) for gain, pairs in zip(gains, cases))
    detail += f", {unsure} of them less than three standard errors" if unsure else ""
    if mostly and len(gains) < 3:
        return Claim(text, None, f"{detail}; three pairs of runs are needed", threshold)
    return Claim(text, raised > len(gains) / 2 if mostly else raised == len(gains), detail, threshold)


def separates_scores(runs: Runs, *, mostly: bool = False) -> Claim:
    """Under BCE every bias lies above every negative and below every positive score of the training samples.

    With `mostly`, above 95 % of the negative and below 95 % of the positive scores.
    """
    gaps = []
    top, bottom = ("q95", "q05") if mostly else ("max", "min")
    for keys, record in runs:
        if keys.get("loss") == "bce":
            below = record.final("train.bias.min") - record.final(f"train.negative_score.{top}")
            above = record.final(f"train.positive_score.{bottom}") - record.final("train.bias.max")
            gaps += [min(below, above)] if math.isfinite(below + above) else []
    which = "95 % of the" if mostly else "all"
    text = f"the bias of BCE separates the positive from the negative scores of {which} samples"
    if not gaps:
        return Claim(text, None, "")
    kept = sum(gap > 0 for gap in gaps)
    detail = f"{kept} of {count(len(gaps), 'run')}; smallest distance of a score from a bias {min(gaps):.2f}"
    return Claim(text, kept == len(gaps), detail)


def ordered_alike(runs: Runs, first: str, second: str, text: str) -> Claim:
    """Two final fields order the runs alike: every pair of runs that one ranks, the other ranks the same way."""
    values = [(record.final(first), record.final(second)) for _, record in of_one_length(runs)]
    values = [pair for pair in values if all(map(math.isfinite, pair))]
    threshold = "ours: every two of them, in the mean over the samples"
    if len(values) < 2:
        return Claim(text, None, "", threshold)
    signs = [(a - c) * (b - d) for i, (a, b) in enumerate(values) for c, d in values[:i]]
    kept = sum(sign > 0 for sign in signs)
    detail = "; ".join(f"{a:.4g} with {b:.4g}" for a, b in sorted(values))
    return Claim(text, kept == len(signs), f"{kept} of {count(len(signs), 'pair')} of runs: {detail}", threshold)


def by_key(runs: Runs, key: str, values: Sequence[str], check: Callable[[Runs], Claim]) -> list[Claim]:
    """The check for the runs of each optimiser, or of each loss, apart."""
    found = []
    for value in values:
        mine = [run for run in runs if run[0].get(key) == value]
        claim, lengths = check(mine), tuple(sorted({epochs_of(record) for _, record in mine}))
        text = f"under {name_loss(name_optimiser(value))} {claim.text}"
        found.append(replace(claim, text=text, lengths=lengths))
    return found


def measure_early(records: Sequence[RunRecord], field: str) -> tuple[list[int], list[float]]:
    """The epochs of the first fifth at which every run measured a metric, and its mean log over them for each run.

    Empty if there are none, or if the runs differ in length.
    """
    lengths = {epochs_of(record) for record in records}
    curves = [{e: v for e, v in zip(*record.series(field)) if v > 0} for record in records]
    shared = sorted(e for e in set(curves[0]).intersection(*curves) if 0 < e <= 0.2 * min(lengths))
    if len(lengths) > 1 or not shared:
        return [], []
    return shared, [statistics.fmean(math.log(curve[e]) for e in shared) for curve in curves]
