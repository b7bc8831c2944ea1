"""The numerical rank of each class's features, in bounded memory."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .batches import Source

HELD = 1 << 25  # numbers of triangular factors held at once: 256 MB


def numerical_rank(source: Source, counts: Tensor) -> float:
    """mse-landscape Sec. 4: mean over classes of |H_k|_*^2 / |H_k|_F^2, with H_k the features of class k, uncentred.

    Each class is reduced to the triangular factor of its features by a QR of the factor so far and the new rows, which
    keeps the singular values to float64 rounding; classes are taken in groups whose factors fit in memory.
    """
    classes = len(counts)
    if bool((counts == 0).any()):
        return math.nan
    group = max(1, HELD // source.dim**2)
    rows = max(source.rows(classes), 2 * source.dim)
    ranks: list[Tensor] = []
    for start in range(0, classes, group):
        members = range(start, min(start + group, classes))
        factors = [torch.zeros(0, source.dim, dtype=torch.float64, device=source.device) for _ in members]
        for features, labels in source.read(rows):
            for place, member in enumerate(members):
                new = features[labels == member]
                if len(new):
                    stacked = torch.cat([factors[place], new])
                    factors[place] = torch.linalg.qr(stacked, mode="r").R if len(stacked) > source.dim else stacked
        for factor in factors:
            singular = torch.linalg.svdvals(factor)
            ranks.append(singular.sum().square() / singular.square().sum())
    return float(torch.stack(ranks).mean())
