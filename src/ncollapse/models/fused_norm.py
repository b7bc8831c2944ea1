"""Batch normalisation + residual + ReLU as Triton kernels over a channels-last map, read as a matrix [M, C].

torch's channels-last kernels for bfloat16 take 830 of the 2,900 microseconds of a ResNet18 step on an H200 (batch 128),
the ReLUs and additions around them another 260. Here each direction makes two passes over the map:

    forward:   sums of (x - r) and (x - r)^2 by channel, r the running mean;  y = relu(x scale + shift + residual)
    backward:  g = dy [y > 0]; sums of g and g xhat;  dx = weight invstd (g - mean g - xhat mean(g xhat)), dres = g

Without a residual y is not read again: its sign follows from x. With one, the first pass writes g for the second.

Sums are float32, by blocks of rows, and the blocks are added in a fixed order: the result is deterministic.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor, nn

ROWS, CHANNELS = 64, 64
"""The tile one program works on at a time."""
BLOCKS, NARROW = 256, 16
"""The tile in which partial sums are added up."""
PROGRAMS = 528
"""Programs that sum side by side at most: four for each multiprocessor of the H200, the fastest of those tried."""


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _sum_forward(x, shift, partial, m, c, span, ROWS: tl.constexpr, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    block, channel = tl.program_id(0), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < c
    r = tl.load(shift + channel, mask=inside, other=0.0)
    first = tl.zeros((ROWS, CHANNELS), tl.float32)  # added up once, at the end
    second = tl.zeros((ROWS, CHANNELS), tl.float32)
    for start in range(block * span, tl.minimum(block * span + span, m), ROWS):
        row = start + tl.arange(0, ROWS)
        mask = (row < m)[:, None] & inside[None, :]
        value = tl.load(x + row[:, None].to(tl.int64) * c + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, value - r[None, :], 0.0)
        first += value
        second += value * value
    tl.store(partial + block * 2 * c + channel, tl.sum(first, 0), mask=inside)
    tl.store(partial + block * 2 * c + c + channel, tl.sum(second, 0), mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _add_up(  # type: ignore[no-untyped-def]
    partial, channel, inside, c, blocks, BLOCKS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    first = tl.zeros((CHANNELS,), tl.float32)
    second = tl.zeros((CHANNELS,), tl.float32)
    for start in range(0, blocks, BLOCKS):
        block = start + tl.arange(0, BLOCKS)
        mask = (block < blocks)[:, None] & inside[None, :]
        at = partial + block[:, None] * 2 * c + channel[None, :]
        first += tl.sum(tl.load(at, mask=mask, other=0.0), 0)
        second += tl.sum(tl.load(at + c, mask=mask, other=0.0), 0)
    return first, second


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _finish_forward(  # type: ignore[no-untyped-def]
    partial, running_mean, running_var, tracked, mean, invstd, m, c, blocks, momentum, eps,
    BLOCKS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < c
    first, second = _add_up(partial, channel, inside, c, blocks, BLOCKS, CHANNELS)
    r = tl.load(running_mean + channel, mask=inside, other=0.0)
    v = tl.load(running_var + channel, mask=inside, other=0.0)
    offset = first / m
    centre = r + offset
    variance = second / m - offset * offset
    variance = tl.where(variance < 0.0, 0.0, variance)  # not a maximum, which would lose NaN
    tl.store(mean + channel, centre, mask=inside)
    tl.store(invstd + channel, 1.0 / tl.sqrt(variance + eps), mask=inside)
    tl.store(running_mean + channel, r + momentum * (centre - r), mask=inside)
    tl.store(running_var + channel, v + momentum * (variance * (m / (m - 1.0)) - v), mask=inside)
    if tl.program_id(0) == 0:
        tl.store(tracked, tl.load(tracked) + 1)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _apply_forward(  # type: ignore[no-untyped-def]
    x, residual, weight, bias, mean, spread, y, m, c, eps,
    HAS_RESIDUAL: tl.constexpr, RELU: tl.constexpr, FROM_VARIANCE: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < c
    mask = (row < m)[:, None] & inside[None, :]
    invstd = tl.load(spread + channel, mask=inside, other=1.0)
    if FROM_VARIANCE:
        invstd = 1.0 / tl.sqrt(invstd + eps)
    scale = invstd * tl.load(weight + channel, mask=inside, other=0.0)
    centre = tl.load(mean + channel, mask=inside, other=0.0)
    at = row[:, None].to(tl.int64) * c + channel[None, :]
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    value = (value - centre[None, :]) * scale[None, :] + tl.load(bias + channel, mask=inside, other=0.0)[None, :]
    if HAS_RESIDUAL:
        value += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    if RELU:
        value = tl.where(value < 0.0, 0.0, value)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=mask)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _sum_backward(  # type: ignore[no-untyped-def]
    dy, y, x, weight, bias, mean, invstd, partial, d_residual, m, c, span,
    RELU: tl.constexpr, HAS_RESIDUAL: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    block, channel = tl.program_id(0), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < c
    centre = tl.load(mean + channel, mask=inside, other=0.0)
    spread = tl.load(invstd + channel, mask=inside, other=0.0)
    scale = spread * tl.load(weight + channel, mask=inside, other=0.0)
    shift = tl.load(bias + channel, mask=inside, other=0.0)
    first = tl.zeros((ROWS, CHANNELS), tl.float32)
    second = tl.zeros((ROWS, CHANNELS), tl.float32)
    for start in range(block * span, tl.minimum(block * span + span, m), ROWS):
        row = start + tl.arange(0, ROWS)
        mask = (row < m)[:, None] & inside[None, :]
        at = row[:, None].to(tl.int64) * c + channel[None, :]
        g = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - centre[None, :]
        if HAS_RESIDUAL:
            g = tl.where(tl.load(y + at, mask=mask, other=0.0).to(tl.float32) > 0.0, g, 0.0)
            tl.store(d_residual + at, g.to(d_residual.dtype.element_ty), mask=mask)
        elif RELU:
            g = tl.where(value * scale[None, :] + shift[None, :] > 0.0, g, 0.0)
        first += g
        second += g * value * spread[None, :]
    tl.store(partial + block * 2 * c + channel, tl.sum(first, 0), mask=inside)
    tl.store(partial + block * 2 * c + c + channel, tl.sum(second, 0), mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _finish_backward(  # type: ignore[no-untyped-def]
    partial, d_weight, d_bias, c, blocks, BLOCKS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < c
    first, second = _add_up(partial, channel, inside, c, blocks, BLOCKS, CHANNELS)
    tl.store(d_bias + channel, first, mask=inside)
    tl.store(d_weight + channel, second, mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _apply_backward(  # type: ignore[no-untyped-def]
    dy, x, weight, bias, mean, invstd, d_weight, d_bias, dx, m, c,
    RELU: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < c
    mask = (row < m)[:, None] & inside[None, :]
    at = row[:, None].to(tl.int64) * c + channel[None, :]
    spread = tl.load(invstd + channel, mask=inside, other=0.0)
    centre = tl.load(mean + channel, mask=inside, other=0.0)
    scale = spread * tl.load(weight + channel, mask=inside, other=0.0)
    mean_g = tl.load(d_bias + channel, mask=inside, other=0.0) / m
    mean_gx = tl.load(d_weight + channel, mask=inside, other=0.0) / m
    g = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - centre[None, :]
    if RELU:
        shift = tl.load(bias + channel, mask=inside, other=0.0)
        g = tl.where(value * scale[None, :] + shift[None, :] > 0.0, g, 0.0)
    grad = scale[None, :] * (g - mean_g[None, :] - value * (spread * mean_gx)[None, :])
    tl.store(dx + at, grad.to(dx.dtype.element_ty), mask=mask)


def _shape(x: Tensor) -> tuple[int, int, int, int, int]:
    """(rows M, channels C, blocks of rows, rows a block, blocks of channels)."""
    c = x.shape[1]
    m = x.numel() // c
    columns = triton.cdiv(c, CHANNELS)
    tiles = triton.cdiv(m, ROWS)
    span = triton.cdiv(tiles, max(1, min(tiles, PROGRAMS // columns))) * ROWS
    return m, c, triton.cdiv(m, span), span, columns


class _NormReLU(torch.autograd.Function):
    """The training step's two directions; see the module's docstring."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, norm: nn.BatchNorm2d, relu: bool
    ) -> Tensor:
        m, c, blocks, span, columns = _shape(x)
        partial = torch.empty(blocks, 2, c, dtype=torch.float32, device=x.device)
        mean, invstd = torch.empty(2, c, dtype=torch.float32, device=x.device)
        y = torch.empty_like(x)
        _sum_forward[blocks, columns](x, norm.running_mean, partial, m, c, span, ROWS, CHANNELS)
        _finish_forward[(triton.cdiv(c, NARROW),)](
            partial, norm.running_mean, norm.running_var, norm.num_batches_tracked, mean, invstd,
            m, c, blocks, norm.momentum, norm.eps, BLOCKS, NARROW,
        )  # fmt: skip
        _apply_forward[triton.cdiv(m, ROWS), columns](
            x, residual, weight, bias, mean, invstd, y, m, c, norm.eps,
            residual is not None, relu, False, ROWS, CHANNELS,
        )  # fmt: skip
        ctx.has_residual, ctx.relu = residual is not None, relu
        ctx.save_for_backward(x, y if relu and ctx.has_residual else None, weight, bias, mean, invstd)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, bias, mean, invstd = ctx.saved_tensors
        dy = dy.to(x.dtype).contiguous(memory_format=torch.channels_last)
        m, c, blocks, span, columns = _shape(x)
        partial = torch.empty(blocks, 2, c, dtype=torch.float32, device=x.device)
        d_weight, d_bias = torch.empty(2, c, dtype=torch.float32, device=x.device)
        dx = torch.empty_like(x)
        g = dy if y is None else torch.empty_like(x)  # where the ReLU cuts a sum, its gradient is the residual's too
        with torch.cuda.device(x.device):
            _sum_backward[blocks, columns](
                dy, y, x, weight, bias, mean, invstd, partial, g, m, c, span, ctx.relu, y is not None, ROWS, CHANNELS
            )
            _finish_backward[(triton.cdiv(c, NARROW),)](partial, d_weight, d_bias, c, blocks, BLOCKS, NARROW)
            _apply_backward[triton.cdiv(m, ROWS), columns](
                g, x, weight, bias, mean, invstd, d_weight, d_bias, dx, m, c, ctx.relu and y is None, ROWS, CHANNELS
            )
        return dx, d_weight, d_bias, g if ctx.has_residual else None, None, None


def fused_norm_relu(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
    """relu(norm(x) + residual) for a case that `norm.can_fuse` accepts."""
    with torch.cuda.device(x.device):  # Triton launches on the current one
        return _fuse(norm, x, residual, relu)


def _fuse(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
    if norm.training:
        return _NormReLU.apply(x, norm.weight, norm.bias, residual, norm, relu)  # type: ignore[no-any-return, no-untyped-call]
    if torch.is_grad_enabled() and (x.requires_grad or norm.weight.requires_grad):
        y = norm(x) if residual is None else norm(x) + residual
        return torch.relu(y) if relu else y
    m, c, _, _, columns = _shape(x)
    y = torch.empty_like(x)
    _apply_forward[triton.cdiv(m, ROWS), columns](
        x, residual, norm.weight, norm.bias, norm.running_mean, norm.running_var, y, m, c, norm.eps,
        residual is not None, relu, True, ROWS, CHANNELS,
    )  # fmt: skip
    return y
