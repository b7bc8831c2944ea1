"""One pass over the samples of a classifier: the class averages from which the dual bound is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ncollapse.heads import Head
from ncollapse.losses import ConvexForm
from ncollapse.metrics.batches import open_source

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """Per class: the number of samples given, their mean loss, mean |h|^2 and mean gradient in the logits [K, K].

    lowest, highest: the extreme values of the features.
    """

    given: Array
    losses: Array
    energies: Array
    gradients: Array
    lowest: float
    highest: float


def summarise(
    features: Any, labels: Any, head: Head, form: ConvexForm, offset: tuple[float, ...] | None = None
) -> Summary:
    """One pass over the samples in float64, with one transfer from the device at its end.

    `offset` [K] is added to the logits inside the loss.
    """
    num_classes = head.num_classes
    source = open_source(features, labels)
    if source.dim != head.dim:
        raise ValueError(f"features: {source.dim} columns, but weight has {head.dim}")
    device = source.device
    sums = torch.zeros(num_classes, num_classes + 3, dtype=torch.float64, device=device)
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
        value, gradient = form.evaluate(logits, y)
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
    return _to_summary(table[:-2].reshape(num_classes, -1), table[-2:], seen)


def _to_summary(sums: Array, extremes: Array, seen: int) -> Summary:
    given, k = sums[:, -1], len(sums)
    if not np.isfinite(sums).all():
        raise ValueError("features or the classifier give non-finite logits; every value must be finite")
    if round(float(given.sum())) != seen:
        raise ValueError(f"labels has {seen - int(given.sum())} values outside 0..{k - 1} (weight has {k} rows)")
    mean = sums / np.where(given > 0, given, 1.0)[:, None]
    return Summary(given, mean[:, k], mean[:, k + 1], mean[:, :k], float(extremes[0]), float(extremes[1]))


def _check_labels(labels: Tensor, num_classes: int) -> None:
    if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= num_classes):
        raise ValueError(f"labels has values outside 0..{num_classes - 1} (weight has {num_classes} rows)")
