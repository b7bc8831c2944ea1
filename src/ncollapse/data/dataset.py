"""A data set in memory: images or vectors, labels, class names, and a record of how it was drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor


class MissingSplit(ValueError):
    """Data of the user's own that have training samples alone, of which a share can be held out."""


def refuse_untrained(
    train: str, trained: Iterable[object], test: str, tested: Iterable[object], *, noun: str = "class"
) -> None:
    """Raise if `tested` holds classes that are not among `trained`; `train` and `test` name where they come from.

    >>> refuse_untrained("train", "ab", "test", "abcd")
    Traceback (most recent call last):
        ...
    ValueError: train has no class c, d, test has
    """
    known = set(trained)
    missing = [str(item) for item in tested if item not in known]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ValueError(f"{train} has no {noun} {', '.join(missing[:3])}{more}, {test} has")


class Labelled:
    """What data in memory and data in files have in common: labels (int64 [N]) in 0..K-1, class names and a record.

    `record` lists, in order, every draw that made this subset, so that it can be made again.
    """

    labels: Tensor
    classes: tuple[str, ...]
    name: str
    split: str
    record: tuple[Mapping[str, Any], ...]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def counts(self) -> tuple[int, ...]:
        """Return the number of samples of each class."""
        return tuple(torch.bincount(self.labels, minlength=self.num_classes).tolist())

    def _check_labels(self, samples: int) -> None:
        if self.labels.shape != (samples,) or self.labels.dtype != torch.int64:
            raise ValueError(
                f"labels: expected int64 [{samples}], one for each image, "
                f"got {self.labels.dtype} {list(self.labels.shape)}"
            )
        if samples:
            low, high = int(self.labels.min()), int(self.labels.max())
            if low < 0 or high >= len(self.classes):
                raise ValueError(f"labels: expected values in 0..{len(self.classes) - 1}, got {low}..{high}")


@dataclass(frozen=True, eq=False)
class Dataset(Labelled):
    """Images (uint8 [N, C, H, W], or floating point as the network takes them) or vectors (floating point [N, d]).

    >>> data = Dataset(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 1]), ("a", "b"), "toy", "train")
    >>> data.counts()
    (1, 2)
    >>> data.select(torch.tensor([0, 2]))
    Dataset(toy, train: 2 samples [1, 8, 8], uint8, 2 classes)
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str
    split: str
    record: tuple[Mapping[str, Any], ...] = field(default=())

    def __repr__(self) -> str:
        kind = str(self.images.dtype).removeprefix("torch.")
        samples = f"{len(self.labels)} samples {list(self.images.shape[1:])}, {kind}"
        return f"Dataset({self.name}, {self.split}: {samples}, {len(self.classes)} classes)"

    def __post_init__(self) -> None:
        if self.images.dtype == torch.uint8:
            fits = self.images.ndim == 4
        else:
            fits = self.images.is_floating_point() and self.images.ndim in (2, 4)
        if not fits:
            raise ValueError(
                "images: expected uint8 [N, C, H, W], or floating point [N, C, H, W] or [N, d], "
                f"got {self.images.dtype} {list(self.images.shape)}"
            )
        self._check_labels(len(self.images))

    @property
    def is_image(self) -> bool:
        return self.images.ndim == 4

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample: (C, H, W) or (d,)."""
        return tuple(self.images.shape[1:])

    def select(self, index: Tensor, **draw: Any) -> Dataset:
        """Return the samples at `index`, in that order; `draw` is appended to the record."""
        record = (*self.record, draw) if draw else self.record
        return replace(self, images=self.images[index], labels=self.labels[index], record=record)

    def to(self, device: torch.device | str) -> Dataset:
        """Return the same data on a device; nothing is copied if it is there already."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))
