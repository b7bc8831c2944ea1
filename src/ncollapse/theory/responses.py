"""One pass over the samples of a classifier: what the dual bound needs of them, class by class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ncollapse.heads import Head
from ncollapse.metrics.batches import open_source
from ncollapse.theory.conjugates import Array, ConvexLoss


@dataclass(frozen=True)
class Summary:
    """One pass over the samples: per class their number, mean loss, mean |h|^2 and mean response [K, K]."""

    given: Array
    counts: Array
    losses: Array
    energies: Array
    responses: Array
    weights: Array

    @property
    def shares(self) -> Array:
        """The classes' shares of the (weighted) mean loss."""
        weighted = self.counts * self.weights
        return np.asarray(weighted / weighted.sum())


def summarise(
    features: Any,
    labels: Any,
    head: Head,
    loss: ConvexLoss,
    *,
    class_counts: Any = None,
    non_negative: bool = False,
) -> Summary:
    """One pass over the samples in float64, with one transfer from the device at its end."""
    num_classes = head.num_classes
    source = open_source(features, labels)
    if source.dim != head.dim:
        raise ValueError(f"features: {source.dim} columns, but weight has {head.dim}")
    device = source.device
    sums = torch.zeros(num_classes, num_classes + 3, dtype=torch.float64, device=device)
    extremes = torch.zeros(2, dtype=torch.float64, device=device)
    w = head.weight.detach().to(device, torch.float64)
    b = None if head.bias is None else head.bias.detach().to(device, torch.float64)
    seen = 0
    for x, y in source.read(source.rows(num_classes)):
        seen += len(x)
        logits = x @ w.T if b is None else torch.addmm(-b, x, w.T)
        value, response = loss.evaluate(logits, y)
        energy = torch.linalg.vecdot(x, x)
        columns = torch.cat((response, value[:, None], energy[:, None], torch.ones_like(value)[:, None]), dim=1)
        if device.type == "cpu" and num_classes > 64:
            _check_labels(y, num_classes)
            sums.index_add_(0, y, columns)
        else:
            # A product with the one-hot labels: the same digits every time, also on CUDA, and no wait for the device.
            members = (y[None, :] == torch.arange(num_classes, device=device)[:, None]).to(torch.float64)
            sums.addmm_(members, columns)
        if non_negative:
            low, high = torch.aminmax(x)
            extremes = torch.stack((torch.minimum(extremes[0], low), torch.maximum(extremes[1], high)))
    table = torch.cat((sums.flatten(), extremes)).cpu().numpy()
    return _to_summary(table[:-2].reshape(num_classes, -1), table[-2:], seen, class_counts)


def _to_summary(sums: Array, extremes: Array, seen: int, class_counts: Any) -> Summary:
    given = sums[:, -1]
    if not np.isfinite(sums).all():
        raise ValueError("features or the classifier give non-finite logits; every value must be finite")
    if round(float(given.sum())) != seen:
        raise ValueError(
            f"labels has {seen - int(given.sum())} values outside 0..{len(given) - 1} (weight has {len(given)} rows)"
        )
    if extremes[0] < -1e-9 * extremes[1]:
        raise ValueError(
            f"features has a value of {extremes[0]:.3g}, but features_model='relu' is for non-negative ones; use 'free'"
        )
    counts = given
    if class_counts is not None:
        counts = np.asarray(class_counts, dtype=np.float64)
        if counts.shape != given.shape or not np.isfinite(counts).all() or (counts < 0).any():
            raise ValueError(f"class_counts must be {len(given)} numbers of at least 0, not {class_counts!r}")
        if (counts[given == 0] > 0).any() or counts.sum() <= 0:
            raise ValueError("class_counts is positive for a class of which no sample is given")
    mean = sums / np.where(given > 0, given, 1.0)[:, None]
    k = len(given)
    return Summary(
        given=given,
        counts=counts,
        losses=mean[:, k],
        energies=mean[:, k + 1],
        responses=mean[:, :k],
        weights=np.ones(k),
    )


def _check_labels(labels: Tensor, num_classes: int) -> None:
    if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= num_classes):
        raise ValueError(f"labels has values outside 0..{num_classes - 1} (weight has {num_classes} rows)")
