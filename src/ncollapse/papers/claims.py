"""What the papers say of their figures in words, as checks on our runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ncollapse.compare.variants import CASES
from ncollapse.grammar import count
from ncollapse.papers import publications
from ncollapse.papers.experiment import Experiment, Point
from ncollapse.papers.judge import match
from ncollapse.runs.record import RunRecord


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, whether it holds in our runs (None: not run), and the numbers behind that."""

    text: str
    holds: bool | None
    detail: str


Pairs = list[tuple[dict[str, Any], RunRecord]]


def check(experiment: Experiment, points: Sequence[Point], records: Iterable[RunRecord]) -> list[Claim]:
    """The claims about an experiment, checked; none where the paper makes none that a number decides."""
    pairs = [(without_seed(point.keys), record) for point, found in match(points, records) for record in found]
    checker = CHECKS.get(experiment.id)
    return checker(pairs) if checker and pairs else []


def without_seed(keys: dict[str, Any]) -> dict[str, Any]:
    """The keys of a point but for its seed, which its runs have themselves."""
    return {key: value for key, value in keys.items() if key != "seed"}


def falls(pairs: Pairs, fields: Sequence[str], by: float = 10.0, small: float = 0.05) -> Claim:
    """Every metric ends below a tenth of its first measurement, or, if it is a distance (not NC1), below 0.05.

    The first measurement follows the first epoch, by which a loss that is quick has most of the way behind it. The
    distances lie between unit matrices, so 0.05 is an angle of 3 degrees; NC1 has no such scale, and where it was
    first measured later and did not fall that far from there, it stays open.
    """
    kept, far, late, total = 0, 0, 0, 0
    ends: dict[str, float] = {}
    for _, record in pairs:
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
        return Claim(text, None, "")
    detail = f"{kept} of {count(total, 'curve')}, {far} of them below 1/{by:g}"
    detail += f", {late} first measured late" if late else ""
    detail += f"; at the end at most {', '.join(f'{name} {value:.2g}' for name, value in ends.items())}"
    holds = False if kept + late < total else None if late else True
    return Claim(text, holds, detail)


def bce_first(pairs: Pairs, fields: Sequence[str], *, mostly: bool = False) -> Claim:
    """Over the first fifth of the epochs (20 of 100) the metrics of BCE lie below those of CE, in geometric mean.

    Runs of one length are compared, at the epochs at which both were measured; all of them, or more than half.
    """
    kept, total, once = 0, 0, 0
    for keys, record in pairs:
        if keys.get("loss") != "ce":
            continue
        other = [r for k, r in pairs if k == {**keys, "loss": "bce"} and r.seed == record.seed]
        for field in fields if other else ():
            epochs, early = _measure_early([record, other[0]], field)
            if early:
                total += 1
                once += len(epochs) == 1
                kept += early[1] < early[0]
    text = "BCE's NC metrics fall faster than CE's in the first fifth of the training" + ", in most cases" * mostly
    if not total:
        return Claim(text, None, "it takes runs of both losses")
    detail = f"{kept} of {count(total, 'curve')}" + f", {once} of them measured once in that time" * bool(once)
    return Claim(text, kept > total / 2 if mostly else kept == total, detail)


def separates(pairs: Pairs) -> Claim:
    """Under BCE the mean bias lies between the mean negative and positive scores."""
    bce = [r for keys, r in pairs if keys.get("loss") == "bce"]
    kept = [
        r.final("train.negative_score.mean") < r.final("train.bias.mean") < r.final("train.positive_score.mean")
        for r in bce
    ]
    return Claim(
        "the bias of BCE separates positive from negative scores",
        all(kept) if kept else None,
        f"{sum(kept)} of {count(len(kept), 'run')}" if kept else "",
    )


def remembers(pairs: Pairs) -> Claim:
    """Under CE with lambda_b = 0 the final mean bias is the initial one, within 0.05."""
    shifts = [
        abs(record.final("train.bias.mean") - float(keys["bias_init"]))
        for keys, record in pairs
        if keys.get("loss") == "ce" and "bias_init" in keys
    ]
    holds = max(shifts) < 0.05 if shifts else None
    detail = f"largest shift {max(shifts):.4f} over {count(len(shifts), 'run')}" if shifts else ""
    return Claim("without decay CE keeps the bias it started from", holds, detail)


def vanishes(pairs: Pairs) -> Claim:
    """Under CE with lambda_b > 0 the mean bias ends near zero."""
    biases = [abs(r.final("train.bias.mean")) for keys, r in pairs if keys.get("loss") == "ce"]
    holds = max(biases) < 0.05 if biases else None
    detail = f"largest mean bias {max(biases):.4f} over {count(len(biases), 'run')}" if biases else ""
    return Claim("the bias of CE converges to zero", holds, detail)


def gains(pairs: Pairs, field: str, what: str) -> Claim:
    """BCE is above CE on the test set at every place."""
    parts = []
    for keys, record in pairs:
        if keys.get("loss") != "ce":
            continue
        other = [r for k, r in pairs if k == {**keys, "loss": "bce"} and r.seed == record.seed]
        if other:
            parts.append(100 * (other[0].final(field) - record.final(field)))
    detail = ", ".join(f"{gain:+.2f}" for gain in parts) + " points" if parts else "it takes runs of both losses"
    return Claim(f"BCE raises {what} over CE", all(g > 0 for g in parts) if parts else None, detail)


def margins(pairs: Pairs, field: str) -> Claim:
    """Our gain of BCE over CE is at least half the printed one where that is two points or more, else not negative."""
    table = publications.load("bce-vs-ce-early")["table-2"]
    parts, kept = [], []
    for keys, record in pairs:
        place = {key: value for key, value in keys.items() if key != "loss"}
        other = [r for k, r in pairs if k == {**keys, "loss": "bce"} and r.seed == record.seed]
        if keys.get("loss") != "ce" or not other:
            continue
        ours = other[0].final(field) - record.final(field)
        theirs = table.find(f"{field}.gain", **place).value
        kept.append(ours >= (theirs / 2 if theirs >= 0.02 else 0))
        parts.append(f"{100 * ours:+.2f} for {100 * theirs:+.2f}")
    text = "BCE's gain in uniform accuracy is at least half the printed one (not negative where that is below 2 points)"
    return Claim(text, all(kept) if kept else None, ", ".join(parts) or "it takes runs of both losses")


def starts_at_the_optimum(pairs: Pairs) -> list[Claim]:
    """From the predicted bias against from 0, means over seeds: the certified gap at the end, NC1 over the training."""
    found = []
    for decay in sorted({keys["bias_decay"] for keys, _ in pairs}):
        starts = [
            [record for keys, record in pairs if keys["bias_decay"] == decay and keys["bias_init"] == start]
            for start in ("theory", 0.0)
        ]
        text = f"lambda_b = {decay:g}: from the predicted bias, BCE"
        if not all(starts):
            found.append(Claim(f"{text} ends closer to its optimum and collapses sooner", None, "it takes both starts"))
            continue
        gaps, biases = (
            [statistics.fmean(record.final(field) for record in runs) for runs in starts]
            for field in ("certificate.relative_gap", "train.bias.mean")
        )
        detail = (
            f"certified relative gap {gaps[0]:.3g} against {gaps[1]:.3g}, bias {biases[0]:.4f} against {biases[1]:.4f}"
        )
        found.append(Claim(f"{text} ends closer to its optimum than from 0", gaps[0] < gaps[1], detail))
        found.append(_collapses_sooner(f"{text} collapses sooner than from 0", *starts))
    return found


def agree(pairs: Pairs, width: float, epochs: int, printed: float) -> Claim:
    """The range over the losses of test accuracies, means over seeds, at one width and length, against the printed."""
    here: dict[str, list[float]] = {}
    for keys, record in pairs:
        if keys.get("width") == width and keys.get("epochs") == epochs:
            here.setdefault(str(keys["loss"]), []).append(record.final("test.accuracy"))
    text = f"the test accuracies of the losses at width {width:g} and {epochs} epochs lie within {printed:g} points"
    if len(here) < 2:
        return Claim(text, None, "")
    means = [statistics.fmean(values) for values in here.values()]
    spread = 100 * (max(means) - min(means))
    return Claim(text, spread <= printed, f"{spread:.2f} points over {len(here)} losses")


def orthogonal(pairs: Pairs) -> Claim:
    """The class means are orthogonal: the mean size of the cosines between them is below 0.1."""
    values = [record.final("train.mean_orthogonality") for _, record in pairs]
    values = [value for value in values if math.isfinite(value)]
    detail = "mean size of their cosines " + ", ".join(f"{value:.4f}" for value in values) if values else ""
    return Claim("the class means are orthogonal", max(values) < 0.1 if values else None, detail)


def needs_dimensions(pairs: Pairs) -> Claim:
    """Under MSE the best test accuracy with d < K - 1 is below the worst with d >= K - 1."""
    low = [r.final("test.accuracy") for k, r in pairs if k["loss"] == "mse" and k["dim"] < 9]
    high = [r.final("test.accuracy") for k, r in pairs if k["loss"] == "mse" and k["dim"] >= 9]
    if not low or not high:
        return Claim("MSE needs d >= K - 1", None, "")
    detail = f"at best {100 * max(low):.2f} % below, at worst {100 * min(high):.2f} % from K - 1 on"
    return Claim("MSE needs d >= K - 1", max(low) < min(high), detail)


def fixed_is_enough(pairs: Pairs) -> Claim:
    """A fixed simplex ETF tests within a point of the learned classifier."""
    learned = [r.final("test.accuracy") for k, r in pairs if k["head"] == "linear"]
    fixed = [r.final("test.accuracy") for k, r in pairs if k["head"] == "etf"]
    if not learned or not fixed:
        return Claim("a fixed ETF tests as well as a learned classifier", None, "")
    gap = 100 * (statistics.fmean(learned) - min(fixed))
    return Claim("a fixed ETF tests as well as a learned classifier", gap < 1, f"at worst {gap:.2f} points below")


def _collapses_sooner(text: str, runs: Sequence[RunRecord], others: Sequence[RunRecord]) -> Claim:
    epochs, early = _measure_early([*runs, *others], "train.nc1")
    if not early:
        return Claim(text, None, "it takes runs of one length, measured at the same epochs")
    ours, theirs = statistics.fmean(early[: len(runs)]), statistics.fmean(early[len(runs) :])
    when = f"at epoch {epochs[0]:g} alone" if len(epochs) == 1 else "over the first fifth, geometric mean"
    return Claim(text, ours < theirs, f"NC1 {when}: {math.exp(ours):.3g} against {math.exp(theirs):.3g}")


def _measure_early(records: Sequence[RunRecord], field: str) -> tuple[list[int], list[float]]:
    """The epochs of the first fifth at which every run measured a metric, and its mean log over them for each run.

    Empty where there are none, or where the runs differ in length.
    """
    lengths = {int(record.get("optim.epochs", 0)) for record in records}
    curves = [{e: v for e, v in zip(*record.series(field)) if v > 0} for record in records]
    shared = sorted(e for e in set(curves[0]).intersection(*curves) if 0 < e <= 0.2 * min(lengths))
    if len(lengths) > 1 or not shared:
        return [], []
    return shared, [statistics.fmean(math.log(curve[e]) for e in shared) for curve in curves]


NC = ("train.nc1", "train.nc2", "train.nc3")
PLAIN = ("train.nc1", "train.nc2_uncentred", "train.nc3")
RELU = ("train.nc1", "train.nc2_relu", "train.nc3_relu")


def _collapse(pairs: Pairs) -> list[Claim]:
    return [*_fall_by_optimiser(pairs), bce_first(pairs, NC)]


def _collapse_under_adamw(pairs: Pairs) -> list[Claim]:
    """Figure 6: on CIFAR100 the metrics fall to zero under AdamW, not under SGD; BCE is first in most cases."""
    fell, stays = _fall_by_optimiser(pairs)
    not_so = Claim("under SGD they do not", None if stays.holds is None else not stays.holds, stays.detail)
    return [fell, not_so, bce_first(pairs, NC, mostly=True)]


def _fall_by_optimiser(pairs: Pairs) -> list[Claim]:
    return _by_optimiser(pairs, lambda some: falls(some, NC), ("adamw", "sgd"))


def _by_optimiser(pairs: Pairs, check: Callable[[Pairs], Claim], names: Sequence[str]) -> list[Claim]:
    found = []
    for name in names:
        claim = check([pair for pair in pairs if pair[0].get("optimizer") == name])
        found.append(replace(claim, text=f"under {CASES[name]} {claim.text}"))
    return found


def _relu_collapse(pairs: Pairs) -> list[Claim]:
    return _by_optimiser(pairs, lambda some: falls(some, RELU), ("adam", "sgd"))


def _biases_by_batch(pairs: Pairs) -> list[Claim]:
    """Figure 7, of which the paper speaks up to a batch size of 1024."""
    kept = [pair for pair in pairs if pair[0].get("batch_size", 0) <= 1024]
    return [
        replace(claim, text=f"{claim.text}, up to a batch size of 1024") for claim in (separates(kept), vanishes(kept))
    ]


def _classified(pairs: Pairs) -> list[Claim]:
    return [gains(pairs, "test.uniform_accuracy", "uniform accuracy"), margins(pairs, "test.uniform_accuracy")]


def _biases(pairs: Pairs) -> list[Claim]:
    return [separates(pairs), remembers(pairs)]


CHECKS: dict[str, Callable[[Pairs], list[Claim]]] = {
    **{f"bce-vs-ce/figure-{n}": _collapse for n in (2, 4, 5)},
    "bce-vs-ce/figure-6": _collapse_under_adamw,
    "bce-vs-ce-early/figure-2": _collapse,
    "bce-vs-ce/table-1": _classified,
    "bce-vs-ce-early/table-2": _classified,
    "bce-vs-ce/vit": lambda pairs: [gains(pairs, "test.uniform_accuracy", "uniform accuracy")],
    "bce-vs-ce/figure-3": _biases,
    "bce-vs-ce-early/figure-3": _biases,
    "bce-vs-ce/figure-7": _biases_by_batch,
    "all-losses/figure-1": lambda pairs: [falls(pairs, PLAIN)],
    "all-losses/figure-4": lambda pairs: [agree(pairs, 0.25, 100, 1.037), agree(pairs, 2, 800, 0.36)],
    "all-losses/figure-5": lambda pairs: [falls(pairs, PLAIN)],
    "imbalanced-relu/figure-1": _relu_collapse,
    "imbalanced-relu/figure-2": _relu_collapse,
    "imbalanced-relu/figure-3": lambda pairs: _by_optimiser(pairs, orthogonal, ("adam", "sgd")),
    "mse-landscape/figure-3": lambda pairs: [falls(pairs, PLAIN)],
    "mse-landscape/figure-4": lambda pairs: [needs_dimensions(pairs)],
    "mse-landscape/figure-5": lambda pairs: [fixed_is_enough(pairs)],
    "ncollapse/bias-init": starts_at_the_optimum,
    "mse-landscape/random-labels": lambda pairs: [falls(pairs, ("train.nc1",))],
}
