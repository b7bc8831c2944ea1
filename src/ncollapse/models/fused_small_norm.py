"""Triton kernels of batch normalisation + residual + ReLU of a small map: one launch each way instead of two.

A program holds all rows of some channels, so that it needs no sums of others. The formulas are those of `fused_norm`,
but the variance is the mean of squares after the mean was taken off.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from ncollapse.models.fused_sums import track

MOST_ROWS, CHANNELS = 2048, 16
"""Rows that a program can hold, and its channels: in bfloat16, 32 bytes of a row, which the GPU reads at a time."""


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _normalise(  # type: ignore[no-untyped-def]
    x, residual, weight, bias, running_mean, running_var, tracked, mean, variance, y, m, c, momentum, eps,
    HAS_RESIDUAL: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0)
    row, channel = tl.arange(0, ROWS), column * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < c
    mask = (row < m)[:, None] & inside[None, :]
    at = row[:, None] * c + channel[None, :]
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    centre = tl.sum(value, 0) / m
    value = tl.where(mask, value - centre[None, :], 0.0)
    spread = tl.sum(value * value, 0) / m
    scale = 1.0 / tl.sqrt(spread + eps) * tl.load(weight + channel, mask=inside, other=0.0)
    value = value * scale[None, :] + tl.load(bias + channel, mask=inside, other=0.0)[None, :]
    if HAS_RESIDUAL:
        value += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    if RELU:
        value = tl.where(value < 0.0, 0.0, value)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=mask)
    tl.store(mean + channel, centre, mask=inside)
    tl.store(variance + channel, spread, mask=inside)
    track(running_mean, running_var, tracked, centre, spread, m, momentum, channel, inside, column)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _differentiate(  # type: ignore[no-untyped-def]
    dy, dy_second, y, x, weight, bias, mean, variance, g_out, dx, sums, m, c, ld, eps,
    RELU: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_SECOND: tl.constexpr, ADD: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """x and dx may be some of the channels of wider maps, whose rows lie `ld` values apart; with ADD dx is added to."""
    row, channel = tl.arange(0, ROWS), tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < c
    mask = (row < m)[:, None] & inside[None, :]
    at, wide = row[:, None] * c + channel[None, :], row[:, None] * ld + channel[None, :]
    centre = tl.load(mean + channel, mask=inside, other=0.0)
    invstd = 1.0 / tl.sqrt(tl.load(variance + channel, mask=inside, other=1.0) + eps)
    scale = invstd * tl.load(weight + channel, mask=inside, other=0.0)
    g = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
    value = tl.load(x + wide, mask=mask, other=0.0).to(tl.float32) - centre[None, :]
    if HAS_SECOND:
        g += tl.load(dy_second + at, mask=mask, other=0.0).to(tl.float32)
    if RELU:
        if HAS_RESIDUAL:
            g = tl.where(tl.load(y + at, mask=mask, other=0.0).to(tl.float32) > 0.0, g, 0.0)
        else:
            shift = tl.load(bias + channel, mask=inside, other=0.0)
            g = tl.where(value * scale[None, :] + shift[None, :] > 0.0, g, 0.0)
    if HAS_SECOND or (RELU and HAS_RESIDUAL):
        rounded = g.to(g_out.dtype.element_ty)
        tl.store(g_out + at, rounded, mask=mask)
        g = rounded.to(tl.float32)
    total = tl.sum(tl.where(mask, g, 0.0), 0)
    products = tl.sum(tl.where(mask, g * value, 0.0), 0) * invstd
    tl.store(sums + channel, products, mask=inside)
    tl.store(sums + c + channel, total, mask=inside)
    grad = scale[None, :] * (g - (total / m)[None, :] - value * (invstd * products / m)[None, :])
    if ADD:
        grad += tl.load(dx + wide, mask=mask, other=0.0).to(tl.float32)
    tl.store(dx + wide, grad.to(dx.dtype.element_ty), mask=mask)


def is_small(rows: int) -> bool:
    """Whether a program can hold so many rows."""
    return rows <= MOST_ROWS


def _launch(m: int, c: int) -> tuple[tuple[int], tuple[int, int], int]:
    """(programs, tile, warps)."""
    rows = max(16, triton.next_power_of_2(m))
    return (triton.cdiv(c, CHANNELS),), (rows, CHANNELS), max(2, rows // 128)


def normalise_small(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    tracked: Tensor,
    momentum: float,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor]:
    """(relu(norm(x) + residual), mean and biased variance of x [2, C]); the running statistics are updated."""
    c = x.shape[1]
    m = x.numel() // c
    y, stats = torch.empty_like(x), torch.empty(2, c, dtype=torch.float32, device=x.device)
    programs, tile, warps = _launch(m, c)
    _normalise[programs](
        x, residual, weight, bias, running_mean, running_var, tracked, stats, stats[1], y, m, c, momentum, eps,
        residual is not None, relu, *tile, num_warps=warps,
    )  # fmt: skip
    return y, stats


def differentiate_small(
    dy: Tensor,
    dy_second: Tensor | None,
    x: Tensor,
    y: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    stats: Tensor,
    eps: float,
    relu: bool,
    g: Tensor,
    dx: Tensor,
    *,
    add: bool = False,
) -> Tensor:
    """[d_weight, d_bias]; fills `dx`, or adds to it, and `g` where a second gradient or a residual makes it differ."""
    c = dy.shape[1]
    m = dy.numel() // c
    sums = torch.empty(2, c, dtype=torch.float32, device=dy.device)
    programs, tile, warps = _launch(m, c)
    _differentiate[programs](
        dy, dy_second, y, x, weight, bias, stats, stats[1], g, dx, sums, m, c, x.shape[1], eps,
        relu, y is not None, dy_second is not None, add, *tile, num_warps=warps,
    )  # fmt: skip
    return sums
