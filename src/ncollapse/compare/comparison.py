"""Runs compared once: what the terminal, `--json` and the page all show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ncollapse.compare.findings import Finding, find
from ncollapse.compare.ranking import Ranking, group_by_context, rank
from ncollapse.compare.sentences import describe_contexts, describe_failures, describe_finding, describe_ranking
from ncollapse.compare.tuning import read_tuned
from ncollapse.compare.variants import Variant, group_runs
from ncollapse.runs.record import RunRecord


@dataclass(frozen=True)
class Comparison:
    """The runs of a comparison, grouped into variants, with a finding for each variant and the verdict on them all.

    `rankings` has one entry for each context, that is for each group of variants that differ in their loss alone.
    """

    records: tuple[RunRecord, ...]
    variants: tuple[Variant, ...]
    findings: tuple[Finding, ...]
    rankings: tuple[Ranking | None, ...]
    verdict: str


def compare_records(records: Sequence[RunRecord]) -> Comparison:
    """Group the runs, compare the variants of each context with its first loss, and rank the losses."""
    variants = group_runs(records, read_tuned(records))
    references: dict[str, Variant] = {}
    findings = []
    for variant in variants:
        if not variant.counted:
            continue
        reference = references.setdefault(variant.context, variant)
        finding = find(variant, None if reference is variant else reference)
        findings.append(replace(finding, sentence=describe_finding(finding)))
    rankings = [rank(group) for group in group_by_context(findings)]
    if not findings:
        verdict = "No run has measured anything yet."
    elif len(rankings) == 1:
        found = describe_ranking(rankings[0], others=len(variants) > len(findings))
        verdict = " ".join(filter(None, [found, describe_failures(variants)]))
    else:
        verdict = describe_contexts(rankings)
    return Comparison(tuple(records), tuple(variants), tuple(findings), tuple(rankings), verdict)


def compare_runs(records: Sequence[RunRecord]) -> list[Finding]:
    """The findings on some runs, one for each variant."""
    return list(compare_records(records).findings)
