"""Networks by name."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from ncollapse.models.densenet import SHAPES, build_densenet
from ncollapse.models.mlp import build_mlp
from ncollapse.models.network import FeatureKind, Network
from ncollapse.models.resnet import build_resnet, build_resnet32
from ncollapse.models.vit import build_vit
from ncollapse.plugins import is_plugin

if TYPE_CHECKING:
    from ncollapse.heads import ETFHead, LinearHead

WIDTHS = ("0.25", "0.5", "1", "2")
NAMES = (
    *(f"resnet{depth}" for depth in (18, 32, 34, 50, 101)),
    *SHAPES,
    *(f"wide-resnet{depth}-{width}" for depth in (18, 50) for width in WIDTHS),
    *("mlp-small", "mlp-1024", "mlp-2048", "vit-small"),
)
KNOWN = f"{', '.join(NAMES)}, mlp-WIDTH, timm:NAME, torchvision:NAME or package.module:factory"
SMALL_MLP = (256, 3)
MLP_DEPTH = 6


def is_known(name: str) -> bool:
    """Whether `create` knows a network of this name.

    >>> is_known("resnet18"), is_known("mlp-300"), is_known("resnet19")
    (True, True, False)
    """
    own = re.fullmatch(r"mlp-[1-9]\d*|(timm|torchvision):.+", name) is not None
    return name in NAMES or own or is_plugin(name)


def create(
    name: str,
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: int | Sequence[int] = 32,
    feature_dim: int | None = None,
    feature_dim_linear: int | None = None,
    head: str = "linear",
    bias: bool = True,
    bias_init: Any = 0.0,
    problem: Any = None,
    stem: str = "small",
    weights: str | os.PathLike[str] | None = None,
) -> Network:
    """Build a network.

    name: one of NAMES, "mlp-WIDTH" (6 layers), "timm:NAME" or "torchvision:NAME" (extra `vision`), or
        "package.module:factory" for a function of your own, whose network's last linear layer is replaced by `head`.
        Perceptrons and networks of your own take vectors too: in_channels=d, image_size=1.
    image_size: pixels a side, or (height, width) of images that are not square.
    feature_dim: the width of the last block's output, so that features stay ReLU outputs.
    feature_dim_linear: the width of a bias-free linear projection after pooling; the features are then free.
    head: "linear", or "etf" for a fixed simplex ETF. bias, bias_init, problem: see LinearHead.
    stem: "small" (3 x 3, stride 1; for densenet121-small 7 x 7, stride 2) or "imagenet" (7 x 7, stride 2, max pooling).
    weights: a file of pretrained weights, safetensors or torch's own (read with weights_only=True).

    >>> import torch
    >>> network = create("resnet18", 10, feature_dim=64)
    >>> network.features(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 64])
    """
    if stem not in ("small", "imagenet"):
        raise ValueError(f"stem: expected 'small' or 'imagenet', got {stem!r}")
    if num_classes < 2:
        raise ValueError(f"num_classes: expected at least 2, got {num_classes}")
    if feature_dim_linear is not None and feature_dim_linear < 1:
        raise ValueError(f"feature_dim_linear: expected at least 1, got {feature_dim_linear}")
    trunk, width, kind = _build_trunk(
        name, num_classes, in_channels=in_channels, sides=_read_sides(image_size), feature_dim=feature_dim, stem=stem
    )
    dim = width if feature_dim_linear is None else feature_dim_linear
    classifier = _build_head(head, dim, num_classes, bias=bias, bias_init=bias_init, problem=problem)
    network = Network(trunk, classifier, kind=kind, width=width, linear=feature_dim_linear)
    if weights is not None:
        from ncollapse.models.weights import load_weights

        load_weights(network, weights)
    return network


def perceptron_shape(name: str) -> tuple[int, int] | None:
    """The width and depth of a perceptron by its name; None for other networks.

    >>> perceptron_shape("mlp-300"), perceptron_shape("resnet18")
    ((300, 6), None)
    """
    if name == "mlp-small":
        return SMALL_MLP
    found = re.fullmatch(r"mlp-([1-9]\d*)", name)
    return (int(found[1]), MLP_DEPTH) if found else None


def _build_trunk(
    name: str, num_classes: int, *, in_channels: int, sides: tuple[int, int], feature_dim: int | None, stem: str
) -> tuple[nn.Module, int, FeatureKind]:
    if ":" in name and is_known(name):
        from ncollapse.models.external import build_external

        return build_external(name, num_classes, in_channels=in_channels, sides=sides, feature_dim=feature_dim)
    height, width = sides
    inputs = in_channels * height * width
    if shape := perceptron_shape(name):
        return *build_mlp(inputs, *shape, feature_dim=feature_dim), "relu"
    if name == "vit-small":
        if height != width:
            raise ValueError(
                f"image_size: vit-small takes square images, got {height} x {width}; scale them to one size a side "
                "(--image-size for a command)"
            )
        return *build_vit(in_channels=in_channels, image_size=height, feature_dim=feature_dim), "free"
    if not is_known(name):
        raise ValueError(f"model: expected {KNOWN}, got {name!r}")
    if name == "resnet32":
        return *build_resnet32(in_channels=in_channels, stem=stem, feature_dim=feature_dim), "relu"
    if name in SHAPES:
        halvings = 2 * (stem == "imagenet") or int(name == "densenet121-small")
        least = 8 * 2**halvings - (2**halvings - 1)  # the stem rounds up, the three transitions down
        if min(sides) < least:
            raise ValueError(f"image_size: {name} with the {stem} stem needs at least {least}, got {min(sides)}")
        return *build_densenet(name, in_channels=in_channels, stem=stem, feature_dim=feature_dim), "relu"
    family, _, factor = name.removeprefix("wide-").partition("-")
    depth = int(family.removeprefix("resnet"))
    built = build_resnet(depth, in_channels=in_channels, stem=stem, feature_dim=feature_dim, width=float(factor or 1))
    return *built, "relu"


def _read_sides(image_size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width."""
    sides = tuple(image_size) if isinstance(image_size, Sequence) else (image_size, image_size)
    if len(sides) != 2 or min(sides) < 1:
        raise ValueError(f"image_size: expected a number of pixels, or (height, width), got {image_size!r}")
    return sides


def _build_head(
    head: str, dim: int, num_classes: int, *, bias: bool, bias_init: Any, problem: Any
) -> LinearHead | ETFHead:
    from ncollapse.heads import ETFHead, LinearHead

    if head == "linear":
        return LinearHead(dim, num_classes, bias=bias, bias_init=bias_init, problem=problem)
    if head == "etf":
        return ETFHead(dim, num_classes, bias=bias, bias_init=bias_init, problem=problem)
    raise ValueError(f"head: expected 'linear' or 'etf', got {head!r}")
