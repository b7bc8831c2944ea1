"""The Triton kernel that lays the 3 x 3 windows of a channels-last map out as the rows of a matrix."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

ROWS = 128


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _copy_windows(  # type: ignore[no-untyped-def]
    x, windows, m, c, height, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    value = tl.arange(0, COLUMNS)
    row = (pixel // width % height)[:, None] + (value // (3 * c) - 1)[None, :]
    column = (pixel % width)[:, None] + (value // c % 3 - 1)[None, :]
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & (value < 9 * c)[None, :]
    image = (pixel // (height * width))[:, None].to(tl.int64)
    source = ((image * height + row) * width + column) * c + (value % c)[None, :]
    found = tl.load(x + source, mask=inside & (pixel < m)[:, None], other=0.0)
    to = windows + pixel[:, None].to(tl.int64) * COLUMNS + value[None, :]
    tl.store(to, found.to(windows.dtype.element_ty), mask=(pixel < m)[:, None])


def copy_windows(x: Tensor, columns: int) -> Tensor:
    """[B H W, columns] of x [B, C, H, W]: the window's rows, columns and channels, then zeros."""
    _, c, height, width = x.shape
    m = x.numel() // c
    windows = torch.empty(m, columns, dtype=torch.bfloat16, device=x.device)
    _copy_windows[(triton.cdiv(m, ROWS),)](x, windows, m, c, height, width, ROWS, columns)
    return windows
