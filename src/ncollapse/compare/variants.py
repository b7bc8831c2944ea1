"""Runs grouped into variants: the same configuration under several seeds, named by what tells the variants apart."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ncollapse.runs.identity import setting_key, settings_key, settings_of
from ncollapse.runs.record import RunRecord, get_nested

LOSSES = {"ce": "CE", "bce": "BCE", "focal": "Focal", "ls": "LS", "mse": "MSE"}
# What tells variants apart is asked in this order; a setting that only follows an earlier one is not repeated.
PRIORITY = (
    "data.name",
    "model.name",
    "optim.name",
    "optim.batch_size",
    "optim.epochs",
    "decays.bias",
    "model.bias_init",
)
START = "model.bias_init"
WORDS = {
    "decays.weight": "λW",
    "decays.feature": "λH",
    "decays.bias": "λb",
    "model.bias_init": "b₀",
    "model.feature_dim": "d",
    "optim.batch_size": "batch",
    "optim.weight_decay": "decay",
    "loss.gamma": "γ",
    "loss.alpha": "α",
    "loss.kappa": "κ",
    "loss.beta": "β",
}
PLAIN = ("data.name", "model.name", "optim.name", "model.head", "schedule.name")
CASES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "lbfgs": "L-BFGS"}


@dataclass(frozen=True)
class Variant:
    """Runs that differ in their seed alone.

    `settings` holds what tells this variant from the others, apart from the loss; variants with equal `context` differ
    in their loss alone and are compared with one another.
    """

    label: str
    loss: str
    settings: dict[str, Any]
    context: str
    records: tuple[RunRecord, ...]

    @property
    def finished(self) -> tuple[RunRecord, ...]:
        """The finished runs."""
        return tuple(r for r in self.records if r.status == "finished")

    @property
    def counted(self) -> tuple[RunRecord, ...]:
        """The runs whose numbers count: the finished ones, or, while there are none, those with a history."""
        return self.finished or tuple(r for r in self.records if r.history and r.status != "corrupt")

    @property
    def provisional(self) -> bool:
        """Whether the numbers come from runs that have not finished."""
        return not self.finished


def group_runs(records: Sequence[RunRecord]) -> list[Variant]:
    """Group runs by everything but seed and name, losses in a fixed order; runs without a readable loss stay out.

    Of the records of one configuration and seed one is kept: copies are no further seeds.
    """
    known = [copies[0] for copies in gather_copies(records)]
    flat = {id(r): settings_of(r.config) for r in known}
    groups: dict[str, list[RunRecord]] = {}
    for record in known:
        groups.setdefault(settings_key(flat[id(record)]), []).append(record)
    heads = [flat[id(group[0])] for group in groups.values()]
    between = _telling([{k: v for k, v in head.items() if not k.startswith("loss.")} for head in heads])
    contexts = _contexts(heads)
    variants = []
    for group in groups.values():
        own = flat[id(group[0])]
        loss = str(own.get("loss.name"))
        same = [head for head in heads if str(head.get("loss.name")) == loss]
        params = _telling([{k: v for k, v in head.items() if k.startswith("loss.")} for head in same])
        settings = {key: own.get(key) for key in (*params, *between)}
        label = " · ".join([LOSSES.get(loss, loss), *(_phrase(key, value) for key, value in settings.items())])
        context = contexts[settings_key(own)]
        ordered = sorted(group, key=lambda r: (r.seed is None, r.seed or 0, r.run_id))
        variants.append(Variant(label, loss, settings, context, tuple(ordered)))
    order = list(LOSSES)
    return sorted(
        variants, key=lambda v: (order.index(v.loss) if v.loss in order else len(order), _sortable(v.settings))
    )


def gather_copies(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """The records run by run: those of one configuration and seed together, a finished one and the longest first."""
    runs: dict[tuple[str, int | None], list[RunRecord]] = {}
    for record in (r for r in records if r.loss):
        runs.setdefault((setting_key(record.config), record.seed), []).append(record)
    return [sorted(same, key=lambda r: (r.status != "finished", -len(r.history))) for same in runs.values()]


def measured(record: RunRecord, key: str) -> float:
    """A number of a run such as "test.accuracy" or "train.bias" (the mean of a spread): final, else of the last epoch.

    NaN where the run has none.
    """
    for tree in (record.summary or {}, *reversed(record.history)):
        value = get_nested(tree, key)
        if isinstance(value, dict):
            value = value.get("mean")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if record.summary is not None and tree is record.summary and record.status == "finished":
            return math.nan
    return math.nan


def predicted(record: RunRecord) -> dict[str, Any]:
    """What theory predicts for a run: as its summary says, or, before it has one, by its configuration; else {}."""
    found = get_nested(record.summary or {}, "prediction")
    if isinstance(found, dict):
        return found
    if record.summary is not None:
        return {}
    from ncollapse.theory import predict
    from ncollapse.train import Recipe
    from ncollapse.train.theory import count_samples

    try:
        recipe = Recipe.from_dict(record.config)
        problem = recipe.problem(samples=count_samples(recipe.data))
        return predict(problem).to_dict() if problem is not None else {}
    except Exception:  # a record may hold anything; then there is no prediction, but there is a page
        return {}


def _contexts(heads: list[dict[str, Any]]) -> dict[str, str]:
    """What each configuration shares with those it is compared with, by its key: everything but the loss.

    A bias's start that goes with the loss, as in bce-vs-ce's settings 3 to 6, keeps losses comparable: it is left out
    where no loss has two of them.
    """
    shared = [{k: v for k, v in head.items() if not k.startswith("loss.")} for head in heads]
    wide = [settings_key(settings, START) for settings in shared]
    starts: dict[tuple[str, str], set[str]] = {}
    for head, context in zip(heads, wide):
        starts.setdefault((context, str(head.get("loss.name"))), set()).add(str(head.get(START)))
    twice = {context for (context, _), values in starts.items() if len(values) > 1}
    return {
        settings_key(head): settings_key(settings) if context in twice else context
        for head, settings, context in zip(heads, shared, wide)
    }


def _telling(heads: list[dict[str, Any]]) -> list[str]:
    """The settings that tell configurations apart, leaving out those that follow from earlier ones."""
    names = [*PRIORITY, *sorted({k for head in heads for k in head} - set(PRIORITY))]
    chosen: list[str] = []
    parts = 1
    for name in (n for n in names if n not in ("seed", "name", "loss.name")):
        split = len({json.dumps([head.get(k) for k in (*chosen, name)], default=str) for head in heads})
        if split > parts:
            chosen.append(name)
            parts = split
    return chosen


def _phrase(key: str, value: Any) -> str:
    text = f"{value:g}".replace("e-0", "e-") if isinstance(value, float) else str(value)
    if key in PLAIN:
        return CASES.get(text, text)
    return f"{WORDS.get(key, key.rsplit('.', 1)[-1])} {text}"


def _sortable(settings: dict[str, Any]) -> list[tuple[int, float, str]]:
    values = settings.values()
    return [(0, float(v), "") if isinstance(v, (int, float)) else (1, 0.0, str(v)) for v in values]
