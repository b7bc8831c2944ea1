"""The numerical rank of each class's features, in bounded memory."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from ncollapse.one_thread import one_thread

from .batches import Source
from .presence import Presence

HELD = 1 << 25  # numbers of triangular factors held at once: 256 MB


def measure_numerical_rank(source: Source, presence: Presence) -> float:
    """mse-landscape Sec. 4: mean over classes of |H_k|_*^2 / |H_k|_F^2, with H_k the features of class k, uncentred.

    Each class is reduced to the triangular factor of its features by a QR of the factor so far and the new rows, which
    keeps the singular values to float64 rounding; classes are taken in groups whose factors fit in memory.
    """
    if not presence.present or (presence.strict and presence.classes is not None):
        return math.nan
    members = presence.take(torch.arange(len(presence.counts), device=presence.counts.device)).tolist()
    group = max(1, HELD // source.dim**2)
    rows = max(source.rows(), 2 * source.dim)
    ranks: list[Tensor] = []
    for start in range(0, len(members), group):
        factors: dict[int, Tensor | None] = dict.fromkeys(members[start : start + group])
        for features, labels in source.read(rows):
            for member in set(labels.tolist()):
                if member in factors:
                    stacked, before = features[labels == member], factors[member]
                    stacked = stacked if before is None else torch.cat([before, stacked])
                    full = len(stacked) > source.dim
                    factors[member] = torch.linalg.qr(stacked, mode="r").R if full else stacked
        found = [factor for factor in factors.values() if factor is not None]  # every class that is present has one
        ranks += [values.sum().square() / values.square().sum() for values in find_singular_values(found)]
    return float(torch.stack(ranks).mean())


def find_singular_values(factors: list[Tensor]) -> list[Tensor]:
    """The singular values of each matrix.

    A GPU finds those of one matrix after the other, in thousands of small steps. The host finds those of several
    matrices side by side.
    """
    if factors[0].device.type != "cuda":
        return [torch.linalg.svdvals(factor) for factor in factors]
    arrays = [factor.cpu().numpy() for factor in factors]
    with one_thread(), ThreadPoolExecutor(min(len(arrays), os.cpu_count() or 1)) as threads:
        found = list(threads.map(lambda array: np.linalg.svd(array, compute_uv=False), arrays))
    return [torch.from_numpy(values) for values in found]
