"""Changes to a recipe that a command line offers under short names: --model, --batch-size, --lr, --augment ..."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ncollapse.data.augment import Augment

if TYPE_CHECKING:
    from ncollapse.train.recipe import Recipe

SHORT_NAMES = {
    "model": "model.name",
    "epochs": "optim.epochs",
    "batch_size": "optim.batch_size",
    "lr": "optim.lr",
    "weight_decay": "optim.weight_decay",
    "image_size": "data.image_size",
    "channels": "data.channels",
    "normalise": "data.normalise",
    "precision": "precision",
    "measure_every": "measure_every",
}
"""The short name of each field of a recipe that has one."""
PRESETS = {
    "none": Augment(),
    "standard": Augment(crop=4, flip=True),
    "strong": Augment(crop=4, flip=True, mixup=0.8, cutmix=1.0, mix_probability=0.8, label_smoothing=0.1),
}
"""Augmentations by name; standard and strong are those of bce-vs-ce's settings 3 and 5."""


def apply_changes(recipe: Recipe, changes: Mapping[str, Any], augment: Sequence[str] = ()) -> Recipe:
    """Return a recipe with fields changed by short or dotted name; None leaves a field as it is.

    Another number of epochs stretches the schedule with it.

    >>> from ncollapse.train.recipe import Recipe
    >>> apply_changes(Recipe(), {"lr": 0.1, "model": None}, ["crop=4", "flip"]).augment.crop
    4
    """
    given = {SHORT_NAMES.get(name, name): value for name, value in changes.items() if value is not None}
    epochs = given.pop("optim.epochs", None)
    changed = recipe.override(**{name.replace(".", "__"): value for name, value in given.items()})
    if augment:
        changed = changed.override(augment=parse_augment(augment))
    return changed if epochs is None else changed.with_epochs(epochs)


def parse_augment(words: Sequence[str]) -> Augment:
    """Read an augmentation from words: the name of a preset, or fields as KEY=VALUE (KEY alone for a switch).

    >>> parse_augment(["standard", "rotation=15"])
    Augment(crop=4, flip=True, rotation=15.0, resized_crop=0.0, mixup=0.0, cutmix=0.0, mix_probability=1.0, \
switch_probability=0.5, label_smoothing=0.0)
    """
    kinds = {item.name: str(item.type) for item in fields(Augment)}
    start, values = Augment(), {}
    for word in words:
        key, _, text = word.partition("=")
        key = key.replace("-", "_")
        if word in PRESETS:
            start = PRESETS[word]
        elif key not in kinds:
            raise ValueError(f"augment: expected {', '.join(PRESETS)}, or some of {', '.join(kinds)}, got {word!r}")
        else:
            values[key] = _read_value(key, kinds[key], text)
    return Augment(**{item: values.get(item, getattr(start, item)) for item in kinds})


def _read_value(key: str, kind: str, text: str) -> Any:
    if kind == "bool":
        if text.lower() not in ("", "true", "false"):
            raise ValueError(f"augment: expected {key}, {key}=true or {key}=false, got {key}={text}")
        return text.lower() != "false"
    try:
        return int(text) if kind == "int" else float(text)
    except ValueError:
        raise ValueError(f"augment: expected a number as in {key}=4, got {key}={text or 'nothing'}") from None
