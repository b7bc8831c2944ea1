"""The patches of an image with a class token and positions, in a captured step on a GPU: a product and a fused kernel.

A convolution whose windows do not overlap is a product of the patches, laid out as rows. torch would cast, append the
token and add the positions in passes of their own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ncollapse.models.encoder import fuses_products


class Embedding(torch.autograd.Function):
    """The class token and the patches' outputs plus their positions [B, N, C], of patches as rows [B (N - 1), values].

    `kernel` [C, values] is in the type of the patches, the result in that of the positions.
    """

    @staticmethod
    def forward(
        ctx: Any, patches: Tensor, kernel: Tensor, bias: Tensor, token: Tensor, position: Tensor, images: int
    ) -> Tensor:
        from ncollapse.models.fused_transformer import add_positions

        ctx.save_for_backward(patches)
        ctx.dtype = kernel.dtype
        return add_positions(F.linear(patches, kernel, bias.to(kernel.dtype)), token, position, images)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
        from ncollapse.models.fused_transformer import differentiate_positions

        (patches,) = ctx.saved_tensors
        with torch.cuda.device(dx.device):
            dy, d_position = differentiate_positions(dx.contiguous(), ctx.dtype)
        d_bias, d_token = d_position[1:].sum(0), d_position[:1].unsqueeze(0)
        return None, dy.t() @ patches, d_bias, d_token, d_position.unsqueeze(0), None


def embed(conv: nn.Conv2d, token: Tensor, position: Tensor, x: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The residual stream that enters the layers, with products in `dtype`."""
    size = conv.kernel_size[0]
    windows = x.unfold(2, size, size).unfold(3, size, size).permute(0, 2, 3, 4, 5, 1)
    patches = windows.to(dtype).reshape(-1, windows.shape[3:].numel())
    kernel = conv.weight.to(dtype).permute(0, 2, 3, 1).flatten(1)  # rows, columns, channels: a view of channels last
    with torch.cuda.device(x.device):  # Triton launches on the current one
        return Embedding.apply(patches, kernel, conv.bias, token, position, len(x))  # type: ignore[no-any-return, no-untyped-call]


def can_fuse_embedding(conv: nn.Conv2d, position: Tensor, x: Tensor) -> bool:
    """Whether the kernels know this case: patches that fill the images, and nobody looks at the convolution."""
    return fuses_products(x) and not x.requires_grad and knows_patches(conv, position, x.shape)


def knows_patches(conv: nn.Conv2d, position: Tensor, shape: torch.Size) -> bool:
    """Whether the convolution's windows fill images of this shape without overlap, one for each position but the first.

    >>> conv, position = nn.Conv2d(3, 8, 4, stride=4), torch.zeros(1, 5, 8)
    >>> [knows_patches(conv, position, torch.Size([2, 3, size, 8])) for size in (8, 9, 12)]
    [True, False, False]
    """
    if type(conv) is not nn.Conv2d or conv._forward_hooks or conv._forward_pre_hooks or conv._backward_hooks:
        return False
    size = conv.kernel_size[0]
    plain = conv.kernel_size == conv.stride == (size, size) and conv.padding == (0, 0) and conv.dilation == (1, 1)
    if not plain or conv.groups != 1 or conv.bias is None or len(shape) != 4 or shape[1] != conv.in_channels:
        return False
    if shape[2] % size or shape[3] % size or (shape[2] // size) * (shape[3] // size) + 1 != position.shape[1]:
        return False
    return conv.bias.dtype == position.dtype == torch.float32
