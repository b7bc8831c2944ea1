"""What every network is here: a trunk, a pool, perhaps a linear projection, and a classifier."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from ncollapse.heads import ETFHead, LinearHead

FeatureKind = Literal["relu", "free"]


class Network(nn.Module):
    """A classifier that does not lose track of its last layer, with timm's method names.

    forward(x) = head(features(x)); features(x) is the pooled vector [B, d] that enters the classifier, d being
    `num_features`. `feature_kind` is "relu" where these are averages of ReLU outputs, hence never negative, and "free"
    where they may have any sign. Pooling, projection and classifier run in the classifier's precision, autocast or not.
    """

    def __init__(
        self,
        trunk: nn.Module,
        head: LinearHead | ETFHead,
        *,
        kind: FeatureKind,
        width: int,
        linear: int | None = None,
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.projection = None if linear is None else nn.Linear(width, linear, bias=False)
        self.head = head
        self.num_features = width if linear is None else linear
        self.feature_kind: FeatureKind = kind if linear is None else "free"

    @property
    def num_classes(self) -> int:
        return int(self.head.weight.shape[0])

    def forward_features(self, x: Tensor) -> Tensor:
        """The trunk's output: a map [B, C, H, W], or a vector [B, C] where there is nothing to pool."""
        return self.trunk(x)  # type: ignore[no-any-return]

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool and project the trunk's output, then classify unless `pre_logits`."""
        dtype = self.head.weight.dtype
        casts = torch.is_autocast_enabled(x.device.type)
        with torch.autocast(x.device.type, enabled=False) if casts else nullcontext():
            x = x.mean((2, 3), dtype=dtype) if x.ndim == 4 else x.to(dtype)
            if self.projection is not None:
                x = self.projection(x)
            return x if pre_logits else self.head(x)

    def features(self, x: Tensor) -> Tensor:
        """The vectors [B, d] that enter the classifier."""
        return self.forward_head(self.forward_features(x), pre_logits=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def get_classifier(self) -> LinearHead | ETFHead:
        return self.head

    def reset_classifier(self, num_classes: int) -> None:
        """Put a new linear classifier, with a bias if this one has it, in the place of the classifier."""
        from ncollapse.heads import LinearHead

        old = self.head.weight
        self.head = LinearHead(self.num_features, num_classes, bias=self.head.bias is not None).to(
            old.device, old.dtype
        )


def start_convolutions(trunk: nn.Module, mode: Literal["fan_in", "fan_out"]) -> None:
    """Kaiming normal convolutions, as torchvision starts its ResNets (fan_out) and DenseNets (fan_in)."""
    for module in trunk.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")


def require_feature_dim(feature_dim: int | None) -> None:
    if feature_dim is not None and feature_dim < 1:
        raise ValueError(f"feature_dim: expected at least 1, got {feature_dim}")


def count_parameters(module: nn.Module) -> int:
    """The number of trainable parameters."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
