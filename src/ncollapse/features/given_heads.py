"""Classifiers that a user gives as head=: modules, tensors, or functions that compute them anew each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor, nn

from ncollapse.features.classifier import check_linear
from ncollapse.heads import ETFHead, Head, LinearHead

Pair: TypeAlias = tuple[Tensor | np.ndarray[Any, Any], Tensor | np.ndarray[Any, Any] | None]
FixedHead: TypeAlias = nn.Linear | LinearHead | ETFHead | Head | Pair
HeadSource: TypeAlias = FixedHead | Callable[[], FixedHead]


def read_head(source: HeadSource) -> Head:
    """The classifier as it is now, copied: the model may go on training.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.eye(2))
    >>> read_head(lambda: (3 * weight, None)).weight.tolist()
    [[3.0, 0.0], [0.0, 3.0]]
    """
    if is_function(source):
        source = source()  # type: ignore[operator]
    return copy_head(Head.of(source))


def copy_head(head: Head) -> Head:
    """A head with tensors of its own; sharded ones (DTensor) are gathered."""
    return Head(_own(head.weight), None if head.bias is None else _own(head.bias))


def is_function(source: Any) -> bool:
    """Whether a head is computed by a function, not held by a module."""
    return callable(source) and not isinstance(source, nn.Module)


def refuse_computed(source: Any) -> None:
    """Raise for a pair of tensors that were computed from parameters: they would stay as they were at this moment."""
    if isinstance(source, nn.Module) or is_function(source):
        return
    parts = (source.weight, source.bias) if isinstance(source, Head) else source
    for part in parts if isinstance(parts, tuple | list) else ():
        if isinstance(part, Tensor) and part.grad_fn is not None:
            raise ValueError(
                "head: expected a module, parameters or a function, got a tensor that was computed from parameters and "
                "would not follow the training; pass a function: head=lambda: (weight, threshold)"
            )


def check_given(source: HeadSource, rows: Tensor) -> None:
    """Raise unless a module given as head= is linear."""
    if isinstance(source, nn.Module) and rows.shape[1] == (head := read_head(source)).dim:
        rows = rows.to(head.weight)
        check_linear(head, rows, source(rows), "head", type(source).__name__)


def _own(tensor: Tensor) -> Tensor:
    full = getattr(tensor, "full_tensor", None)
    return tensor.detach().clone() if full is None else full().detach().clone()
