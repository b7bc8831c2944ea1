"""An experiment's numbers, published, ours and predicted side by side, as Markdown and as plain text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from ncollapse.grammar import count
from ncollapse.papers import publications
from ncollapse.papers.claims import Claim
from ncollapse.papers.coverage import Coverage
from ncollapse.papers.experiment import Experiment
from ncollapse.papers.judge import Line, sum_up

HEAD = ("where", "number", "published", "ours", "seeds", "epochs", "predicted", "off by", "verdict")
RANKS = ("reproduced", "reproduced in direction", "not reproduced")
ANSWERS = dict(zip(RANKS, ("yes", "mostly", "no")))
"""What those come to where an experiment of our own asks a question, and no paper answered it before."""
NAMES = {
    "train.weight_energy": "rho",
    "train.positive_score": "s_pos",
    "train.negative_score": "s_neg",
    "train.bias": "b",
    "alpha": "alpha(b)",
    "train.accuracy": "A train",
    "train.uniform_accuracy": "A_Uni train",
    "test.accuracy": "A test",
    "test.uniform_accuracy": "A_Uni test",
    "test.positive_score": "s_pos test",
    "test.negative_score": "s_neg test",
    "test.compactness": "E_com test",
    "test.distinctiveness": "E_dis test",
    "train.nc1": "NC1",
    "train.nc2": "NC2",
    "train.nc3": "NC3",
    "train.nc2_uncentred": "NC2, means not centred",
    "train.nc2_relu": "NC2 of ReLU features",
    "train.nc3_relu": "NC3 of ReLU features",
    "train.mean_orthogonality": "mean size of cosines",
    "certificate.relative_gap": "relative gap",
}
WORDS = {"reproduced": "yes", "reproduced in direction": "order", "not reproduced": "no", "no bar": "-", "not run": ""}
LEGEND = {
    "yes": "reproduced, within the bar of docs/reproduction.md",
    "order": "not within the bar, but CE and BCE are ordered as published",
    "no": "not reproduced",
    "-": "no bar: nothing to judge by, or still drifting in the paper's own run",
}


def describe(experiment: Experiment) -> tuple[str, list[str]]:
    """What the paper shows there, and what a reader should know."""
    known = publications.load(experiment.paper) if experiment.paper in publications.PAPERS else {}
    publication = known.get(experiment.item)
    caption = publication.caption if publication else experiment.caption or experiment.title
    return caption, [*(publication.notes if publication else ()), *experiment.notes]


def rows(lines: Sequence[Line], unrun: bool = True) -> list[tuple[str, ...]]:
    """The lines as cells of text; without those that were not run if `unrun` is False."""
    return [_cells(line) for line in lines if unrun or line.values]


def to_markdown(
    experiment: Experiment,
    lines: Sequence[Line],
    claims: Sequence[Claim] = (),
    coverage: Coverage | None = None,
    *,
    unrun: bool = True,
    level: int = 1,
) -> str:
    """The page as Markdown."""
    caption, notes = describe(experiment)
    verdict, detail = conclude(lines, claims, coverage, asks=experiment.asks)
    parts = [f"{'#' * level} {experiment.id}: {experiment.title}", "", caption, ""]
    parts += [f"Verdict: **{verdict}**" + (f" ({detail})." if detail else "."), ""]
    parts += [f"- {note}" for note in notes] + ([""] if notes else [])
    parts += [f"- {mark(claim)}: {claim.text}{_why(claim)}" for claim in claims] + ([""] if claims else [])
    body = rows(lines, unrun)
    if body:
        parts += ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
        parts += ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in body]
        parts.append("")
    return "\n".join(parts)


def to_text(lines: Sequence[Line], width: int = 80) -> list[str]:
    """What was run as lines of plain text: a heading for each run, its numbers below it; none where nothing was run.

    Columns are as wide as their content and closer together where the terminal is narrow; nothing is cut.
    """
    groups: dict[str, list[tuple[str, ...]]] = {}
    for line in lines:
        if line.values:
            _, label, published, ours, _, epochs, predicted, deviation, _ = _cells(line)
            heading = f"{_name(line)}: {count(len(line.values), 'seed')}, {epochs} epochs"
            cells = (NAMES.get(line.field, label), published, ours, predicted, deviation.replace("points", "pt"))
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


def conclude(
    lines: Sequence[Line], claims: Sequence[Claim], coverage: Coverage | None = None, *, asks: bool = False
) -> tuple[str, str]:
    """The verdict of numbers and claims together, and that in numbers: the worse of the two decides.

    Where there are claims alone, every one of them must have been checked: with one still open, such as one that
    compares two losses of which one was run, the verdict is "partly run". `coverage` adds how much was run. An
    experiment that `asks` a question gets an answer.
    """
    of_numbers, detail = sum_up(lines)
    of_claims, said = sum_up_claims(claims)
    decided = [verdict for verdict in (of_numbers, of_claims) if verdict in RANKS]
    verdict = max(decided, key=RANKS.index) if decided else of_claims if claims else of_numbers
    verdict = ANSWERS.get(verdict, verdict) if asks else verdict
    parts = [part for part in (said, detail) if part]
    if coverage is None:
        return verdict, "; ".join(parts)
    if verdict == "not run" and coverage.run:
        verdict = "partly run" if claims else "no bar"
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


def _cells(line: Line) -> tuple[str, ...]:
    percent = line.published is not None and line.published.percent
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
    """Off by: points of a percentage, percent of a number, or just the difference where the number is lost in its ±."""
    if line.ours is None or line.published is None:
        return ""
    difference = line.ours - line.published.value
    if line.published.percent:
        return f"{100 * difference:+.2f} points"
    if line.deviation is None or abs(line.published.value) < float(line.published.std or 0):
        return f"{difference:+.{digits}f}"
    return f"{100 * line.deviation:+.2f} %"


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
    return max(4, 2 - math.floor(math.log10(abs(line.ours)))) if line.ours else 4


def _number(value: float, digits: int, percent: bool) -> str:
    return f"{100 * value if percent else value:.{digits}f}"


def mark(claim: Claim) -> str:
    """How a claim stands, in words."""
    return "open" if claim.holds is None else "holds" if claim.holds else "does not hold"


def _why(claim: Claim) -> str:
    return f" ({claim.detail})" if claim.detail else ""
