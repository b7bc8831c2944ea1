"""The card on top of the page: the verdict, the losses ranked with their intervals, the largest clear differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ncollapse.compare import Comparison, Effect, Finding, Place, Ranking
from ncollapse.compare.numbers import show, show_difference, show_estimate, show_images, show_ratio
from ncollapse.compare.sentences import name_pair, size_text

MOST_EFFECTS = 6
MOST_STRIPS = 4
WIDTH = 260
"""The width of a strip's drawing, in its own units."""


@dataclass(frozen=True)
class StripRow:
    """A loss of the strip: its mean, its interval as places along the strip from 0 to 1, and its distance to the best.

    `start` and `end` are None for one seed, which has no interval.
    """

    finding: Finding
    value: str
    wrong: str
    at: float
    start: float | None
    end: float | None
    behind: str
    leads: bool


@dataclass(frozen=True)
class Strip:
    """The losses of one context, best first, on one axis."""

    title: str
    axis: tuple[str, str]
    rows: tuple[StripRow, ...]


@dataclass(frozen=True)
class EffectRow:
    """A clear difference: which loss, which quantity, how large, its interval, and whether it is good."""

    finding: Finding
    pair: str
    title: str
    size: str
    interval: str
    good: bool
    meaning: str


@dataclass(frozen=True)
class Answer:
    """What the card shows."""

    verdict: str
    strips: tuple[Strip, ...]
    effects: tuple[EffectRow, ...]
    more: int
    method: str


def make_answer(comparison: Comparison) -> Answer | None:
    """The card for a comparison; None where nothing was measured."""
    if not comparison.findings:
        return None
    ranked = [r for r in comparison.rankings if r is not None]
    compared = sorted((r for r in ranked if len(r.places) > 1), key=lambda r: -r.pairs) or ranked
    shown = compared if len(comparison.rankings) == 1 else [r for r in compared if r.pairs > 1]
    effects = sorted((e for r in ranked for e in r.effects), key=lambda e: -e.size)
    strips = tuple(make_strip(r, len(comparison.rankings) > 1) for r in shown[:MOST_STRIPS])
    rows = tuple(describe_row(e) for e in effects[:MOST_EFFECTS])
    bars = any(row.start is not None for strip in strips for row in strip.rows)
    method = describe_method(compared, bars)
    return Answer(comparison.verdict, strips, rows, max(0, len(effects) - MOST_EFFECTS), method)


def make_strip(ranking: Ranking, several: bool) -> Strip:
    """The strip of one context; its axis spans all intervals."""
    key = ranking.quantity.key
    means = [p.finding.estimates[key].mean for p in ranking.places]
    ends = [v for p in ranking.places for v in (p.low, p.high) if math.isfinite(v)] + means
    low, high = max(0.0, min(ends)), min(1.0, max(ends))
    room = max(0.05 * (high - low), 0.001)
    low, high = max(0.0, low - room), min(1.0, high + room)
    rows = tuple(_strip_row(p, key, low, high, len(ranking.places) == 1) for p in ranking.places)
    first = ranking.places[0].finding.variant
    about = first.label.partition(" · ")[2] if several else ""
    title = ranking.quantity.title + (f": {about}" if about else "")
    return Strip(title, (f"{100 * low:.1f} %", f"{100 * high:.1f} %"), rows)


def _strip_row(place: Place, key: str, low: float, high: float, alone: bool) -> StripRow:
    found = place.finding.estimates[key]

    def along(value: float) -> float:
        return round(min(1.0, max(0.0, (value - low) / (high - low))), 4)

    interval = math.isfinite(place.low)
    wrong = ""
    if place.images:
        images = f"{(1 - found.mean) * place.images:.1f}".removesuffix(".0")
        wrong = f"{images} of {place.images} images wrong"
    behind = ("" if alone else "best") if place.behind is None else _distance(place)
    return StripRow(
        place.finding,
        show_estimate(found, percent=True),
        wrong,
        along(found.mean),
        along(place.low) if interval else None,
        along(place.high) if interval else None,
        behind,
        place.leads,
    )


def _distance(place: Place) -> str:
    if place.behind is None or place.behind.n == 0:
        return "no shared seed"
    _, interval = show_difference(place.behind, percent=True)
    size = show(100 * place.behind.mean, 2, sign=True)
    images = f" ({show_images(place.behind)})" if place.behind.resolution else ""
    return f"{size} points{images} {interval}"


def describe_row(effect: Effect) -> EffectRow:
    """An effect as the card shows it."""
    shown = show_ratio(effect.difference) if effect.quantity.ratio else show_difference(effect.difference, True)
    return EffectRow(
        effect.finding,
        name_pair(effect.finding),
        effect.quantity.title,
        size_text(effect),
        shown[1],
        effect.good,
        effect.quantity.meaning,
    )


def describe_method(rankings: Sequence[Ranking], bars_shown: bool) -> str:
    """How the card was computed; nothing where nothing is compared."""
    most = max((len(r.places) for r in rankings), default=1)
    if most < 2:
        return ""
    corrected = " The ranking alone is corrected for the number of losses." if most > 2 else ""
    bars = "Bars are 95 % intervals of the mean over seeds. " if bars_shown else ""
    return (
        f"{bars}A difference is clear if its paired 95 % interval excludes zero and it exceeds two "
        f"images.{corrected} Of twenty quantities that do not differ, about one would look clear by chance."
    )
