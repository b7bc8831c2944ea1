"""An experiment's numbers, published, ours and predicted side by side, as Markdown and as plain text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ncollapse.grammar import count, join
from ncollapse.papers import landscapes, publications
from ncollapse.papers.claims import Claim
from ncollapse.papers.experiment import Experiment
from ncollapse.papers.judge import Line, tolerance_in_points
from ncollapse.papers.outcome import Outcome

HEAD = ("where", "number", "published", "ours", "seeds", "epochs", "predicted", "off by", "verdict")
NAMES = {
    "train.weight_energy": "rho",
    "train.positive_score": "s_pos",
    "train.negative_score": "s_neg",
    "train.bias": "b",
    "alpha": "alpha(b)",
    "train.accuracy": "A train",
    "train.uniform_accuracy": "A_Uni train",
    "test.accuracy": "A test",
    "test_plain.accuracy": "A test, without mirror images",
    "test.uniform_accuracy": "A_Uni test",
    "test.positive_score": "s_pos test",
    "test.negative_score": "s_neg test",
    "test.compactness": "E_com, all test samples",
    "test.distinctiveness": "E_dis, all test samples",
    "test_correct.compactness": "E_com test",
    "test_correct.distinctiveness": "E_dis test",
    "train.cosine_margin": "cosine margin",
    "train.nc1": "NC1",
    "last.train.nc1": "NC1, last epoch",
    "train.nc2": "NC2",
    "train.nc3": "NC3",
    "train.nc2_uncentred": "NC2, W not centred",
    "train.nc3_centred": "NC3, W centred",
    "train.nc2_relu": "NC2 of ReLU features",
    "train.nc3_relu": "NC3 of ReLU features",
    "train.mean_orthogonality": "mean size of cosines",
    "certificate.relative_gap": "relative gap",
}
WORDS = {
    "reproduced": "yes",
    "reproduced in direction": "order",
    "not reproduced": "no",
    "not judged": "-",
    "too short": "short",
    "not run": "",
}
LEGEND = {
    "yes": "reproduced, within the tolerance of docs/reproduction.md",
    "order": "not within the tolerance, but CE and BCE are ordered as published",
    "no": "not reproduced",
    "-": "not judged: nothing printed, or not converged in the paper's own run",
    "short": "too short to judge: less than a quarter of the epochs",
}

BEYOND = (
    "Ours, beyond the paper, in settings or at lengths that it did not run; neither the verdict nor the count of claims"
    " includes them"
)
OTHER_EPOCH = (
    "not explained; the epoch with the best test accuracy is reported, and ours had the printed number by the epoch in"
    " brackets, which is not among its best"
)


def describe(experiment: Experiment) -> tuple[str, list[str]]:
    """The paper's caption, and notes for the reader."""
    known = publications.load(experiment.paper) if experiment.paper in publications.PAPERS else {}
    publication = known.get(experiment.item)
    caption = publication.caption if publication else experiment.caption or experiment.title
    return caption, [*(publication.notes if publication else ()), *experiment.notes]


def rows(lines: Sequence[Line], unrun: bool = True) -> list[tuple[str, ...]]:
    """The lines as cells of text; without those that were not run if `unrun` is False."""
    return [_cells(line) for line in lines if unrun or line.values]


def to_markdown(
    outcome: Outcome, *, lines: bool = True, unrun: bool = True, level: int = 1, told: Mapping[str, str] | None = None
) -> str:
    """The page as Markdown: with its table if `lines`, with the numbers that were not run if `unrun`.

    `told` are the notes that a longer page has already given, each with a link to it; they are only referred to.
    """
    experiment = outcome.experiment
    caption, _ = describe(experiment)
    notes = refer_to_told(list_notes(outcome), told or {})
    parts = [f"{'#' * level} {experiment.id}: {experiment.title}", "", caption, ""]
    parts += [f"Verdict: **{outcome.verdict}**" + (f" ({outcome.detail})." if outcome.detail else "."), ""]
    parts += [f"- {note}" for note in notes] + ([""] if notes else [])
    parts += [f"- {describe_claim(outcome, claim)}" for claim in outcome.claims]
    parts += [""] if outcome.claims else []
    if outcome.beyond:
        parts += [f"{BEYOND}:", "", *(f"- {describe_claim(outcome, claim)}" for claim in outcome.beyond), ""]
    body = rows(outcome.lines, unrun) if lines else []
    if body:
        parts += ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
        parts += ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in body]
        parts.append("")
        parts += [*explain(outcome), ""] if explain(outcome) else []
    return "\n".join(parts)


def list_notes(outcome: Outcome) -> list[str]:
    """What the reader of an experiment should know."""
    return [*describe(outcome.experiment)[1], *describe_choice_of_epoch(outcome)]


def refer_to_told(notes: Sequence[str], told: Mapping[str, str]) -> list[str]:
    """The notes, where those that were told before are replaced by a link to them and their first words.

    >>> refer_to_told(["One.", "New.", "Two."], {"One.": "[x](#x)", "Two.": "[x](#x)"})
    ['As noted under [x](#x): "One."; "Two.".', 'New.']
    """
    groups: dict[str, list[str]] = {}
    for note in notes:
        groups.setdefault(told.get(note, note), []).append(note)
    return [
        place if group == [place] else f"As noted under {place}: {'; '.join(map(quote_start, group))}."
        for place, group in groups.items()
    ]


def quote_start(text: str, words: int = 9) -> str:
    """The first words of a text, quoted.

    >>> print(quote_start("one two three", 2), quote_start("one two", 2))
    "one two ..." "one two"
    """
    kept = text.split(" ")
    return f'"{text if len(kept) <= words else " ".join(kept[:words]).rstrip(",.:;") + " ..."}"'


def describe_choice_of_epoch(outcome: Outcome) -> list[str]:
    """Which runs report the best of some epochs only, since they were not measured after each; one note or none."""
    runs: dict[int, list[str]] = {}
    for record in outcome.records:
        every = record.get("measure_every", 1)
        if record.get("select", "last") != "last" and every > 1:
            runs.setdefault(every, []).append(record.run_id)
    said = [f"every {every} epochs in {join(ids)}" for every, ids in sorted(runs.items())]
    return [f"The best of the measured epochs is reported; measured was {join(said)}."] if said else []


def explain(outcome: Outcome) -> list[str]:
    """Why numbers were not reproduced, as a list; the same cause is given once."""
    by_cause: dict[str, list[str]] = {}
    for line in outcome.lines:
        if line.verdict in ("reproduced in direction", "not reproduced"):
            cause, name = find_number_cause(outcome.experiment, line)
            by_cause.setdefault(cause, []).append(name)
    return [f"- Not reproduced: {'; '.join(names)}: {cause}." for cause, names in by_cause.items()]


def find_number_cause(experiment: Experiment, line: Line) -> tuple[str, str]:
    """Why a number was not reproduced, "not explained" if that is not known, and the name of the number."""
    cause = experiment.find_cause(line) if experiment.find_cause else ""
    name = f"{line.row}, {line.column}"
    if not cause and line.passed_at is not None:
        return OTHER_EPOCH, f"{name} (epoch {line.passed_at})"
    return cause or "not explained", name


def landscape_to_markdown(outcome: Outcome, level: int = 1, told: Mapping[str, str] | None = None) -> str:
    """The page of a figure that is computed: the share of the descent that reduces the angle, for each loss."""
    parts = [to_markdown(outcome, level=level, told=told).rstrip()]
    parts += [
        "- Share of the descent towards smaller theta (negative: larger), mean over s > 1 and theta < 1.5, K = 10:",
        "",
    ]
    parts += ["| loss | share |", "| --- | --- |"]
    parts += [f"| {name} | {share:.3f} |" for name, share in landscapes.compute_shares().items()]
    return "\n".join([*parts, ""])


def to_text(lines: Sequence[Line], width: int = 80) -> list[str]:
    """What was run as lines of plain text: a heading for each run, its numbers below it; none if nothing was run.

    Columns are as wide as their content and closer together on a narrow terminal; nothing is cut.
    """
    groups: dict[str, list[tuple[str, ...]]] = {}
    for line in lines:
        if line.values:
            _, label, published, ours, _, epochs, predicted, deviation, _ = _cells(line)
            heading = f"{_name(line)}: {count(len(line.values), 'seed')}, {epochs} epochs"
            deviation = deviation.partition(" (")[0].replace("points", "pt")  # the range of tied epochs is for the page
            cells = (NAMES.get(line.field, label), published, ours, predicted, deviation)
            groups.setdefault(heading, []).append((*cells, WORDS[line.verdict]))
    if not groups:
        return []
    head = ("", "published", "ours", "predicted", "off by", "same")
    table = [head, *(row for body in groups.values() for row in body)]
    shown = [place for place in range(len(head)) if any(row[place] for row in table[1:])]
    if not any(line.published for line in lines):
        shown.remove(5)
    wide = {place: max(len(row[place]) for row in table) for place in shown}
    gap = "  " if sum(wide.values()) + 2 * len(shown) <= width else " "

    def lay_out(row: tuple[str, ...]) -> str:
        cells = (row[p].rjust(wide[p]) if p in (3, 4) else row[p].ljust(wide[p]) for p in shown)
        return ("  " + gap.join(cells)).rstrip()

    text = [lay_out(head)]
    for heading, body in groups.items():
        text += [heading, *map(lay_out, body)]
    said = {row[-1] for row in table[1:]} if 5 in shown else set()
    return [*text, *(f"{word}: {meaning}" for word, meaning in LEGEND.items() if word in said)]


def write_text(folder: Path, experiment: Experiment, text: str) -> Path:
    """Write the Markdown of an experiment into a folder, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{experiment.id.replace('/', '-')}.md"
    file.write_text(text, encoding="utf-8")
    return file


def _cells(line: Line) -> tuple[str, ...]:
    percent = line.published.percent if line.published else tolerance_in_points(line.field) is not None
    digits = _digits(line)
    spread = f" ± {_number(line.spread, digits, percent)}" if line.spread is not None else ""
    ours = "" if line.ours is None else _number(line.ours, digits, percent) + spread
    deviation = _deviate(line, digits)
    return (
        line.row,
        line.column if line.published else NAMES.get(line.field, line.column),
        line.published.printed if line.published else "",
        ours,
        _count_seeds(line, digits, percent),
        line.epoch_words,
        "" if line.predicted is None else _number(line.predicted, digits, percent),
        deviation,
        line.verdict,
    )


def _count_seeds(line: Line, digits: int, percent: bool) -> str:
    """How many, and the standard deviation over them."""
    if len(line.values) < 2:
        return str(len(line.values) or "")
    return f"{len(line.values)} (± {_number(statistics.stdev(line.values), digits, percent)})"


def _deviate(line: Line, digits: int) -> str:
    """Off by: points of a percentage, percent of a number, or the difference if the number is smaller than its ±."""
    if line.ours is None or line.published is None:
        return ""
    value = line.published.value

    def say(difference: float) -> str:
        if line.published is not None and line.published.percent:
            return f"{100 * difference:+.2f} points"
        if line.deviation is None or abs(value) < float(line.published.std or 0):  # type: ignore[union-attr]
            return f"{difference:+.{digits}f}"
        return f"{100 * difference / value:+.2f} %"

    said = say(line.ours - value)
    if line.needs_ties:
        said += " (tied epochs: " + " to ".join(say(line.ours + change - value) for change in line.tied) + ")"
    if line.needs_draw:
        said += f" (± {line.drawn:.{digits}f} over initial draws)"
    return said


def _name(line: Line) -> str:
    """The run of a line: names as they are, numbers with what they are of."""
    keys = ((key, value) for key, value in line.keys.items() if key != "seed")
    return ", ".join(
        value if isinstance(value, str) and key != "bias_init" else f"{key} {value}" for key, value in keys
    )


def _digits(line: Line) -> int:
    """Decimals: as published; else four, or three digits of a smaller number."""
    if line.published is not None:
        return max(2, len(line.published.mean.partition(".")[2]))
    if tolerance_in_points(line.field) is not None:
        return 2
    return max(4, 2 - math.floor(math.log10(abs(line.ours)))) if line.ours else 4


def _number(value: float, digits: int, percent: bool) -> str:
    return f"{100 * value if percent else value:.{digits}f}"


def mark(claim: Claim, *, so_far: bool = False) -> str:
    """Whether a claim holds, in words; `so_far` if it rests on trials alone."""
    if claim.holds is None:
        return "open"
    return ("holds" if claim.holds else "does not hold") + " so far" * so_far


def describe_claim(outcome: Outcome, claim: Claim) -> str:
    """Whether a claim holds, the numbers behind that, where its threshold comes from, and why it does not hold."""
    tried = outcome.coverage_of(claim).only_trials
    said = f"{mark(claim, so_far=tried)}: {claim.text}" + (f" ({claim.detail})" if claim.detail else "")
    if claim.threshold:
        said += f" [{claim.threshold}]"
    if claim.holds is False and not tried:
        asks = outcome.experiment.asks  # the answer to a question needs no excuse
        why = find_known_cause(outcome, claim) if asks else find_claim_cause(outcome, claim)
        said += f": {why}" if why else ""
    return said


def find_claim_cause(outcome: Outcome, claim: Claim) -> str:
    """Why a claim does not hold, or what was tried; "not explained" if neither is known."""
    epochs = _find_deciding_epochs(outcome, claim)
    return find_known_cause(outcome, claim) or "not explained" + (f"; tried at {epochs} only" if epochs else "")


def find_known_cause(outcome: Outcome, claim: Claim) -> str:
    """Why a claim does not hold, "" if that is not known."""
    epochs = _find_deciding_epochs(outcome, claim)
    for cause in outcome.experiment.claim_causes:
        if claim.text.startswith(cause.start) and (epochs or not cause.if_short):
            return cause.why
    return ""


def _find_deciding_epochs(outcome: Outcome, claim: Claim) -> str:
    """How long the runs behind a claim were, where they were shortened."""
    coverage = outcome.coverage_of(claim)
    if claim.lengths:
        coverage = replace(coverage, lengths=tuple(pair for pair in coverage.lengths if pair[0] in claim.lengths))
    return coverage.deciding_epochs
