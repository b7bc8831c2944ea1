"""Batches of any shape: inputs apart from labels, on the model's device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

LABEL_KEYS = ("labels", "label", "label_ids", "target", "targets", "y")


def split_batch(batch: Any) -> tuple[Any, Any]:
    """(inputs, labels) of a pair or of a dictionary with the key labels, label, label_ids, target, targets or y."""
    if isinstance(batch, Mapping):
        for key in LABEL_KEYS:
            if key in batch:
                return {name: value for name, value in batch.items() if name != key}, batch[key]
        raise ValueError(f"batch: has the keys {', '.join(map(str, batch))}, none of {', '.join(LABEL_KEYS)}")
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    size = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
    raise ValueError(
        f"batch: expected (inputs, labels) or a dictionary with labels, got {type(batch).__name__}{size}; "
        "pass split=, a function from a batch to (inputs, labels)"
    )


def move(value: Any, device: torch.device) -> Any:
    """Tensors, also inside dictionaries and sequences, on a device."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {name: move(item, device) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [move(item, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def call(model: Any, inputs: Any) -> Any:
    """Call a model with one input, with several, or with named ones."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def count_samples(batch: Any) -> int:
    """The length of the first tensor in a batch.

    >>> count_samples({"x": torch.zeros(3, 2), "labels": torch.zeros(3)})
    3
    """
    if isinstance(batch, Tensor):
        return len(batch)
    for item in batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else ():
        if isinstance(item, (Tensor, Mapping, tuple, list)) and (found := count_samples(item)):
            return found
    return 0
