"""The page of an experiment: published, ours and predicted side by side, as Markdown and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from ncollapse.experiments import publications
from ncollapse.experiments.claims import Claim
from ncollapse.experiments.experiment import Experiment
from ncollapse.experiments.verdicts import Line, sum_up

HEAD = ("where", "number", "published", "ours", "seeds", "epochs", "predicted", "off by", "verdict")
STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{border-bottom:1px solid #ddd;padding:.2rem .7rem;
text-align:left}@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}td,th{border-color:#444}}"""


def describe(experiment: Experiment) -> tuple[str, list[str]]:
    """What the paper shows there, and what a reader should know."""
    known = publications.load(experiment.paper) if experiment.paper in publications.PAPERS else {}
    publication = known.get(experiment.item)
    caption = publication.caption if publication else experiment.title
    return caption, [*(publication.notes if publication else ()), *experiment.notes]


def rows(lines: Sequence[Line], unrun: bool = True) -> list[tuple[str, ...]]:
    """The lines as cells of text; without those that were not run if `unrun` is False."""
    return [_cells(line) for line in lines if unrun or line.values]


def to_markdown(
    experiment: Experiment, lines: Sequence[Line], claims: Sequence[Claim] = (), *, unrun: bool = True, level: int = 1
) -> str:
    """The page as Markdown."""
    caption, notes = describe(experiment)
    verdict, detail = conclude(lines, claims)
    parts = [f"{'#' * level} {experiment.id}: {experiment.title}", "", caption, ""]
    parts += [f"Verdict: **{verdict}**" + (f" ({detail})." if detail else "."), ""]
    parts += [f"- {note}" for note in notes] + ([""] if notes else [])
    parts += [f"- {_mark(claim)} {claim.text}: {claim.detail}" for claim in claims] + ([""] if claims else [])
    body = rows(lines, unrun)
    if body:
        parts += ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
        parts += ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in body]
        parts.append("")
    return "\n".join(parts)


def to_html(experiment: Experiment, lines: Sequence[Line], claims: Sequence[Claim] = ()) -> str:
    """The page as one HTML file that needs nothing else."""
    caption, notes = describe(experiment)
    verdict, detail = conclude(lines, claims)
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    items += "".join(f"<li>{_mark(c)} {escape(c.text)}: {escape(c.detail)}</li>" for c in claims)
    head = "".join(f"<th>{name}</th>" for name in HEAD)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows(lines))
    table = f"<table><tr>{head}</tr>{body}</table>" if body else ""
    title = escape(f"{experiment.id}: {experiment.title}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"<h1>{title}</h1><p>{escape(caption)}</p><p>Verdict: <b>{verdict}</b> {escape(detail)}</p>"
        f"<ul>{items}</ul>{table}</html>\n"
    )


def write_page(
    folder: Path, experiment: Experiment, lines: Sequence[Line], claims: Sequence[Claim] = ()
) -> tuple[Path, Path]:
    """Write both forms into a folder; returns their paths."""
    stem = experiment.id.replace("/", "-")
    markdown, html = folder / f"{stem}.md", folder / f"{stem}.html"
    markdown.write_text(to_markdown(experiment, lines, claims), encoding="utf-8")
    html.write_text(to_html(experiment, lines, claims), encoding="utf-8")
    return markdown, html


def conclude(lines: Sequence[Line], claims: Sequence[Claim]) -> tuple[str, str]:
    """The verdict of numbers and claims together: the worse of the two decides."""
    verdict, detail = sum_up(lines)
    checked = [claim.holds for claim in claims if claim.holds is not None]
    if not checked:
        return verdict, detail
    said = f"{sum(checked)} of {len(checked)} claims hold"
    of_claims = "reproduced" if all(checked) else "reproduced in direction" if 2 * sum(checked) > len(checked) else ""
    ranks = ["reproduced", "reproduced in direction", "not reproduced"]
    worse = max((v for v in (verdict, of_claims or "not reproduced") if v in ranks), key=ranks.index)
    return worse, f"{said}; {detail}" if detail else said


def _cells(line: Line) -> tuple[str, ...]:
    percent = line.published is not None and line.published.percent
    digits = _digits(line)
    spread = f" ± {_number(line.spread, digits, percent)}" if line.spread is not None else ""
    ours = "" if line.ours is None else _number(line.ours, digits, percent) + spread
    deviation = "" if line.deviation is None else f"{100 * line.deviation:+.2f} %"
    if percent and line.ours is not None and line.published is not None:
        deviation = f"{100 * (line.ours - line.published.value):+.2f} points"
    return (
        line.row,
        line.column,
        line.published.printed if line.published else "",
        ours,
        str(len(line.values)) if line.values else "",
        "/".join(map(str, line.epochs)),
        "" if line.predicted is None else _number(line.predicted, digits, percent),
        deviation,
        line.verdict,
    )


def _digits(line: Line) -> int:
    if line.published is None:
        return 4
    return max(2, len(line.published.mean.partition(".")[2]))


def _number(value: float, digits: int, percent: bool) -> str:
    return f"{100 * value if percent else value:.{digits}f}"


def _mark(claim: Claim) -> str:
    return "not run" if claim.holds is None else "holds" if claim.holds else "does not hold"
