"""The class with the nearest mean for every sample: of these samples' means, or of a reference's."""

from __future__ import annotations

import torch
from torch import Tensor

from .bounded_scores import UnitRows
from .bounded_scores import tile_rows as bounded_rows
from .collapse import Moments
from .exact_scores import FEW_SCORES, tile_rows
from .products import Products
from .rows import Rows, split_range
from .second_pass import Chunk, invert, to_units


def find_nearest(rows: Rows, x: Tensor) -> Tensor:
    """The nearest of the rows [K, d] to each sample x [c, d], in float64."""
    # |x - m|^2 is least where m x - |m|^2 / 2 is largest
    return Products(rows, offset=-rows.norms().square() / 2).largest(x)


class NearestMeans:
    """Collects the nearest class [N]; `classes` [K] names the rows of the moments, None where they are 0..K-1."""

    def __init__(self, moments: Moments, classes: Tensor | None, num_samples: int) -> None:
        rows = moments.centred()
        norms = rows.norms()
        self.classes, self.moments = classes, moments
        self.offset = -norms.square() / 2
        self.products = Products(rows, offset=self.offset)  # |x - m|^2 is least where m x - |m|^2 / 2 is largest
        self.nearest = torch.empty(num_samples, dtype=torch.int64, device=norms.device)
        self.right = torch.zeros((), dtype=torch.int64, device=norms.device)  # samples nearest to their own class
        exact = num_samples * len(rows) <= FEW_SCORES or norms.device.type != "cpu"
        self.units = None if exact else UnitRows(rows)
        self.matrix = rows.whole().T.contiguous() if exact else None

    def add(self, chunk: Chunk) -> None:
        """Take some samples."""
        own = self.moments.offsets is chunk.moments.offsets
        x = chunk.shifted if own else chunk.x + (chunk.moments.anchor - self.moments.global_mean)
        if self.units is None:
            size = tile_rows(len(self.offset), self.nearest.device)
        else:
            size = bounded_rows(len(self.offset))
            norms = chunk.distances if own else torch.linalg.vector_norm(x, dim=1)
            inverse = invert(torch.where(norms > self.moments.rounding, norms, 0.0))
            units = chunk.units if own else to_units(x, inverse)
        for part in split_range(len(x), size):
            if self.units is None:
                assert self.matrix is not None
                found = (x[part] @ self.matrix).add_(self.offset).argmax(1)
            else:
                tile = self.units.multiply(units[part])
                scores, bound = self.units.shift(tile, inverse[part], self.offset)
                found = self.products.settle(scores, bound, x[part])
            found = found if self.classes is None else self.classes[found]
            self.nearest[chunk.start + part.start : chunk.start + part.stop] = found
            self.right += (found == chunk.labels[part]).sum()
