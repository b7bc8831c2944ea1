"""Loaders for folders too large for memory: worker processes decode, the device does the rest.

The same face as the resident loaders, the same plan of draws, and nothing but (path, number) pairs sent to the workers.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader

from ncollapse.data.augment import Augment, normalise
from ncollapse.data.folders import FolderDataset
from ncollapse.data.loader import Batch, Normalisation
from ncollapse.data.mixing import mix_images, mix_targets
from ncollapse.data.plan import Plan
from ncollapse.data.sharing import count_steps, share_rows

ASPECTS = (3 / 4, 4 / 3)
DECODED_AT_ONCE = 64
DECODED_ALONE = 2000
"""So many images are decoded before worker processes have started, which takes seconds."""
NO_PILLOW = "image folders need Pillow: pip install 'ncollapse[vision]'"
Order = tuple[str, int | None]
"""A path, and the seed of its random window or None for the centre."""


class FolderLoader:
    """Shuffled, augmented training batches of an image folder; see DeviceLoader for the arguments they share.

    workers: decoding processes; 0 decodes in this one. The default is one for each core, 8 at most. As with all
        processes that are not forked, a script that uses them needs its `if __name__ == "__main__":`.
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
        decoder = _Decoder(image_size, smallest=self.augment.resized_crop)
        self._workers = _Workers(decoder, workers, self._finish.device)
        self._at: tuple[int, int, Iterator[Batch]] | None = None

    def __len__(self) -> int:
        return self.steps

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches (x, y) of one epoch from step `start`; y is labels [B], or soft targets [B, K]."""
        plan = Plan(len(self.dataset), self.steps, self.shape, self.augment, seed=self.seed, epoch=epoch)
        places = [self._list_places(step) for step in range(start, self.steps)]
        rows = plan.order.tolist()
        windows = plan.windows.tolist() if self.augment.resized_crop else None
        orders = [
            [(self.dataset.paths[rows[place]], None if windows is None else windows[place]) for place in batch.tolist()]
            for batch, _ in places
        ]
        for step, images in enumerate(self._workers.decode(orders), start):
            batch, own = places[step - start]
            x = self._finish(plan.transform(images.to(self._finish.device, non_blocking=True), batch))[None]
            y = self.dataset.labels[plan.order[batch]].to(self._finish.device)[None]
            mix = None if plan.mix is None else plan.mix[slice(step, step + 1)]
            if mix is not None:
                x = mix_images(x, mix)
            if self.soft_targets:
                y = mix_targets(y, self.num_classes, mix, self.augment.label_smoothing)
            yield x[0, :own], y[0, :own]

    def prepare(self, epoch: int, step: int, out: Batch | None = None) -> Batch:
        """The batch of one step; fast when steps are asked for in order. With `out` it is copied into those buffers."""
        if not 0 <= step < self.steps:
            raise ValueError(f"step must lie in 0..{self.steps - 1}, got {step}")
        if self._at is None or self._at[:2] != (epoch, step):
            self._at = (epoch, step, self.epoch(epoch, step))
        x, y = next(self._at[2])
        self._at = (epoch, step + 1, self._at[2])
        if out is None:
            return x, y
        out[0].copy_(x)
        out[1].copy_(y)
        return out

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
        self._rows = share_rows(len(dataset), batch_size, rank=rank, world_size=world_size).tolist()
        self.dataset, self.batch_size = dataset, batch_size
        self.num_classes, self.shape = dataset.num_classes, (3, image_size, image_size)
        self._finish = _Finish(normalise, device, dtype, channels_last)
        self._workers = _Workers(_Decoder(image_size, centre=centre), workers, self._finish.device)

    def __len__(self) -> int:
        return -(-len(self._rows) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        batches = [self._rows[start : start + self.batch_size] for start in range(0, len(self._rows), self.batch_size)]
        orders: list[list[Order]] = [[(self.dataset.paths[row], None) for row in rows] for rows in batches]
        for rows, images in zip(batches, self._workers.decode(orders)):
            yield self._finish(images), self.dataset.labels[rows].to(self._finish.device)


def decode_images(paths: Sequence[str], image_size: int, workers: int | None = None) -> Tensor:
    """All images in memory, uint8 [N, 3, S, S]: the shorter side resized, the centre cut out."""
    if workers is None and len(paths) <= DECODED_ALONE:
        workers = 0
    images = torch.empty(len(paths), 3, image_size, image_size, dtype=torch.uint8)
    starts = range(0, len(paths), DECODED_AT_ONCE)
    orders: list[list[Order]] = [[(path, None) for path in paths[at : at + DECODED_AT_ONCE]] for at in starts]
    start = 0
    for batch in _Workers(_Decoder(image_size), workers, torch.device("cpu")).decode(orders):
        images[start : start + len(batch)] = batch
        start += len(batch)
    return images


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


class _Decoder:
    """One image file to uint8 [3, S, S]; an error comes back as its message, since workers wrap what they raise."""

    def __init__(self, image_size: int, *, centre: float = 1.0, smallest: float = 0.0) -> None:
        self.image_size, self.centre, self.smallest = image_size, centre, smallest

    def __getitem__(self, order: Order) -> Tensor | str:
        try:
            from PIL import Image
        except ImportError:
            return NO_PILLOW
        path, window = order
        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
        except (OSError, SyntaxError, ValueError) as error:
            return f"cannot decode {path}: {error}"
        if window is None:
            side = self.centre * min(image.size)
            left, top = (image.width - side) / 2, (image.height - side) / 2
            box = (left, top, left + side, top + side)
        else:
            box = draw_window(image.width, image.height, self.smallest, random.Random(window))
        size = (self.image_size, self.image_size)
        pixels = np.asarray(image.resize(size, Image.Resampling.BILINEAR, box=box))
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1)


def draw_window(width: int, height: int, smallest: float, source: random.Random) -> tuple[float, float, float, float]:
    """A window (left, top, right, bottom) with a share of the area in [smallest, 1] and aspect in [3/4, 4/3].

    The largest centred window of an allowed aspect if ten draws do not fit (Szegedy et al., 2015, as torchvision does).
    """
    for _ in range(10):
        area = width * height * source.uniform(smallest, 1.0)
        aspect = math.exp(source.uniform(math.log(ASPECTS[0]), math.log(ASPECTS[1])))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            left, top = source.randint(0, width - wide), source.randint(0, height - high)
            return left, top, left + wide, top + high
    across, down = min(width, height * ASPECTS[1]), min(height, width / ASPECTS[0])
    return (width - across) / 2, (height - down) / 2, (width + across) / 2, (height + down) / 2


def _collate(items: list[Tensor | str]) -> Tensor | str:
    messages = [item for item in items if isinstance(item, str)]
    return messages[0] if messages else torch.stack([item for item in items if isinstance(item, Tensor)])


class _Workers:
    """Processes that outlive an epoch and decode the orders they are given."""

    def __init__(self, decoder: _Decoder, workers: int | None, device: torch.device) -> None:
        count = min(8, len(os.sched_getaffinity(0))) if workers is None else workers
        self.orders: list[list[Order]] = []
        self.loader: DataLoader[Any] = DataLoader(
            decoder,  # type: ignore[arg-type]
            batch_sampler=self,
            num_workers=count,
            collate_fn=_collate,
            pin_memory=device.type == "cuda",
            persistent_workers=count > 0,
            # forked children of a process with threads or a CUDA context may hang
            multiprocessing_context="forkserver" if count else None,
            generator=Generator(),
        )

    def __iter__(self) -> Iterator[list[Order]]:
        return iter(self.orders)

    def __len__(self) -> int:
        return len(self.orders)

    def decode(self, orders: list[list[Order]]) -> Iterator[Tensor]:
        self.orders = orders
        for batch in self.loader:
            if isinstance(batch, str):
                raise ValueError(batch)
            yield batch
