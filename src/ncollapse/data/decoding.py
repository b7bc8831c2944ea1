"""Image files decoded to tensors, in this process or in worker processes."""

from __future__ import annotations

import math
import multiprocessing
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader

from ncollapse.data.dataset import Dataset
from ncollapse.data.folders import FolderDataset
from ncollapse.data.images import read_image
from ncollapse.processes import safe_path

ASPECTS = (3 / 4, 4 / 3)
DECODED_AT_ONCE = 64
DECODED_ALONE = 2000
"""This many images are decoded faster in one process than worker processes take to start."""
Request = tuple[str, int | None]
"""A path, and the seed of its random window, or None for the centre."""


def decode(folder: FolderDataset, image_size: int, workers: int | None = None) -> Dataset:
    """Read every image into memory: the shorter side resized to `image_size`, the centre cut out, three channels."""
    images = decode_images(folder.paths, image_size, workers)
    return Dataset(images, folder.labels, folder.classes, folder.name, folder.split, folder.record)


def decode_images(paths: Sequence[str], image_size: int, workers: int | None = None) -> Tensor:
    """Decode images into one tensor, uint8 [N, 3, S, S]: the shorter side resized, the centre cut out."""
    if workers is None and len(paths) <= DECODED_ALONE:
        workers = 0
    images = torch.empty(len(paths), 3, image_size, image_size, dtype=torch.uint8)
    starts = range(0, len(paths), DECODED_AT_ONCE)
    requests: list[list[Request]] = [[(path, None) for path in paths[at : at + DECODED_AT_ONCE]] for at in starts]
    start = 0
    for batch in DecodingWorkers(Decoder(image_size), workers, torch.device("cpu")).decode(requests):
        images[start : start + len(batch)] = batch
        start += len(batch)
    return images


class Decoder:
    """One image file to uint8 [3, S, S]; an error is returned as its message, since workers wrap what they raise.

    centre: the side of the square that is cut out, as a share of the shorter side. smallest: the smallest share of the
    area that a random window covers, for requests with a seed.
    """

    def __init__(self, image_size: int, *, centre: float = 1.0, smallest: float = 0.0) -> None:
        self.image_size, self.centre, self.smallest = image_size, centre, smallest

    def __getitem__(self, request: Request) -> Tensor | str:
        path, window = request
        try:
            image = read_image(path)
        except ValueError as error:
            return str(error)
        if window is None:
            side = self.centre * min(image.size)
            left, top = (image.width - side) / 2, (image.height - side) / 2
            box = (left, top, left + side, top + side)
        else:
            box = draw_window(image.width, image.height, self.smallest, random.Random(window))
        from PIL.Image import Resampling

        pixels = np.asarray(image.resize((self.image_size, self.image_size), Resampling.BILINEAR, box=box))
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1)


def draw_window(width: int, height: int, smallest: float, source: random.Random) -> tuple[float, float, float, float]:
    """Draw a window (left, top, right, bottom) with a share of the area in [smallest, 1] and aspect in [3/4, 4/3].

    If ten draws do not fit: the largest centred window of an allowed aspect (Szegedy et al., 2015; as torchvision).
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


class DecodingWorkers:
    """Processes that outlive an epoch and decode the requests they are given, batch by batch."""

    def __init__(self, decoder: Decoder, workers: int | None, device: torch.device) -> None:
        count = min(8, count_cores()) if workers is None else workers
        self.requests: list[list[Request]] = []
        self.loader: DataLoader[Any] = DataLoader(
            decoder,  # type: ignore[arg-type]
            batch_sampler=self,
            num_workers=count,
            collate_fn=_collate,
            pin_memory=device.type == "cuda",
            persistent_workers=count > 0,
            multiprocessing_context=choose_start_method() if count else None,
            generator=Generator(),
        )

    def __iter__(self) -> Iterator[list[Request]]:
        return iter(self.requests)

    def __len__(self) -> int:
        return len(self.requests)

    def decode(self, requests: list[list[Request]]) -> Iterator[Tensor]:
        self.requests = requests
        with safe_path():  # the workers start here
            batches = iter(self.loader)
        for batch in batches:
            if isinstance(batch, str):
                raise ValueError(batch)
            yield batch


def choose_start_method() -> str:
    """Return how decoding processes start: never by fork, since children of a process with threads may hang."""
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def count_cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _collate(items: list[Tensor | str]) -> Tensor | str:
    messages = [item for item in items if isinstance(item, str)]
    return messages[0] if messages else torch.stack([item for item in items if isinstance(item, Tensor)])
