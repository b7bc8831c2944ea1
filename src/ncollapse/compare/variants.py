"""Runs grouped into variants: the same configuration under several seeds, named by what tells the variants apart."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ncollapse.runs.identity import setting_key, settings_key, settings_of
from ncollapse.runs.record import RunRecord, get_nested

LOSSES = {"ce": "CE", "bce": "BCE", "focal": "Focal", "ls": "LS", "mse": "MSE"}
# Labels name the settings that differ, in this order; a setting that follows from earlier ones is left out.
PRIORITY = (
    "data.name",
    "model.name",
    "optim.name",
    "optim.momentum",
    "optim.batch_size",
    "optim.epochs",
    "decays.bias",
    "model.bias_init",
)
GOES_WITH_LOSS = ("model.bias_init", "optim.lr", "optim.weight_decay")
"""Settings that a recipe or the user may choose for each loss without making losses incomparable."""
WORDS = {
    "decays.weight": "λW",
    "decays.feature": "λH",
    "decays.bias": "λb",
    "decays.weak_epochs": "weak decays in epochs 1 to",
    "decays.weak_share": "share of weak decays",
    "model.bias_init": "b₀",
    "model.feature_dim": "d",
    "model.feature_dim_linear": "d",
    "optim.batch_size": "batch",
    "optim.weight_decay": "decay",
    "schedule.lag": "schedule delay",
    "loss.gamma": "γ",
    "loss.alpha": "α",
    "loss.kappa": "κ",
    "loss.beta": "β",
}
UNSET = {
    "data.subset": "all samples",
    "model.feature_dim": "the network's own d",
    "model.feature_dim_linear": "the network's own d",
}
PLAIN = ("data.name", "model.name", "optim.name", "model.head", "schedule.name")
OPTIMISERS = {
    "sgd": "SGD",
    "sgd-momentum": "SGD with momentum",
    "adam": "Adam",
    "adamw": "AdamW",
    "lbfgs": "L-BFGS",
}


def name_optimiser(name: str) -> str:
    """The name of an optimiser for people; any other word stays as it is.

    >>> name_optimiser("adamw"), name_optimiser("resnet18")
    ('AdamW', 'resnet18')
    """
    return OPTIMISERS.get(name, name)


def name_loss(loss: str) -> str:
    """The name of a loss for people; of a loss of the user's own, the name of its class.

    >>> name_loss("bce"), name_loss("my_losses:HingeLoss")
    ('BCE', 'HingeLoss')
    """
    return LOSSES.get(loss, loss.rpartition(":")[2])


def name_losses(losses: Iterable[str]) -> dict[str, str]:
    """Names for people of several losses; of classes of one name, the modules too, so that no two names are alike.

    >>> name_losses(["ce", "mine:Hinge", "theirs:Hinge"])
    {'ce': 'CE', 'mine:Hinge': 'mine:Hinge', 'theirs:Hinge': 'theirs:Hinge'}
    """
    names = {loss: name_loss(loss) for loss in losses}
    shared = Counter(names.values())
    return {loss: name if shared[name] == 1 else LOSSES.get(loss, loss) for loss, name in names.items()}


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


def leave_out(variant: Variant, start: str) -> Variant:
    """The variant without the settings whose names begin like that, in its label too."""
    kept = {key: value for key, value in variant.settings.items() if not key.startswith(start)}
    gone = {phrase(key, value) for key, value in variant.settings.items() if key not in kept}
    label = " · ".join(part for part in variant.label.split(" · ") if part not in gone)
    return replace(variant, label=label, settings=kept)


def group_runs(records: Sequence[RunRecord], tuned: Iterable[str] = ()) -> list[Variant]:
    """Group runs by everything but seed and name, losses in a fixed order; runs without a readable loss stay out.

    `tuned` are settings that were chosen for each loss: losses stay comparable although these differ. Of several
    records of one configuration and seed one is kept, because copies are no further seeds.
    """
    known = [copies[0] for copies in gather_copies(records)]
    flat = {id(r): settings_of(r.config) for r in known}
    groups: dict[str, list[RunRecord]] = {}
    for record in known:
        groups.setdefault(settings_key(flat[id(record)]), []).append(record)
    heads = [flat[id(group[0])] for group in groups.values()]
    between = _distinguishing([{k: v for k, v in head.items() if not k.startswith("loss.")} for head in heads])
    contexts = _contexts(heads, (*GOES_WITH_LOSS, *tuned))
    params: dict[str, list[str]] = {}
    for loss in dict.fromkeys(str(head.get("loss.name")) for head in heads):
        same = [head for head in heads if str(head.get("loss.name")) == loss]
        params[loss] = _distinguishing([{k: v for k, v in head.items() if k.startswith("loss.")} for head in same])
    order = list(LOSSES)
    variants = []
    named = name_losses(params)
    for group in groups.values():
        own = flat[id(group[0])]
        loss = str(own.get("loss.name"))
        names = [*params[loss], *between]
        settings = {key: own[key] for key in names if key in own and _matters(key, own)}
        label = " · ".join([named[loss], *(phrase(key, value) for key, value in settings.items())])
        context = contexts[settings_key(own)]
        ordered = sorted(group, key=lambda r: (r.seed is None, r.seed or 0, r.run_id))
        place = order.index(loss) if loss in order else len(order)
        key = place, [_sortable(own.get(name)) for name in names]
        variants.append((key, Variant(label, loss, settings, context, tuple(ordered))))
    return [variant for _, variant in sorted(variants, key=lambda pair: pair[0])]


def _matters(key: str, settings: dict[str, Any]) -> bool:
    """Whether a setting changes anything: momentum is SGD's alone."""
    return key != "optim.momentum" or settings.get("optim.name") == "sgd"


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
        return predict(problem, method="closed").to_dict() if problem is not None else {}
    except Exception:  # a record may hold anything; then there is no prediction, but there is a page
        return {}


def _contexts(heads: list[dict[str, Any]], with_loss: tuple[str, ...]) -> dict[str, str]:
    """What each configuration shares with those it is compared with, by its key: everything but the loss.

    Settings that go `with_loss`, such as the initial bias in bce-vs-ce's settings 3 to 6 or a tuned learning rate, keep
    losses comparable: they are left out where no loss has two values of them.
    """
    shared = [{k: v for k, v in head.items() if not k.startswith("loss.")} for head in heads]
    wide = [settings_key(settings, *with_loss) for settings in shared]
    chosen: dict[tuple[str, str], set[str]] = {}
    for head, context in zip(heads, wide):
        values = str([head.get(key) for key in with_loss])
        chosen.setdefault((context, str(head.get("loss.name"))), set()).add(values)
    twice = {context for (context, _), values in chosen.items() if len(values) > 1}
    return {
        settings_key(head): settings_key(settings) if context in twice else context
        for head, settings, context in zip(heads, shared, wide)
    }


def _distinguishing(heads: list[dict[str, Any]]) -> list[str]:
    """The settings that tell configurations apart, leaving out those that follow from earlier ones."""
    names = [*PRIORITY, *sorted({k for head in heads for k in head} - set(PRIORITY))]
    chosen: list[str] = []
    parts = [0] * len(heads)  # heads with equal numbers agree in all chosen settings
    for name in (n for n in names if n not in ("seed", "name", "loss.name")):
        numbers: dict[tuple[int, str], int] = {}
        split = [
            numbers.setdefault((part, json.dumps(head.get(name), default=str)), len(numbers))
            for part, head in zip(parts, heads)
        ]
        if len(numbers) > len(set(parts)):
            chosen.append(name)
            parts = split
    return chosen


def phrase(key: str, value: Any) -> str:
    """A setting in words.

    >>> phrase("decays.bias", 5e-4), phrase("data.subset", None), phrase("model.bias", False)
    ('λb 0.0005', 'all samples', 'no bias')
    """
    word = WORDS.get(key, key.rsplit(".", 1)[-1].replace("_", " "))
    if value is None or value is False:
        return UNSET.get(key, f"no {word}")
    if value is True:
        return word
    if isinstance(value, (list, tuple)):
        return f"{word} {', '.join(map(str, value)) or 'none'}"
    text = f"{value:g}".replace("e-0", "e-") if isinstance(value, float) else str(value)
    if key in PLAIN:
        return name_optimiser(text)
    return f"{word} {text}"


def _sortable(value: Any) -> tuple[int, float, str]:
    return (0, float(value), "") if isinstance(value, (int, float)) else (1, 0.0, str(value))
