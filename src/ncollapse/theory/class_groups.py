"""Classes that a problem treats alike, and dual matrices that treat them alike too.

A problem does not change when classes with the same count, weight and offset are permuted. For a convex loss the
average of a dual point over these permutations is feasible and gives no lower bound than the point itself, because the
dual objective is concave. The averaged matrix has one value for the own class in each group and one for each pair of
groups, so its norm is that of a small matrix, however many classes there are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ClassGroups:
    """A partition of the K classes. index [K]: the group of each class. sizes [m]: the number of classes in each."""

    index: Index
    sizes: Index

    @cached_property
    def first(self) -> Index:
        """The first class of each group, which stands for the others."""
        return np.unique(self.index, return_index=True)[1]

    def add(self, values: Array) -> Array:
        """Sums over the classes of each group, [..., K] to [..., m]."""
        groups, rows = len(self.sizes), values.size // len(self.index)
        place = self.index if rows == 1 else (np.arange(rows)[:, None] * groups + self.index).ravel()
        sums = np.bincount(place, values.ravel(), rows * groups)
        return np.asarray(sums.reshape(*values.shape[:-1], groups), dtype=np.float64)

    def spread(self, values: Array) -> Array:
        """Means over the classes of each group, given to each of them, [K] to [K]."""
        return np.asarray((self.add(values) / self.sizes)[self.index])


def group_classes(*keys: Array) -> ClassGroups:
    """Put classes together that agree in all keys [K]."""
    _, index, sizes = np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True, return_counts=True)
    return ClassGroups(index.reshape(-1).astype(np.int64), sizes.astype(np.int64))


class SymmetricShares:
    """The weights of the groups, as a factor whose product with rows [G, K] is averaged within the groups of classes.

    It takes the place of an array of shares in `ConvexForm.balance`: the total of all permutations of the rows.
    """

    def __init__(self, shares: Array, groups: ClassGroups) -> None:
        self.shares, self.groups = shares, groups

    def __matmul__(self, rows: Array) -> Any:
        return self.groups.spread(self.shares @ rows)


def expand_rows(own: Array, others: Array, groups: ClassGroups, present: Index) -> Array:
    """One row [K] for each group in `present`: `own` at its first class, `others` [G, m] at the other classes."""
    rows = others[:, groups.index]
    rows[np.arange(len(rows)), groups.first[present]] = own
    return np.asarray(rows)


def read_rows(rows: Array, groups: ClassGroups, present: Index) -> tuple[Array, Array]:
    """The inverse of `expand_rows`: the own values [G], and those at the other classes of each group [G, m]."""
    position = np.arange(len(rows))
    own = rows[position, groups.first[present]]
    sums = groups.add(rows)
    left = np.tile(groups.sizes.astype(np.float64), (len(rows), 1))
    sums[position, present] -= own
    left[position, present] -= 1.0
    return own, np.where(left > 0, sums / np.where(left > 0, left, 1.0), 0.0)


def symmetric_norm(rows: Array, scales: Array, groups: ClassGroups, present: Index, *, relu: bool) -> float:
    """An upper bound on max |C^T v| over unit v (v >= 0 for `relu`), C having a row for each class of each group.

    rows [G, K] and scales [G] describe C: the classes of group g have the row of g, with the own value moved to their
    own place, times scale g. Within a group C is e I + a constant, so its singular values are |e_g| for each group of
    at least two classes, and those of the matrix of group means. For v >= 0 and one group the maximum is known; for
    more, the norm of the non-negative part of C C^T bounds it.
    """
    own, others = read_rows(rows, groups, present)
    sizes = groups.sizes[present].astype(np.float64)
    inside = others[np.arange(len(rows)), present]
    excess = scales * (own - inside)
    means = scales[:, None] * np.sqrt(sizes[:, None] * groups.sizes[None, :]) * others
    means[np.arange(len(rows)), present] += excess
    gram = means @ means.T
    apart = np.where(sizes > 1, excess**2, 0.0)
    square = max(float(np.linalg.eigvalsh(gram)[-1]), float(apart.max()))
    if relu and len(rows) == 1:
        square = max(float(gram[0, 0]), float(gram[0, 0] / sizes[0] + apart[0] * (1 - 1 / sizes[0])))
    elif relu:
        square = min(square, _norm_of_positive_part(gram, apart, sizes))
    return math.sqrt(max(0.0, square))


def _norm_of_positive_part(gram: Array, apart: Array, sizes: Array) -> float:
    """The largest eigenvalue of max(C C^T, 0), from that of the group means and the parts orthogonal to them."""
    diagonal = (gram.diagonal() + (sizes - 1) * apart) / sizes
    within = np.where(sizes > 1, (gram.diagonal() - apart) / sizes, 0.0)
    between = np.maximum(gram, 0.0)
    positive = np.maximum(within, 0.0)
    np.fill_diagonal(between, diagonal + (sizes - 1) * positive)
    # the parts orthogonal to the means have diagonal - positive, which is no more than the diagonal of `between`
    return float(np.linalg.eigvalsh(between)[-1])
