"""Matrices with one row a class, read in float64 blocks, so that no second copy of them is ever made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

CPU_NUMBERS = 1 << 21  # numbers a block: 16 MB in float64
CUDA_NUMBERS = 1 << 26
ONE_HOT_CLASSES = 64  # up to here a product with one-hot labels is faster than adding row by row
ROUNDING = 2.0**-43  # 512 float64 roundings: what a sum over thousands of samples may be off, relative to its terms


def split_range(count: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` that cover range(count).

    >>> list(split_range(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


@dataclass(frozen=True)
class Rows:
    """The matrix `values[index] - minus` [K, d] in float64; rows no longer than `floor` are zero.

    values: [M, d] in any real dtype. index: [K] rows of it, or None for all. minus: [d], or None for zeros.
    """

    values: Tensor
    minus: Tensor | None = None
    index: Tensor | None = None
    floor: float = 0.0

    def __len__(self) -> int:
        return len(self.values) if self.index is None else len(self.index)

    @property
    def dim(self) -> int:
        """The number of columns."""
        return int(self.values.shape[1])

    @property
    def device(self) -> torch.device:
        """Where the values are."""
        return self.values.device

    def block(self, part: slice) -> Tensor:
        """Some of the rows."""
        if self.index is None and self.minus is None and self.values.dtype == torch.float64 and not self.floor:
            return self.values[part]
        return self._finish(self.values[part if self.index is None else self.index[part]])

    def pick(self, places: Tensor) -> Tensor:
        """The rows with these numbers, repeated as asked."""
        return self._finish(self.values[places if self.index is None else self.index[places]])

    def _finish(self, rows: Tensor) -> Tensor:
        rows = rows.to(torch.float64)
        if self.minus is not None:
            rows = rows - self.minus
        if self.floor:
            rows = torch.where(torch.linalg.vector_norm(rows, dim=1, keepdim=True) > self.floor, rows, 0.0)
        return rows

    def blocks(self) -> Iterator[Tensor]:
        """All rows, block by block."""
        for part in self.parts():
            yield self.block(part)

    def parts(self) -> Iterator[slice]:
        """The slices that `blocks` reads."""
        numbers = CUDA_NUMBERS if self.device.type == "cuda" else CPU_NUMBERS
        return split_range(len(self), max(1, numbers // self.dim))

    def whole(self) -> Tensor:
        """All rows at once; for matrices known to be small."""
        return self.block(slice(0, len(self)))

    def mean(self) -> Tensor:
        """The mean row [d]."""
        total = torch.zeros(self.dim, dtype=torch.float64, device=self.device)
        for block in self.blocks():
            total += block.sum(0)
        return total / len(self)

    def centre(self) -> Rows:
        """The same rows minus their mean."""
        mean = self.mean()
        return replace(self, minus=mean if self.minus is None else self.minus + mean)

    def norms(self) -> Tensor:
        """The norms of the rows [K]."""
        return torch.cat([torch.linalg.vector_norm(block, dim=1) for block in self.blocks()])

    def energy(self) -> Tensor:
        """The sum of the squares of all entries."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for block in self.blocks():
            total += block.square().sum()
        return total

    def gram(self) -> Tensor:
        """A^T A [d, d]: for K > d it has the norm and the non-zero eigenvalues of A A^T."""
        total = torch.zeros(self.dim, self.dim, dtype=torch.float64, device=self.device)
        for block in self.blocks():
            total.addmm_(block.T, block)
        return total

    def triangle(self) -> Tensor:
        """The triangular factor R of A = Q R, [min(K, d), d]: the singular values of A, without squaring them."""
        factor: Tensor | None = None
        for block in self.blocks():
            stacked = block if factor is None else torch.cat([factor, block])
            factor = torch.linalg.qr(stacked, mode="r").R
        assert factor is not None
        return factor


def dot(left: Rows, right: Rows) -> Tensor:
    """The sum over classes of the products of corresponding rows."""
    total = torch.zeros((), dtype=torch.float64, device=left.device)
    for part in left.parts():
        total += (left.block(part) * right.block(part)).sum()
    return total


def add_by_class(sums: Tensor, labels: Tensor, rows: Tensor, scale: Tensor | None = None) -> None:
    """Add each row (times its scale) to its class's row of `sums` [K, d]."""
    if len(sums) <= ONE_HOT_CLASSES:
        marks = torch.zeros(len(labels), len(sums), dtype=sums.dtype, device=sums.device)
        if scale is None:
            marks.scatter_(1, labels[:, None], 1.0)
        else:
            marks.scatter_(1, labels[:, None], scale[:, None])
        sums.addmm_(marks.T, rows)
    else:
        sums.index_add_(0, labels, rows if scale is None else rows * scale[:, None])


def square_norms(rows: Tensor) -> Tensor:
    """The squared norms of rows [c, d]."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms.square_()
