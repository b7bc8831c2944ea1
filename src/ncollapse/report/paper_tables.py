"""Tables of an experiment: in the paper's shape, settings by losses with the gain; and number by number."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from ncollapse.compare import name_loss, name_optimiser
from ncollapse.compare.numbers import MISSING, show
from ncollapse.grammar import count, join
from ncollapse.papers.experiment import Experiment
from ncollapse.papers.judge import Line
from ncollapse.papers.markdown import HEAD, NAMES, describe, rows
from ncollapse.report.tables import Cell, Table

Setting = tuple[tuple[str, Any], ...]
SYMBOLS = {
    "weight_energy": ("rho", "|W|²"),
    "positive_score": ("s_pos", "the mean score of the own class"),
    "negative_score": ("s_neg", "that of the other classes"),
    "bias": ("b", "the mean bias"),
    "alpha": ("alpha(b)", "the left side of the equation of the optimal bias"),
    "accuracy": ("A", "accuracy"),
    "uniform_accuracy": ("A_Uni", "uniform accuracy"),
    "compactness": ("E_com", "compactness"),
    "distinctiveness": ("E_dis", "distinctiveness"),
}
AGAINST = ("ce", "bce")
"""The losses whose difference the papers call the gain."""


def tabulate_lines(experiment: Experiment, lines: Sequence[Line]) -> Table | None:
    """Published, ours and predicted, a row a number; columns that would be empty are left out."""
    shown = [line for line in lines if line.values]
    if not shown:
        return None
    cells = rows(shown)
    columns = [i for i in range(2, len(HEAD)) if any(row[i] for row in cells)]
    body = [
        (Cell(f"{row[0]}, {row[1]}", loss=str(line.keys.get("loss", ""))), *(_cell(row[i], i, line) for i in columns))
        for line, row in zip(shown, cells)
    ]
    notes = list(describe(experiment)[1])
    waiting = sum(line.published is not None and not line.values for line in lines)
    if waiting:
        notes.append(f"{count(waiting, 'published number')} not run are left out.")
    drawn = " or, where theory knows them, over initial draws" if any(line.needs_draw for line in shown) else ""
    return Table(
        "published",
        "Published, ours, predicted",
        "As printed, the mean over seeds, and what theory predicts without fitting. ± is a spread over samples or "
        "classes, in brackets over seeds. Reproduced: within 1 % (5 % under SGD) or three standard deviations over "
        f"seeds{drawn}, accuracies within one point, at the reported epoch or one that is tied with it; in direction: "
        "the losses are ordered as published." + explain_symbols([line.field for line in shown]),
        tuple(Cell(text) for text in ("number", *(HEAD[i] for i in columns))),
        tuple(body),
        notes=tuple(notes),
    )


def tabulate_shape(lines: Sequence[Line]) -> Table | None:
    """The paper's own shape: settings down, fields and losses across, ours above published, and the gain.

    None where the numbers of two losses do not stand side by side in any setting.
    """
    cells = group_by_setting(lines)
    fields = list(dict.fromkeys(line.field for line in lines if line.values))
    losses = list(dict.fromkeys(str(line.keys.get("loss", "")) for line in lines if line.values))
    if len(losses) < 2 or not cells or len(fields) > 6:
        return None
    names = name_settings(list(cells))
    columns = [Cell("setting")]
    for field in fields:
        title = NAMES.get(field, field)
        columns += [Cell(f"{title}, {name_loss(loss)}", loss=loss) for loss in losses]
        if set(AGAINST) <= set(losses):
            columns.append(Cell(f"{title}, gain of BCE"))
    body = []
    for setting, found in cells.items():
        row = [Cell(names[setting])]
        for field in fields:
            row += [_shape_cell(found.get((field, loss))) for loss in losses]
            if set(AGAINST) <= set(losses):
                row.append(_gain_cell(*(found.get((field, loss)) for loss in AGAINST)))
        body.append(tuple(row))
    printed = any(line.published is not None for line in lines if line.values)
    said = f"Ours, the mean over seeds{', above the published number' if printed else ''}."
    if set(AGAINST) <= set(losses):
        said += " The gain is BCE minus CE, in points for rates."
    return Table(
        "shape",
        "As the paper lays it out",
        said + explain_symbols(fields),
        tuple(columns),
        tuple(body),
    )


def explain_symbols(fields: Sequence[str]) -> str:
    """What the symbols of the papers mean, as far as they occur among fields."""
    used = {field.rpartition(".")[2] for field in fields}
    said = [f"{symbol} is {meaning}" for field, (symbol, meaning) in SYMBOLS.items() if field in used]
    return f" {join(said)}." if said else ""


def group_by_setting(lines: Sequence[Line]) -> dict[Setting, dict[tuple[str, str], Line]]:
    """The numbers that were run, by everything but the loss and then by field and loss."""
    cells: dict[Setting, dict[tuple[str, str], Line]] = {}
    for line in (line for line in lines if line.values):
        setting = tuple((k, v) for k, v in line.keys.items() if k not in ("loss", "seed"))
        cells.setdefault(setting, {})[line.field, str(line.keys.get("loss", ""))] = line
    return cells


def name_settings(settings: Sequence[Setting]) -> dict[Setting, str]:
    """Names of settings: what differs between them."""
    varying = {k for s in settings for k, v in s if len({dict(other).get(k) for other in settings}) > 1}
    return {s: ", ".join(name_optimiser(str(v)) for k, v in s if k in varying) or "all runs" for s in settings}


def gain(first: Line | None, second: Line | None) -> tuple[float, float]:
    """Second minus first, ours and published; NaN where one of them is missing."""
    if first is None or second is None:
        return math.nan, math.nan
    ours = second.ours - first.ours if first.ours is not None and second.ours is not None else math.nan
    if first.published is None or second.published is None:
        return ours, math.nan
    return ours, second.published.value - first.published.value


def is_rate(line: Line) -> bool:
    """Whether a number is a rate, which is written in percent."""
    return line.published.percent if line.published is not None else "accuracy" in line.field


def _shape_cell(line: Line | None) -> Cell:
    if line is None or line.ours is None:
        return Cell(MISSING)
    percent = is_rate(line)
    lines = (f"paper {line.published.printed}{' %' if percent else ''}".replace("-", "−"),) if line.published else ()
    return Cell(show(line.ours, percent=percent), lines, numbers={"ours": line.ours})


def _gain_cell(first: Line | None, second: Line | None) -> Cell:
    ours, published = gain(first, second)
    if not math.isfinite(ours) or second is None:
        return Cell(MISSING)
    scale = 100 if is_rate(second) else 1
    if scale == 1:
        lines = (f"paper {show(published, 3, sign=True)}",) if math.isfinite(published) else ()
        return Cell(show(ours, 3, sign=True), lines, numbers={"gain": ours})
    lines = ()
    if math.isfinite(published) and second.published is not None:
        number = re.match(r"-?\d*\.?(\d*)", second.published.printed)
        decimals = len(number[1]) if number else 0
        lines = (f"paper {100 * published:+.{decimals}f}".replace("-", "−"),)
    return Cell(f"{100 * ours:+.2f}".replace("-", "−"), lines, numbers={"gain": ours})


def _cell(text: str, column: int, line: Line) -> Cell:
    value = {"published": line.published and line.published.value, "ours": line.ours, "predicted": line.predicted}
    number = value.get(HEAD[column])
    below: tuple[str, ...] = ()
    if HEAD[column] == "off by":  # what the verdict owes to tied epochs or initial draws goes below the number
        text, _, reason = text.replace("-", "−").partition(" (")
        below = (reason.removesuffix(")"),) if reason else ()
    elif number is not None:
        text = text.replace("-", "−")
    return Cell(text, below, numbers={} if number is None else {HEAD[column]: number})
