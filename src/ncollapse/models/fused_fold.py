"""The Triton kernel that folds the running statistics of a batch norm into the weights of a convolution."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _scale_kernel(  # type: ignore[no-untyped-def]
    kernel, weight, bias, mean, variance, shift, scaled, total, size, eps, HAS_SHIFT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    scale = tl.load(weight + channel) / tl.sqrt(tl.load(variance + channel) + eps)
    values = tl.load(kernel + channel * size + at, mask=at < size, other=0.0) * scale
    tl.store(scaled + channel * size + at, values.to(scaled.dtype.element_ty), mask=at < size)
    if tl.program_id(1) == 0:
        constant = tl.load(bias + channel) - tl.load(mean + channel) * scale
        if HAS_SHIFT:
            constant += tl.load(shift + channel)
        tl.store(total + channel, constant.to(total.dtype.element_ty))


def scale_kernel(
    kernel: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    shift: Tensor | None,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """(kernel weight / sqrt(variance + eps) in bfloat16, bias - mean weight / sqrt(variance + eps) + shift in `dtype`).

    The kernel [out, in, height, width] may have any memory format in which an output channel's weights are contiguous.
    """
    channels, size = len(kernel), kernel[0].numel()
    scaled = torch.empty_like(kernel, dtype=torch.bfloat16)
    total = torch.empty(channels, dtype=dtype, device=kernel.device)
    _scale_kernel[channels, triton.cdiv(size, BLOCK)](
        kernel, weight, bias, mean, variance, shift, scaled, total, size, eps, shift is not None, BLOCK
    )
    return scaled, total
