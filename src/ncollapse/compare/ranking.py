"""Which loss leads: the losses of one context ranked by accuracy, and the largest clear differences in any quantity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ncollapse.compare.findings import Finding, compare_pairs, pair_by_seed, sample_share
from ncollapse.compare.quantities import QUANTITIES, Quantity
from ncollapse.compare.seeds import CONFIDENCE, Difference, mean_interval
from ncollapse.compare.variants import measured


@dataclass(frozen=True)
class Place:
    """A loss in the ranking: its interval, and how far it lies behind the leader, paired by seed."""

    finding: Finding
    low: float
    high: float
    behind: Difference | None
    leads: bool
    """Whether it is the best, or shares seeds with the best and is not clearly worse."""
    images: int
    """How many samples the rate counts, 0 where that is not known."""

    @property
    def compared(self) -> bool:
        """Whether it is the best, or shares a seed with the best."""
        return self.behind is None or self.behind.n > 0


@dataclass(frozen=True)
class Effect:
    """A clear difference of one quantity to the reference; of logarithms where the quantity is judged by its ratio."""

    finding: Finding
    quantity: Quantity
    difference: Difference

    @property
    def good(self) -> bool:
        """Whether it goes in the better direction."""
        return (self.difference.mean > 0) == (self.quantity.better == "higher")

    @property
    def size(self) -> float:
        """A common scale to sort by: ten percentage points weigh as much as a factor of e."""
        return abs(self.difference.mean) * (10 if self.quantity.percent else 1)


@dataclass(frozen=True)
class Ranking:
    """The losses of one context, best first, and the clear differences between them, largest first."""

    quantity: Quantity
    places: tuple[Place, ...]
    effects: tuple[Effect, ...]

    @property
    def leaders(self) -> tuple[Place, ...]:
        """The places that cannot be told apart from the best."""
        return tuple(p for p in self.places if p.leads)

    @property
    def provisional(self) -> tuple[Place, ...]:
        """The places without a finished run: their numbers are those of the last measured epoch."""
        return tuple(p for p in self.places if p.finding.variant.provisional)

    @property
    def pairs(self) -> int:
        """The fewest seeds that a loss compared with the best shares with it, 0 where none is compared."""
        return min((p.behind.n for p in self.places if p.behind and p.compared), default=0)


def rank(findings: Sequence[Finding]) -> Ranking | None:
    """Rank the variants of one context by test accuracy (training accuracy where no test set was measured).

    The mean is that over the seeds which all of them share, if there are any. The best is compared with each of the
    others. As which one is best is not known before, each of the K (K - 1) / 2 pairs may be among these comparisons,
    and their confidence is raised for that number (Bonferroni). None where no accuracy was measured.
    """
    for quantity in (q for q in QUANTITIES if q.key in ("test.accuracy", "train.accuracy")):
        known = [f for f in findings if f.estimates[quantity.key].n]
        if known:
            return _rank_by(quantity, known)
    return None


def _rank_by(quantity: Quantity, findings: Sequence[Finding]) -> Ranking:
    ordered = _order(findings, quantity)
    best = ordered[0]
    confidence = 1 - (1 - CONFIDENCE) / max(1, math.comb(len(ordered), 2))
    places = []
    for finding in ordered:
        runs = finding.variant.counted
        share = sample_share(runs[0], quantity.split)
        low, high = mean_interval(finding.estimates[quantity.key], resolution=share)
        behind = None
        if finding is not best:
            behind = compare_pairs(pair_by_seed(best.variant.counted, runs), quantity, confidence=confidence)
        leads = behind is None or (behind.n > 0 and not (behind.clear and behind.mean < 0))
        places.append(Place(finding, low, high, behind, leads, round(1 / share) if share else 0))
    return Ranking(quantity, tuple(places), tuple(find_effects(findings)))


def _order(findings: Sequence[Finding], quantity: Quantity) -> list[Finding]:
    """The findings, best first: by the mean over the seeds that all share, so that lucky further seeds gain nothing."""
    values = [
        {run.seed: value for run in f.variant.counted if math.isfinite(value := measured(run, quantity.key))}
        for f in findings
    ]
    shared = set.intersection(*map(set, values))
    means = [math.fsum(v[seed] for seed in shared) / len(shared) if shared else 0.0 for v in values]
    places = sorted(range(len(findings)), key=lambda i: (-means[i], -findings[i].estimates[quantity.key].mean))
    return [findings[i] for i in places]


def find_effects(findings: Sequence[Finding]) -> list[Effect]:
    """Every clear difference to the reference in a quantity that has a better direction, largest first."""
    effects = [
        Effect(f, q, f.effect(q)) for f in findings if f.reference for q in QUANTITIES if q.better and f.effect(q).clear
    ]
    return sorted(effects, key=lambda e: -e.size)


def group_by_context(findings: Sequence[Finding]) -> list[list[Finding]]:
    """The findings whose losses can be compared, together."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.variant.context, []).append(finding)
    return list(groups.values())
