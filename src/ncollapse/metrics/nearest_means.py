"""The class with the nearest mean for every sample: of these samples' means, or of a reference's."""

from __future__ import annotations

import torch
from torch import Tensor

from .bounded_scores import tile_rows as bounded_rows
from .collapse import Moments
from .exact_scores import FEW_SCORES, tile_rows
from .presence import Presence
from .products import Float32Rows, Products, narrow
from .rows import Rows, split_range
from .second_pass import Chunk, find_beyond
from .transfer import copy_together


def find_nearest(rows: Rows, x: Tensor) -> Tensor:
    """The nearest of the rows [K, d] to each sample x [c, d], in float64."""
    # |x - m|^2 is least where m x - |m|^2 / 2 is largest
    return Products(rows, offset=-rows.norms().square() / 2).largest(x)


class NearestMeans:
    """Collects the nearest class [N] among those of the moments.

    radii: the distances [P] to its own class mean up to which a sample is nearest to that mean, if they are known.
    """

    def __init__(
        self,
        moments: Moments,
        presence: Presence,
        num_samples: int,
        device: torch.device,
        radii: Tensor | None = None,
    ) -> None:
        rows = moments.centred()
        # |x - m|^2 is least where m x - |m|^2 / 2 is largest. Around the anchor, which is near most features, few
        # digits cancel. In m x, m may be taken around any point: that adds the same to all scores of a sample.
        offset = -Rows(moments.offsets, -moments.shift).norms().square() / 2
        self.num_classes, places = len(presence.counts), presence.places()
        exact = num_samples * len(rows) <= FEW_SCORES or device.type != "cpu"
        self.narrow = None if exact else Float32Rows(rows)
        if self.narrow is not None:
            self.offset = self.narrow.offset(-rows.norms().square() / 2, moments.float32_scale)
        self.own, self.moments = moments, moments.on(device)
        given = {"offset": offset, "radii": radii, "classes": presence.classes, "places": places}
        known = {name: tensor for name, tensor in given.items() if tensor is not None}
        known = dict(zip(known, copy_together(list(known.values()), device)))
        self.radii, self.classes, self.places = (known.get(name) for name in ("radii", "classes", "places"))
        self.products = Products(self.moments.centred(), offset=known["offset"])
        self.around_anchor = offset
        self.nearest = torch.empty(num_samples, dtype=torch.int64, device=device)
        self.labels = torch.empty_like(self.nearest)

    def add(self, chunk: Chunk) -> None:
        """Take some samples."""
        place = slice(chunk.start, chunk.start + len(chunk.labels))
        found = find_beyond(self.radii, chunk, chunk.places, self._find if self.narrow is None else self._find_narrow)
        self.nearest[place] = found if self.classes is None else self.classes[found]
        self.labels[place] = chunk.labels

    def _is_own(self, chunk: Chunk) -> bool:
        """Whether the means are those of the chunk's own samples, not of a reference."""
        return self.moments.offsets is chunk.moments.offsets

    def _around_anchor(self, chunk: Chunk) -> Tensor:
        """The features minus the anchor of the moments."""
        if self._is_own(chunk):
            return chunk.x
        move = chunk.moments.anchor - self.moments.anchor
        return torch.add(chunk.x, move, out=chunk.room.take("moved", *chunk.x.shape))

    def _find(self, chunk: Chunk) -> Tensor:
        """The place of the nearest mean of each sample, all in float64."""
        x, offset = self._around_anchor(chunk), self.products.offset
        assert offset is not None
        means, found = self.moments.offsets, self._guess(chunk.labels)
        for part in split_range(len(x), tile_rows(len(means), x.device)):
            scores = chunk.room.take("scores", len(means), part.stop - part.start)
            torch.mm(means, x[part].T, out=scores).add_(offset[:, None])
            found[part] = find_first(scores, found[part])
        return found

    def is_joinable(self, moments: Moments) -> bool:
        """Whether all samples need the scores of these moments' means, in float64, and a copy of the means is small."""
        return self.narrow is None and self.radii is None and self.own is moments and moments.centred().is_small

    def put(self, place: slice, labels: Tensor, scores: Tensor) -> None:
        """Note the nearest means of some samples, from all their scores [P, c], which are overwritten."""
        self.labels[place] = labels
        found = find_first(scores, self._guess(labels))
        self.nearest[place] = found if self.classes is None else self.classes[found]

    def _guess(self, labels: Tensor) -> Tensor:
        """The place of each sample's own class among the means; any other where the class is not among them."""
        known = labels.clamp_max(self.num_classes - 1)
        return known if self.places is None else self.places[known]

    def _find_narrow(self, chunk: Chunk) -> Tensor:
        """The same from float32 products; the mean of the own class is likely the nearest."""
        rows, x = self.narrow, self._around_anchor(chunk)
        assert rows is not None
        if self._is_own(chunk):
            samples = chunk.narrow
        else:
            centred = torch.sub(x, self.moments.shift, out=chunk.room.take("moved centred", *x.shape))
            norms = torch.linalg.vector_norm(centred, dim=1)
            samples = narrow(centred, norms, self.moments, chunk.room, "moved float32")
        likely, found = self._guess(chunk.labels), torch.empty_like(chunk.labels)
        for part in split_range(len(x), bounded_rows(len(rows.values))):
            some = samples.part(part)
            tile, bound = rows.multiply(some, chunk.room)
            found[part] = self.products.decide(*self.offset.add_to(tile, bound, some, tile), x[part], likely[part])
        return found


def find_first(scores: Tensor, likely: Tensor) -> Tensor:
    """The first row with the largest entry of each column of scores [P, c], which are overwritten.

    `likely` [c] is a guess that saves time on the CPU where it is right.
    """
    if scores.device.type != "cpu":
        return scores.max(0).indices
    rows = likely[None]
    guessed = scores.gather(0, rows)
    left = (scores.scatter_(0, rows, -torch.inf).amax(0) >= guessed[0]).nonzero().flatten()
    found = likely.clone()
    if len(left):
        found[left] = scores[:, left].scatter_(0, rows[:, left], guessed[:, left]).argmax(0)
    return found
