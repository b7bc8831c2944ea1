"""Loaders for image folders too large for memory: worker processes decode, the device does the rest.

They have the interface of the resident loaders and make the same draws. Workers are sent (path, number) pairs alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ncollapse.data.augment import Augment, normalise
from ncollapse.data.decoding import Decoder, DecodingWorkers, Request
from ncollapse.data.epoch_draws import EpochDraws
from ncollapse.data.folders import FolderDataset
from ncollapse.data.loader import Batch, Normalisation, copy_batch
from ncollapse.data.mixing import mix_images, mix_targets
from ncollapse.data.sharding import count_steps, shard_rows


class FolderLoader:
    """Shuffled, augmented training batches of an image folder; see DeviceLoader for the arguments they share.

    workers: the number of decoding processes; 0 decodes in this one. The default is one for each core, 8 at most. The
        processes are not forked, so a script that uses them needs `if __name__ == "__main__":`.
    """

    def __init__(
        self,
        dataset: FolderDataset,
        batch_size: int,
        *,
        image_size: int = 224,
        augment: Augment | None = None,
        normalise: Normalisation | None = None,
        device: torch.device | str = "cpu",
        seed: int = 0,
        drop_last: bool = True,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        workers: int | None = None,
    ) -> None:
        self.steps = count_steps(len(dataset), batch_size, drop_last=drop_last, rank=rank, world_size=world_size)
        self.dataset, self.batch_size, self.seed = dataset, batch_size, seed
        self.augment, self.rank, self.world_size = augment or Augment(), rank, world_size
        self.num_classes, self.shape = dataset.num_classes, (3, image_size, image_size)
        self.soft_targets = self.augment.soft_targets
        self._finish = _Finish(normalise, device, dtype, channels_last)
        decoder = Decoder(image_size, smallest=self.augment.resized_crop)
        self._workers = DecodingWorkers(decoder, workers, self._finish.device)
        self._at: tuple[int, int, Iterator[Batch]] | None = None

    def __len__(self) -> int:
        return self.steps

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches (x, y) of one epoch from step `start`; y is labels [B], or soft targets [B, K]."""
        draws = EpochDraws(len(self.dataset), self.steps, self.shape, self.augment, seed=self.seed, epoch=epoch)
        places = [self._list_places(step) for step in range(start, self.steps)]
        rows = draws.order.tolist()
        windows = draws.windows.tolist() if self.augment.resized_crop else None
        requests = [
            [(self.dataset.paths[rows[place]], None if windows is None else windows[place]) for place in batch.tolist()]
            for batch, _ in places
        ]
        for step, images in enumerate(self._workers.decode(requests), start):
            batch, own = places[step - start]
            x = self._finish(draws.transform(images.to(self._finish.device, non_blocking=True), batch))[None]
            y = self.dataset.labels[draws.order[batch]].to(self._finish.device)[None]
            mix = None if draws.mix is None else draws.mix[slice(step, step + 1)]
            if mix is not None:
                x = mix_images(x, mix)
            if self.soft_targets:
                y = mix_targets(y, self.num_classes, mix, self.augment.label_smoothing)
            yield x[0, :own], y[0, :own]

    def prepare(self, epoch: int, step: int, out: Batch | None = None) -> Batch:
        """The batch of one step; fast when steps are asked for in order. With `out` it is copied into those buffers."""
        if not 0 <= step < self.steps:
            raise ValueError(f"step: expected a value in 0..{self.steps - 1}, got {step}")
        if self._at is None or self._at[:2] != (epoch, step):
            self._at = (epoch, step, self.epoch(epoch, step))
        batch = next(self._at[2])
        self._at = (epoch, step + 1, self._at[2])
        return copy_batch(batch, out)

    def _list_places(self, step: int) -> tuple[Tensor, int]:
        """Places in the epoch's order to decode for this rank, and how many of them, the first, are its own.

        Mixing needs the mirror images too, which another rank may own: they follow in the order that makes an
        image's partner its mirror in this list.
        """
        first, stop = step * self.batch_size, min((step + 1) * self.batch_size, len(self.dataset))
        own = torch.arange(first, stop).tensor_split(self.world_size)[self.rank]
        if self.world_size == 1 or not self.augment.mixes:
            return own, len(own)
        return torch.cat([own, (first + stop - 1 - own).flip(0)]), len(own)


class FolderEvalLoader:
    """Batches of an image folder in its own order: the centre of each image, no augmentation; may be iterated again.

    centre: the side of the square that is cut out, as a share of the shorter side (224/256 for ImageNet).
    """

    def __init__(
        self,
        dataset: FolderDataset,
        batch_size: int = 256,
        *,
        image_size: int = 224,
        centre: float = 1.0,
        normalise: Normalisation | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        workers: int | None = None,
    ) -> None:
        self._rows = shard_rows(len(dataset), batch_size, rank=rank, world_size=world_size).tolist()
        self.dataset, self.batch_size = dataset, batch_size
        self.num_classes, self.shape = dataset.num_classes, (3, image_size, image_size)
        self._finish = _Finish(normalise, device, dtype, channels_last)
        self._workers = DecodingWorkers(Decoder(image_size, centre=centre), workers, self._finish.device)

    def __len__(self) -> int:
        return -(-len(self._rows) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        batches = [self._rows[start : start + self.batch_size] for start in range(0, len(self._rows), self.batch_size)]
        requests: list[list[Request]] = [[(self.dataset.paths[row], None) for row in rows] for rows in batches]
        for rows, images in zip(batches, self._workers.decode(requests)):
            yield self._finish(images), self.dataset.labels[rows].to(self._finish.device)


class _Finish:
    """Bytes to network input, on the device."""

    def __init__(
        self, normalisation: Normalisation | None, device: torch.device | str, dtype: torch.dtype, channels_last: bool
    ) -> None:
        self.device, self.dtype = torch.device(device), dtype
        mean, std = ([0.0], [1.0]) if normalisation is None else normalisation
        self.mean, self.std = torch.tensor(mean, device=self.device), torch.tensor(std, device=self.device)
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format

    def __call__(self, images: Tensor) -> Tensor:
        images = images.to(self.device, non_blocking=True)
        return normalise(images, self.mean, self.std, self.dtype).contiguous(memory_format=self.memory_format)
