"""What the files of a run may hold, with bounds: checked once, when a record is read.

Each `check_*` function raises ValueError, "key: what was expected, got what", for content that no run writes. What has
passed can be averaged, drawn and printed without further tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

LARGEST_NUMBER = 1e100
"""Energies of float32 features stay below 1e77; larger numbers overflow where their squares are summed."""
MOST_EPOCHS = 10**8
MOST_ITEMS = 10**6
LONGEST_TEXT = 10**6
DEEPEST = 12
RATES = ("accuracy", "uniform_accuracy", "uniform_accuracy_grid", "nc4", "class_accuracy")
COUNTS = ("counts", "num_samples", "num_classes", "dim", "count")
BOUNDED = frozenset((*RATES, *COUNTS))
SPLITS = ("train", "test", "validation")
PARTS = ("data", "model", "loss", "optim", "schedule", "decays", "augment")
ROUNDING = 1e-9


def check_config(config: dict[str, Any]) -> None:
    """Check the content of config.json."""
    _check_tree(config, "")
    for part in PARTS:
        if part in config and not isinstance(config[part], dict):
            raise _expected(part, "a table of settings", config[part])
    for key in ("data.name", "model.name", "loss.name", "optim.name", "name"):
        _check_key(config, key, _check_text)
    _check_key(config, "seed", lambda value, at: _check_whole(value, at, -(2**63), 2**64 - 1))
    _check_key(config, "optim.epochs", lambda value, at: _check_whole(value, at, 1, MOST_EPOCHS))
    _check_key(config, "optim.batch_size", lambda value, at: _check_whole(value, at, 1, 2**40))
    _check_key(config, "measure_every", lambda value, at: _check_whole(value, at, 1, MOST_EPOCHS))


def check_env(env: dict[str, Any]) -> None:
    """Check the content of env.json."""
    _check_tree(env, "")
    for part in ("versions", "hardware"):
        if part in env and not isinstance(env[part], dict):
            raise _expected(part, "a table", env[part])
    for key in ("command", "started"):
        _check_key(env, key, _check_text)
    resumed = env.get("resumed", [])
    if not isinstance(resumed, list) or not all(isinstance(item, str) for item in resumed):
        raise _expected("resumed", "a list of times", resumed)


def check_summary(summary: dict[str, Any]) -> None:
    """Check the content of summary.json."""
    _check_tree(summary, "")
    for key in ("epoch", "epochs", "selected_epoch"):
        _check_key(summary, key, lambda value, at: _check_whole(value, at, 0, MOST_EPOCHS))
    for key in ("status", "run_id", "reason", "traceback"):
        _check_key(summary, key, _check_text)
    _check_results(summary)
    prediction = summary.get("prediction")
    if prediction is not None and not isinstance(prediction, dict):
        raise _expected("prediction", "a table of numbers", prediction)


def check_row(row: Any, epochs: int = MOST_EPOCHS) -> None:
    """Check one row of the history of a run of so many epochs."""
    if not isinstance(row, dict):
        raise _expected("row", "an object", row)
    _check_tree(row, "")
    if "epoch" not in row:
        raise ValueError("epoch: missing")
    _check_whole(row["epoch"], "epoch", 0, epochs)
    for key in ("step", "lr", "loss"):
        _check_key(row, key, _check_number)
    _check_results(row)


def check_snapshot(arrays: dict[str, np.ndarray]) -> None:
    """Check the arrays of snapshot.safetensors: their shapes belong together and labels name classes."""
    for name, array in arrays.items():
        if array.dtype.kind not in "fiu":
            raise ValueError(f"{name}: expected numbers, got {array.dtype}")
        finite = array.dtype.kind != "f" or bool(np.isfinite(array).all())
        if not finite or (array.dtype == np.float64 and bool((np.abs(array) > LARGEST_NUMBER).any())):
            raise ValueError(f"{name}: expected finite numbers up to {LARGEST_NUMBER:g}")
    weight = arrays.get("weight")
    shape = None if weight is None else weight.shape
    if shape is not None and len(shape) != 2:
        raise ValueError(f"weight: expected shape [K, d], got {list(shape)}")
    if shape is not None and "bias" in arrays and arrays["bias"].shape != shape[:1]:
        raise ValueError(f"bias: expected shape [{shape[0]}], got {list(arrays['bias'].shape)}")
    for split in SPLITS:
        _check_split_arrays(
            {key.partition(".")[2]: a for key, a in arrays.items() if key.startswith(f"{split}.")}, split
        )
        means = arrays.get(f"{split}.class_means")
        if shape is not None and means is not None and means.shape != shape:
            raise ValueError(f"{split}.class_means: expected shape {list(shape)} as weight, got {list(means.shape)}")


def _check_split_arrays(arrays: dict[str, np.ndarray], split: str) -> None:
    means, features, labels, counts = (arrays.get(key) for key in ("class_means", "features", "labels", "counts"))
    if means is not None and means.ndim != 2:
        raise ValueError(f"{split}.class_means: expected shape [K, d], got {list(means.shape)}")
    if counts is not None and (counts.ndim != 1 or counts.dtype.kind == "f" or (counts < 0).any()):
        raise ValueError(f"{split}.counts: expected whole numbers of at least 0, one a class")
    if means is not None and counts is not None and len(counts) != len(means):
        raise ValueError(f"{split}.counts: expected {len(means)} classes as class_means, got {len(counts)}")
    if features is not None:
        dim = features.shape[-1] if means is None else means.shape[1]
        if features.ndim != 2 or features.shape[1] != dim:
            raise ValueError(f"{split}.features: expected shape [M, {dim}], got {list(features.shape)}")
        if labels is None or labels.shape != features.shape[:1]:
            raise ValueError(f"{split}.labels: expected one for each of the {len(features)} features")
    if labels is not None and labels.size:
        classes = MOST_ITEMS if means is None else len(means)
        if labels.ndim != 1 or labels.dtype.kind == "f" or labels.min() < 0 or labels.max() >= classes:
            raise ValueError(f"{split}.labels: expected whole numbers in 0..{classes - 1}")
    for name in ("positive_score", "negative_score", "margin"):
        edges, bins = arrays.get(f"{name}.edges"), arrays.get(f"{name}.counts")
        if (edges is None) != (bins is None):
            raise ValueError(f"{split}.{name}: expected edges and counts, got one of them")
        if edges is None or bins is None:
            continue
        if edges.ndim != 1 or bins.shape != (len(edges) - 1,) or (np.diff(edges) < 0).any() or (bins < 0).any():
            raise ValueError(f"{split}.{name}: expected rising edges and one count of at least 0 between each two")


def _check_results(content: dict[str, Any]) -> None:
    """Check the parts that the summary and the rows of the history share."""
    for split in SPLITS:
        if content.get(split) is not None:
            _check_measurement(content[split], split)
    for part in ("certificate", "time", "test_correct"):
        if content.get(part) is not None:
            _check_numbers(content[part], part)


def _check_measurement(content: Any, at: str) -> None:
    if not isinstance(content, dict):
        raise _expected(at, "a table of measured fields", content)
    kinds = _field_kinds()
    for name, value in content.items():
        kind = kinds.get(name)
        if value is None or (type(value) is float and name not in BOUNDED and kind == "number" and _is_sound(value)):
            continue
        key = f"{at}.{name}"
        if kind == "list":
            if not isinstance(value, list):
                raise _expected(key, "a list of numbers, one a class", value)
            for item in value:
                _check_field(name, item, key)
        elif kind == "spread":
            _check_numbers(value, key)
            if value.get("std") is not None:
                _check_range(value["std"], f"{key}.std", 0.0, LARGEST_NUMBER)
        elif kind == "number":
            _check_field(name, value, key)


def _check_field(name: str, value: Any, at: str) -> None:
    if value is None or (isinstance(value, bool) and name == "collapsed"):
        return
    if name in RATES:
        _check_range(value, at, 0.0, 1.0)
    elif name in COUNTS:
        _check_range(value, at, 0.0, LARGEST_NUMBER)
    else:
        _check_number(value, at)


@cache
def _field_kinds() -> dict[str, str]:
    """What each field of a measurement is: a number, a spread or a list of numbers."""
    from dataclasses import fields

    from ncollapse.metrics.measurement import Measurement

    def kind(default: Any) -> str:
        return "list" if default == () and type(default) is tuple else "spread" if hasattr(default, "std") else "number"

    return {item.name: kind(item.default) for item in fields(Measurement)}


def _check_tree(value: Any, at: str, depth: int = 0) -> None:
    """Check that plain JSON values are of moderate size and depth."""
    if depth > DEEPEST:
        raise ValueError(f"{at}: expected at most {DEEPEST} levels")
    if isinstance(value, (dict, list)):
        if len(value) > MOST_ITEMS:
            raise ValueError(f"{at}: expected at most {MOST_ITEMS} items, got {len(value)}")
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(key, str) and not (len(key) < LONGEST_TEXT and key.isascii()):
                _check_text(key, at or "key")
            if depth == DEEPEST or not _is_sound(item):
                _check_tree(item, f"{at}.{key}" if at else str(key), depth + 1)
    elif isinstance(value, str):
        _check_text(value, at)
    elif isinstance(value, (int, float)):
        _check_number(value, at)


def _is_sound(value: Any) -> bool:
    """Whether a value needs no further check: a shortcut for the many numbers of a history, whose names cost time."""
    kind = type(value)
    if kind is float or kind is int:
        return bool(-LARGEST_NUMBER <= value <= LARGEST_NUMBER)
    return value is None or kind is bool or (kind is str and len(value) < LONGEST_TEXT and value.isascii())


def _check_key(content: dict[str, Any], key: str, check: Callable[[Any, str], None]) -> None:
    """Apply a check to a value by its dotted name; a value that is missing or null passes."""
    value: Any = content
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is not None:
        check(value, key)


def _check_text(value: Any, at: str) -> None:
    if not isinstance(value, str):
        raise _expected(at, "text", value)
    if len(value) > LONGEST_TEXT:
        raise ValueError(f"{at}: expected at most {LONGEST_TEXT} characters, got {len(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{at}: expected valid Unicode") from None


def _check_numbers(content: Any, at: str) -> None:
    if not isinstance(content, dict):
        raise _expected(at, "a table of numbers", content)
    for name, value in content.items():
        if not _is_sound(value) or isinstance(value, str):
            _check_number(value, f"{at}.{name}")


def _check_number(value: Any, at: str) -> None:
    _check_range(value, at, -LARGEST_NUMBER, LARGEST_NUMBER)


def _check_range(value: Any, at: str, low: float, high: float) -> None:
    if not isinstance(value, (int, float)):
        raise _expected(at, "a number", value)
    if isinstance(value, float) and not math.isfinite(value):  # undefined, as null
        return
    if not low - ROUNDING <= value <= high + ROUNDING:
        raise _expected(at, f"a number in {low:g}..{high:g}", value)


def _check_whole(value: Any, at: str, low: int, high: int) -> None:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if not whole or isinstance(value, bool) or not low <= value <= high:
        raise _expected(at, f"a whole number in {low}..{high}", value)


def _expected(at: str, wanted: str, value: Any) -> ValueError:
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # an integer of very many digits
        shown = f"a {type(value).__name__}"
    return ValueError(f"{at}: expected {wanted}, got {shown if len(shown) <= 60 else shown[:57] + '...'}")
