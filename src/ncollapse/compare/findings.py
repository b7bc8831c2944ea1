"""What the seeds of a variant say, on its own and paired with the reference: estimates, differences, speeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ncollapse.compare.quantities import QUANTITIES, SPEEDS, Quantity
from ncollapse.compare.seeds import (
    EARLY_EPOCHS,
    Difference,
    Estimate,
    Speed,
    collapse_speed,
    estimate,
    is_number,
    is_recorded,
    paired_difference,
    rounding_limit,
    shared_epochs,
)
from ncollapse.compare.variants import Variant, measured, predicted
from ncollapse.runs.record import RunRecord, get_nested

PREDICTED = ("positive_score", "negative_score", "bias", "weight_energy", "feature_energy", "nc1", "nc2", "nc3")
FEWEST_IMAGES = 2
"""A difference of so many samples or fewer is never called clear."""


@dataclass(frozen=True)
class Finding:
    """One variant beside the reference of its context (None for the reference itself), quantity by quantity."""

    variant: Variant
    reference: Variant | None
    estimates: dict[str, Estimate]
    differences: dict[str, Difference]
    ratios: dict[str, Difference]
    """Paired differences of natural logarithms, for the quantities that are compared by their ratio."""
    predictions: dict[str, float]
    phase: str
    speeds: dict[str, Estimate]
    speed_differences: dict[str, Difference]
    reached: dict[str, int]
    recorded: dict[str, int]
    """How many runs have any number in their history from which a speed follows."""
    sentence: str = ""

    def effect(self, quantity: Quantity) -> Difference:
        """The difference to the reference as it is judged: of logarithms where the ratio counts."""
        return self.ratios[quantity.key] if quantity.ratio else self.differences[quantity.key]


def find(variant: Variant, reference: Variant | None) -> Finding:
    """Everything the seeds of one variant say, on its own and paired by seed with the reference."""
    runs = variant.counted
    estimates = {q.key: estimate([measured(r, q.key) for r in runs]) for q in QUANTITIES}
    pairs = pair_by_seed(reference.counted, runs) if reference else []
    # Where a history has lost rows, a first epoch may be among them: such runs have no speed.
    all_speeds = [collapse_speed(r.history) for r in runs if not r.missing_epochs()]
    raced = []
    for a, b in ((a, b) for a, b in pairs if not (a.missing_epochs() or b.missing_epochs())):
        both = shared_epochs(a.history, b.history)
        raced.append((collapse_speed(a.history, epochs=both), collapse_speed(b.history, epochs=both)))
    speed_differences = {
        name: paired_difference(
            [_number(getattr(a, name)) for a, _ in raced],
            [_number(getattr(b, name)) for _, b in raced],
            resolution=_epochs_between(pairs) if name.endswith("epoch") else 0.0,
        )
        for name in (SPEEDS if reference else ())
    }
    prediction = next((p for r in runs if (p := predicted(r))), {})
    return Finding(
        variant,
        reference,
        estimates,
        {q.key: compare_pairs(pairs, q) for q in QUANTITIES} if reference else {},
        {q.key: compare_logarithms(pairs, q) for q in QUANTITIES if q.ratio} if reference else {},
        {name: _number(prediction.get(name)) for name in PREDICTED},
        str(prediction.get("phase") or ""),
        {name: estimate([_number(getattr(s, name)) for s in all_speeds]) for name in SPEEDS},
        speed_differences,
        {name: count_reached(all_speeds, name) for name in SPEEDS},
        {name: sum(is_recorded(r.history, _field(name)) for r in runs) for name in SPEEDS},
    )


def compare_pairs(pairs: Sequence[tuple[RunRecord, RunRecord]], quantity: Quantity, **options: Any) -> Difference:
    """The paired difference of a quantity; rates that count samples know their smallest step, one sample."""
    sides = [(measured(a, quantity.key), measured(b, quantity.key)) for a, b in pairs]
    step = max((sample_share(r, quantity.split) for pair in pairs for r in pair), default=0.0) if quantity.counts else 0
    limits = {"resolution": step, "smallest": FEWEST_IMAGES * step}
    return paired_difference([a for a, _ in sides], [b for _, b in sides], **limits, **options)


def compare_logarithms(pairs: Sequence[tuple[RunRecord, RunRecord]], quantity: Quantity) -> Difference:
    """The paired difference of natural logarithms, whose exponential is the ratio; values must be positive."""
    least = rounding_limit(quantity.key)
    sides = [tuple(_logarithm(measured(r, quantity.key), least) for r in pair) for pair in pairs]
    return paired_difference([a for a, _ in sides], [b for _, b in sides])


def sample_share(record: RunRecord, split: str) -> float:
    """What one sample of a split counts for in a rate: 1 over their number, 0 where it is not known."""
    total = get_nested(record.summary or {}, f"{split}.num_samples")
    if not is_number(total):
        rows = (get_nested(row, f"{split}.num_samples") for row in reversed(record.history))
        total = next((value for value in rows if is_number(value)), None)
    return 1 / total if total else 0.0


def pair_by_seed(first: Sequence[RunRecord], second: Sequence[RunRecord]) -> list[tuple[RunRecord, RunRecord]]:
    """The runs of two variants that share a seed."""
    by_seed = {r.seed: r for r in first}
    return [(by_seed[r.seed], r) for r in second if r.seed in by_seed]


def count_reached(speeds: Sequence[Speed], name: str) -> int:
    """In how many runs an event of `Speed` happened at all."""
    return sum(math.isfinite(_number(getattr(s, name))) for s in speeds)


def name_early(findings: Sequence[Finding]) -> str:
    """The first epochs whose means are compared: 1 to 20, or as many as the longest history has."""
    rows = [row.get("epoch") for f in findings for r in f.variant.counted for row in r.history]
    last = min(EARLY_EPOCHS, max((epoch for epoch in rows if isinstance(epoch, int)), default=EARLY_EPOCHS))
    return f"epochs 1 to {last}" if last > 1 else "epoch 1"


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
            "log_ratio": {key: asdict(value) for key, value in f.ratios.items()},
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


def _epochs_between(pairs: Sequence[tuple[RunRecord, RunRecord]]) -> float:
    """Epochs between measurements, to within which the epoch of an event is known."""
    every = [r.get("measure_every", 1) for pair in pairs for r in pair]
    return float(max((e for e in every if isinstance(e, int) and e > 0), default=1))


def _field(speed: str) -> str:
    return speed.removesuffix("_epoch").removeprefix("log_")


def _logarithm(value: float, least: float) -> float:
    return math.log(value) if value > least and math.isfinite(value) else math.nan


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
