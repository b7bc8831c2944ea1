"""Multilayer perceptrons: a flattened image through layers of Linear and ReLU."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from ncollapse.models.network import require_feature_dim


def build_mlp(inputs: int, width: int, depth: int, feature_dim: int | None = None) -> tuple[nn.Sequential, int]:
    """`depth` hidden layers of this width, the last of width `feature_dim`; returns the trunk and its width.

    The imbalanced ReLU study's backbone has 6 of width 1024 or 2048 (Section 5.2), the classifier not counted.
    """
    require_feature_dim(feature_dim)
    widths = [inputs, *[width] * (depth - 1), feature_dim or width]
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers), widths[-1]
