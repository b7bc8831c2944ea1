"""The verdict on an experiment, from its numbers, its claims and how much of it was run."""

from __future__ import annotations

from collections.abc import Sequence

from ncollapse.papers.claims import Claim
from ncollapse.papers.coverage import Coverage
from ncollapse.papers.judge import JUDGED, Line, sum_up

ANSWERS = dict(zip(JUDGED, ("yes", "mostly", "no")))
"""The verdicts on an experiment of our own that asks a question."""


def conclude(
    lines: Sequence[Line], claims: Sequence[Claim], coverage: Coverage | None = None, *, asks: bool = False
) -> tuple[str, str]:
    """The verdict of numbers and claims together, and that in numbers: the worse of the two decides.

    If there are only claims, every one of them must have been checked: while one is still open, such as one that
    compares two losses of which one was run, the verdict is "partly run". `coverage` adds how much was run. An
    experiment that `asks` a question gets an answer.
    """
    of_numbers, detail = sum_up(lines)
    of_claims, said = sum_up_claims(claims)
    decided = [verdict for verdict in (of_numbers, of_claims) if verdict in JUDGED]
    verdict = max(decided, key=JUDGED.index) if decided else of_claims if claims else of_numbers
    verdict = ANSWERS.get(verdict, verdict) if asks else verdict
    if coverage is not None and coverage.only_trials and said:
        said += " so far"
    parts = [part for part in (said, detail) if part]
    if coverage is None:
        return verdict, "; ".join(parts)
    if verdict == "not run" and coverage.run:
        verdict = "partly run" if claims else "not judged"
    return coverage.qualify(verdict), "; ".join([coverage.detail, *parts] if coverage.run else parts)


def sum_up_claims(claims: Sequence[Claim]) -> tuple[str, str]:
    """The verdict of the claims alone, and that in numbers."""
    checked = [claim.holds for claim in claims if claim.holds is not None]
    if not checked:
        return "not run", ""
    held, unknown = sum(checked), len(claims) - len(checked)
    if all(checked):
        verdict = "partly run" if unknown else "reproduced"
    else:
        verdict = "reproduced in direction" if 2 * held > len(checked) else "not reproduced"
    detail = f"{held} of {len(claims)} claims {'holds' if held == 1 else 'hold'}"
    if len(claims) == 1:
        detail = "the claim holds" if held else "the claim does not hold"
    return verdict, detail + (f", {unknown} open" if unknown else "")
