"""Densely connected networks (Huang et al., 2017), with the small-image or the ImageNet stem.

Module names are torchvision's, so that its weight files fit.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ncollapse.models.convolution import Conv2d
from ncollapse.models.folded import can_fold, convolve_relu
from ncollapse.models.network import require_feature_dim, start_convolutions
from ncollapse.models.norm import can_fuse, norm_relu, norm_relu_pool
from ncollapse.models.stem import convolve_stem

SHAPES = {
    "densenet121": (32, 64, (6, 12, 24, 16)),
    "densenet121-small": (16, 32, (6, 12, 24, 16)),
    "densenet161": (48, 96, (6, 12, 36, 24)),
}
"""Growth, channels of the stem, and layers in each block."""


class DenseLayer(nn.Module):
    """BN, ReLU, 1 x 1 to four times the growth, BN, ReLU, 3 x 3 to the growth; appended to the input."""

    def __init__(self, fan_in: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(fan_in), Conv2d(fan_in, 4 * growth, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(4 * growth), Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y, middle = norm_relu(self.norm1, x), (self.conv1, self.norm2)
        y = convolve_relu(middle, y) if can_fold(y, middle) else norm_relu(self.norm2, self.conv1(y))
        return torch.cat([x, self.conv2(y)], 1)


class DenseBlock(nn.Sequential):
    """Dense layers, one after another; in training on a GPU they share one map (`dense_block`)."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not torch.compiler.is_compiling() and self.shares(x):
            from ncollapse.models.dense_block import run_block

            return run_block(list(self), x)  # type: ignore[arg-type]
        return super().forward(x)  # type: ignore[no-any-return, no-untyped-call]

    def shares(self, x: Tensor) -> bool:
        """Whether the fused kernels know every layer, and nobody looks at its parts."""
        watched = any(part._forward_hooks or part._forward_pre_hooks for part in self.modules() if part is not self)
        norms = (part for part in self.modules() if isinstance(part, nn.BatchNorm2d))
        return not watched and all(can_fuse(norm, x, None) for norm in norms)


class Squeeze(nn.Module):
    """BN, ReLU and a 1 x 1 convolution: a transition without its pooling."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(fan_in), Conv2d(fan_in, fan_out, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(norm_relu(self.norm, x))  # type: ignore[no-any-return]


class Transition(Squeeze):
    """A squeeze and the mean over 2 x 2 pixels: the mean first, since a 1 x 1 convolution commutes with it."""

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(norm_relu_pool(self.norm, x))  # type: ignore[no-any-return]


class DenseNet(nn.Sequential):
    """The trunk, whose parts named norm* and relu* are one operation."""

    def forward(self, x: Tensor) -> Tensor:
        for name, part in self.named_children():
            if name == "conv0":
                x = convolve_stem(part, x)  # type: ignore[arg-type]
            elif name.startswith("norm"):
                x = norm_relu(part, x)  # type: ignore[arg-type]
            elif not name.startswith("relu"):
                x = part(x)
        return x


def build_densenet(name: str, *, in_channels: int, stem: str, feature_dim: int | None = None) -> tuple[DenseNet, int]:
    """DenseNet-121 or 161 up to its last BN and ReLU.

    "densenet121-small" is the DenseNet121 of bce-vs-ce's public code: half the growth and half the channels of the
    standard network, and a 7 x 7 stem of stride 2, which `stem="small"` leaves without its pooling.
    `feature_dim` squeezes the last block's channels (1024, 512 or 2208) before that BN, so that features stay ReLU
    outputs.
    """
    require_feature_dim(feature_dim)
    growth, channels, depths = SHAPES[name]
    trunk = DenseNet()
    if stem == "small" and name != "densenet121-small":
        trunk.add_module("conv0", nn.Conv2d(in_channels, channels, 3, padding=1, bias=False))
    else:
        trunk.add_module("conv0", nn.Conv2d(in_channels, channels, 7, stride=2, padding=3, bias=False))
        trunk.add_module("norm0", nn.BatchNorm2d(channels))
        trunk.add_module("relu0", nn.ReLU())
        if stem == "imagenet":
            trunk.add_module("pool0", nn.MaxPool2d(3, 2, 1))
    for number, layers in enumerate(depths, 1):
        block = DenseBlock()
        for place in range(layers):
            block.add_module(f"denselayer{place + 1}", DenseLayer(channels + place * growth, growth))
        trunk.add_module(f"denseblock{number}", block)
        channels += layers * growth
        if number < len(depths):
            trunk.add_module(f"transition{number}", Transition(channels, channels // 2))
            channels //= 2
    if feature_dim is not None:
        trunk.add_module("squeeze", Squeeze(channels, feature_dim))
        channels = feature_dim
    trunk.add_module("norm5", nn.BatchNorm2d(channels))
    trunk.add_module("relu5", nn.ReLU())
    start_convolutions(trunk, "fan_in")
    return trunk, channels
