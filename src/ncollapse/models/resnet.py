"""Residual networks (He et al., 2016), with the small-image or the ImageNet stem, and their wide variants.

Module names are torchvision's, so that its weight files fit. The stride of a bottleneck sits in its 3 x 3 convolution.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from ncollapse.models.convolution import Conv2d
from ncollapse.models.folded import (
    Layer,
    can_fold,
    can_fold_stem,
    convolve_relu,
    convolve_without_shift,
    multiply_relu,
)
from ncollapse.models.network import require_feature_dim, start_convolutions
from ncollapse.models.norm import Deferred, Fork, defer_norm, fork_norm_relu, norm_relu, split_fork
from ncollapse.models.overlap import branch_off, rejoin
from ncollapse.models.stem import convolve_stem

DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
DEPTHS_32 = (5, 5, 5)


def conv(fan_in: int, fan_out: int, size: int, stride: int = 1) -> nn.Conv2d:
    return Conv2d(fan_in, fan_out, size, stride=stride, padding=size // 2, bias=False)


class Block(nn.Module):
    """What the two kinds of blocks share: a shortcut, and an output that another block uses twice, or none."""

    downsample: nn.Module | None
    ends = False
    """Whether this is the trunk's last block."""

    def layers(self) -> list[Layer]:
        """The convolutions and their norms, in the order of use."""
        raise NotImplementedError

    def can_fold(self, x: Tensor) -> bool:
        """Whether all norms, the shortcut's too, can be folded into their convolutions."""
        if not isinstance(self.downsample, Projection):
            return can_fold(x, *self.layers())
        return not self.downsample.is_watched() and can_fold(x, *self.layers(), self.downsample.layer)

    def fold(self, x: Tensor) -> Tensor:
        """The output in evaluation, with the norms folded into their convolutions.

        The trunk's last norm stays as it is: its ReLU keeps NaN, where cuDNN's may give zeros, and a network that has
        diverged must not give finite features.
        """
        *first, last = self.layers()
        residual, shift = x, None
        if isinstance(self.downsample, Projection) and not self.ends:
            residual, shift = convolve_without_shift(self.downsample.layer, x)
        elif self.downsample is not None:
            residual = self.downsample(x)
        for layer in first:
            x = convolve_relu(layer, x)
        return norm_relu(last[1], last[0](x), residual) if self.ends else convolve_relu(last, x, residual, shift)

    def skip(self, x: Tensor) -> Tensor | Deferred:
        """The shortcut of x: where it is a module, beside the convolutions until `finish`."""
        if self.downsample is None:
            return x
        if isinstance(self.downsample, Projection) and not self.downsample.is_watched():
            return branch_off(self.downsample.defer, x)
        return branch_off(self.downsample, x)  # type: ignore[no-any-return]

    def finish(self, norm: nn.BatchNorm2d, y: Tensor, residual: Tensor | Deferred) -> Tensor | Fork:
        """relu(norm(y) + residual)."""
        if self.downsample is not None:
            rejoin()
        return (norm_relu if self.ends else fork_norm_relu)(norm, y, residual)


class BasicBlock(Block):
    """Two 3 x 3 convolutions, the first to `inner` channels."""

    def __init__(self, fan_in: int, inner: int, fan_out: int, stride: int, shortcut: nn.Module | None) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(fan_in, inner, 3, stride), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = conv(inner, fan_out, 3), nn.BatchNorm2d(fan_out)
        self.downsample = shortcut

    def layers(self) -> list[Layer]:
        return [(self.conv1, self.bn1), (self.conv2, self.bn2)]

    def forward(self, x: Tensor | Fork) -> Tensor | Fork:
        x, other = split_fork(x)
        if self.can_fold(x):
            return self.fold(x)
        residual = self.skip(other)
        y = norm_relu(self.bn1, self.conv1(x))
        return self.finish(self.bn2, self.conv2(y), residual)


class Bottleneck(Block):
    """1 x 1 down to `inner` channels, 3 x 3, and 1 x 1 up."""

    def __init__(self, fan_in: int, inner: int, fan_out: int, stride: int, shortcut: nn.Module | None) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(fan_in, inner, 1), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = conv(inner, inner, 3, stride), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = conv(inner, fan_out, 1), nn.BatchNorm2d(fan_out)
        self.downsample = shortcut

    def layers(self) -> list[Layer]:
        return [(self.conv1, self.bn1), (self.conv2, self.bn2), (self.conv3, self.bn3)]

    def forward(self, x: Tensor | Fork) -> Tensor | Fork:
        x, other = split_fork(x)
        if self.can_fold(x):
            return self.fold(x)
        residual = self.skip(other)
        y = norm_relu(self.bn1, self.conv1(x))
        y = norm_relu(self.bn2, self.conv2(y))
        return self.finish(self.bn3, self.conv3(y), residual)


class Projection(nn.Sequential):
    """A strided 1 x 1 convolution and its norm."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__(conv(fan_in, fan_out, 1, stride), nn.BatchNorm2d(fan_out))

    @property
    def layer(self) -> Layer:
        return self[0], self[1]  # type: ignore[return-value]

    def is_watched(self) -> bool:
        """Whether hooks expect this module to be called."""
        backward = self._backward_hooks or self._backward_pre_hooks
        return bool(self._forward_hooks or self._forward_pre_hooks or backward)

    def forward(self, x: Tensor) -> Tensor:
        conv, norm = self.layer
        return norm_relu(norm, conv(x), relu=False)

    def defer(self, x: Tensor) -> Tensor | Deferred:
        """The same, but the norm may be left to the kernel that adds it to the block's output."""
        conv, norm = self.layer
        return defer_norm(norm, conv(x))


class PadShortcut(nn.Module):
    """The parameter-free shortcut ("option A"): every second pixel, and channels of zeros on both sides."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.stride, self.before = stride, (fan_out - fan_in) // 2
        self.after = fan_out - fan_in - self.before

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, self.before, self.after))


class ResNet(nn.Module):
    """The trunk: stem and stages, ending in a ReLU map.

    `outs` and `inners` are the stages' channels. `last` are the channels of the last block's output alone: where they
    differ from its stage's, its shortcut is a projection, as in the public code of mse-landscape and bce-vs-ce.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        outs: Sequence[int],
        inners: Sequence[int],
        *,
        in_channels: int,
        stem_width: int,
        stem: str,
        last: int | None = None,
        padded_shortcuts: bool = False,
    ) -> None:
        super().__init__()
        small = stem == "small"
        self.conv1 = conv(in_channels, stem_width, 3) if small else conv(in_channels, stem_width, 7, 2)
        self.bn1 = nn.BatchNorm2d(stem_width)
        self.pool = None if small else nn.MaxPool2d(3, 2, 1)
        self.stages: list[str] = []
        fan_in = stem_width
        for stage, (depth, width, inner) in enumerate(zip(depths, outs, inners)):
            blocks = []
            for place in range(depth):
                ends = stage == len(depths) - 1 and place == depth - 1
                fan_out = last if ends and last is not None else width
                stride = 2 if place == 0 and stage > 0 else 1
                shortcut: nn.Module | None = None
                if stride > 1 or fan_in != fan_out:
                    if padded_shortcuts and fan_out == width:
                        shortcut = PadShortcut(fan_in, fan_out, stride)
                    else:
                        shortcut = Projection(fan_in, fan_out, stride)
                blocks.append(block(fan_in, inner, fan_out, stride, shortcut))
                blocks[-1].ends = ends
                fan_in = fan_out
            self.stages.append(f"layer{stage + 1}")
            self.add_module(self.stages[-1], nn.Sequential(*blocks))
        start_convolutions(self, "fan_out")

    def start(self, x: Tensor) -> Tensor | Fork:
        """The map that the first stage reads."""
        stem = self.conv1, self.bn1
        if self.pool is None:
            folds = can_fold_stem(stem, x)
            return multiply_relu(stem, x) if folds else fork_norm_relu(self.bn1, convolve_stem(self.conv1, x))
        return self.pool(norm_relu(self.bn1, convolve_stem(self.conv1, x)))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        y = self.start(x)
        for stage in self.stages:
            y = getattr(self, stage)(y)
        return split_fork(y)[0]


def build_resnet(
    depth: int, *, in_channels: int, stem: str, feature_dim: int | None = None, width: float = 1.0
) -> tuple[ResNet, int]:
    """ResNet-18, 34, 50 or 101; `width` scales the inner channels of the blocks (WideResNet-X) and no others.

    `feature_dim` replaces the channels of the last block's output, 512, or 2048 with bottlenecks; no other layer is
    narrowed.
    """
    require_feature_dim(feature_dim)
    bottleneck = depth >= 50
    planes = [64, 128, 256, 512]
    outs = [4 * plane if bottleneck else plane for plane in planes]
    inners = [max(1, round(width * plane)) for plane in planes]
    block = Bottleneck if bottleneck else BasicBlock
    trunk = ResNet(
        block, DEPTHS[depth], outs, inners, in_channels=in_channels, stem_width=64, stem=stem, last=feature_dim
    )
    return trunk, feature_dim or outs[-1]


def build_resnet32(*, in_channels: int, stem: str, feature_dim: int | None = None) -> tuple[ResNet, int]:
    """The CIFAR ResNet-32 with 16, 32 and 64 channels, the usual network of the long tail; 0.46 M parameters."""
    require_feature_dim(feature_dim)
    outs = [16, 32, 64]
    trunk = ResNet(
        BasicBlock,
        DEPTHS_32,
        outs,
        outs,
        in_channels=in_channels,
        stem_width=16,
        stem=stem,
        last=feature_dim,
        padded_shortcuts=True,
    )
    return trunk, feature_dim or outs[-1]
