"""When two runs are the same: the run id, and the coarser notions of sameness that grouping and judging need.

All of them compare configurations as `Recipe.to_dict` writes them. The name of a recipe never counts, whole numbers
compare equal to floats (30 and 30.0), and a field that recipes gained later counts only when it is set, so that runs
from before keep their ids.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

ADDED_LATER: dict[str, Any] = {
    "schedule.lag": 0,
    "data.normalise": "auto",
    "data.draw": "random",
    "decays.weak_epochs": 0,
    "decays.weak_share": 0.1,
}
"""Fields that recipes gained after runs had been recorded, with the value that leaves the run id unchanged."""
LABELS = ("name",)
LENGTH = ("optim.epochs", "schedule.milestones", "schedule.factor", "schedule.min_lr", "schedule.period")


def run_id(config: dict[str, Any]) -> str:
    """Twelve hexadecimal digits of a configuration; equal runs share a folder of this name.

    >>> run_id({"name": "a", "seed": 0}) == run_id({"name": "b", "seed": 0.0})
    True
    """
    return hashlib.sha256(_dump(_normalise(config)).encode()).hexdigest()[:12]


def measured_whenever(config: dict[str, Any]) -> str:
    """A key that runs share if they differ at most in how often they were measured."""
    return _key(config, *LABELS, "measure_every")


def setting_key(config: dict[str, Any]) -> str:
    """A key that runs share if they differ in their seed alone.

    How often a run was measured counts only where the best of the measured epochs is reported.
    """
    return settings_key(settings_of(config))


def settings_of(config: dict[str, Any]) -> dict[str, Any]:
    """The settings that distinguish one configuration from another, flat, by dotted name; the seed is kept."""
    flat = _flatten(_normalise(config))
    if flat.get("select", "last") == "last":
        flat.pop("measure_every", None)
    return flat


def settings_key(settings: dict[str, Any], *ignored: str) -> str:
    """A key for flat settings, apart from the seed and the ignored names."""
    return _dump({key: value for key, value in settings.items() if key not in ("seed", *ignored)})


def point_key(config: dict[str, Any]) -> str:
    """A key that the runs of one point of a paper's grid share, whatever their seed, length and precision.

    Epochs of weak decays change with the length; whether there are any counts.
    """
    flat = _flatten(_normalise(config))
    if "decays.weak_epochs" in flat:
        flat["decays.weak_epochs"] = True
    ignored = (*LABELS, *LENGTH, "seed", "precision", "measure_every", "schedule.lag")
    return _dump({key: value for key, value in flat.items() if key not in ignored})


def _key(config: dict[str, Any], *ignored: str) -> str:
    return _dump({key: value for key, value in _flatten(_normalise(config)).items() if key not in ignored})


def _normalise(config: dict[str, Any]) -> dict[str, Any]:
    """A copy without labels and unset later fields, whole numbers as integers."""
    content: dict[str, Any] = _with_integers({key: value for key, value in config.items() if key not in LABELS})
    for dotted, unset in ADDED_LATER.items():
        *path, last = dotted.split(".")
        part: Any = content
        for name in path:
            part = part.get(name) if isinstance(part, dict) else None
        if isinstance(part, dict) and part.get(last) == unset:
            part.pop(last, None)
    return content


def _with_integers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_integers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_integers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix[:-1]: tree}
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flatten(value, f"{prefix}{key}.")
    return flat


def _dump(content: Any) -> str:
    return json.dumps(content, sort_keys=True, default=str)
