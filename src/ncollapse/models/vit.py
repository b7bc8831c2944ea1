"""A small vision transformer (Dosovitskiy et al., 2021): 384 wide, 12 deep, 6 heads, as timm's vit_small."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ncollapse.models.attention import attend
from ncollapse.models.embedding import can_fuse_embedding, embed
from ncollapse.models.encoder import can_fuse_encoder, run_encoder

WIDTH, DEPTH, HEADS = 384, 12, 6


class EncoderLayer(nn.TransformerEncoderLayer):
    """torch's pre-norm layer without dropout or masks, its attention by `attend`."""

    def __init__(self) -> None:
        super().__init__(
            WIDTH,
            HEADS,
            4 * WIDTH,
            dropout=0.0,
            activation="gelu",
            layer_norm_eps=1e-6,
            batch_first=True,
            norm_first=True,
        )

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        attention = self.self_attn
        qkv = F.linear(self.norm1(x), attention.in_proj_weight, attention.in_proj_bias)
        mixed = attend(qkv, HEADS)
        x = x + F.linear(mixed, attention.out_proj.weight, attention.out_proj.bias)
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x))))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """The trunk: patches, a class token, learned positions, pre-norm layers; the output is the class token [B, 384]."""

    def __init__(self, in_channels: int, image_size: int, patch: int) -> None:
        super().__init__()
        if image_size % patch:
            raise ValueError(f"image_size: expected a multiple of the patch ({patch}), got {image_size}")
        self.patches = nn.Conv2d(in_channels, WIDTH, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.position = nn.Parameter(torch.empty(1, (image_size // patch) ** 2 + 1, WIDTH))
        nn.init.trunc_normal_(self.token, std=0.02)
        nn.init.trunc_normal_(self.position, std=0.02)
        self.layers = nn.Sequential(*[EncoderLayer() for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        if can_fuse_embedding(self.patches, self.position, x):
            x = embed(self.patches, self.token, self.position, x)
        else:
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        if can_fuse_encoder(self.layers, self.norm, x):
            return run_encoder(list(self.layers), self.norm, x)  # type: ignore[arg-type]
        return self.norm(self.layers(x)[:, 0])  # type: ignore[no-any-return]


def build_vit(*, in_channels: int, image_size: int, feature_dim: int | None = None) -> tuple[VisionTransformer, int]:
    """Patches of 16 pixels from 128 pixels on, else an eighth of the image: 4 for CIFAR."""
    if feature_dim is not None:
        raise ValueError(f"vit-small ends in a LayerNorm of width {WIDTH}; ask for feature_dim_linear, not feature_dim")
    return VisionTransformer(in_channels, image_size, 16 if image_size >= 128 else max(1, image_size // 8)), WIDTH
