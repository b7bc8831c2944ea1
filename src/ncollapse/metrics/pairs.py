"""What compares all pairs of classes: class distances and angles, exact, in tiles; no K x K matrix is ever whole."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from .distribution import Distribution
from .rows import ROUNDING, Rows, split_range, square_norms
from .scores import Spread

CPU_TILE, CUDA_TILE = 1024, 8192  # classes a side
CLOSE = 1e-4  # of the squared norms: closer means are subtracted, because the product form would cancel


def average_pairs(centred: Rows, variances: Tensor | None) -> dict[str, float]:
    """`equiangle_means` of centred class means and, with variances, `cdnv`: means over pairs of classes.

    CDNV is (v_k + v_l) / (2 |mean_k - mean_l|^2). It is NaN where two class means coincide.
    """
    norms = centred.norms()
    inverse = torch.where(norms > 0, 1 / norms, 0.0)
    squares, ideal = norms.square(), 1 / (len(centred) - 1)
    totals = torch.zeros(2, dtype=torch.float64, device=norms.device)
    for left, right, gram, keep in _tiles(centred):
        cosines = gram * inverse[left][:, None] * inverse[right]
        totals[0] += _choose(cosines.add_(ideal).abs_(), keep).sum()
        if variances is not None:
            around = squares[left][:, None] + squares[right]
            distances = _separate(centred, left, right, around - 2 * gram, around)
            ratios = (variances[left][:, None] + variances[right]) / (2 * distances)
            totals[1] += _choose(ratios, keep).sum()
    pairs = len(centred) * (len(centred) - 1) / 2
    angle, cdnv = (totals / pairs).tolist()
    angle = angle if bool(norms.any()) else math.nan
    return {"equiangle_means": angle} | ({} if variances is None else {"cdnv": cdnv})


def _separate(rows: Rows, left: slice, right: slice, distances: Tensor, around: Tensor) -> Tensor:
    """Squared distances, with those of close pairs taken from the differences of their rows."""
    close = (distances <= CLOSE * around).nonzero()
    for part in split_range(len(close), max(1, CPU_TILE**2 // rows.dim)):
        first, second = close[part].unbind(1)
        gaps = rows.pick(first + left.start) - rows.pick(second + right.start)
        exact = square_norms(gaps)
        zero = exact <= ROUNDING**2 * around[first, second]
        distances[first, second] = torch.where(zero, 0.0, exact)
    return distances


def measure_cosines(rows: Rows) -> tuple[Spread, float, float]:
    """The spread of cos(a_k, a_l) over pairs k < l, mean |cos + 1 / (K - 1)|, and mean |cos| of rows that are not 0.

    A zero row has cosine 0 with every other.
    """
    norms = rows.norms()
    inverse = torch.where(norms > 0, 1 / norms, 0.0)
    count, filled = len(rows), int((norms > 0).sum())
    ideal = 1 / (count - 1)
    total = torch.zeros(rows.dim, dtype=torch.float64, device=norms.device)
    for part in rows.parts():
        total += inverse[part] @ rows.block(part)
    pairs = count * (count - 1) // 2
    mean = (float(total @ total) - filled) / 2 / pairs
    found = Distribution(pairs, mean, norms.device)
    angle, orthogonal = torch.zeros_like(norms[:1]), torch.zeros_like(norms[:1])
    for left, right, gram, keep in _tiles(rows):
        cosines = _choose(gram * inverse[left][:, None] * inverse[right], keep)
        found.add(cosines)
        angle += (cosines + ideal).abs_().sum()
        orthogonal += cosines.abs_().sum()
    left_over = filled * (filled - 1) / 2
    return found.spread(), float(angle) / pairs, float(orthogonal) / left_over if left_over else math.nan


def _tiles(rows: Rows) -> Iterator[tuple[slice, slice, Tensor, Tensor | None]]:
    """Products of all pairs of rows in tiles on and above the diagonal; on it, with a mask of the pairs k < l."""
    side = CUDA_TILE if rows.device.type == "cuda" else CPU_TILE
    for left in split_range(len(rows), side):
        first = rows.block(left)
        for right in split_range(len(rows), side):
            if right.start >= left.start:
                gram = first @ rows.block(right).T
                yield left, right, gram, torch.ones_like(gram, dtype=torch.bool).triu_(1) if right == left else None


def _choose(values: Tensor, keep: Tensor | None) -> Tensor:
    return values.flatten() if keep is None else values[keep]
