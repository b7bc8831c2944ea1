"""Loaders that keep the whole data set on the device and make batches there.

Order and augmentation are those of the epoch's plan, a pure function of (seed, epoch): the same batches on every device
and after any number of resumes. Many batches are made at once in a few large kernels, so that taking one costs a slice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ncollapse.data.augment import Augment, normalise, resize
from ncollapse.data.dataset import Dataset
from ncollapse.data.epoch_draws import EpochDraws
from ncollapse.data.mixing import mix_images, mix_targets
from ncollapse.data.sharding import count_steps, shard_rows

Batch = tuple[Tensor, Tensor]
Normalisation = tuple[Sequence[float], Sequence[float]]

CHUNK_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
GATHER_IMAGES = 4096


class _Source:
    """A resident data set and how its samples become network input."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        normalise: Normalisation | None = None,
        image_size: int | None = None,
        channels: int | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> None:
        if len(dataset) == 0:
            raise ValueError(f"dataset: expected at least one sample, got none in {dataset.name!r} ({dataset.split})")
        if not dataset.is_image and (image_size is not None or channels is not None):
            raise ValueError(f"image_size and channels need images; {dataset.name!r} holds vectors {dataset.shape}")
        if channels is not None and dataset.shape[0] not in (1, channels):
            raise ValueError(f"channels: expected {dataset.shape[0]}, as in {dataset.name!r}, got {channels}")
        self.device = torch.device(device)
        data = dataset.to(self.device)
        self.images = data.images if image_size is None else resize(data.images, image_size)
        self.labels = data.labels
        self.num_classes = dataset.num_classes
        self.channels, self.dtype = channels, dtype
        mean, std = ([0.0], [1.0]) if normalise is None else normalise
        self.mean, self.std = torch.tensor(mean, device=self.device), torch.tensor(std, device=self.device)
        self.memory_format = torch.channels_last if channels_last and dataset.is_image else torch.contiguous_format
        shape = tuple(self.images.shape[1:])
        self.shape = shape if channels is None else (channels, *shape[1:])
        """The shape of one input of the network."""
        if len(mean) != len(std) or len(mean) not in (1, self.shape[0]):
            raise ValueError(
                f"normalise: expected one mean and one std, or {self.shape[0]} of each, got {len(mean)} and {len(std)}"
            )

    def finish(self, images: Tensor) -> Tensor:
        """Normalise, repeat a grey channel, and lay out in memory."""
        if self.channels is not None and self.channels != images.shape[1]:
            images = images.expand(-1, self.channels, *images.shape[2:])
        return normalise(images, self.mean, self.std, self.dtype).contiguous(memory_format=self.memory_format)


class DeviceLoader:
    """Shuffled, augmented training batches of a resident data set.

    `batch_size` is the global one. With `world_size` > 1 a loader yields its rank's share of each batch, so that the
    shares of all ranks, in order, are the batch of a single process: mixing partners included.

    >>> from ncollapse.data import load
    >>> loader = DeviceLoader(load("digits"), 128, augment=Augment(crop=1), seed=3)
    >>> x, y = next(iter(loader.epoch(0)))
    >>> x.shape, y.shape, loader.steps
    (torch.Size([128, 1, 8, 8]), torch.Size([128]), 11)
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        *,
        augment: Augment | None = None,
        normalise: Normalisation | None = None,
        image_size: int | None = None,
        channels: int | None = None,
        device: torch.device | str = "cpu",
        seed: int = 0,
        drop_last: bool = True,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.augment = augment or Augment()
        if not dataset.is_image and (self.augment.spatial or self.augment.mixes):
            raise ValueError(
                f"augment: expected a data set of images, got {dataset.name!r}, which holds vectors {dataset.shape}"
            )
        if self.augment.resized_crop:
            raise ValueError("augment.resized_crop works on folders that stream; use crop for data in memory")
        self.steps = count_steps(len(dataset), batch_size, drop_last=drop_last, rank=rank, world_size=world_size)
        self.source = _Source(
            dataset,
            normalise=normalise,
            image_size=image_size,
            channels=channels,
            device=device,
            dtype=dtype,
            channels_last=channels_last,
        )
        self.count, self.batch_size, self.seed = len(dataset), batch_size, seed
        self.rank, self.world_size = rank, world_size
        self.soft_targets = self.augment.soft_targets
        self._plan: EpochDraws | None = None
        self._chunk: tuple[int, int, list[Batch]] = (-1, -1, [])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.source.shape

    @property
    def num_classes(self) -> int:
        return self.source.num_classes

    def __len__(self) -> int:
        return self.steps

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches (x, y) of one epoch from step `start`; y is labels [B], or soft targets [B, K]."""
        for step in range(start, self.steps):
            yield self.prepare(epoch, step)

    def prepare(self, epoch: int, step: int, out: Batch | None = None) -> Batch:
        """The batch of one step, in any order of calls; with `out` it is copied into those buffers."""
        if not 0 <= step < self.steps:
            raise ValueError(f"step: expected a value in 0..{self.steps - 1}, got {step}")
        at_epoch, first, batches = self._chunk
        if at_epoch != epoch or not first <= step < first + len(batches):
            first = step
            self._chunk = (-1, -1, [])
            batches = self._make(epoch, step)
            self._chunk = (epoch, first, batches)
        return copy_batch(batches[step - first], out)

    def _make(self, epoch: int, step: int) -> list[Batch]:
        """Batches of equal size from `step` on, as many as the memory for one chunk holds."""
        if self._plan is None or self._plan.epoch != epoch:
            plan = EpochDraws(self.count, self.steps, self.shape, self.augment, seed=self.seed, epoch=epoch)
            self._plan = plan.to(self.source.device)
        plan, full = self._plan, self.count // self.batch_size
        size = self.batch_size if step < full else self.count - full * self.batch_size
        sample = max(self.source.images[0].numel(), math.prod(self.shape))
        budget = CHUNK_BYTES.get(self.source.device.type, CHUNK_BYTES["cpu"])
        steps = min(max(1, budget // (4 * sample * size)), full - step) if step < full else 1
        first = step * self.batch_size
        rows = plan.order[first : first + steps * size].to(self.source.device)
        x = torch.cat(
            [
                plan.transform(self.source.images[part], slice(first + start, first + start + len(part)))
                for start, part in zip(range(0, len(rows), GATHER_IMAGES), torch.split(rows, GATHER_IMAGES))
            ]
        )
        x = self.source.finish(x).reshape(steps, size, *self.shape)
        y = self.source.labels[rows].reshape(steps, size)
        mix = None if plan.mix is None else plan.mix[slice(step, step + steps)]
        if mix is not None:
            x = mix_images(x, mix)
        if self.soft_targets:
            y = mix_targets(y, self.num_classes, mix, self.augment.label_smoothing)
        if self.world_size > 1:
            x = x.tensor_split(self.world_size, 1)[self.rank]
            y = y.tensor_split(self.world_size, 1)[self.rank]
        return list(zip(x.unbind(0), y.unbind(0)))


def copy_batch(batch: Batch, out: Batch | None) -> Batch:
    """The batch itself, or `out` after copying it there."""
    if out is None:
        return batch
    for there, here in zip(out, batch):
        there.copy_(here)
    return out


class EvalLoader:
    """Batches of a resident data set in its own order, without augmentation; may be iterated again and again.

    With `world_size` > 1 each rank yields its contiguous share of the samples, the shares in order being the whole.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int = 2048,
        *,
        normalise: Normalisation | None = None,
        image_size: int | None = None,
        channels: int | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        rows = shard_rows(len(dataset), batch_size, rank=rank, world_size=world_size).tolist()
        self._rows = range(rows[0], rows[-1] + 1) if rows else range(0)
        self.source = _Source(
            dataset,
            normalise=normalise,
            image_size=image_size,
            channels=channels,
            device=device,
            dtype=dtype,
            channels_last=channels_last,
        )
        self.batch_size = batch_size

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    @property
    def num_classes(self) -> int:
        return self.source.num_classes

    def __len__(self) -> int:
        return -(-len(self._rows) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for start in self._rows[:: self.batch_size]:
            rows = slice(start, min(start + self.batch_size, self._rows.stop))
            yield self.source.finish(self.source.images[rows]), self.source.labels[rows]
