"""Which class has the largest score: float32 products of all pairs, with float64 wherever they leave a doubt."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .collapse import Moments
from .rows import Rows
from .workspace import Workspace

UNIT = 2.0**-24  # float32 rounding
TINY = 1e-37  # near the least float32: what the underflow of one product and of its factors may add
HUGE = 1e30  # numbers beyond this do not fit into float32
FEW_ROWS = 256  # up to here the product is faster the other way round


def multiply(x: Tensor, rows: Tensor, room: Workspace, name: str = "products") -> Tensor:
    """x A^T [c, K] of samples x [c, d] and rows A [K, d]; for few rows it is transposed in memory."""
    if len(rows) <= FEW_ROWS:
        return torch.mm(rows, x.T, out=room.take(name, len(rows), len(x), dtype=x.dtype)).T
    return torch.mm(x, rows.T, out=room.take(name, len(x), len(rows), dtype=x.dtype))


def bound_error(dim: int) -> float:
    """How far a float32 product of two vectors of at most unit length may be off.

    Both vectors are rounded (a scaling and a conversion each) and d products are summed: at most (d + 8) roundings of
    sum |x_i y_i| <= |x| |y| <= 1, whatever the order of the sum.
    """
    return (dim + 8) * UNIT


@dataclass(frozen=True)
class Float32Samples:
    """Samples times a power of two, in float32, and their norms."""

    values: Tensor  # [c, d] float32
    norms: Tensor  # [c] float64
    scale: float

    def part(self, part: slice) -> Float32Samples:
        """Some of the samples."""
        return Float32Samples(self.values[part], self.norms[part], self.scale)


def narrow(x: Tensor, norms: Tensor, moments: Moments, room: Workspace, name: str = "float32") -> Float32Samples:
    """Samples x [c, d] with these norms [c], in float32; the moments tell how large they may be."""
    scale, values = moments.float32_scale, room.take(name, *x.shape, dtype=torch.float32)
    values.copy_(x if scale == 1.0 else x * scale)
    return Float32Samples(values, norms * scale, scale)


class Float32Rows:
    """Rows [K, d] divided by the largest norm among them, in float32."""

    def __init__(self, rows: Rows) -> None:
        self.norms = rows.norms()
        self.largest = float(self.norms.max()) or 1.0
        self.values = torch.empty(len(rows), rows.dim, dtype=torch.float32, device=rows.device)
        for part in rows.parts():
            self.values[part] = rows.block(part) / self.largest

    def multiply(self, samples: Float32Samples, room: Workspace) -> tuple[Tensor, Tensor]:
        """Products [c, K] of rows and samples, times scale / largest, and how far each sample's may be off [c]."""
        dim = self.values.shape[1]
        return multiply(samples.values, self.values, room, "tile"), bound_error(dim) * samples.norms + dim * TINY

    def offset(self, offset: Tensor, scale: float) -> Offset:
        """Numbers [K] to add to the products with samples of this scale."""
        scaled = offset * (scale / self.largest)
        size = float(scaled.abs().max())
        return Offset(scaled.to(torch.float32), size) if size < HUGE else Offset(torch.zeros_like(scaled), math.inf)


@dataclass(frozen=True)
class Offset:
    """Numbers [K] in float32 that are added to float32 products, and their largest magnitude."""

    values: Tensor
    size: float

    def add_to(self, tile: Tensor, bound: Tensor, samples: Float32Samples, out: Tensor) -> tuple[Tensor, Tensor]:
        """The products [c, K] plus these numbers, written to `out`, and how far each sample's may be off [c]."""
        return torch.add(tile, self.values, out=out), bound + 4 * UNIT * (samples.norms + self.size)


@dataclass(frozen=True)
class Products:
    """Scores `scale_j (a_j . x) + offset_j` of every row a_j, in float64 where it counts."""

    rows: Rows
    scale: Tensor | None = None  # [K]
    offset: Tensor | None = None  # [K]

    def at(self, x: Tensor, index: Tensor) -> Tensor:
        """The scores of samples x [c, d] for one class each, index [c]."""
        values: Tensor = torch.linalg.vecdot(x, self.rows.pick(index))
        if self.scale is not None:
            values = values * self.scale[index]
        return values if self.offset is None else values + self.offset[index]

    def table(self, x: Tensor, part: slice) -> Tensor:
        """The scores of samples x [c, d] for the classes of a slice."""
        values = x @ self.rows.block(part).T
        if self.scale is not None:
            values = values * self.scale[part]
        return values if self.offset is None else values.add_(self.offset[part])

    def largest(self, x: Tensor, own: Tensor | None = None) -> Tensor:
        """The first class with the largest score for each sample [c], its own class `own` [c] left out."""
        best = torch.full((len(x),), -torch.inf, dtype=torch.float64, device=x.device)
        index = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        for part in self.rows.parts():
            values = self.table(x, part)
            if own is not None:
                leave_out(values, own - part.start)
            found, place = values.max(1)
            better = found > best
            best, index = torch.where(better, found, best), torch.where(better, place + part.start, index)
        return index

    def decide(self, tile: Tensor, bound: Tensor, x: Tensor, likely: Tensor) -> Tensor:
        """The class with the largest score, from float32 scores [c, K] that may be off by `bound` [c] each.

        `likely` [c] is a guess that saves time where it is right. `tile` is overwritten.
        """
        guessed, index = likely[:, None], likely.clone()
        score = tile.gather(1, guessed).squeeze(1)
        others = tile.scatter_(1, guessed, -torch.inf).amax(1)
        left = (~(score - others > 2 * bound)).nonzero().flatten()
        if len(left):
            again = tile[left].scatter_(1, guessed[left], score[left, None])
            index[left] = self.settle(again, bound[left], x[left])
        return index

    def settle(self, tile: Tensor, bound: Tensor, x: Tensor, own: Tensor | None = None) -> Tensor:
        """The class with the largest score, from float32 scores [c, K] that may be off by `bound` [c] each.

        Where the two largest are closer than twice that, the sample's scores are computed again in float64. `tile` is
        overwritten.
        """
        if own is not None:
            leave_out(tile, own)
        if tile.shape[1] == 1:
            return torch.zeros(len(tile), dtype=torch.int64, device=tile.device)
        best, index = tile.max(1)
        second = tile.scatter_(1, index[:, None], -torch.inf).amax(1)
        doubtful = (~(best - second > 2 * bound)).nonzero().flatten()
        if len(doubtful):
            index[doubtful] = self.largest(x[doubtful], None if own is None else own[doubtful])
        return index


def leave_out(table: Tensor, own: Tensor) -> None:
    """Set the scores of each sample's own class to -inf; classes outside the table are ignored."""
    inside = ((own >= 0) & (own < table.shape[1])).nonzero().flatten()
    table[inside, own[inside]] = -torch.inf
