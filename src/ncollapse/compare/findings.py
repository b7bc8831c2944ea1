"""What a folder of runs says about its losses: estimates over seeds, paired differences, speed, and plain sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from ncollapse.compare.seeds import (
    EARLY_EPOCHS,
    Difference,
    Estimate,
    Speed,
    collapse_speed,
    estimate,
    is_recorded,
    paired_difference,
    shared_epochs,
)
from ncollapse.compare.variants import Variant, group_runs, measured, predicted
from ncollapse.grammar import join
from ncollapse.runs.record import RunRecord


class Quantity(NamedTuple):
    """A row of the comparison: where it stands in a record, what it is called, and which way is better."""

    key: str
    title: str
    percent: bool = False
    better: str = ""


QUANTITIES = (
    Quantity("test.accuracy", "test accuracy", True, "higher"),
    Quantity("test.uniform_accuracy", "test uniform accuracy", True, "higher"),
    Quantity("test.compactness", "test compactness", True, "higher"),
    Quantity("test.distinctiveness", "test distinctiveness", True, "higher"),
    Quantity("train.accuracy", "train accuracy", True, "higher"),
    Quantity("train.uniform_accuracy", "train uniform accuracy", True, "higher"),
    Quantity("train.nc1", "train NC1", False, "lower"),
    Quantity("train.nc2", "train NC2", False, "lower"),
    Quantity("train.nc3", "train NC3", False, "lower"),
    Quantity("train.positive_score", "positive score"),
    Quantity("train.negative_score", "negative score"),
    Quantity("train.bias", "bias"),
    Quantity("train.weight_energy", "weight energy"),
    Quantity("train.feature_energy", "feature energy"),
    Quantity("certificate.gap", "certified gap"),  # of another objective for each loss: neither side is better
)
SAID = ("test.accuracy", "test.uniform_accuracy", "train.nc1")
PREDICTED = ("positive_score", "negative_score", "bias", "weight_energy", "feature_energy", "nc1", "nc2", "nc3")
SPEEDS = {
    "accuracy_epoch": "epoch, accuracy 100 %",
    "uniform_accuracy_epoch": "epoch, uniform 100 %",
    "nc1_epoch": "epoch, NC1 < 0.1",
    "log_nc1": "early mean log10 NC1",
    "log_nc2": "early mean log10 NC2",
    "log_nc3": "early mean log10 NC3",
}


@dataclass(frozen=True)
class Finding:
    """One variant beside the reference of its context (None for the reference itself), quantity by quantity."""

    variant: Variant
    reference: Variant | None
    estimates: dict[str, Estimate]
    differences: dict[str, Difference]
    predictions: dict[str, float]
    phase: str
    speeds: dict[str, Estimate]
    speed_differences: dict[str, Difference]
    reached: dict[str, int]
    recorded: dict[str, int]
    """How many runs have any number in their history from which a speed follows."""
    sentence: str


def compare_runs(records: Sequence[RunRecord]) -> list[Finding]:
    """Lay the variants of some runs side by side; the first loss of each context is the reference of the others."""
    variants = group_runs(records)
    references: dict[str, Variant] = {}
    findings = []
    for variant in variants:
        if not variant.counted:
            continue
        reference = references.setdefault(variant.context, variant)
        findings.append(find(variant, None if reference is variant else reference))
    return findings


def find(variant: Variant, reference: Variant | None) -> Finding:
    """Everything the seeds of one variant say, on its own and paired by seed with the reference."""
    runs = variant.counted
    estimates = {q.key: estimate([measured(r, q.key) for r in runs]) for q in QUANTITIES}
    pairs = pair_by_seed(reference.counted, runs) if reference else []
    differences = {}
    if reference:
        for q in QUANTITIES:
            sides = [(measured(a, q.key), measured(b, q.key)) for a, b in pairs]
            differences[q.key] = paired_difference([a for a, _ in sides], [b for _, b in sides])
    # Where a history has lost rows, a first epoch may be among them: such runs have no speed.
    all_speeds = [collapse_speed(r.history) for r in runs if not r.missing_epochs()]
    raced = []
    for a, b in ((a, b) for a, b in pairs if not (a.missing_epochs() or b.missing_epochs())):
        both = shared_epochs(a.history, b.history)
        raced.append((collapse_speed(a.history, epochs=both), collapse_speed(b.history, epochs=both)))
    speed_differences = {
        name: paired_difference(
            [_number(getattr(a, name)) for a, _ in raced], [_number(getattr(b, name)) for _, b in raced]
        )
        for name in (SPEEDS if reference else ())
    }
    speeds = {name: estimate([_number(getattr(s, name)) for s in all_speeds]) for name in SPEEDS}
    prediction = next((p for r in runs if (p := predicted(r))), {})
    predictions = {name: _number(prediction.get(name)) for name in PREDICTED}
    finding = Finding(
        variant,
        reference,
        estimates,
        differences,
        predictions,
        str(prediction.get("phase") or ""),
        speeds,
        speed_differences,
        {name: count_reached(all_speeds, name) for name in SPEEDS},
        {name: sum(is_recorded(r.history, _field(name)) for r in runs) for name in SPEEDS},
        "",
    )
    return replace(finding, sentence=say(finding))


def pair_by_seed(first: Sequence[RunRecord], second: Sequence[RunRecord]) -> list[tuple[RunRecord, RunRecord]]:
    """The runs of two variants that share a seed."""
    by_seed = {r.seed: r for r in first}
    return [(by_seed[r.seed], r) for r in second if r.seed in by_seed]


def count_reached(speeds: Sequence[Speed], name: str) -> int:
    """In how many runs an event of `Speed` happened at all."""
    return sum(math.isfinite(_number(getattr(s, name))) for s in speeds)


def say(finding: Finding) -> str:
    """One plain sentence on a variant, claiming a difference only where its interval leaves zero out."""
    name, n = finding.variant.label, len(finding.variant.counted)
    seeds = "one seed" if n == 1 else f"{n} seeds"
    accuracy, uniform = finding.estimates["test.accuracy"], finding.estimates["test.uniform_accuracy"]
    start = f"{name} ({seeds}): test accuracy {_rate(accuracy)}, uniform accuracy {_rate(uniform)}"
    reached, recorded = finding.reached["nc1_epoch"], finding.recorded["nc1_epoch"]
    nc1 = finding.speeds["nc1_epoch"]
    if reached == n:
        start += (
            f", NC1 below 0.1 by epoch {nc1.mean:.1f} on average" if n > 1 else f", NC1 below 0.1 by epoch {nc1.mean:g}"
        )
    elif not recorded:
        start += ", NC1 over the epochs not recorded"
    elif recorded < n:
        start += f", NC1 below 0.1 in {reached} of {recorded} runs and not recorded in {n - recorded}"
    elif reached:
        start += f", NC1 below 0.1 in {reached} of {n} runs"
    else:
        start += ", NC1 never below 0.1"
    if finding.variant.provisional:
        start += " (still unfinished)"
    if finding.reference is None:
        return start + "."
    clauses = [_clause(finding, q) for q in QUANTITIES if q.key in SAID]
    if early := _early_clause(finding):
        clauses.append(early)
    pairs = max((d.n for d in finding.differences.values()), default=0)
    against = finding.reference.label
    if pairs == 0:
        return f"{start}. No seed is shared with {against}, so there is no paired difference."
    if pairs == 1:
        clauses.append("one shared seed gives no interval, so chance is not ruled out")
    return f"{start}. Against {against}: {'; '.join(clauses)}."


def say_ranges(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """One plain sentence per loss on many variants: from where to where its means reach."""
    sentences = []
    for loss in dict.fromkeys(f.variant.loss for f in findings):
        own = [f for f in findings if f.variant.loss == loss]
        parts = []
        for q in QUANTITIES:
            means = [f.estimates[q.key].mean for f in own if f.estimates[q.key].n]
            if q.key in SAID and means:
                low, high = (100 * v if q.percent else v for v in (min(means), max(means)))
                ends = [f"{v:.2f}" if q.percent else _short(v, 3) for v in (low, high)]
                parts.append(f"{q.title} from {ends[0]} to {ends[1]}{' %' if q.percent else ''}")
        runs = sum(len(f.variant.counted) for f in own)
        name = own[0].variant.label.split(" · ")[0]
        sentences.append(
            (loss, f"{name} ({len(own)} variants, {runs} runs): {', '.join(parts) or 'nothing measured'}.")
        )
    return sentences


def to_dict(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The findings as plain data, for `--json`."""
    return [
        {
            "label": f.variant.label,
            "loss": f.variant.loss,
            "settings": f.variant.settings,
            "seeds": [r.seed for r in f.variant.counted],
            "runs": [{"run_id": r.run_id, "seed": r.seed, "status": r.status} for r in f.variant.records],
            "reference": f.reference.label if f.reference else None,
            "measured": {key: asdict(value) for key, value in f.estimates.items()},
            "difference": {key: asdict(value) for key, value in f.differences.items()},
            "predicted": {"phase": f.phase or None, **f.predictions},
            "speed": {
                key: asdict(value) | {"reached": f.reached[key], "recorded": f.recorded[key]}
                for key, value in f.speeds.items()
            },
            "speed_difference": {key: asdict(value) for key, value in f.speed_differences.items()},
            "sentence": f.sentence,
        }
        for f in findings
    ]


def _clause(finding: Finding, quantity: Quantity) -> str:
    d = finding.differences[quantity.key]
    title = quantity.title.removeprefix("test ").removeprefix("train ")
    if not math.isfinite(d.mean):
        return f"{title} not measured"
    scale, unit = (100, " points") if quantity.percent else (1, "")
    size = f"{_short(abs(d.mean) * scale, 2)}{unit}"
    side = "higher" if d.mean > 0 else "lower"
    if d.n < 2:
        return f"{title} {size} {side}" if d.mean else f"{title} equal"
    if d.low == d.high:
        return f"{title} {size} {side} in each of {d.n} seeds" if d.mean else f"{title} equal in each of {d.n} seeds"
    interval = f"{100 * d.confidence:g} % interval {_signed(d.low * scale)} to {_signed(d.high * scale)}"
    return f"{title} {size} {side} ({interval})" if d.clear else f"{title} not distinguishable ({interval})"


def _early_clause(finding: Finding) -> str:
    found = {nc.upper(): finding.speed_differences[f"log_{nc}"] for nc in ("nc1", "nc2", "nc3")}
    found = {name: d for name, d in found.items() if d.n > 1}
    if not found:
        return ""
    groups = {
        "lower": [name for name, d in found.items() if d.clear and d.mean < 0],
        "higher": [name for name, d in found.items() if d.clear and d.mean > 0],
        "not distinguishable": [name for name, d in found.items() if not d.clear],
    }
    parts = [f"{join(names)} {word}" for word, names in groups.items() if names]
    return f"on average over {name_early([finding])}, {', '.join(parts)}"


def name_early(findings: Sequence[Finding]) -> str:
    """The first epochs whose means are compared: 1 to 20, or as many as the longest history has."""
    rows = [row.get("epoch") for f in findings for r in f.variant.counted for row in r.history]
    last = min(EARLY_EPOCHS, max((epoch for epoch in rows if isinstance(epoch, int)), default=EARLY_EPOCHS))
    return f"epochs 1 to {last}" if last > 1 else "epoch 1"


def _field(speed: str) -> str:
    return speed.removesuffix("_epoch").removeprefix("log_")


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + _short(value, 2)


def _short(value: float, digits: int) -> str:
    """A number in a sentence: few digits, no exponent of a programmer's.

    >>> _short(1.87e-06, 3), _short(-0.25, 2), _short(12.3456, 2)
    ('1.87·10⁻⁶', '−0.25', '12')
    """
    text = f"{value:.0f}" if 10 <= abs(value) < 1e5 else f"{value:.{digits}g}"
    mantissa, _, exponent = text.partition("e")
    if exponent:
        raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        text = f"{mantissa}·10{raised}"
    return text.replace("-", "−")


def _rate(value: Estimate) -> str:
    if value.n == 0:
        return "not measured"
    return f"{100 * value.mean:.2f} %" + (f" ± {100 * value.std:.2f}" if value.n > 1 else "")


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
