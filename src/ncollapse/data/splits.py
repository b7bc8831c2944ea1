"""Seeded draws of indices, class by class."""

from __future__ import annotations

import torch
from torch import Generator, Tensor


def list_classes(labels: Tensor, num_classes: int, seed: int | None) -> list[Tensor]:
    """Return the indices of each class in random order, or as they come if there is no seed.

    >>> [rows.tolist() for rows in list_classes(torch.tensor([1, 0, 1, 1]), 2, seed=None)]
    [[1], [0, 2, 3]]
    """
    if seed is None:
        return [(labels == label).nonzero().flatten() for label in range(num_classes)]
    order = torch.randperm(len(labels), generator=Generator().manual_seed(seed)).to(labels.device)
    return [order[labels[order] == label] for label in range(num_classes)]


def split_stratified(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return sorted indices of (the rest, the drawn part), which has round(fraction * n_k) samples of each class."""
    if not len(labels):
        raise ValueError("labels: no samples (N = 0) to split")
    drawn, rest = [], []
    for rows in list_classes(labels, int(labels.max()) + 1, seed):
        count = round(fraction * len(rows))
        drawn.append(rows[:count])
        rest.append(rows[count:])
    return torch.cat(rest).sort().values, torch.cat(drawn).sort().values
