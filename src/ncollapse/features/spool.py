"""Features of a whole data set away from the GPU: in memory up to a limit, in a temporary file beyond it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ncollapse.metrics.batches import check_shape

if TYPE_CHECKING:
    from ncollapse.features.extraction import Taken

HELD_BYTES = 1 << 28
"""Features kept in memory, 256 MiB; further batches go to a temporary file."""


class OnDisk(NamedTuple):
    """Where the features of one batch lie in the file."""

    offset: int
    shape: torch.Size
    dtype: torch.dtype


class FeatureSpool:
    """Batches (features [B, d], labels [B]) that can be read any number of times, one batch on the device at a time.

    The features keep the precision in which the model returned them. `close` removes the temporary file; the object is
    also a context manager.

    Args:
        device: where batches are moved when they are read.
        limit: bytes of features to keep in memory.

    >>> with FeatureSpool() as spool:
    ...     spool.add(torch.ones(3, 2), torch.tensor([0, 1, 0]))
    ...     [(features.shape, labels.tolist()) for features, labels in spool], spool.counts().tolist()
    ([(torch.Size([3, 2]), [0, 1, 0])], [2, 1])
    """

    def __init__(self, device: torch.device | str = "cpu", limit: int | None = None) -> None:
        self.device = torch.device(device)
        self.room = HELD_BYTES if limit is None else limit
        self.dim: int | None = None
        # one growing block: small allocations between the large ones of a model would fragment the memory
        self._labels = torch.empty(0, dtype=torch.int64)
        self._sizes: list[int] = []
        self._count = 0
        self._features: list[Tensor | OnDisk] = []
        self._masks: list[Tensor] | None = None
        self._file: IO[bytes] | None = None

    def __enter__(self) -> FeatureSpool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget everything and remove the temporary file."""
        self._features, self._labels, self._masks = [], self._labels[:0], None
        self._sizes, self._count = [], 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def take(self, taken: Taken) -> None:
        """Add the features of a batch that `run_model` hands on; they are read on the device they came from."""
        assert taken.features is not None
        self.device = taken.features.device
        self.add(taken.features, taken.labels)

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Add a batch of integer labels; both are copied to the host."""
        if self.dim is not None and features.shape[1] != self.dim:
            raise ValueError(f"features: width {features.shape[1]} after batches of width {self.dim}")
        self.dim = features.shape[1]
        self._add_labels(check_shape(labels, len(features)))
        size = features.numel() * features.element_size()
        if size <= self.room:
            self.room -= size
            self._features.append(features.detach().to("cpu", copy=True).contiguous())
            return
        held = features.detach().cpu().contiguous()
        self.room = 0  # later batches follow on disk, so that reading goes through the file once from start to end
        if self._file is None:
            # closed by `close`: the spool outlives this function
            self._file = tempfile.TemporaryFile(prefix="ncollapse-")  # noqa: SIM115
        offset = self._file.seek(0, 2)
        self._file.write(held.view(torch.uint8).numpy().data)
        self._features.append(OnDisk(offset, held.shape, held.dtype))

    def _add_labels(self, labels: Tensor) -> None:
        held, count = self._count, len(labels)
        if held + count > len(self._labels):
            grown = torch.empty(2 * (held + count), dtype=torch.int64)
            grown[:held] = self._labels[:held]
            self._labels = grown
        self._labels[held : held + count] = labels.detach()
        self._sizes.append(count)
        self._count += count

    @property
    def labels(self) -> tuple[Tensor, ...]:
        """The labels of every batch on the host."""
        return torch.split(self._labels[: self._count], self._sizes) if self._sizes else ()

    def keep_classes(self, wanted: Tensor) -> None:
        """Read only the samples whose class is marked in `wanted`, bool [K]."""
        self._masks = [wanted[labels] for labels in self.labels]

    def counts(self, num_classes: int = 0) -> Tensor:
        """Samples of each class, of all that were added."""
        return torch.bincount(self._labels[: self._count], minlength=num_classes)

    def read_all(self) -> Iterator[Tensor]:
        """The features of every batch on the host, also of classes that are not kept."""
        return map(self._read, self._features)

    def __len__(self) -> int:
        return len(self._features)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number, labels in enumerate(self.labels):
            features = self._read(self._features[number])
            if self._masks is not None:
                features, labels = features[self._masks[number]], labels[self._masks[number]]
            if len(labels):
                yield features.to(self.device), labels.to(self.device)

    def _read(self, held: Tensor | OnDisk) -> Tensor:
        if isinstance(held, Tensor):
            return held
        assert self._file is not None
        self._file.seek(held.offset)
        numbers = bytearray(held.shape.numel() * held.dtype.itemsize)
        self._file.readinto(numbers)  # type: ignore[attr-defined]
        return torch.frombuffer(numbers, dtype=held.dtype).reshape(held.shape)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()
