"""Matrices with one row a class, read in float64 blocks, so that no second copy of a large one is ever made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .shards import Shards

CPU_NUMBERS = 1 << 21  # numbers a block: 16 MB in float64
CUDA_NUMBERS = 1 << 26
ONE_HOT_CLASSES = 64  # up to here a GPU is faster with a product with one-hot labels than with adding row by row
SMALL = 1 << 19  # a matrix of up to so many numbers is converted once and kept: 4 MB
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
    """The matrix `values[index] - minus` [K, d] in float64.

    values: [M, d] in any real dtype. index: [K] rows of it, or None for all. minus: [d], or None for zeros.
    shards: where each process holds some of the rows; slices and blocks are then of those held here, everything else is
    of all rows.
    """

    values: Tensor
    minus: Tensor | None = None
    index: Tensor | None = None
    shards: Shards | None = None

    @cached_property
    def held(self) -> int:
        """How many rows are in this process."""
        return int((self.values if self.index is None else self.index).shape[0])

    def __len__(self) -> int:
        return self.held if self.shards is None else sum(self.sizes)

    @cached_property
    def sizes(self) -> list[int]:
        """How many rows every process has."""
        return [self.held] if self.shards is None else self.shards.sizes(self.values[:, 0].new_zeros(self.held))

    def add_up(self, value: Tensor) -> Tensor:
        """The sum over processes of what each found in its rows."""
        return value if self.shards is None else self.shards.add(value)

    def gather(self, value: Tensor) -> Tensor:
        """Values of the rows held here as values of all rows."""
        return value if self.shards is None else self.shards.gather(value)

    @property
    def dim(self) -> int:
        """The number of columns."""
        return int(self.values.shape[1])

    @property
    def device(self) -> torch.device:
        """Where the values are."""
        return self.values.device

    @cached_property
    def is_small(self) -> bool:
        """Whether the rows are kept as one float64 matrix."""
        return self.shards is None and self.held * self.dim <= SMALL

    @cached_property
    def matrix(self) -> Tensor:
        """The rows [K, d] of a small matrix, converted once."""
        values = self.values if self.index is None else self.values[self.index]
        return self._finish(values)

    @cached_property
    def products(self) -> Tensor:
        """A A^T [K, K] of a small matrix; not to be changed."""
        return self.matrix @ self.matrix.T

    def block(self, part: slice) -> Tensor:
        """Some of the rows."""
        if self.is_small:
            return self.matrix if part.start == 0 and part.stop == self.held else self.matrix[part]
        if self.index is None and self.minus is None and self.values.dtype == torch.float64:
            return self.values[part]
        return self._finish(self.values[part if self.index is None else self.index[part]])

    def pick(self, places: Tensor) -> Tensor:
        """The rows with these numbers, repeated as asked."""
        if self.is_small:
            return self.matrix[places]
        return self._finish(self.values[places if self.index is None else self.index[places]])

    def _finish(self, rows: Tensor) -> Tensor:
        rows = rows.to(torch.float64)
        return rows if self.minus is None else rows - self.minus

    def blocks(self) -> Iterator[Tensor]:
        """All rows, block by block."""
        for part in self.parts():
            yield self.block(part)

    def parts(self) -> Iterator[slice]:
        """The slices that `blocks` reads."""
        if self.is_small:
            return iter((slice(0, self.held),))
        numbers = CUDA_NUMBERS if self.device.type == "cuda" else CPU_NUMBERS
        return split_range(self.held, max(1, numbers // self.dim))

    def whole(self) -> Tensor:
        """All rows at once; for matrices known to be small."""
        return self.gather(self.block(slice(0, self.held)))

    @cached_property
    def _mean(self) -> Tensor:
        if self.is_small:
            return self.matrix.sum(0) / self.held
        total = torch.zeros(self.dim, dtype=torch.float64, device=self.device)
        for block in self.blocks():
            total += block.sum(0)
        return self.add_up(total) / len(self)

    def mean(self) -> Tensor:
        """The mean row [d]."""
        return self._mean

    @cached_property
    def _centred(self) -> Rows:
        mean = self.mean()
        return replace(self, minus=mean if self.minus is None else self.minus + mean)

    def centre(self) -> Rows:
        """The same rows minus their mean."""
        return self._centred

    @cached_property
    def _norms(self) -> Tensor:
        if self.is_small:
            norms: Tensor = torch.linalg.vector_norm(self.matrix, dim=1)
            return norms
        empty = torch.zeros(0, dtype=torch.float64, device=self.device)
        return self.gather(torch.cat([empty, *(torch.linalg.vector_norm(block, dim=1) for block in self.blocks())]))

    def norms(self) -> Tensor:
        """The norms of the rows [K]; not to be changed."""
        return self._norms

    @cached_property
    def _energy(self) -> Tensor:
        if self.is_small:
            return self.matrix.square().sum()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for block in self.blocks():
            total += block.square().sum()
        return self.add_up(total)

    def energy(self) -> Tensor:
        """The sum of the squares of all entries; not to be changed."""
        return self._energy

    def gram(self) -> Tensor:
        """A^T A [d, d]: for K > d it has the norm and the non-zero eigenvalues of A A^T."""
        total = torch.zeros(self.dim, self.dim, dtype=torch.float64, device=self.device)
        for block in self.blocks():
            add_gram(total, block)
        return self.add_up(total)

    def triangle(self) -> Tensor:
        """The triangular factor R of A = Q R, [min(K, d), d]: the singular values of A, without squaring them."""
        if self.is_small:
            small: Tensor = torch.linalg.qr(self.matrix, mode="r").R
            return small
        factor = torch.zeros(0, self.dim, dtype=torch.float64, device=self.device)
        for block in self.blocks():
            factor = torch.linalg.qr(torch.cat([factor, block]), mode="r").R
        if self.shards is not None:
            factor = torch.linalg.qr(self.shards.gather(factor), mode="r").R
        return factor

    def times(self, vector: Tensor) -> Tensor:
        """The products [K] of the rows with a vector [d]."""
        if self.is_small:
            return self.matrix @ vector
        return torch.cat([block @ vector for block in self.blocks()])

    def multiply(self, matrix: Tensor) -> Rows:
        """The rows times a matrix [d, r]."""
        if self.is_small:
            return Rows(self.matrix @ matrix)
        empty = torch.zeros(0, matrix.shape[1], dtype=torch.float64, device=self.device)
        return Rows(torch.cat([empty, *(block @ matrix for block in self.blocks())]), shards=self.shards)


def dot(left: Rows, right: Rows) -> Tensor:
    """The sum over classes of the products of corresponding rows."""
    total = torch.zeros((), dtype=torch.float64, device=left.device)
    for part in left.parts():
        total += (left.block(part) * right.block(part)).sum()
    return left.add_up(total)


def differ(rows: Rows) -> bool:
    """Whether the rows are not all equal up to rounding."""
    return bool(rows.centre().energy() > ROUNDING**2 * rows.energy())


def add_gram(total: Tensor, rows: Tensor) -> None:
    """Add A^T A of float64 rows A [c, d] to `total` [d, d]."""
    if total.device.type == "cpu":
        matrix = rows.numpy()
        total.add_(torch.from_numpy(matrix.T @ matrix))  # NumPy knows that it is symmetric: half the work
    else:
        total.addmm_(rows.T, rows)


def add_by_class(
    sums: Tensor, labels: Tensor, rows: Tensor, scale: Tensor | None = None, out: Tensor | None = None
) -> None:
    """Add each row (times its scale) to its class's row of `sums` [K, d]; `out` may hold the scaled rows."""
    if len(sums) <= ONE_HOT_CLASSES and sums.device.type != "cpu":
        marks = torch.zeros(len(labels), len(sums), dtype=sums.dtype, device=sums.device)
        if scale is None:
            marks.scatter_(1, labels[:, None], 1.0)
        else:
            marks.scatter_(1, labels[:, None], scale[:, None])
        sums.addmm_(marks.T, rows)
        return
    if scale is not None:
        rows = torch.mul(rows, scale[:, None], out=out)
    sums.index_add_(0, labels, rows)


def square_norms(rows: Tensor) -> Tensor:
    """The squared norms of rows [c, d]."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms.square_()


def invert(norms: Tensor) -> Tensor:
    """1 / norm, 0 where the norm is 0."""
    return norms.reciprocal().nan_to_num_(posinf=0.0)
