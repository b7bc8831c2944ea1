"""The random draws of one epoch: a pure function of the seed and the epoch.

Each purpose has its own CPU generator, so that leaving one augmentation out changes no other, and the draws are the
same on every device and with any number of threads.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Generator, Tensor

from ncollapse.data.augment import Augment, crop, draw_crop, draw_flip, draw_rotation, flip, rotate
from ncollapse.data.mixing import Mix, draw_mix


def seed_stream(seed: int, epoch: int, purpose: str) -> Generator:
    """Return a CPU generator that is a pure function of the arguments.

    >>> a, b = (torch.rand(3, generator=seed_stream(0, 5, "crop")) for _ in range(2))
    >>> torch.equal(a, b)
    True
    """
    digest = hashlib.sha256(f"{seed}/{epoch}/{purpose}".encode()).digest()
    return Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def send(values: Tensor, device: torch.device) -> Tensor:
    """The values on a GPU, which copies them when it comes to it: the host goes on at once."""
    return values.pin_memory().to(device, non_blocking=True)


class EpochDraws:
    """The order, crops, flips, angles and mixing of every sample and batch of one epoch."""

    def __init__(
        self, count: int, steps: int, shape: tuple[int, ...], augment: Augment, *, seed: int, epoch: int
    ) -> None:
        def stream(purpose: str) -> Generator:
            return seed_stream(seed, epoch, purpose)

        self.epoch, self.augment = epoch, augment
        self.order = torch.randperm(count, generator=stream("order"))
        self.offsets = draw_crop(count, augment.crop, stream("crop")) if augment.crop else None
        self.mirrored = draw_flip(count, stream("flip")) if augment.flip else None
        self.angles = draw_rotation(count, augment.rotation, stream("rotation")) if augment.rotation else None
        self.mix: Mix | None = draw_mix(steps, shape[-2], shape[-1], augment, stream("mix")) if augment.mixes else None
        if augment.resized_crop:
            self.windows = torch.randint(2**62, (count,), generator=stream("resized_crop"))

    def to(self, device: torch.device) -> EpochDraws:
        """Have the draws on a GPU before they are used, so that no batch waits for them; elsewhere, leave them.

        Angles stay on the CPU, where the sines are the same for every device.
        """
        if device.type == "cuda":
            self.order = send(self.order, device)
            if self.offsets is not None:
                self.offsets = send(self.offsets[0], device), send(self.offsets[1], device)
            if self.mirrored is not None:
                self.mirrored = send(self.mirrored, device)
            if self.mix is not None:
                self.mix = Mix(send(self.mix.share, device), send(self.mix.box, device))
        return self

    def transform(self, x: Tensor, rows: slice | Tensor) -> Tensor:
        """Crop, flip and rotate the images x, which have these positions in the epoch's order."""
        if self.offsets is not None:
            x = crop(x, self.offsets[0][rows], self.offsets[1][rows], self.augment.crop)
        if self.mirrored is not None:
            x = flip(x, self.mirrored[rows])
        if self.angles is not None:
            x = rotate(x, self.angles[rows])
        return x
