"""Which class has the largest score: float32 products of all pairs, with float64 wherever they leave a doubt."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .rows import Rows

UNIT = 2.0**-24  # float32 rounding


def bound_error(dim: int) -> float:
    """How far a float32 product of two vectors of at most unit length may be off.

    Both vectors are rounded (a scaling and a conversion each) and d products are summed: at most (d + 8) roundings of
    sum |x_i y_i| <= |x| |y| <= 1, whatever the order of the sum.
    """
    return (dim + 8) * UNIT


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

    def settle(self, tile: Tensor, bound: Tensor | float, x: Tensor, own: Tensor | None = None) -> Tensor:
        """The class with the largest score, from float32 scores [c, K] that may be off by `bound` each.

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
