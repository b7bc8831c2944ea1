"""What the runs leave unsettled: claims and numbers that are open, do not hold or are not explained."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ncollapse.papers.claims import Claim
from ncollapse.papers.experiment import Experiment
from ncollapse.papers.judge import Line
from ncollapse.papers.markdown import find_claim_cause, find_known_cause, find_number_cause, mark, rows
from ncollapse.papers.outcome import Outcome

STATUSES = {
    "not explained": "it does not hold or is not reproduced, and the cause is not known",
    "explained": "it does not hold or is not reproduced, and its entry says why or what was tried",
    "answered no": "a question of ours whose answer is no",
    "too short": "its runs trained for less than a quarter of the epochs",
    "open": "the runs do not decide it",
}
"""How a claim or number is unsettled, the most serious first, and what that means."""


@dataclass(frozen=True)
class Unsettled:
    """A claim or number and how it is unsettled, one of `STATUSES`; `entries` are the experiments that have it.

    `basis` is what tells it from others of the same text: the numbers behind a claim, or the runs behind a number.
    """

    status: str
    entries: tuple[Experiment, ...]
    text: str
    basis: object
    is_claim: bool

    @property
    def summary(self) -> str:
        """The text, without what a claim adds in other words or as its measure.

        >>> Unsettled("open", (), "NC1 approaches zero: it ends below 1/10 of where it started", "", True).summary
        'NC1 approaches zero'
        """
        return re.split(r": (?=(?:they|it|their|no two) )", self.text)[0] if self.is_claim else self.text


def list_unsettled(outcomes: Iterable[Outcome]) -> list[Unsettled]:
    """The unsettled claims and numbers of some experiments, the most serious first.

    Numbers that were not run are left out. A claim or number of several experiments is listed once, with all of them.
    """
    found: dict[tuple[object, ...], Unsettled] = {}
    for outcome in outcomes:
        claims = [_of_claim(outcome, claim) for claim in outcome.claims]
        claims += [_of_claim(outcome, claim, "beyond the paper: ") for claim in outcome.beyond]
        for item in filter(None, [*claims, *(_of_number(outcome, line) for line in outcome.lines)]):
            known = found.get((item.status, item.text, item.basis))
            entries = (*known.entries, *item.entries) if known else item.entries
            found[item.status, item.text, item.basis] = replace(item, entries=entries)
    return sorted(found.values(), key=lambda item: list(STATUSES).index(item.status))


def _of_claim(outcome: Outcome, claim: Claim, start: str = "") -> Unsettled | None:
    tried = outcome.coverage_of(claim).only_trials
    if claim.holds and not tried:
        return None
    if claim.holds is None:
        status = "open"
    elif tried:
        status, start = "too short", f"{start}{mark(claim, so_far=True)}: "
    elif outcome.experiment.asks:
        status = "explained" if find_known_cause(outcome, claim) else "answered no"
    else:
        status = _name_cause(find_claim_cause(outcome, claim))
    return Unsettled(status, (outcome.experiment,), start + claim.text, claim.detail, True)


def _of_number(outcome: Outcome, line: Line) -> Unsettled | None:
    if line.published is None or line.verdict not in ("too short", "reproduced in direction", "not reproduced"):
        return None
    status = "too short" if line.verdict == "too short" else _name_cause(find_number_cause(outcome.experiment, line)[0])
    where, number, printed, ours, *_ = rows([line])[0]
    said = f"{where}, {number}: {ours} for {printed}" + ", in direction" * (line.verdict == "reproduced in direction")
    return Unsettled(status, (outcome.experiment,), said, line.runs, False)


def _name_cause(cause: str) -> str:
    return "not explained" if cause.startswith("not explained") else "explained"
