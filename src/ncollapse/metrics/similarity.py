"""Compactness and distinctiveness of features, in O(N d).

A sum of pairwise cosines is the squared norm of a sum of unit vectors, so the sum of the unit vectors of each class is
enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .rows import Rows, add_by_class
from .workspace import Workspace

if TYPE_CHECKING:
    from .shards import Shards


@dataclass
class DirectionSums:
    """For each class the sum [K, d] of the unit vectors of its features; a zero vector has no direction.

    >>> DirectionSums(torch.eye(3)).measure(torch.ones(3))
    (1.0, 0.5)
    """

    sums: Tensor

    @classmethod
    def zeros(cls, num_classes: int, dim: int, device: torch.device) -> DirectionSums:
        """Nothing added yet."""
        return cls(torch.zeros(num_classes, dim, dtype=torch.float64, device=device))

    def add(self, features: Tensor, labels: Tensor, inverse: Tensor, room: Workspace | None) -> None:
        """Add features [c, d], with the inverses of their norms [c], 0 for a feature that counts as zero.

        Without room for a copy the features may be overwritten.
        """
        add_by_class(self.sums, labels, features, inverse, room)

    def measure(self, counts: Tensor, shards: Shards | None = None) -> tuple[float, float]:
        """Compactness and distinctiveness as fractions, over the classes with a sample.

        (1 + mean over classes of the mean cosine inside a class) / 2, bce-vs-ce Eq. 49, and
        (1 - mean over pairs of classes of the mean cosine between them) / 2, Eq. 50.
        """
        rows = Rows(self.sums, shards=shards)
        if rows.is_small and rows.device.type == "cpu":
            means = self.sums.numpy() / counts.clamp_min(1.0).numpy()[:, None]
            total = means.sum(0)
            inside, everything = float(np.vdot(means, means)), float(total @ total)
            classes = int(np.count_nonzero(counts.numpy()))
        else:
            inside, everything, classes = self._sum_blocks(rows, counts)
        if classes < 2:
            return float("nan"), float("nan")
        between = everything - inside
        compact, distinct = (1 + inside / classes) / 2, (1 - between / (classes * (classes - 1))) / 2
        return min(max(compact, 0.0), 1.0), min(max(distinct, 0.0), 1.0)

    def _sum_blocks(self, rows: Rows, counts: Tensor) -> tuple[float, float, int]:
        """The sum of |m_k|^2 over the mean unit vectors m_k, |sum of m_k|^2, and the number of classes with samples."""
        squares, total = self.sums.new_zeros(()), self.sums.new_zeros(rows.dim)
        for part in rows.parts():
            mean = self.sums[part] / counts[part].clamp_min(1.0)[:, None]
            squares += mean.square().sum()
            total += mean.sum(0)
        inside, total = float(rows.add_up(squares)), rows.add_up(total)
        return inside, float(total.square().sum()), int(rows.add_up((counts > 0).sum()))
