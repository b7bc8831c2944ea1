"""Findings in words: the verdict on a comparison, and a sentence for each variant."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ncollapse.compare.findings import Finding, name_early
from ncollapse.compare.numbers import name_all, show, show_factor, show_images, show_points
from ncollapse.compare.quantities import QUANTITIES, Quantity
from ncollapse.compare.ranking import Effect, Place, Ranking
from ncollapse.compare.seeds import Difference, Estimate, seeds_needed
from ncollapse.compare.variants import Variant
from ncollapse.grammar import count, join

ALWAYS = ("test.accuracy", "test.uniform_accuracy", "train.nc1")
"""The quantities that the sentence on a variant always names; others only where their difference is clear."""
MOST_SEEDS = 100
VERBS = {
    "test.uniform_accuracy": ("separates more samples by one threshold", "separates fewer samples by one threshold"),
    "test.compactness": ("makes classes more compact", "makes classes less compact"),
    "test.distinctiveness": ("separates classes more", "separates classes less"),
    "train.nc1": ("has a larger spread within classes", "has a smaller spread within classes"),
    "train.nc2": ("is farther from a simplex", "is closer to a simplex"),
    "train.nc3": ("aligns classifier and means less", "aligns classifier and means more"),
}
"""What a higher and a lower value of a quantity mean."""


def describe_ranking(ranking: Ranking | None, others: bool = False) -> str:
    """The verdict on the losses of one context in a few plain sentences; `others` says that more losses were tried.

    A loss wins only where the interval of its lead over every other loss excludes zero and the lead exceeds two
    samples, and where every loss has finished runs. Then come the largest clear differences in other quantities, and
    how many seeds would tell more.
    """
    if ranking is None:
        return "No accuracy was measured, so the losses cannot be ranked."
    if len(ranking.places) == 1:
        place = ranking.places[0]
        rate = rate_text(place.finding.estimates[ranking.quantity.key])
        if others:
            return f"Only {_name(place, ranking)} has results: {ranking.quantity.title} {rate}."
        return f"Only {_name(place, ranking)} was run: {ranking.quantity.title} {rate}. Compare it with another loss."
    if ranking.provisional:
        return _interim_sentence(ranking)
    parts = [_accuracy_sentence(ranking)]
    if apart := [_name(p, ranking) for p in ranking.places if not p.compared] if ranking.pairs else []:
        verbs = "shares no seed with {} and is" if len(apart) == 1 else "share no seed with {} and are"
        parts.append(f"{join(apart)} {verbs.format(_name(ranking.places[0], ranking))} not compared.")
    parts += _effect_sentences(ranking)
    if advice := _advice(ranking):
        parts.append(advice)
    return " ".join(parts)


def describe_contexts(rankings: Sequence[Ranking | None]) -> str:
    """The verdict on a folder of several settings: in how many of them a loss wins."""
    compared = [r for r in rankings if r is not None and len(r.places) > 1]
    settings = count(len(rankings), "setting")
    if not compared:
        return f"{settings}, each with one loss: nothing is compared."
    seeded = [r for r in compared if r.pairs > 1]
    verb = "compares" if len(compared) == 1 else "compare"
    start = f"{_share(len(compared), len(rankings))} settings {verb} losses"
    if not seeded:
        ahead: dict[str, int] = {}
        for ranking in compared:
            behind = ranking.places[1].behind
            name = _loss(ranking.places[0]) if behind and behind.mean else "neither"
            ahead[name] = ahead.get(name, 0) + 1
        counted = join([f"{name} in {number}" for name, number in sorted(ahead.items(), key=lambda item: -item[1])])
        chance = f"{'all ' if len(compared) > 1 else ''}with one shared seed, so chance is not ruled out"
        return f"{start}, {chance}. Ahead on accuracy: {counted}."
    wins: dict[str, int] = {}
    for ranking in seeded:
        if len(ranking.leaders) == 1 and not ranking.provisional:
            name = _loss(ranking.places[0])
            wins[name] = wins.get(name, 0) + 1
    told = [f"{name} wins in {number}" for name, number in sorted(wins.items(), key=lambda item: -item[1])]
    if list(wins.values()) == [len(seeded)]:
        told = [
            f"{name} wins in {_share(len(seeded), len(seeded)).lower() if len(seeded) > 1 else 'it'}" for name in wins
        ]
    open_cases = len(seeded) - sum(wins.values())
    if not wins:
        told = ["no loss wins in it" if open_cases == 1 else "no loss wins in any of them"]
    elif open_cases:
        told.append(f"no loss wins in {open_cases}")
    effects = sorted((e for r in seeded for e in r.effects if e.quantity.key != r.quantity.key), key=lambda e: -e.size)
    largest = f" The largest clear difference: {describe_effect(effects[0])}." if effects else ""
    several = "all" if len(seeded) == len(compared) else "one" if len(seeded) == 1 else str(len(seeded))
    with_seeds = f"{several} of them with two seeds or more" if len(compared) > 1 else "with two seeds or more"
    return f"{start}, {with_seeds}. On accuracy, {join(told)}.{largest}"


def _share(part: int, whole: int) -> str:
    """So many of all, such as "3 of 4" or "all 3"; "both" of two."""
    return f"{part} of {whole}" if part < whole else "Both" if whole == 2 else f"All {whole}"


def describe_failures(variants: Sequence[Variant]) -> str:
    """Which losses have failed runs, or no results; nothing where all runs count.

    A loss whose training diverges under some seeds is compared on the others, which says too much for it.
    """
    said = []
    losses = [_short(variant.label) for variant in variants]
    for variant, loss in zip(variants, losses):
        name = loss if losses.count(loss) == 1 else variant.label
        failed = sum(record.status == "failed" for record in variant.records)
        share = f"{failed} of {count(len(variant.records), 'run')}"
        if not variant.counted:
            lost = "its run" if len(variant.records) == 1 else share
            said.append(f"{name} has no results: {lost} failed." if failed else f"{name} has no results yet.")
        elif failed:
            left_out = "" if variant.provisional else f" and {'is' if failed == 1 else 'are'} left out"
            said.append(f"{share} of {name} failed{left_out}.")
    return " ".join(said)


def describe_effect(effect: Effect) -> str:
    """A clear difference in words, such as "BCE against CE: test distinctiveness 9.3 points lower"."""
    return f"{name_pair(effect.finding)}: {effect.quantity.title} {size_text(effect)}"


def name_pair(finding: Finding) -> str:
    """A variant and its reference, what they share named once: "BCE against CE (mnist · SGD)"."""
    name, _, shared = finding.variant.label.partition(" · ")
    against = finding.reference.label.partition(" · ")[0] if finding.reference else ""
    return f"{name} against {against} ({shared})" if shared else f"{name} against {against}"


def size_text(effect: Effect) -> str:
    """How large a clear difference is and which way it goes, such as "9.3 points lower" or "1.3 times higher"."""
    mean = effect.difference.mean
    side = "higher" if mean > 0 else "lower"
    if effect.quantity.ratio:
        factor = show_factor(abs(mean))
        return f"{factor} times {side}" if factor != "1" else f"{show(100 * abs(math.expm1(mean)), 2)} % {side}"
    size = f"{show_points(mean)} {side}"
    images = show_images(effect.difference)
    return f"{size} ({images})" if images else size


def describe_finding(finding: Finding) -> str:
    """One plain sentence on a variant, claiming a difference only where it is clear."""
    name, n = finding.variant.label, len(finding.variant.counted)
    seeds = "one seed" if n == 1 else f"{n} seeds"
    accuracy, uniform = finding.estimates["test.accuracy"], finding.estimates["test.uniform_accuracy"]
    start = f"{name} ({seeds}): test accuracy {rate_text(accuracy)}, uniform accuracy {rate_text(uniform)}"
    start += _collapse_clause(finding, n)
    if finding.variant.provisional:
        start += " (still unfinished)"
    if finding.reference is None:
        return start + "."
    said = [q for q in QUANTITIES if q.key in ALWAYS or (q.better and finding.effect(q).clear)]
    clauses = [difference_clause(finding, q) for q in said]
    if early := _early_clause(finding):
        clauses.append(early)
    pairs = max((d.n for d in finding.differences.values()), default=0)
    against = finding.reference.label
    if pairs == 0:
        return f"{start}. No seed is shared with {against}, so there is no paired difference."
    if pairs == 1:
        clauses.append("one shared seed gives no interval, so chance is not ruled out")
    return f"{start}. Against {against}: {'; '.join(clauses)}."


def describe_ranges(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """One plain sentence per loss on many variants: the range of its means."""
    sentences = []
    for loss in dict.fromkeys(f.variant.loss for f in findings):
        own = [f for f in findings if f.variant.loss == loss]
        parts = []
        for q in (q for q in QUANTITIES if q.key in ALWAYS):
            means = [f.estimates[q.key].mean for f in own if f.estimates[q.key].n]
            if means:
                low, high = (f"{100 * v:.2f}" if q.percent else show(v, 3) for v in (min(means), max(means)))
                parts.append(f"{q.title} from {low} to {high}{' %' if q.percent else ''}")
        runs = sum(len(f.variant.counted) for f in own)
        name = own[0].variant.label.split(" · ")[0]
        about = f"{count(len(own), 'variant')}, {count(runs, 'run')}"
        sentences.append((loss, f"{name} ({about}): {', '.join(parts) or 'nothing measured'}."))
    return sentences


def difference_clause(finding: Finding, quantity: Quantity) -> str:
    """What a difference to the reference says, with its interval."""
    rate_of_training = quantity.percent and quantity.split == "train"  # "accuracy" alone is that of the test set
    d, title = finding.effect(quantity), quantity.title if rate_of_training else quantity.short
    if not math.isfinite(d.mean):
        return f"{title} not measured"
    size = size_text(Effect(finding, quantity, d)) if d.mean else "equal"
    if d.n < 2:
        return f"{title} {size}"
    if not d.has_interval:
        return f"{title} {size} in each of {d.n} seeds"
    if d.clear:
        return f"{title} {size} ({_interval(d, quantity)})"
    if d.too_small and d.excludes_zero:
        return f"{title} within {show_images(d)}, too few to count"
    return f"{title} not distinguishable ({_interval(d, quantity)})"


def rate_text(value: Estimate) -> str:
    """A rate with its standard deviation over seeds."""
    if value.n == 0:
        return "not measured"
    return f"{100 * value.mean:.2f} %" + (f" ± {100 * value.std:.2f}" if value.n > 1 else "")


def _accuracy_sentence(ranking: Ranking) -> str:
    name = _rate_name(ranking)
    best, second, *_ = places = [p for p in ranking.places if p.compared] if ranking.pairs else ranking.places
    behind = second.behind
    if behind is None or behind.n == 0:
        leads = f"{_name(best, ranking)} has the highest {name}"
        return f"{leads}, but shares no seed with {_name(second, ranking)}: nothing is shown by it."
    lead = _lead_text(behind)
    if ranking.pairs == 1:
        apart = _apart_text(best, second, behind, ranking)
        return f"No verdict from one seed: on {name}, {apart}, and chance is not ruled out."
    leaders = ranking.leaders
    if len(leaders) == 1:
        against = _name(second, ranking) if len(places) == 2 else f"the next, {_name(second, ranking)}"
        interval = _interval(behind, ranking.quantity, flip=True)
        return f"{_name(best, ranking)} wins on {name}: {lead} above {against} ({interval})."
    if len(leaders) == len(places):
        spread = places[-1].behind.mean if places[-1].behind else 0.0
        names = join([_name(p, ranking) for p in leaders])
        if spread == 0:
            return f"No loss wins on {name}: {names} are equal on average."
        if len(leaders) == 2:
            return f"No loss wins on {name}: {_apart_text(best, second, behind, ranking)}, which may be chance."
        return f"No loss wins on {name}: all {len(leaders)} lie within {show_points(spread)}."
    losers = [p for p in places if not p.leads]
    told = [f"{_name(p, ranking)} is {show_points(p.behind.mean)} lower" for p in losers if p.behind]
    return f"{join([_name(p, ranking) for p in leaders])} lead on {name} and cannot be told apart; {join(told)}."


def _interim_sentence(ranking: Ranking) -> str:
    """What can be said while a loss has no finished run: how far apart the last measured epochs are, and no verdict."""
    names = [_name(p, ranking) for p in ranking.provisional]
    start = f"No verdict yet: {join(names)} {'has' if len(names) == 1 else 'have'} no finished run."
    best, second, *_ = ranking.places
    if second.behind is None or second.behind.n == 0:
        return start
    return f"{start} So far, on {_rate_name(ranking)}, {_apart_text(best, second, second.behind, ranking)}."


def _rate_name(ranking: Ranking) -> str:
    """The accuracy that is ranked; "accuracy" alone is that of the test set."""
    return "accuracy" if ranking.quantity.split == "test" else ranking.quantity.title


def _apart_text(best: Place, second: Place, behind: Difference, ranking: Ranking) -> str:
    """How far the best lies above the second, such as "BCE lies 12 points (44 images) above CE"."""
    if behind.mean == 0:
        return f"{join([_name(best, ranking), _name(second, ranking)])} are equal"
    images = f" ({show_images(behind)})" if behind.resolution else ""
    return f"{_name(best, ranking)} lies {show_points(behind.mean)}{images} above {_name(second, ranking)}"


def _lead_text(behind: Difference) -> str:
    return show_points(behind.mean) + (f", {show_images(behind)}" if behind.resolution else "")


def _effect_sentences(ranking: Ranking) -> list[str]:
    """The largest clear difference of a rate other than the ranked one, and the largest clear ratio."""
    others = [e for e in ranking.effects if e.quantity.key != ranking.quantity.key]
    largest = [next((e for e in others if e.quantity.ratio is ratio), None) for ratio in (False, True)]
    said: list[str] = []
    for effect in filter(None, largest):
        group = effect.quantity.key, effect.difference.mean > 0
        name = effect.finding.variant.label
        verbs = VERBS.get(effect.quantity.key)
        verb = f"{verbs[0] if effect.difference.mean > 0 else verbs[1]}: " if verbs else "differs: "
        against = f" than {effect.finding.reference.label}" if effect.finding.reference and verbs else ""
        same = [e for e in others if (e.quantity.key, e.difference.mean > 0) == group]
        among = f", the largest of {len(same)} such differences" if len(same) > 1 else ""
        text = f"{effect.quantity.title} {size_text(effect)}{among}"
        said.append(f"{name} {verb[:-2]}{against}: {text}.")
    return said


def _advice(ranking: Ranking) -> str:
    """How many more seeds would tell the losses apart that lead, where there are several."""
    behind = ranking.leaders[-1].behind
    if behind is None:
        return ""
    if behind.n == 1:
        return "Run at least two more seeds."
    if behind.mean == 0:
        return "A larger test set would tell more."
    size = show_points(behind.mean)
    if behind.too_small:
        return f"A difference of {show_images(behind)} is too small to count: a larger test set would tell more."
    if not behind.has_interval:
        return f"It is the same in {name_all(behind.n)}, which gives no interval: more seeds would tell."
    needed = seeds_needed(behind)
    if needed is None or needed > MOST_SEEDS:
        return f"More than {MOST_SEEDS} seeds would be needed to tell {size} apart."
    more = max(1, needed - behind.n)
    return f"Run {count(more, 'more seed')} to tell {size} apart."


def _collapse_clause(finding: Finding, n: int) -> str:
    reached, recorded = finding.reached["nc1_epoch"], finding.recorded["nc1_epoch"]
    if reached == n:
        epoch = finding.speeds["nc1_epoch"].mean
        return f", NC1 below 0.1 by epoch {epoch:.1f} on average" if n > 1 else f", NC1 below 0.1 by epoch {epoch:g}"
    if not recorded:
        return ", NC1 over the epochs not recorded"
    if recorded < n:
        return f", NC1 below 0.1 in {reached} of {recorded} runs and not recorded in {n - recorded}"
    return f", NC1 below 0.1 in {reached} of {n} runs" if reached else ", NC1 never below 0.1"


def _early_clause(finding: Finding) -> str:
    found = {nc.upper(): finding.speed_differences[f"log_{nc}"] for nc in ("nc1", "nc2", "nc3")}
    found = {name: d for name, d in found.items() if d.n > 1}
    if not found:
        return ""
    groups = {
        "lower": [name for name, d in found.items() if d.clear and d.mean < 0],
        "higher": [name for name, d in found.items() if d.clear and d.mean > 0],
        "not distinguishable": [name for name, d in found.items() if not d.clear],
    }
    parts = [f"{join(names)} {word}" for word, names in groups.items() if names]
    return f"on average over {name_early([finding])}, {', '.join(parts)}"


def _interval(d: Difference, quantity: Quantity, flip: bool = False) -> str:
    low, high = (-d.high, -d.low) if flip else (d.low, d.high)
    name = f"{show(100 * d.confidence, 3)} % interval"
    if quantity.ratio:
        return f"{name} ×{show_factor(low)} to ×{show_factor(high)}"
    scale = 100 if quantity.percent else 1
    return f"{name} {show(scale * low, 2, sign=True)} to {show(scale * high, 2, sign=True)}"


def _name(place: Place, ranking: Ranking) -> str:
    """The loss of a place; where another place has the same one, with what tells them apart."""
    losses = [_loss(other) for other in ranking.places]
    return place.finding.variant.label if losses.count(_loss(place)) > 1 else _loss(place)


def _loss(place: Place) -> str:
    return _short(place.finding.variant.label)


def _short(label: str) -> str:
    return label.split(" · ")[0]
