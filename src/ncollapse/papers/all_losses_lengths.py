"""What shorter runs than those of "Are All Losses Created Equal" show: its statements between lengths of our choice."""

from __future__ import annotations

import math
import statistics

from ncollapse.compare.variants import name_loss
from ncollapse.grammar import count, join
from ncollapse.papers.all_losses_claims import (
    ALL_LOSSES,
    LARGE,
    LOSSES,
    METRICS,
    SMALL,
    once_fitted,
    raises,
    spread_over_losses,
)
from ncollapse.papers.claims import Claim, Runs
from ncollapse.papers.judge import read_last
from ncollapse.papers.matching import is_trial

SHORTEST = int(SMALL["epochs"])
"""The paper's shortest runs, in epochs; ours count from a quarter of that on."""


def long_enough(runs: Runs) -> Runs:
    """The runs that are not trials even of the shortest length of the paper."""
    return [(keys, record) for keys, record in runs if not is_trial(keys["epochs"], SHORTEST)]


def of_all_losses(runs: Runs, width: float) -> dict[int, Runs]:
    """The runs of one width by their length, of the lengths at which all four losses were run, the shortest first."""
    by_length: dict[int, Runs] = {}
    for keys, record in long_enough(runs):
        if keys["width"] == width:
            by_length.setdefault(keys["epochs"], []).append((keys, record))
    return {n: some for n, some in sorted(by_length.items()) if {keys["loss"] for keys, _ in some} == set(LOSSES)}


def collapse_further(runs: Runs) -> list[Claim]:
    """Figures 1 and 5: every metric ends lower in the longest runs than in the shortest, under every loss."""
    found = of_all_losses(runs, LARGE["width"])
    if len(found) < 2:
        return []
    short, long = min(found), max(found)
    kept, words = 0, []
    for loss in LOSSES:
        ends = [[mean_of_last(found[n], loss, field) for field in METRICS] for n in (short, long)]
        kept += sum(later < earlier for earlier, later in zip(*ends))
        words.append(f"{name_loss(loss)} {ends[0][0]:.2g} to {ends[1][0]:.2g}")
    total = len(LOSSES) * len(METRICS)
    detail = f"{kept} of {count(total, 'curve')}; NC1: {', '.join(words)}"
    return [
        Claim(
            f"the NC metrics end lower after {long} epochs than after {short}, under every loss", kept == total, detail
        )
    ]


def agree_further(runs: Runs) -> list[Claim]:
    """Figures 2 and 6: the test accuracies of the losses lie closer in the longest runs than in the shortest."""
    found = of_all_losses(runs, LARGE["width"])
    if len(found) < 2:
        return []
    short, long = min(found), max(found)
    return [differ_less(found[short], found[long], f"after {short} epochs", f"after {long}")]


def rise_with_width_and_epochs(runs: Runs) -> list[Claim]:
    """Figure 3: width and epochs raise test accuracy, between runs that differ in nothing else."""
    some = long_enough(runs)
    claims = [raises(some, "width", "a wider network"), raises(some, "epochs", "longer training")]
    said = join([f"{n:g}" for n in sorted({keys["epochs"] for keys, _ in some})])
    return [
        Claim(f"runs of {said} epochs: {claim.text}", claim.holds, claim.detail, claim.threshold)
        for claim in claims
        if claim.holds is not None
    ]


def corners(runs: Runs) -> list[Claim]:
    """Figure 4: the small network, trained briefly, against the large one, trained longer, at the lengths we have."""
    small, large = of_all_losses(runs, SMALL["width"]), of_all_losses(runs, LARGE["width"])
    if not small or not large or min(small) >= max(large):
        return []
    short, long = min(small), max(large)
    here, there = small[short], large[long]
    where = [f"at width {width:g} and {n} epochs" for width, n in ((SMALL["width"], short), (LARGE["width"], long))]
    orders = [
        math.log10(mean_of_last(here, loss, "train.nc1") / mean_of_last(there, loss, "train.nc1")) for loss in LOSSES
    ]
    detail = f"{statistics.fmean(orders):.1f} orders of magnitude in the mean, " + ", ".join(
        f"{name_loss(loss)} {value:.1f}" for loss, value in zip(LOSSES, orders)
    )
    collapsed = Claim(f"NC1 {where[0]} is above NC1 {where[1]}, under every loss", min(orders) > 0, detail)
    return [differ_less(here, there, *where), collapsed]


def differ_less(there: Runs, here: Runs, where_more: str, where_less: str) -> Claim:
    """The range of test accuracies over the losses is smaller in the runs of `here`."""
    wide, narrow = (spread_over_losses(some, {}) for some in (there, here))
    text = f"the losses differ more in test accuracy {where_more} than {where_less}"
    if wide is None or narrow is None:
        return Claim(text, None, ALL_LOSSES)
    return once_fitted(Claim(text, wide > narrow, f"{wide:.2f} against {narrow:.2f} points"), here)


def mean_of_last(runs: Runs, loss: str, field: str) -> float:
    """A field at the last epoch under one loss, averaged over the seeds."""
    return statistics.fmean(read_last(record, field) for keys, record in runs if keys["loss"] == loss)
