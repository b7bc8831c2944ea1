"""One pass over the samples of a classifier: the class averages from which the dual bound is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ncollapse.heads import Head
from ncollapse.losses import Loss
from ncollapse.losses.forms import unreduced
from ncollapse.metrics.batches import open_source
from ncollapse.theory.class_groups import ClassGroups

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """Per class: the number of samples given, their mean loss, mean |h|^2 and mean gradient in the logits [K, K].

    gradients: with groups of classes, their means over the classes of each group instead, [m, 1 + m]: at the own class,
    and summed over the classes of each group. lowest, highest: the extreme values of the features.
    """

    given: Array
    losses: Array
    energies: Array
    gradients: Array
    lowest: float
    highest: float


def summarise(
    features: Any,
    labels: Any,
    head: Head,
    loss: Loss,
    offset: tuple[float, ...] | None = None,
    groups: ClassGroups | None = None,
) -> Summary:
    """One pass over the samples in float64, with one transfer from the device at its end.

    `offset` [K] is added to the logits inside the loss. With `groups`, no K x K matrix is made.
    """
    loss = unreduced(loss)
    num_classes = head.num_classes
    source = open_source(features, labels)
    if source.dim != head.dim:
        raise ValueError(f"features: {source.dim} columns, but weight has {head.dim}")
    device = source.device
    width = num_classes if groups is None else 1 + len(groups.sizes)
    sums = torch.zeros(num_classes, width + 3, dtype=torch.float64, device=device)
    member = None if groups is None else torch.from_numpy(groups.index).to(device)
    extremes = torch.zeros(2, dtype=torch.float64, device=device)
    w = head.weight.detach().to(device, torch.float64)
    b = None if head.bias is None else head.bias.detach().to(device, torch.float64)
    if offset is not None:
        added = torch.tensor(offset, dtype=torch.float64, device=device)
        b = -added if b is None else b - added
    seen = 0
    for x, y in source.read(source.rows(num_classes)):
        seen += len(x)
        logits = x @ w.T if b is None else torch.addmm(-b, x, w.T)
        value, gradient = loss.evaluate_labels(logits, y.clamp_max(num_classes - 1))  # refused below
        if member is not None:
            gradient = _add_groups(gradient, y.clamp_max(num_classes - 1), member, width - 1)
        energy = torch.linalg.vecdot(x, x)
        columns = torch.cat((gradient, value[:, None], energy[:, None], torch.ones_like(value)[:, None]), dim=1)
        if device.type == "cpu" and num_classes > 64:
            _check_labels(y, num_classes)
            sums.index_add_(0, y, columns)
        else:
            # A product with the one-hot labels: the same digits every time, also on CUDA, and no wait for the device.
            members = (y[None, :] == torch.arange(num_classes, device=device)[:, None]).to(torch.float64)
            sums.addmm_(members, columns)
        low, high = torch.aminmax(x)
        extremes = torch.stack((torch.minimum(extremes[0], low), torch.maximum(extremes[1], high)))
    table = torch.cat((sums.flatten(), extremes)).cpu().numpy()
    return _to_summary(table[:-2].reshape(num_classes, -1), table[-2:], seen, groups)


def count_labels(features: Any, labels: Any, num_classes: int) -> Array:
    """The number of samples of each class [K]; one pass."""
    source = open_source(features, labels)
    counts = torch.zeros(num_classes, dtype=torch.float64, device=source.device)
    for _, y in source.read(source.rows()):
        _check_labels(y, num_classes)
        counts += torch.bincount(y, minlength=num_classes)
    return counts.cpu().numpy()


def _add_groups(gradient: Tensor, labels: Tensor, member: Tensor, groups: int) -> Tensor:
    """The gradient at the own class, and its sums over the groups of classes, [B, 1 + m]."""
    own = gradient.gather(1, labels[:, None])
    if groups == 1:
        return torch.cat((own, gradient.sum(dim=1, keepdim=True)), dim=1)
    if gradient.device.type == "cpu":
        sums = torch.zeros(len(gradient), groups, dtype=gradient.dtype).index_add_(1, member, gradient)
    else:  # a product has the same digits every time, which atomic additions do not
        sums = gradient @ torch.nn.functional.one_hot(member, groups).to(gradient.dtype)
    return torch.cat((own, sums), dim=1)


def _to_summary(sums: Array, extremes: Array, seen: int, groups: ClassGroups | None) -> Summary:
    given, k = sums[:, -1], len(sums)
    width = sums.shape[1] - 3
    if not np.isfinite(sums).all():
        raise ValueError("features or the classifier give non-finite logits; every value must be finite")
    if round(float(given.sum())) != seen:
        raise ValueError(f"labels has {seen - int(given.sum())} values outside 0..{k - 1} (weight has {k} rows)")
    mean = sums / np.where(given > 0, given, 1.0)[:, None]
    gradients = mean[:, :width]
    if groups is not None:
        gradients = np.ascontiguousarray(groups.add(gradients.T).T) / groups.sizes[:, None]
    return Summary(given, mean[:, width], mean[:, width + 1], gradients, float(extremes[0]), float(extremes[1]))


def _check_labels(labels: Tensor, num_classes: int) -> None:
    if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= num_classes):
        raise ValueError(f"labels has values outside 0..{num_classes - 1} (weight has {num_classes} rows)")
