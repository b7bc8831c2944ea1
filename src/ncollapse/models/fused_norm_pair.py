"""Triton kernels of y = relu(norm(x) + norm'(x')), the end of a residual block whose shortcut has a norm of its own.

    forward:   y = relu(x scale + shift + x' scale' + shift'), and the bits of y > 0
    backward:  g = (dy + dy') [y > 0]; sums of g, g xhat and g xhat';  dx and dx' as in `fused_norm`

Apart, the norms would write and read the shortcut's map and read g twice more: four passes over a map.
The statistics of x and x' are taken before, each by itself (`fused_norm.compute_statistics`).
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from ncollapse.models.fused_norm import (
    ADDED,
    BACKWARD_STAGES,
    is_last,
    load_bytes,
    load_channels,
    locate_tile,
    make_scratch,
    plan_pass,
    plan_sums,
    store_bits,
    unpack,
)

SUM_TILE = (16, 64)
"""Rows and channels of a program at a time in the sums.

With this tile four programs fit into a multiprocessor's registers, as `fused_norm.PROGRAMS` expects."""


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _add_up_three(partial, blocks, CHANNELS: tl.constexpr, ADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """The three sums over [blocks, 3, CHANNELS], always in the same order."""
    first = tl.zeros((ADDED, CHANNELS), tl.float32)
    second = tl.zeros((ADDED, CHANNELS), tl.float32)
    third = tl.zeros((ADDED, CHANNELS), tl.float32)
    for start in range(0, blocks, ADDED):
        block = start + tl.arange(0, ADDED)[:, None]
        at = partial + block * 3 * CHANNELS + tl.arange(0, CHANNELS)[None, :]
        first += tl.load(at, mask=block < blocks, other=0.0, cache_modifier=".cg")
        second += tl.load(at + CHANNELS, mask=block < blocks, other=0.0, cache_modifier=".cg")
        third += tl.load(at + 2 * CHANNELS, mask=block < blocks, other=0.0, cache_modifier=".cg")
    return tl.sum(first, 0), tl.sum(second, 0), tl.sum(third, 0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _apply_forward_pair(  # type: ignore[no-untyped-def]
    x, x_other, weight, bias, stats, weight_other, bias_other, stats_other, y, bits, m, c, eps, eps_other,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row, channel, inside, mask, at = locate_tile(m, c, ROWS, CHANNELS)
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    other = tl.load(x_other + at, mask=mask, other=0.0).to(tl.float32)
    mean, _, scale = load_channels(stats, stats + c, weight, channel, inside, eps)
    mean_other, _, scale_other = load_channels(stats_other, stats_other + c, weight_other, channel, inside, eps_other)
    shift = tl.load(bias + channel, mask=inside, other=0.0) + tl.load(bias_other + channel, mask=inside, other=0.0)
    value = (value - mean[None, :]) * scale[None, :] + (other - mean_other[None, :]) * scale_other[None, :]
    value += shift[None, :]
    value = tl.where(value < 0.0, 0.0, value)  # not a maximum, which would lose NaN
    rounded = value.to(y.dtype.element_ty)
    tl.store(y + at, rounded, mask=mask)
    store_bits(bits, rounded, row, m, c, tl.program_id(1), ROWS, CHANNELS)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _sum_backward_pair(  # type: ignore[no-untyped-def]
    dy, dy_second, bits, x, x_other, weight, stats, weight_other, stats_other, partial, ticket, g_out, sums,
    m, c, blocks, eps, eps_other,
    HAS_SECOND: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, ADDED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """`sums` are the gradients of weight, bias, and the other weight and bias [4, C]."""
    block, column = tl.program_id(0), tl.program_id(1)
    channel = column * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < c
    mean, invstd, _ = load_channels(stats, stats + c, weight, channel, inside, eps)
    mean_other, invstd_other, _ = load_channels(stats_other, stats_other + c, weight_other, channel, inside, eps_other)
    first = tl.zeros((ROWS, CHANNELS), tl.float32)
    second = tl.zeros((ROWS, CHANNELS), tl.float32)
    third = tl.zeros((ROWS, CHANNELS), tl.float32)
    tiles = tl.cdiv(m, ROWS)
    packed = load_bytes(bits, (tiles - 1 - block) * ROWS + tl.arange(0, ROWS), m, c, column, CHANNELS)
    for tile in tl.range(block, tiles, blocks, num_stages=STAGES):
        row = (tiles - 1 - tile) * ROWS + tl.arange(0, ROWS)
        mask = (row < m)[:, None] & inside[None, :]
        at = row[:, None].to(tl.int64) * c + channel[None, :]
        g = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - mean[None, :]
        other = tl.load(x_other + at, mask=mask, other=0.0).to(tl.float32) - mean_other[None, :]
        if HAS_SECOND:
            g += tl.load(dy_second + at, mask=mask, other=0.0).to(tl.float32)
        g = tl.where(unpack(packed, ROWS, CHANNELS), g, 0.0)
        packed = load_bytes(bits, row - blocks * ROWS, m, c, column, CHANNELS)
        rounded = g.to(g_out.dtype.element_ty)
        tl.store(g_out + at, rounded, mask=mask)
        g = rounded.to(tl.float32)  # the sums are those of what the second pass reads
        first += g
        second += g * value
        third += g * other
    mine = partial + (column * blocks + block) * 3 * CHANNELS + tl.arange(0, CHANNELS)
    tl.store(mine, tl.sum(first, 0))
    tl.store(mine + CHANNELS, tl.sum(second, 0))
    tl.store(mine + 2 * CHANNELS, tl.sum(third, 0))
    if is_last(ticket + column, blocks):
        tl.store(ticket + column, 0)
        total, products, others = _add_up_three(partial + column * blocks * 3 * CHANNELS, blocks, CHANNELS, ADDED)
        tl.store(sums + channel, products * invstd, mask=inside)
        tl.store(sums + c + channel, total, mask=inside)
        tl.store(sums + 2 * c + channel, others * invstd_other, mask=inside)
        tl.store(sums + 3 * c + channel, total, mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _apply_backward_pair(  # type: ignore[no-untyped-def]
    g_in, x, x_other, weight, stats, weight_other, stats_other, sums, dx, dx_other, m, c, eps, eps_other,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """`g_in` and `dx_other` may be the same map."""
    _, channel, inside, mask, at = locate_tile(m, c, ROWS, CHANNELS)
    g = tl.load(g_in + at, mask=mask, other=0.0).to(tl.float32)
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    other = tl.load(x_other + at, mask=mask, other=0.0).to(tl.float32)
    mean, invstd, scale = load_channels(stats, stats + c, weight, channel, inside, eps)
    mean_other, invstd_other, scale_other = load_channels(
        stats_other, stats_other + c, weight_other, channel, inside, eps_other
    )
    slope = invstd * tl.load(sums + channel, mask=inside, other=0.0) / m
    slope_other = invstd_other * tl.load(sums + 2 * c + channel, mask=inside, other=0.0) / m
    g -= (tl.load(sums + c + channel, mask=inside, other=0.0) / m)[None, :]
    grad = scale[None, :] * (g - (value - mean[None, :]) * slope[None, :])
    tl.store(dx + at, grad.to(dx.dtype.element_ty), mask=mask)
    grad = scale_other[None, :] * (g - (other - mean_other[None, :]) * slope_other[None, :])
    tl.store(dx_other + at, grad.to(dx_other.dtype.element_ty), mask=mask)


def apply_pair(
    x: Tensor,
    x_other: Tensor,
    weight: Tensor,
    bias: Tensor,
    stats: Tensor,
    weight_other: Tensor,
    bias_other: Tensor,
    stats_other: Tensor,
    eps: float,
    eps_other: float,
) -> tuple[Tensor, Tensor]:
    """(y, the bits of y > 0); stats are means and biased variances [2, C]."""
    y = torch.empty_like(x)
    m, c, programs, tile = plan_pass(y)
    bits = torch.empty(m, c // 8, dtype=torch.uint8, device=x.device)
    _apply_forward_pair[programs](
        x, x_other, weight, bias, stats, weight_other, bias_other, stats_other, y, bits, m, c, eps, eps_other, *tile,
    )  # fmt: skip
    return y, bits


def differentiate_pair(
    dy: Tensor,
    dy_second: Tensor | None,
    x: Tensor,
    x_other: Tensor,
    bits: Tensor,
    weight: Tensor,
    stats: Tensor,
    weight_other: Tensor,
    stats_other: Tensor,
    eps: float,
    eps_other: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dx, dx', the gradients of weight, bias, weight' and bias' [4, C])."""
    m, c, blocks, columns = plan_sums(x, SUM_TILE)
    partial, ticket = make_scratch(x, blocks, columns, 3 * SUM_TILE[1])
    sums = torch.empty(4, c, dtype=torch.float32, device=x.device)
    dx, dx_other = torch.empty_like(x), torch.empty_like(x)
    _sum_backward_pair[blocks, columns](
        dy, dy_second, bits, x, x_other, weight, stats, weight_other, stats_other,
        partial, ticket, dx_other, sums, m, c, blocks, eps, eps_other,
        dy_second is not None, *SUM_TILE, ADDED, BACKWARD_STAGES,
    )  # fmt: skip
    _, _, programs, tile = plan_pass(x)
    _apply_backward_pair[programs](
        dx_other, x, x_other, weight, stats, weight_other, stats_other, sums, dx, dx_other,
        m, c, eps, eps_other, *tile,
    )  # fmt: skip
    return dx, dx_other, sums
