"""Mixup and cutmix of whole batches, with soft targets.

Both are one formula: x' = m x + (1 - m) x_partner with a weight m for each pixel: constant in mixup (Zhang et al.,
2018), 0 inside a box and 1 outside it in cutmix (Yun et al., 2019). A batch has one draw and an image's partner is
its mirror in the batch (the first with the last), as in timm's batch mode.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from ncollapse.data.augment import Augment


@dataclass(frozen=True, eq=False)
class Mix:
    """Draws for S batches: the share of the image itself [S], and the box [S, 4] (top, bottom, left, right).

    An empty box means mixup by `share` (1: the batch stays as it is); else `share` is the area outside the box.
    """

    share: Tensor
    box: Tensor

    def __getitem__(self, index: slice) -> Mix:
        return Mix(self.share[index], self.box[index])

    def to(self, device: torch.device | str) -> Mix:
        return Mix(self.share.to(device), self.box.to(device))


def draw_mix(batches: int, height: int, width: int, augment: Augment, generator: Generator) -> Mix:
    """Draw for each batch whether it is mixed, how, lambda ~ Beta(alpha, alpha), and cutmix's box.

    The box has sides sqrt(1 - lambda) of the image's, a uniform centre, and is clipped at the border; lambda is then
    corrected to the area that is left.
    """
    unit = torch.rand(4, batches, generator=generator, dtype=torch.float64)
    mixed = unit[0] < augment.mix_probability
    switch = 1.0 if augment.mixup <= 0 else 0.0 if augment.cutmix <= 0 else augment.switch_probability
    boxed = mixed & (unit[1] < switch)
    blend = _draw_beta(batches, augment.mixup, generator)
    share = torch.where(mixed, blend, 1.0)
    side = torch.sqrt(1 - _draw_beta(batches, augment.cutmix, generator))
    box = torch.zeros(batches, 4, dtype=torch.int64)
    for axis, size in enumerate((height, width)):
        center, half = (unit[2 + axis] * size).long(), (side * size).long() // 2
        box[:, 2 * axis] = (center - half).clamp(0, size)
        box[:, 2 * axis + 1] = (center + half).clamp(0, size)
    box[~boxed] = 0
    area = (box[:, 1] - box[:, 0]) * (box[:, 3] - box[:, 2])
    share = torch.where(boxed, 1 - area.double() / (height * width), share)
    return Mix(share.float(), box)


def _draw_beta(count: int, alpha: float, generator: Generator) -> Tensor:
    if alpha <= 0:
        return torch.ones(count, dtype=torch.float64)
    # torch draws Beta from its global generator only; numpy's takes a seed, and we give it one from ours.
    seed = int(torch.randint(2**62, (), generator=generator))
    return torch.from_numpy(np.random.default_rng(seed).beta(alpha, alpha, count))


def mix_images(x: Tensor, mix: Mix) -> Tensor:
    """Mix x [S, B, C, H, W], S batches at once, each image with its mirror in the batch."""
    mix = mix.to(x.device)
    row = torch.arange(x.shape[3], device=x.device)[:, None]
    column = torch.arange(x.shape[4], device=x.device)
    top, bottom, left, right = mix.box[:, :, None, None].unbind(1)
    inside = (top <= row) & (row < bottom) & (left <= column) & (column < right)
    boxed = (bottom > top) & (right > left)
    weight = torch.where(boxed, (~inside).float(), mix.share[:, None, None])[:, None, None].to(x.dtype)
    return x * weight + x.flip(1) * (1 - weight)


def mix_targets(labels: Tensor, num_classes: int, mix: Mix | None, label_smoothing: float = 0.0) -> Tensor:
    """Soft targets [S, B, K] of labels [S, B]: smoothed one-hot rows, mixed as the images are."""
    target = F.one_hot(labels, num_classes).float()
    target = target * (1 - label_smoothing) + label_smoothing / num_classes
    if mix is None:
        return target
    share = mix.share.to(labels.device)[:, None, None]
    return target * share + target.flip(1) * (1 - share)
