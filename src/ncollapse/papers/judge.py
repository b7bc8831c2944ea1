"""Published, ours, predicted: the numbers of a table side by side, each with a verdict.

A number is reproduced within 1 % of the published one (5 % under SGD, whose bias depends on its start), within three
standard deviations over three seeds or more (but at most three times that), or within the last printed digit;
accuracies within one point; compactness and distinctiveness within two. Where the epoch with the best test accuracy
is reported, our number stands for its range over the epochs that are tied with ours (`tied_epochs`). A number outside
these bounds is reproduced in direction if BCE and CE are ordered as in the paper. Numbers that nothing was printed
for, that had not converged in the paper's own run, or that a formula gives from others are not judged; those of runs
below a quarter of the epochs asked for are too short to judge.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ncollapse.compare.variants import LOSSES, OPTIMISERS
from ncollapse.papers import publications
from ncollapse.papers.experiment import Experiment, Point
from ncollapse.papers.initial_draws import deviation_of_scores
from ncollapse.papers.matching import Match, epochs_of, is_trial, lag_of
from ncollapse.papers.publications import Cell, Publication, tabulated_alpha
from ncollapse.papers.tied_epochs import Range, find_tied_range, read_curve
from ncollapse.runs.record import RunRecord

JUDGED = ("reproduced", "reproduced in direction", "not reproduced")
"""The verdicts that count; the others leave a number open."""
Verdict = Literal["reproduced", "reproduced in direction", "not reproduced", "not run", "not judged", "too short"]
POINTS = {"accuracy": 0.01, "uniform_accuracy": 0.01, "compactness": 0.02, "distinctiveness": 0.02}
PREDICTED = {
    "train.weight_energy": "weight_energy",
    "train.positive_score": "positive_score",
    "train.negative_score": "negative_score",
    "train.bias": "bias",
}
KEYS = {"bias_decay": "lambda_b", "bias_init": "initial b", "batch_size": "batch size", "dim": "d"}
MOST_FOR_SEEDS = 3
"""The spread over seeds widens a tolerance to so many times itself at most, so that a run that failed hides nothing."""
CLASSES = {"cifar100": 100, "mini-imagenet": 100, "imagenet": 1000}


@dataclass(frozen=True)
class Line:
    """One number of an experiment: what was published, what our runs gave (one value a seed), what theory predicts.

    `runs` are the ids of our runs, `epochs` is how long they were, `asked` how long the experiment asks for.
    `passed_at` is the last epoch at which a run that reports its best epoch had the published number, None if it never
    had it. `tied` is how far our number changes, down and up, over the epochs that are tied with the best one.
    `drawn` is a standard deviation over initial draws, where theory knows it (initial_draws.py).
    `other_schedule` is true if a run follows its schedule with another delay than asked for.
    """

    row: str
    column: str
    field: str
    keys: dict[str, Any]
    published: Cell | None
    values: tuple[float, ...] = ()
    spread: float | None = None
    predicted: float | None = None
    runs: tuple[str, ...] = ()
    epochs: tuple[int, ...] = ()
    asked: int | None = None
    passed_at: int | None = None
    tied: Range = (0.0, 0.0)
    drawn: float = 0.0
    other_schedule: bool = False
    verdict: Verdict = "not run"

    @property
    def ours(self) -> float | None:
        """The mean over seeds."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def short(self) -> bool:
        """Whether one of our runs trained for fewer epochs than the experiment asks for."""
        return bool(self.asked and self.epochs and min(self.epochs) < self.asked)

    @property
    def is_trial(self) -> bool:
        """Whether one of our runs was too short to judge."""
        return bool(self.asked and self.epochs and is_trial(min(self.epochs), self.asked))

    @property
    def epoch_words(self) -> str:
        """How long our runs were, and how long the experiment asks for if that is another length: "20 of 100"."""
        said = "/".join(map(str, self.epochs))
        longer = bool(self.asked and self.epochs and max(self.epochs) > self.asked)
        return f"{said} of {self.asked}" if self.short else f"{said} instead of {self.asked}" if longer else said

    @property
    def deviation(self) -> float | None:
        """Ours against the published value, relative."""
        if self.ours is None or self.published is None or self.published.value == 0:
            return None
        return self.ours / self.published.value - 1

    @property
    def distance(self) -> float:
        """How far the published number is from ours, or from the range of ours over tied epochs; NaN without both."""
        if self.ours is None or self.published is None:
            return math.nan
        low, high = (self.ours + change - self.published.value for change in self.tied)
        return max(low, -high, 0.0)

    @property
    def needs_ties(self) -> bool:
        """Whether the number is reproduced at an epoch tied with the best one, and not at the best one itself."""
        if self.ours is None or self.published is None or self.verdict != "reproduced":
            return False
        return not is_within(abs(self.ours - self.published.value), tolerance(self))

    @property
    def needs_draw(self) -> bool:
        """Whether the number is reproduced because theory knows how far initial draws scatter it."""
        return self.verdict == "reproduced" and not is_within(self.distance, tolerance(replace(self, drawn=0.0)))


def compare(experiment: Experiment, matches: Sequence[Match]) -> list[Line]:
    """Every number of the experiment, published cells first in the paper's order, then what only our runs have."""
    known = publications.load(experiment.paper) if experiment.paper in publications.PAPERS else {}
    publication = known.get(experiment.item, Publication("", (), ()))
    lines: list[Line] = []
    fixed = {"seed", *_find_constants([found.point for found in matches])} if matches else set()
    for found in matches:
        keys = found.point.keys
        row = ", ".join(_phrase(key, value) for key, value in keys.items() if key not in fixed)
        for field in experiment.finals:
            cell = next((c for c in publication.cells if c.field == field and _speaks_of(c, keys)), None)
            lines.append(_make_line(field, found, cell, row))
    lines = [line for line in lines if line.published or line.values or not publication.cells]
    return judge_all(experiment, lines)


def judge_all(experiment: Experiment, lines: Sequence[Line]) -> list[Line]:
    """The lines of an experiment with their verdicts."""
    unsettled = experiment.is_unsettled or (lambda keys, field: False)
    return [judge(line, lines, unsettled=unsettled(line.keys, line.field)) for line in lines]


def judge(line: Line, lines: Sequence[Line], *, unsettled: bool = False) -> Line:
    """The line with its verdict; `unsettled` if the number had not converged in the paper's own run."""
    if line.ours is None:
        return line
    if line.is_trial:
        return replace(line, verdict="too short")
    if line.published is None or unsettled or line.field == "alpha":
        return replace(line, verdict="not judged")
    if is_within(line.distance, tolerance(line)):
        return replace(line, verdict="reproduced")
    return replace(line, verdict="reproduced in direction" if _keeps_order(line, lines) else "not reproduced")


def is_within(distance: float, bound: float) -> bool:
    """Whether a difference is within a tolerance; one of exactly the tolerance is, whichever way it was rounded.

    >>> 0.77 - 0.76 <= 0.01, is_within(0.77 - 0.76, 0.01)
    (False, True)
    """
    return distance <= bound * (1 + 1e-9)


def tolerance(line: Line) -> float:
    """How far ours may lie from the published number to count as reproduced."""
    cell = line.published
    if cell is None:
        return math.nan
    bound = tolerance_in_points(line.field)
    if bound is None:
        bound = (0.05 if line.keys.get("optimizer") == "sgd" else 0.01) * abs(cell.value)
        if line.field == "train.bias" and line.keys.get("loss") == "ce":
            bound = max(bound, float(cell.std or 0))  # near zero: within the spread over classes
    seeds = 3 * statistics.stdev(line.values) if len(line.values) > 2 else 0.0
    return max(bound, min(seeds, MOST_FOR_SEEDS * bound), 3 * line.drawn, cell.unit_in_last_place)


def tolerance_in_points(field: str) -> float | None:
    """The absolute tolerance of a rate or similarity between 0 and 1; None for fields with a relative one."""
    return POINTS.get(field.rpartition(".")[2])


def sum_up(lines: Sequence[Line]) -> tuple[Verdict, str]:
    """The verdict on a whole table, from nine in ten of its numbers, and how many of each kind there are."""
    counted = [line.verdict for line in lines if line.verdict in JUDGED]
    waiting = sum(line.verdict == "not run" and line.published is not None for line in lines)
    if not counted:
        ran = any(line.values for line in lines)
        return ("not judged" if ran else "not run"), f"{waiting} numbers not run" if waiting else ""
    exact, direction = counted.count("reproduced"), counted.count("reproduced in direction")
    unjudged = sum(line.verdict == "not judged" and line.published is not None for line in lines)
    trials = sum(line.verdict == "too short" and line.published is not None for line in lines)
    detail = f"{exact} of {len(counted)} number{'' if len(counted) == 1 else 's'} reproduced"
    ties, draws = sum(line.needs_ties for line in lines), sum(line.needs_draw for line in lines)
    helped = [f"{ties} at a tied epoch"] * (ties > 0) + [f"{draws} as far as the initial draw decides"] * (draws > 0)
    detail += f" ({', '.join(helped)})" if helped else ""
    detail += f", {direction} in direction" if direction else ""
    detail += f", {unjudged} not judged" if unjudged else ""
    detail += f", {trials} too short to judge" if trials else ""
    detail += f", {waiting} not run" if waiting else ""
    if exact >= 0.9 * len(counted):
        return "reproduced", detail
    if exact + direction >= 0.9 * len(counted):
        return "reproduced in direction", detail
    return "not reproduced", detail


def predict_field(point: Point, field: str) -> float | None:
    """What theory predicts for a number of the final state, None if it does not apply.

    The optimum; for the bias under CE and SGD, which does not reach it, what decay leaves of its initial mean.
    """
    name = PREDICTED.get(field)
    if name is None:
        return None
    from ncollapse.theory import predict_if_known
    from ncollapse.train.initial_values import share_left
    from ncollapse.train.theory import count_per_class, count_samples

    if name == "bias" and point.recipe.select == "last":
        share, start = share_left(point.recipe, "bias"), point.recipe.model.bias_init
        if share is not None and isinstance(start, int | float):
            return share * start
    data = point.recipe.data
    classes = CLASSES.get(data.name, 10)
    problem = point.recipe.problem(num_classes=classes, samples=count_samples(data), class_counts=count_per_class(data))
    if name == "bias" and problem is not None and problem.leaves_bias_free:
        return None
    optimum = predict_if_known(problem)
    value = math.nan if optimum is None else getattr(optimum, name)
    return float(value) if math.isfinite(value) else None


def _phrase(key: str, value: Any) -> str:
    """A key of a grid with its value, as the papers' own rows have them."""
    word = f"{value:g}" if isinstance(value, float) else str(value)
    if key in ("loss", "optimizer"):
        return {**LOSSES, **OPTIMISERS}.get(word, word)
    return f"{KEYS.get(key, key.replace('_', ' '))} {word}"


def _find_constants(points: Sequence[Point]) -> set[str]:
    """The keys that have one value at all points, unless that is true of all keys."""
    keys = points[0].keys
    fixed = {key for key, value in keys.items() if all(key in p.keys and p.keys[key] == value for p in points)}
    return fixed if any(set(point.keys) - fixed - {"seed"} for point in points) else set()


def _make_line(field: str, found: Match, cell: Cell | None, row: str) -> Line:
    pairs = [(read_value(record, field), record) for record in found.records]
    pairs = [(value, record) for value, record in pairs if math.isfinite(value)]
    spreads = [record.final(f"{field}.std") for _, record in pairs]
    spreads = [spread for spread in spreads if math.isfinite(spread)]
    return Line(
        row=cell.row if cell else row,
        column=cell.column if cell else field,
        field=field,
        keys=found.point.keys,
        published=cell,
        values=tuple(value for value, _ in pairs),
        spread=statistics.fmean(spreads) if spreads else None,
        predicted=predict_field(found.point, field),
        runs=tuple(record.run_id for _, record in pairs),
        epochs=tuple(sorted({epochs_of(record) for _, record in pairs})),
        asked=found.asked_epochs,
        passed_at=_find_epoch(field, cell, found) if cell else None,
        other_schedule=any(lag_of(record) != found.point.recipe.schedule.lag for record in found.records),
        drawn=statistics.fmean(map(deviation_of_scores, found.records)) if pairs and field.endswith("_score") else 0.0,
        tied=_find_ties(field, [record for _, record in pairs]) if found.point.recipe.select != "last" else (0.0, 0.0),
    )


def _find_ties(field: str, records: Sequence[RunRecord]) -> Range:
    """The range over tied epochs, in the mean over seeds."""
    ranges = [find_tied_range(record, field) for record in records]
    if not ranges:
        return 0.0, 0.0
    return statistics.fmean(low for low, _ in ranges), statistics.fmean(high for _, high in ranges)


def _find_epoch(field: str, cell: Cell, found: Match) -> int | None:
    """The last measured epoch by which a run whose best epoch is reported had crossed the published number."""
    if found.point.recipe.select == "last" or len(found.records) != 1:
        return None
    pairs = itertools.pairwise(read_curve(found.records[0], field).items())
    return max((end for (_, a), (end, b) in pairs if (a - cell.value) * (b - cell.value) <= 0), default=None)


LAST = "last."
"""A field that begins so is read at the last epoch, whichever epoch the run reports."""


def read_last(record: RunRecord, field: str) -> float:
    """A number at the last measured epoch; that of the summary where the history does not have it."""
    values = record.series(field)[1]
    return values[-1] if values else record.final(field)


def read_value(record: RunRecord, field: str) -> float:
    """A number of a run's summary; spreads give their mean, alpha is computed as the tables do."""
    if field.startswith(LAST):
        return read_last(record, field.removeprefix(LAST))
    if field == "alpha":
        rho, bias = record.final("train.weight_energy"), record.final("train.bias.mean")
        if not math.isfinite(rho + bias) or record.loss != "bce":
            return math.nan
        classes = CLASSES.get(str(record.get("data.name")), 10)
        return tabulated_alpha(rho, bias, classes, int(record.get("optim.batch_size")))
    value = record.final(field)
    return record.final(f"{field}.mean") if math.isnan(value) else value


def _speaks_of(cell: Cell, keys: dict[str, Any]) -> bool:
    return all(key in keys and keys[key] == value for key, value in cell.where.items())


def _keeps_order(line: Line, lines: Sequence[Line]) -> bool:
    """Whether our numbers and the published ones order the two losses alike, all else equal."""
    if line.keys.get("loss") not in ("ce", "bce") or line.published is None or line.ours is None:
        return False
    there = {**line.keys, "loss": "bce" if line.keys["loss"] == "ce" else "ce"}
    for other in lines:
        if other.field == line.field and other.keys == there and other.published is not None and other.ours is not None:
            theirs = line.published.value - other.published.value
            return theirs * (line.ours - other.ours) > 0
    return False
