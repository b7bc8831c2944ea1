"""The class with the nearest mean for every sample: of these samples' means, or of a reference's."""

from __future__ import annotations

import torch
from torch import Tensor

from .bounded_scores import UnitRows
from .bounded_scores import tile_rows as bounded_rows
from .collapse import Moments
from .exact_scores import FEW_SCORES, tile_rows
from .products import Products
from .rows import split_range
from .second_pass import Chunk


class NearestMeans:
    """Collects the nearest class [N]; `classes` [K] names the rows of the moments, None where they are 0..K-1."""

    def __init__(self, moments: Moments, classes: Tensor | None, num_samples: int) -> None:
        rows = moments.centred()
        norms = rows.norms()
        self.classes, self.global_mean, self.rounding = classes, moments.global_mean, moments.rounding
        self.offset = -norms.square() / 2
        self.products = Products(rows, offset=self.offset)  # |x - m|^2 is least where m x - |m|^2 / 2 is largest
        self.nearest = torch.empty(num_samples, dtype=torch.int64, device=norms.device)
        self.right = torch.zeros((), dtype=torch.int64, device=norms.device)  # samples nearest to their own class
        exact = num_samples * len(rows) <= FEW_SCORES or norms.device.type != "cpu"
        self.units = None if exact else UnitRows(rows)
        self.matrix = rows.whole().T.contiguous() if exact else None

    def add(self, chunk: Chunk) -> None:
        """Take some samples."""
        count = len(self.products.rows)
        size = tile_rows(count, self.nearest.device) if self.units is None else bounded_rows(count)
        for part in split_range(len(chunk.labels), size):
            found = self.find(chunk.features[part] - self.global_mean)
            self.nearest[chunk.start + part.start : chunk.start + part.stop] = found
            self.right += (found == chunk.labels[part]).sum()

    def find(self, x: Tensor) -> Tensor:
        """The nearest class of features minus the global mean of the moments [c, d]."""
        if self.matrix is not None:
            found = (x @ self.matrix).add_(self.offset).argmax(1)
        else:
            assert self.units is not None
            norms = torch.linalg.vector_norm(x, dim=1)
            inverse = torch.where(norms > self.rounding, 1 / norms, 0.0)
            tile = self.units.multiply(x, inverse)
            found = self.products.settle(*self.units.shift(tile, inverse, self.offset), x)
        return found if self.classes is None else self.classes[found]
