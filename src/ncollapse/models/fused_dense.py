"""Triton kernels of a dense block's wide map [B, C, H, W], which lies channels last and is read as a matrix [M, C].

Every layer normalises the channels before its own, with the same means and variances as the layers before it. So one
pass over a channel can write relu(norm) for several layers.

A channel's gradient is a sum over the layers after it:

    d = sum over layers of  scale (g - mean g - xhat mean(g xhat)),    g = dy [norm(x) > 0],   scale = weight invstd

The means are known only after a pass over the map. But they belong to terms that are affine in x, with the same
coefficients in every row of a channel. So one pass adds scale g to the gradient of the wide map and sums g and
g (x - mean), and the rest is kept as two numbers a channel (`coefficients`), to which all layers add:

    d = total - coefficients[0] - coefficients[1] (x - mean)

This is computed where a channel's gradient is used, once: as the channels are copied out of the wide map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from ncollapse.models.fused_norm import (
    ADDED,
    STATISTICS_STAGES,
    SUM_TILE,
    _statistics,
    add_up,
    choose_tile,
    is_last,
    make_scratch,
    plan_pass,
    plan_sums,
    track,
)

SHARED_TILE = (32, 32)
"""Rows and channels that a program adds at a time for several layers at once, whose sums need more registers."""
ADD_PROGRAMS, ADD_WARPS, ADD_STAGES = 528, 4, 3
"""Programs that add side by side at most, half as many for more than two layers. Warps of each. Tiles that a program
has under way: while it adds one, those after it are copied into shared memory."""
NARROW, NARROW_VALUES = 64, 4096
"""From so many blocks of sums on, which only maps with few channels have, so many sums are added at a time."""
VALUES, TRACKED = 4096, 128
"""Values of a program that sums nothing, and channels of one that moves running statistics."""


class LayerGradient(NamedTuple):
    """The gradient of relu(norm) of a wide map's first channels, as many as dy has, and the norm's parameters."""

    dy: Tensor
    weight: Tensor
    bias: Tensor
    eps: float
    sums: Tensor
    """[d_weight, d_bias], which `add_gradients` fills in."""


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _append(parts, part):  # type: ignore[no-untyped-def]
    return parts + (part,)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _apply_norms(  # type: ignore[no-untyped-def]
    y, ld_y, weight, bias, eps, running_mean, running_var, tracked, momentum, x, mean, variance, m, c, ld, low,
    COUNT: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The first nine arguments are tuples, with one part for each of COUNT layers."""
    block, column = tl.program_id(0), tl.program_id(1)
    row = (block * ROWS + tl.arange(0, ROWS))[:, None]
    channel = column * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < c
    mask = (row < m) & inside[None, :]
    centre = tl.load(mean + channel, mask=inside, other=0.0)
    spread = tl.load(variance + channel, mask=inside, other=1.0)
    value = tl.load(x + row.to(tl.int64) * ld + channel[None, :], mask=mask, other=0.0).to(tl.float32)
    value -= centre[None, :]
    for i in tl.static_range(COUNT):
        scale = 1.0 / tl.sqrt(spread + eps[i]) * tl.load(weight[i] + channel, mask=inside, other=0.0)
        shift = tl.load(bias[i] + channel, mask=inside, other=0.0)
        normed = value * scale[None, :] + shift[None, :]
        normed = tl.where(normed < 0.0, 0.0, normed)  # not a maximum, which would lose NaN
        at = row.to(tl.int64) * ld_y[i] + channel[None, :]
        tl.store(y[i] + at, normed.to(y[i].dtype.element_ty), mask=mask)
    if block == 0:
        column += low  # a layer's first channels count the batch
        for i in tl.static_range(COUNT):
            track(
                running_mean[i], running_var[i], tracked[i], centre, spread, m, momentum[i], channel, inside, column
            )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _track_known(  # type: ignore[no-untyped-def]
    running_mean, running_var, tracked, mean, variance, m, c, momentum, CHANNELS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0)
    channel = column * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < c
    centre = tl.load(mean + channel, mask=inside, other=0.0)
    spread = tl.load(variance + channel, mask=inside, other=0.0)
    track(running_mean, running_var, tracked, centre, spread, m, momentum, channel, inside, column)


@triton.jit(do_not_specialize=["fresh", "blocks"])  # type: ignore[untyped-decorator, unused-ignore]
def _add_gradients(  # type: ignore[no-untyped-def]
    dy, ld_dy, weight, bias, eps, sums, x, mean, variance, source, total, coefficients, partial, ticket,
    m, c, ld, blocks, fresh,
    COUNT: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, ADDED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The first six arguments are tuples, with one part for each of COUNT layers."""
    block, column = tl.program_id(0), tl.program_id(1)
    channel = column * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < c
    centre = tl.load(mean + channel, mask=inside, other=0.0)
    spread = tl.load(variance + channel, mask=inside, other=1.0)
    scale, shift, first, second = (), (), (), ()
    for i in tl.static_range(COUNT):
        invstd = 1.0 / tl.sqrt(spread + eps[i])
        scale = _append(scale, invstd * tl.load(weight[i] + channel, mask=inside, other=0.0))
        shift = _append(shift, tl.load(bias[i] + channel, mask=inside, other=0.0))
        first = _append(first, tl.zeros((ROWS, CHANNELS), tl.float32))
        second = _append(second, tl.zeros((ROWS, CHANNELS), tl.float32))
    tiles = tl.cdiv(m, ROWS)
    for tile in tl.range(block, tiles, blocks, num_stages=STAGES):
        row = ((tiles - 1 - tile) * ROWS + tl.arange(0, ROWS))[:, None]  # the end of dy is still in the cache
        mask = (row < m) & inside[None, :]
        at = row.to(tl.int64) * ld + channel[None, :]
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - centre[None, :]
        added = tl.load(source + at, mask=mask, other=0.0).to(tl.float32)
        sum_g, sum_gx = (), ()
        for i in tl.static_range(COUNT):
            g = tl.load(dy[i] + row.to(tl.int64) * ld_dy[i] + channel[None, :], mask=mask, other=0.0).to(tl.float32)
            g = tl.where(value * scale[i][None, :] + shift[i][None, :] > 0.0, g, 0.0)
            added += scale[i][None, :] * g
            sum_g = _append(sum_g, first[i] + g)
            sum_gx = _append(sum_gx, second[i] + g * value)
        first, second = sum_g, sum_gx
        tl.store(total + at, added.to(total.dtype.element_ty), mask=mask)
    for i in tl.static_range(COUNT):
        mine = partial + ((column * COUNT + i) * blocks + block) * 2 * CHANNELS + tl.arange(0, CHANNELS)
        tl.store(mine, tl.sum(first[i], 0))
        tl.store(mine + CHANNELS, tl.sum(second[i], 0))
    if is_last(ticket + column, blocks):
        tl.store(ticket + column, 0)
        known = inside & (fresh == 0)
        offset = tl.load(coefficients + channel, mask=known, other=0.0)
        slope = tl.load(coefficients + ld + channel, mask=known, other=0.0)
        for i in tl.static_range(COUNT):
            d_bias, products = add_up(partial + (column * COUNT + i) * blocks * 2 * CHANNELS, blocks, CHANNELS, ADDED)
            invstd = 1.0 / tl.sqrt(spread + eps[i])
            tl.store(sums[i] + channel, products * invstd, mask=inside)
            tl.store(sums[i] + ld_dy[i] + channel, d_bias, mask=inside)
            offset += scale[i] * (d_bias / m)
            slope += scale[i] * invstd * (products * invstd / m)
        tl.store(coefficients + channel, offset, mask=inside)
        tl.store(coefficients + ld + channel, slope, mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _copy_gradient(  # type: ignore[no-untyped-def]
    total, x, mean, coefficients, dx, m, c, ld,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < c
    mask = (row < m) & inside[None, :]
    offset = tl.load(coefficients + channel, mask=inside, other=0.0)
    slope = tl.load(coefficients + ld + channel, mask=inside, other=0.0)
    centre = tl.load(mean + channel, mask=inside, other=0.0)
    at = row.to(tl.int64) * ld + channel[None, :]
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - centre[None, :]
    grad = tl.load(total + at, mask=mask, other=0.0).to(tl.float32) - offset[None, :] - value * slope[None, :]
    tl.store(dx + row.to(tl.int64) * c + channel[None, :], grad.to(dx.dtype.element_ty), mask=mask)


def _added(blocks: int, channels: int) -> int:
    """Blocks of sums that are added at a time."""
    return NARROW_VALUES // channels if blocks >= NARROW else ADDED


def append_channels(new: Tensor, wide: Tensor, stats: Tensor, start: int) -> None:
    """Copy a map into channels `start`... of a wider one, and its mean and variance into those of stats [2, C].

    The sums are those of differences from the first pixel, so that they stay exact where the mean is far from 0.
    """
    m, c, blocks, columns = plan_sums(new, SUM_TILE)
    partial, ticket = make_scratch(new, blocks, columns, 2 * SUM_TILE[1])
    _statistics[blocks, columns](
        new, wide[:, start:], new, None, None, partial, ticket, stats[0, start:], stats[1, start:],
        m, c, wide.shape[1], blocks, 0.0, False, True, *SUM_TILE,
        _added(blocks, SUM_TILE[1]), STATISTICS_STAGES,
    )  # fmt: skip


def apply_norms(
    norms: Sequence[Any], hidden: Sequence[Tensor], wide: Tensor, stats: Tensor, low: int, high: int
) -> None:
    """Write relu(norm) of channels low...high - 1 of the wide map into the same channels of `hidden`, one map a norm.

    The norms' running statistics of these channels are updated.
    """
    x = wide[:, low:high]
    m, c, programs, tile = plan_pass(x, VALUES)
    _apply_norms[programs](
        tuple(y[:, low:] for y in hidden), tuple(y.shape[1] for y in hidden),
        tuple(norm.weight[low:] for norm in norms), tuple(norm.bias[low:] for norm in norms),
        tuple(norm.eps for norm in norms), tuple(norm.running_mean[low:] for norm in norms),
        tuple(norm.running_var[low:] for norm in norms), tuple(norm.num_batches_tracked for norm in norms),
        tuple(norm.momentum for norm in norms),
        x, stats[0, low:], stats[1, low:], m, c, wide.shape[1], low, len(norms), *tile,
    )  # fmt: skip


def track_statistics(norm: Any, stats: Tensor, m: int) -> None:
    """Move the running statistics of a norm towards stats [2, C], those of a batch of m pixels."""
    c = stats.shape[1]
    _track_known[(triton.cdiv(c, TRACKED),)](
        norm.running_mean, norm.running_var, norm.num_batches_tracked, stats, stats[1], m, c, norm.momentum, TRACKED,
    )  # fmt: skip


def add_gradients(
    layers: Sequence[LayerGradient], wide: Tensor, stats: Tensor, source: Tensor, total: Tensor, coefficients: Tensor,
    low: int, high: int,
) -> None:  # fmt: skip
    """Add what layers give to channels low...high - 1 of the wide map's gradient, and to the layers' `sums`.

    The gradient so far is read from `source` and written to `total`. Where that is another tensor, these are the first
    layers to add to these channels, and `coefficients` [2, C] is overwritten there.
    """
    x = wide[:, low:high]
    tile = SHARED_TILE if len(layers) > 1 else choose_tile(x)
    m, c, blocks, columns = plan_sums(x, tile, ADD_PROGRAMS if len(layers) <= 2 else ADD_PROGRAMS // 2)
    partial, ticket = make_scratch(x, blocks, columns, 2 * tile[1] * len(layers))
    _add_gradients[blocks, columns](
        tuple(layer.dy[:, low:] for layer in layers), tuple(layer.dy.shape[1] for layer in layers),
        tuple(layer.weight[low:] for layer in layers), tuple(layer.bias[low:] for layer in layers),
        tuple(layer.eps for layer in layers), tuple(layer.sums[:, low:] for layer in layers),
        x, stats[0, low:], stats[1, low:], source[:, low:], total[:, low:], coefficients[:, low:], partial, ticket,
        m, c, wide.shape[1], blocks, int(source is not total), len(layers), *tile, _added(blocks, tile[1]),
        ADD_STAGES, num_warps=ADD_WARPS,
    )  # fmt: skip


def copy_gradient(total: Tensor, wide: Tensor, stats: Tensor, coefficients: Tensor, low: int, high: int) -> Tensor:
    """The gradient of channels low...high - 1 of the wide map, when all layers after them have been added."""
    x = wide[:, low:high]
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    m, c, programs, tile = plan_pass(x, VALUES)
    _copy_gradient[programs](
        total[:, low:], x, stats[0, low:], coefficients[:, low:], dx, m, c, wide.shape[1], *tile,
    )  # fmt: skip
    return dx
