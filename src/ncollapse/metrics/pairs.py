"""What compares all pairs of classes: class distances and angles, exact, in tiles; no K x K matrix is ever whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

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
    variances = None if variances is None else centred.gather(variances)
    for left, right, rows, gram, keep in _tiles(centred):
        cosines = gram * inverse[left][:, None] * inverse[right]
        totals[0] += _choose(cosines.add_(ideal).abs_(), keep).sum()
        if variances is not None:
            around = squares[left][:, None] + squares[right]
            distances = _separate(rows, around - 2 * gram, around)
            ratios = (variances[left][:, None] + variances[right]) / (2 * distances)
            totals[1] += _choose(ratios, keep).sum()
    pairs = len(centred) * (len(centred) - 1) / 2
    angle, cdnv = (centred.add_up(totals) / pairs).tolist()
    angle = angle if bool(norms.any()) else math.nan
    return {"equiangle_means": angle} | ({} if variances is None else {"cdnv": cdnv})


def _separate(rows: tuple[Tensor, Tensor], distances: Tensor, around: Tensor) -> Tensor:
    """Squared distances, with those of close pairs taken from the differences of their rows."""
    close = (distances <= CLOSE * around).nonzero()
    for part in split_range(len(close), max(1, CPU_TILE**2 // rows[0].shape[1])):
        first, second = close[part].unbind(1)
        gaps = rows[0][first] - rows[1][second]
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
    for block in rows.blocks():
        own: Tensor = torch.linalg.vector_norm(block, dim=1)
        total += torch.where(own > 0, 1 / own, 0.0) @ block
    total = rows.add_up(total)
    pairs = count * (count - 1) // 2
    mean = (float(total @ total) - filled) / 2 / pairs
    found = Distribution(pairs, mean, norms.device, hold=rows.shards is None)
    angle, orthogonal = torch.zeros_like(norms[:1]), torch.zeros_like(norms[:1])
    for left, right, _, gram, keep in _tiles(rows):
        cosines = _choose(gram * inverse[left][:, None] * inverse[right], keep)
        found.add(cosines)
        angle += (cosines + ideal).abs_().sum()
        orthogonal += cosines.abs_().sum()
    angle, orthogonal = rows.add_up(angle), rows.add_up(orthogonal)
    if rows.shards is not None:
        found.merge(rows.shards)
    left_over = filled * (filled - 1) / 2
    return found.spread(), float(angle) / pairs, float(orthogonal) / left_over if left_over else math.nan


Tile: TypeAlias = tuple[slice, slice, tuple[Tensor, Tensor], Tensor, Tensor | None]


def _tiles(rows: Rows) -> Iterator[Tile]:
    """Products of all pairs of rows in tiles on and above the diagonal: places, blocks and products.

    A tile on the diagonal has a mask of the pairs k < l. Each process takes the tiles of the rows it holds, and is sent
    the others' rows a block at a time.
    """
    side = CUDA_TILE if rows.device.type == "cuda" else CPU_TILE
    rank = 0 if rows.shards is None else rows.shards.rank
    start = sum(rows.sizes[:rank])
    place = 0
    for owner, size in enumerate(rows.sizes):
        for part in split_range(size, side):
            second = (
                rows.block(part) if owner == rank else rows.values.new_empty(part.stop - part.start, rows.dim).double()
            )
            second = second if rows.shards is None else rows.shards.broadcast(second, owner)
            right = slice(place + part.start, place + part.stop)
            for own in split_range(rows.held, side):
                left = slice(start + own.start, start + own.stop)
                if left.start <= right.start:
                    first = rows.block(own)
                    gram = first @ second.T
                    mask = torch.ones_like(gram, dtype=torch.bool).triu_(1) if left == right else None
                    yield left, right, (first, second), gram, mask
        place += size


def _choose(values: Tensor, keep: Tensor | None) -> Tensor:
    return values.flatten() if keep is None else values[keep]
