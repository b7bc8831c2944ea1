"""The first convolution of small images as a matrix product on a GPU: with three channels, cuDNN's kernels are slow.

On an H200 (batch 128, 32 x 32 pixels, 64 outputs) they take 65 microseconds forward and backward; the product takes 21,
and making its matrix about 5, the cast to bfloat16 included.
"""

import torch
from torch import Tensor, nn
from torch.library import custom_op
from torch.nn import functional as F

from ncollapse.models import norm
from ncollapse.models.operators import call_operator

COLUMNS = 32
"""Values of a window, filled up with zeros."""


def convolve_stem(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """conv(x) of a network's input.

    >>> convolve_stem(nn.Conv2d(3, 4, 3, padding=1), torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 4, 8, 8])
    """
    if not can_multiply(conv, x):
        return conv(x)  # type: ignore[no-any-return]
    images, _, height, width = x.shape
    windows = call_operator(unfold_windows, x)
    kernel = conv.weight.permute(0, 2, 3, 1).flatten(1)
    y = F.linear(windows, F.pad(kernel, (0, COLUMNS - kernel.shape[1])))
    return y.view(images, height, width, -1).permute(0, 3, 1, 2)


def can_multiply(conv: nn.Conv2d, x: Tensor) -> bool:
    """Whether this is a 3 x 3 convolution of few channels under bfloat16 autocast on a GPU."""
    if not (norm.has_kernels() and x.is_cuda) or torch.compiler.is_compiling() or x.requires_grad:
        return False
    if not torch.is_autocast_enabled("cuda") or torch.get_autocast_dtype("cuda") != torch.bfloat16:
        return False
    plain = conv.kernel_size == (3, 3) and conv.stride == (1, 1) and conv.padding == (1, 1) and conv.bias is None
    if not plain or conv.in_channels * 9 > COLUMNS or conv._forward_hooks or conv._forward_pre_hooks:
        return False
    return x.dtype in (torch.float32, torch.bfloat16) and x.is_contiguous(memory_format=torch.channels_last)


@custom_op("ncollapse::unfold_windows", mutates_args=(), device_types="cuda")
def unfold_windows(x: Tensor) -> Tensor:
    """The 3 x 3 window of each pixel of x [B, C, H, W] as [B H W, 32]: rows, columns, channels; in bfloat16."""
    from ncollapse.models.fused_stem import copy_windows

    with torch.cuda.device(x.device):  # Triton launches on the current one
        return copy_windows(x, COLUMNS)


@unfold_windows.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty((x.numel() // x.shape[1], COLUMNS), dtype=torch.bfloat16)
