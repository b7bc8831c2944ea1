"""What came out of an experiment: its numbers, its claims, how much was run, and the verdict, each computed once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ncollapse.papers.claims import Claim, check_beyond, check_claims, of_ours, of_the_paper
from ncollapse.papers.coverage import Coverage, measure_coverage
from ncollapse.papers.experiment import Experiment, Point
from ncollapse.papers.judge import JUDGED, Line, compare
from ncollapse.papers.matching import at_own_lengths, match
from ncollapse.papers.verdict import conclude, sum_up_claims
from ncollapse.runs.record import RunRecord


@dataclass(frozen=True)
class Outcome:
    """The outcome of an experiment; `records` are its runs.

    `beyond` are the claims in settings, or at lengths, of ours and `beyond_coverage` is how much of these settings was
    run; the verdict, the claims and the coverage are of the paper's own settings alone.
    """

    experiment: Experiment
    lines: Sequence[Line]
    claims: Sequence[Claim]
    coverage: Coverage
    records: Sequence[RunRecord]
    verdict: str
    detail: str
    beyond: Sequence[Claim] = ()
    beyond_coverage: Coverage = field(default_factory=lambda: Coverage(0))

    def coverage_of(self, claim: Claim) -> Coverage:
        """How much was run of the settings that a claim is about."""
        return self.beyond_coverage if claim in self.beyond else self.coverage

    @property
    def only_tried(self) -> bool:
        """Whether it rests on runs that are too short to judge."""
        return self.coverage.only_trials


def evaluate(experiment: Experiment, records: Iterable[RunRecord], points: Sequence[Point] | None = None) -> Outcome:
    """Judge an experiment by finished runs; `points` restricts the numbers and claims to a part of its grid."""
    if experiment.protocol == "landscape":
        claims = [] if experiment.claims is None else experiment.claims([])
        verdict, detail = conclude((), claims)
        return Outcome(experiment, (), claims, Coverage(0), (), verdict, f"computed, nothing is trained; {detail}")
    records, grid = list(records), experiment.grid()
    whole = match(grid, records)
    chosen = whole if points is None else match(points, records)
    if experiment.protocol == "two-stage":
        from ncollapse.papers.rebalance import second_stage_lines

        lines = second_stage_lines(experiment, chosen)
    else:
        lines = compare(experiment, chosen)
    claims, coverage = check_claims(experiment, chosen), measure_coverage(of_the_paper(experiment, whole))
    used = [record for found in chosen for record in found.records]
    verdict, detail = conclude(lines, claims, coverage, asks=experiment.asks)
    beyond, ours = check_beyond(experiment, chosen), measure_coverage(of_ours(experiment, whole))
    if experiment.at_other_lengths is not None:
        beyond += experiment.at_other_lengths(at_own_lengths(grid if points is None else points, records))
    said = sum_up_claims(beyond)[1]
    detail = "; ".join(filter(None, [detail, f"beyond the paper {said}" if said else ""]))
    return Outcome(experiment, lines, claims, coverage, used, verdict, detail, beyond, ours)


def list_judged(outcomes: Iterable[Outcome]) -> list[tuple[Outcome, Line]]:
    """The judged numbers, each with its experiment; one that is printed in two tables, of the same runs, once."""
    found: dict[tuple[object, ...], tuple[Outcome, Line]] = {}
    for outcome in outcomes:
        for line in outcome.lines:
            if line.verdict in JUDGED and line.published is not None:
                found.setdefault((line.field, line.published.mean, line.runs), (outcome, line))
    return list(found.values())


def list_claims(outcomes: Iterable[Outcome]) -> list[Claim]:
    """The claims; one that is made of two figures, and rests on the same numbers, once."""
    return _once(claim for outcome in outcomes for claim in outcome.claims)


def list_beyond(outcomes: Iterable[Outcome]) -> list[Claim]:
    """The claims in settings of ours, likewise."""
    return _once(claim for outcome in outcomes for claim in outcome.beyond)


def _once(claims: Iterable[Claim]) -> list[Claim]:
    return list({(claim.text, claim.detail): claim for claim in claims}.values())
