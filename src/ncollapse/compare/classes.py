"""What a comparison says about single classes, for data whose classes differ in size: head, middle and tail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ncollapse.compare.findings import Finding, pair_by_seed
from ncollapse.compare.seeds import Difference, Estimate, estimate, paired_difference
from ncollapse.runs.record import RunRecord
from ncollapse.train.theory import BALANCED_UP_TO

GROUPS = ("head", "middle", "tail")
BLOCK = "test_by_class"
"""Where a run's summary keeps the results of each class on the test set."""


@dataclass(frozen=True)
class ClassRow:
    """One variant: its means over classes, over groups of classes and of each class, over all seeds.

    `differences` are paired by seed with the reference of the variant's context; empty for the reference itself. Both
    have the keys balanced_accuracy, macro_f1, head, middle and tail.
    """

    label: str
    loss: str
    reference: str | None
    values: dict[str, Estimate]
    differences: dict[str, Difference]
    class_accuracy: tuple[Estimate, ...]
    class_f1: tuple[Estimate, ...]


@dataclass(frozen=True)
class ClassTable:
    """The classes of an imbalanced data set by name, with their training samples, and the results of every variant.

    groups: for each class "head", "middle" or "tail", as `assign_groups` gives them.
    """

    names: tuple[str, ...]
    train_counts: tuple[int, ...]
    groups: tuple[str, ...]
    rows: tuple[ClassRow, ...]

    @property
    def imbalance(self) -> float:
        """The largest over the smallest number of training samples of a class."""
        present = [count for count in self.train_counts if count]
        return max(present) / min(present)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for `--json`."""
        return {**asdict(self), "imbalance": self.imbalance}


def tabulate_classes(findings: Sequence[Finding], least: float = BALANCED_UP_TO) -> list[ClassTable]:
    """Return a table for each set of training counts among the runs whose classes differ by more than `least`."""
    tables: dict[tuple[Any, ...], list[Finding]] = {}
    for finding in findings:
        block = next((found for r in finding.variant.counted if (found := read_block(r))), None)
        if block is None:
            continue
        counts = tuple(block["train_counts"])
        present = [count for count in counts if count]
        if present and max(present) > least * min(present):
            tables.setdefault((tuple(block["names"]), counts), []).append(finding)
    return [make_table(names, counts, group) for (names, counts), group in tables.items()]


def make_table(names: tuple[str, ...], counts: tuple[int, ...], findings: Sequence[Finding]) -> ClassTable:
    """Return the table of variants that were trained on the same numbers of samples."""
    groups = assign_groups(counts)
    rows = []
    for finding in findings:
        runs = [(r, read_class_values(r, groups)) for r in finding.variant.counted]
        found = {id(r): values for r, values in runs if values}
        keys = ("balanced_accuracy", "macro_f1", *GROUPS)
        values = {key: estimate([v[key] for v in found.values()]) for key in keys}
        differences: dict[str, Difference] = {}
        if finding.reference is not None:
            pairs = pair_by_seed(finding.reference.counted, finding.variant.counted)
            sides = [(read_class_values(a, groups), read_class_values(b, groups)) for a, b in pairs]
            both = [(a, b) for a, b in sides if a and b]
            differences = {key: paired_difference([a[key] for a, _ in both], [b[key] for _, b in both]) for key in keys}
        blocks = [block for r in finding.variant.counted if (block := read_block(r))]
        single = [tuple(estimate(_column(blocks, key, k)) for k in range(len(names))) for key in ("accuracy", "f1")]
        reference = None if finding.reference is None else finding.reference.label
        rows.append(ClassRow(finding.variant.label, finding.variant.loss, reference, values, differences, *single))
    return ClassTable(names, counts, groups, tuple(rows))


def assign_groups(counts: Sequence[int]) -> tuple[str, ...]:
    """Name the group of each class by its number of training samples: thirds of the classes, the rest in the middle.

    Classes of two sizes only are all head or tail: thirds would part classes of one size.

    >>> assign_groups([100, 5, 50, 20])
    ('head', 'tail', 'middle', 'middle')
    >>> assign_groups([100, 100, 100, 5])
    ('head', 'head', 'head', 'tail')
    """
    if len(set(counts)) == 2:
        return tuple("head" if count == max(counts) else "tail" for count in counts)
    order = sorted(range(len(counts)), key=lambda k: (-counts[k], k))
    third = max(1, len(counts) // 3) if len(counts) > 1 else 0
    groups = ["middle"] * len(counts)
    for k in order[:third]:
        groups[k] = "head"
    for k in order[len(order) - third :]:
        groups[k] = "tail"
    return tuple(groups)


def read_block(record: RunRecord) -> dict[str, Any] | None:
    """Return the per-class results in a run's summary, or None where there are none that can be read."""
    block = (record.summary or {}).get(BLOCK)
    if not isinstance(block, dict):
        return None
    lists = [block.get(key) for key in ("names", "train_counts", "accuracy", "f1")]
    sound = all(isinstance(item, list) for item in lists) and len({len(item or ()) for item in lists}) == 1
    return block if sound else None


def read_class_values(record: RunRecord, groups: Sequence[str]) -> dict[str, float]:
    """Return a run's balanced accuracy, macro F1 and mean accuracy of each group; {} where it has none."""
    block = read_block(record)
    if block is None or len(block["accuracy"]) != len(groups):
        return {}
    values = {key: _number(block.get(key)) for key in ("balanced_accuracy", "macro_f1")}
    for group in GROUPS:
        own = [_number(value) for value, name in zip(block["accuracy"], groups) if name == group]
        finite = [value for value in own if math.isfinite(value)]
        values[group] = sum(finite) / len(finite) if finite else math.nan
    return values


def _column(blocks: Sequence[dict[str, Any]], key: str, k: int) -> list[float]:
    return [_number(block[key][k]) for block in blocks if k < len(block[key])]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
