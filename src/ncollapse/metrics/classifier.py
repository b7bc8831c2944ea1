"""The classifier that is measured: checked, and beside the class means."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from .batches import Array, check_real, refuse_inferred
from .class_sums import refuse_large_labels, refuse_scale
from .presence import check_count
from .rows import Rows
from .transfer import choose_site, copy_together

if TYPE_CHECKING:
    from .shards import Shards


@runtime_checkable
class Layer(Protocol):
    """Something with a weight [K, d] and a bias [K]: a Head, LinearHead, ETFHead or torch.nn.Linear."""

    @property
    def weight(self) -> Tensor:
        """W."""

    @property
    def bias(self) -> Tensor | None:
        """b, or None."""


HeadLike: TypeAlias = "Layer | tuple[Array, Array | None]"


@dataclass(frozen=True)
class Classifier:
    """W [K, d] in any real dtype and b [K] in float64 of z = W h - b, where class-level work is done."""

    weight: Tensor
    bias: Tensor
    shards: Shards | None = None  # where each process holds some rows of the weight

    def rows(self, index: Tensor | None = None) -> Rows:
        """The rows of W, or some of them, in float64."""
        # sharded rows are not kept: all processes have to exchange the same, whichever of them leaves classes out
        shared = index is None and self.shards is None
        return self._rows if shared else Rows(self.weight, index=index, shards=self.shards)

    @cached_property
    def _rows(self) -> Rows:
        return Rows(self.weight)


def check_head(
    weight: Array | None, bias: Array | None, head: HeadLike | None, *, sharded: bool = False
) -> tuple[Tensor | None, Tensor | None]:
    """The classifier as tensors, from either way of giving it; `sharded`: the rows that this process holds."""
    if head is not None:
        if weight is not None or bias is not None:
            raise ValueError("head: give either head or weight and bias, not both")
        from ncollapse.heads import Head

        if isinstance(head, tuple):
            for name, value in zip(("weight", "bias"), head):
                if isinstance(value, np.ndarray):
                    check_real(name, value)
        found = Head.of(head)
        threshold = None if found.bias is None else take_local("bias", found.bias, sharded)
        return take_local("weight", found.weight, sharded), threshold
    if weight is None:
        if bias is not None:
            raise ValueError("bias: given without weight; a bias alone is no classifier")
        return None, None
    if isinstance(weight, torch.nn.Module):
        raise TypeError(f"weight: expected an array [K, d], got {type(weight).__name__}; a classifier goes in as head=")
    return _as_tensor("weight", weight), None if bias is None else _as_tensor("bias", bias)


def take_local(name: str, value: Tensor, sharded: bool) -> Tensor:
    """A plain tensor; of a DTensor that is sharded by rows, the rows of this process, where those are asked for."""
    if type(value) in (Tensor, torch.nn.Parameter):
        return value
    from torch.distributed.tensor import DTensor, Shard

    if not isinstance(value, DTensor):
        return value
    if not sharded:
        raise ValueError(
            f"{name}: expected a plain tensor, got a DTensor, which is sharded over processes; pass "
            f"{name}.full_tensor(), or measure it shard by shard with NeuralCollapse(..., shard_classes=True)"
        )
    if list(value.placements) != [Shard(0)]:
        raise ValueError(f"{name}: expected rows sharded over one mesh dimension, Shard(0), got {value.placements}")
    local: Tensor = value.to_local()
    return local


def _as_tensor(name: str, value: Array) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    check_real(name, value if isinstance(value, np.ndarray) else np.asarray(value))
    return torch.from_numpy(np.array(value, dtype=np.float64))


def place_classifier(head: tuple[Tensor | None, Tensor | None], dim: int, device: torch.device) -> Classifier | None:
    """The classifier of features on this device, its shape and values checked; no bias is a bias of 0."""
    weight, bias = head
    if weight is None:
        return None
    if weight.ndim != 2 or weight.shape[1] != dim or weight.shape[0] == 0:
        raise ValueError(f"weight: expected shape [K, {dim}] to fit features [N, {dim}], got {tuple(weight.shape)}")
    classes = weight.shape[0]
    if bias is not None and tuple(bias.shape) != (classes,):
        raise ValueError(f"bias: expected shape [{classes}] to fit weight [{classes}, {dim}], got {tuple(bias.shape)}")
    given = [weight] if bias is None else [weight, bias]
    for name, value in zip(("weight", "bias"), given):
        check_real(name, value)
    site = choose_site(device, classes, dim)
    if site == device:
        given = [value.to(device) for value in given]
    kept, *biases = copy_together(given, site)
    kept = kept if kept.is_floating_point() else kept.to(torch.float64)
    placed = Classifier(kept, (biases or [torch.zeros(classes, device=site)])[0].to(torch.float64))
    size = 0.0
    for name, value in (("bias", placed.bias), ("weight", placed.weight)):
        size = float(torch.linalg.vector_norm(value, torch.inf))  # NaN and Inf reach it
        if not size < float("inf"):
            raise ValueError(f"{name}: holds NaN or Inf")
    refuse_scale("weight", size)
    return placed


def settle_classes(num_classes: int | None, seen: int | None, classifier: Classifier | None) -> int | None:
    """The number of classes by the argument, the classifier or the labels; raises where they disagree."""
    num_classes = None if num_classes is None else check_count("num_classes", num_classes)
    if classifier is not None:
        rows = len(classifier.weight)
        if num_classes is not None and num_classes != rows:
            raise ValueError(f"num_classes: {num_classes}, but weight has {rows} rows")
        num_classes = rows
    if num_classes is None:
        if seen is not None:
            refuse_inferred(seen - 1)
        return seen
    if seen is not None:
        refuse_large_labels(seen - 1, num_classes)
    return num_classes
