"""Augmentation of whole batches on the device they live on: crop, flip, rotation, mixup and cutmix.

`crop(x, top, left, padding)` does what it is told, image by image but at once; `draw_crop(count, padding, generator)`
draws its arguments. Draws are made on the generator's device, so a CPU generator gives the same batch on every device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Generator, Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Augment:
    """The augmentation of a training batch, applied in this order."""

    crop: int = 0
    """Pad every side with this many zeros, then crop at random to the image's own size; 0: no crop."""
    flip: bool = False
    """Mirror left to right with probability 1/2."""
    rotation: float = 0.0
    """Rotate about the centre by a uniform angle of up to this many degrees either way (nearest neighbour)."""
    resized_crop: float = 0.0
    """Resize a random crop of at least this share of the area (aspect ratio 3/4 to 4/3) to the image's size; 0: none.
    Only for image folders, whose images are then decoded one by one."""
    mixup: float = 0.0
    """Mixup with weights from Beta(alpha, alpha), alpha being this number; 0: none."""
    cutmix: float = 0.0
    """CutMix with weights from Beta(alpha, alpha), alpha being this number; 0: none."""
    mix_probability: float = 1.0
    """The probability that a batch is mixed at all."""
    switch_probability: float = 0.5
    """With both mixup and cutmix: the probability of cutmix."""
    label_smoothing: float = 0.0
    """Soft targets: 1 - eps on the class plus eps / K on all classes, eps being this number."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, str) or value is None:
                raise TypeError(f"augment.{item.name}: expected a number, got {value!r}")
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"augment.{item.name}: expected a finite number that is not negative, got {value}")
        for name in ("resized_crop", "mix_probability", "switch_probability"):
            if getattr(self, name) > 1:
                raise ValueError(f"augment.{name}: expected a value in [0, 1], got {getattr(self, name)}")
        if self.crop != int(self.crop):
            raise ValueError(f"augment.crop is a padding in whole pixels, got {self.crop}")
        if self.rotation > 180:
            raise ValueError(f"augment.rotation: expected a value in [0, 180] degrees, got {self.rotation}")
        if self.label_smoothing >= 1:
            raise ValueError(f"augment.label_smoothing: expected a value in [0, 1), got {self.label_smoothing}")

    @property
    def mixes(self) -> bool:
        return (self.mixup > 0 or self.cutmix > 0) and self.mix_probability > 0

    @property
    def soft_targets(self) -> bool:
        """Whether batches carry targets [B, K] in place of labels [B]."""
        return self.mixes or self.label_smoothing > 0

    @property
    def spatial(self) -> bool:
        return self.crop > 0 or self.flip or self.rotation > 0 or self.resized_crop > 0


def crop(x: Tensor, top: Tensor, left: Tensor, padding: int) -> Tensor:
    """Pad x [B, C, H, W] with zeros, then cut the window of the old size at (top, left), in 0..2*padding, per image."""
    height, width = x.shape[-2:]
    padded = F.pad(x, (padding,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    rows = torch.arange(len(x), device=x.device)
    return windows[rows, :, top.to(x.device), left.to(x.device)]


def flip(x: Tensor, where: Tensor) -> Tensor:
    """Mirror left-right the images of x [B, C, H, W] at which `where` [B] is true."""
    return torch.where(where.to(x.device)[:, None, None, None], x.flip(3), x)


def rotate(x: Tensor, degrees: Tensor) -> Tensor:
    """Rotate each image of x [B, C, H, W] about its centre, counter-clockwise; nearest neighbour, zeros outside.

    A pixel at (u, v) from the centre takes the value found at (u cos t - v sin t, u sin t + v cos t), v downwards.
    """
    batch, channels, height, width = x.shape
    angle = torch.deg2rad(degrees.double())
    cos, sin = angle.cos().to(x.device)[:, None, None], angle.sin().to(x.device)[:, None, None]
    v = torch.arange(height, device=x.device, dtype=torch.float64)[:, None] - (height - 1) / 2
    u = torch.arange(width, device=x.device, dtype=torch.float64) - (width - 1) / 2
    column = torch.round(u * cos - v * sin + (width - 1) / 2).long()
    row = torch.round(u * sin + v * cos + (height - 1) / 2).long()
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    source = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).reshape(batch, 1, -1)
    values = x.reshape(batch, channels, -1).gather(2, source.expand(-1, channels, -1))
    return values.reshape(x.shape) * inside[:, None].to(x.dtype)


def draw_crop(count: int, padding: int, generator: Generator) -> tuple[Tensor, Tensor]:
    offsets = torch.randint(2 * padding + 1, (2, count), generator=generator, device=generator.device)
    return offsets[0], offsets[1]


def draw_flip(count: int, generator: Generator) -> Tensor:
    return torch.rand(count, generator=generator, device=generator.device) < 0.5


def draw_rotation(count: int, degrees: float, generator: Generator) -> Tensor:
    unit = torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64)
    return degrees * (2 * unit - 1)


def normalise(
    x: Tensor, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """(x / 255 - mean) / std of uint8 images, (x - mean) / std of floating point ones, channel by channel."""
    shape = (1, -1, *[1] * (x.ndim - 2))
    center = torch.as_tensor(mean, dtype=torch.float32, device=x.device).reshape(shape)
    scale = torch.as_tensor(std, dtype=torch.float32, device=x.device).reshape(shape)
    if x.dtype == torch.uint8:
        center, scale = center * 255, scale * 255
    return x.to(torch.float32, copy=True).sub_(center).div_(scale).to(dtype)


def resize(x: Tensor, size: int) -> Tensor:
    """Bilinear resize of x [B, C, H, W] to size x size, antialiased where it shrinks; uint8 stays uint8, rounded."""
    if x.shape[-2:] == (size, size):
        return x
    shrinks = size < max(x.shape[-2:])
    parts = [
        F.interpolate(part.float(), size=(size, size), mode="bilinear", align_corners=False, antialias=shrinks)
        for part in (x[start : start + 4096] for start in range(0, len(x), 4096))
    ]
    if x.dtype != torch.uint8:
        return torch.cat(parts).to(x.dtype)
    return torch.cat([part.round().clamp(0, 255).to(torch.uint8) for part in parts])
