"""Triton kernels of batch normalisation + residual + ReLU over a channels-last map, read as a matrix [M, C].

Each direction makes two passes over the map, one launch each:

    forward:   sums of (x - r) and (x - r)^2 by channel, r the running mean;  y = relu(x scale + shift + residual)
    backward:  g = (dy + dy') [y > 0]; sums of g and g xhat;  dx = weight invstd (g - mean g - xhat mean(g xhat))

dy' is the gradient of a second use of y: in a residual network every map has two, and adding their gradients here saves
a pass. Without a residual y is not read again, because its sign follows from x.

Sums are float32, by blocks of rows. The last block to end adds the blocks up in a fixed order, so that the result is
deterministic. The first pass goes through the map from its end and the second one from its start: what was touched last
is still in the cache.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

SUM_TILE, FORK_TILE, APPLY_TILE = (128, 32), (32, 64), (32, 128)
"""Rows and channels of a program at a time: in the sums, in those that write g too, and in the second passes."""
ADDED = 128
"""Blocks of sums that are added at a time."""
PROGRAMS = 528
"""Programs that sum side by side at most, four for each multiprocessor of the H200. All of these are the fastest of
those tried there, on the maps of ResNet18 and ResNet50."""

_tickets: dict[tuple[torch.device, int], Tensor] = {}


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _is_last(ticket, blocks):  # type: ignore[no-untyped-def]
    """Whether this program is the last of `blocks` to come here; what the others stored before is then visible."""
    tl.debug_barrier()  # every thread of this program has stored its part
    return tl.atomic_add(ticket, 1, sem="acq_rel") == blocks - 1


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _add_up(partial, blocks, CHANNELS: tl.constexpr, ADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """The two sums over [blocks, 2, CHANNELS], always in the same order."""
    first = tl.zeros((ADDED, CHANNELS), tl.float32)
    second = tl.zeros((ADDED, CHANNELS), tl.float32)
    for start in range(0, blocks, ADDED):
        block = start + tl.arange(0, ADDED)[:, None]
        at = partial + block * 2 * CHANNELS + tl.arange(0, CHANNELS)[None, :]
        first += tl.load(at, mask=block < blocks, other=0.0, cache_modifier=".cg")
        second += tl.load(at + CHANNELS, mask=block < blocks, other=0.0, cache_modifier=".cg")
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _statistics(  # type: ignore[no-untyped-def]
    x, running_mean, running_var, tracked, partial, ticket, stats, m, c, blocks, momentum,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    block, column = tl.program_id(0), tl.program_id(1)
    channel = column * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < c
    r = tl.load(running_mean + channel, mask=inside, other=0.0)
    first = tl.zeros((ROWS, CHANNELS), tl.float32)  # added up once, at the end
    second = tl.zeros((ROWS, CHANNELS), tl.float32)
    tiles = tl.cdiv(m, ROWS)
    for tile in range(block, tiles, blocks):
        row = (tiles - 1 - tile) * ROWS + tl.arange(0, ROWS)
        mask = (row < m)[:, None] & inside[None, :]
        value = tl.load(x + row[:, None].to(tl.int64) * c + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, value - r[None, :], 0.0)
        first += value
        second += value * value
    mine = partial + (column * blocks + block) * 2 * CHANNELS + tl.arange(0, CHANNELS)
    tl.store(mine, tl.sum(first, 0))
    tl.store(mine + CHANNELS, tl.sum(second, 0))
    if _is_last(ticket + column, blocks):
        tl.store(ticket + column, 0)
        total, squares = _add_up(partial + column * blocks * 2 * CHANNELS, blocks, CHANNELS, ADDED)
        v = tl.load(running_var + channel, mask=inside, other=0.0)
        offset = total / m
        centre = r + offset
        variance = squares / m - offset * offset
        variance = tl.where(variance < 0.0, 0.0, variance)  # not a maximum, which would lose NaN
        tl.store(stats + channel, centre, mask=inside)
        tl.store(stats + c + channel, variance, mask=inside)
        tl.store(running_mean + channel, r + momentum * (centre - r), mask=inside)
        tl.store(running_var + channel, v + momentum * (variance * (m / (m - 1.0)) - v), mask=inside)
        if column == 0:
            tl.store(tracked, tl.load(tracked) + 1)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _apply_forward(  # type: ignore[no-untyped-def]
    x, residual, weight, bias, mean, variance, y, m, c, eps,
    HAS_RESIDUAL: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < c
    mask = (row < m)[:, None] & inside[None, :]
    scale = 1.0 / tl.sqrt(tl.load(variance + channel, mask=inside, other=1.0) + eps)
    scale = scale * tl.load(weight + channel, mask=inside, other=0.0)
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
    dy, dy_second, y, x, weight, bias, stats, partial, ticket, g_out, sums, m, c, blocks, eps,
    RELU: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_SECOND: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    block, column = tl.program_id(0), tl.program_id(1)
    channel = column * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < c
    centre = tl.load(stats + channel, mask=inside, other=0.0)
    invstd = 1.0 / tl.sqrt(tl.load(stats + c + channel, mask=inside, other=1.0) + eps)
    scale = invstd * tl.load(weight + channel, mask=inside, other=0.0)
    shift = tl.load(bias + channel, mask=inside, other=0.0)
    first = tl.zeros((ROWS, CHANNELS), tl.float32)
    second = tl.zeros((ROWS, CHANNELS), tl.float32)
    tiles = tl.cdiv(m, ROWS)
    for tile in range(block, tiles, blocks):
        row = (tiles - 1 - tile) * ROWS + tl.arange(0, ROWS)
        mask = (row < m)[:, None] & inside[None, :]
        at = row[:, None].to(tl.int64) * c + channel[None, :]
        g = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - centre[None, :]
        if HAS_SECOND:
            g += tl.load(dy_second + at, mask=mask, other=0.0).to(tl.float32)
        if RELU:
            if HAS_RESIDUAL:
                g = tl.where(tl.load(y + at, mask=mask, other=0.0).to(tl.float32) > 0.0, g, 0.0)
            else:
                g = tl.where(value * scale[None, :] + shift[None, :] > 0.0, g, 0.0)
        if HAS_SECOND or (RELU and HAS_RESIDUAL):
            rounded = g.to(g_out.dtype.element_ty)
            tl.store(g_out + at, rounded, mask=mask)
            g = rounded.to(tl.float32)  # the sums are those of what the second pass reads
        first += g
        second += g * value
    mine = partial + (column * blocks + block) * 2 * CHANNELS + tl.arange(0, CHANNELS)
    tl.store(mine, tl.sum(first, 0))
    tl.store(mine + CHANNELS, tl.sum(second, 0))
    if _is_last(ticket + column, blocks):
        tl.store(ticket + column, 0)
        total, products = _add_up(partial + column * blocks * 2 * CHANNELS, blocks, CHANNELS, ADDED)
        tl.store(sums + channel, products * invstd, mask=inside)
        tl.store(sums + c + channel, total, mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _apply_backward(  # type: ignore[no-untyped-def]
    dy, x, weight, bias, stats, sums, dx, m, c, eps,
    RELU: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < c
    mask = (row < m)[:, None] & inside[None, :]
    at = row[:, None].to(tl.int64) * c + channel[None, :]
    centre = tl.load(stats + channel, mask=inside, other=0.0)
    invstd = 1.0 / tl.sqrt(tl.load(stats + c + channel, mask=inside, other=1.0) + eps)
    scale = invstd * tl.load(weight + channel, mask=inside, other=0.0)
    mean_gx = tl.load(sums + channel, mask=inside, other=0.0) / m
    mean_g = tl.load(sums + c + channel, mask=inside, other=0.0) / m
    g = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - centre[None, :]
    if RELU:
        shift = tl.load(bias + channel, mask=inside, other=0.0)
        g = tl.where(value * scale[None, :] + shift[None, :] > 0.0, g, 0.0)
    grad = scale[None, :] * (g - mean_g[None, :] - value * (invstd * mean_gx)[None, :])
    tl.store(dx + at, grad.to(dx.dtype.element_ty), mask=mask)


def _grid(x: Tensor, tile: tuple[int, int]) -> tuple[int, int, int, int]:
    """(rows M, channels C, blocks that sum side by side, blocks of channels)."""
    c = x.shape[1]
    m = x.numel() // c
    columns = triton.cdiv(c, tile[1])
    return m, c, max(1, min(triton.cdiv(m, tile[0]), PROGRAMS // columns)), columns


def _apply_grid(x: Tensor) -> tuple[int, int, tuple[int, int], tuple[int, int]]:
    """(rows M, channels C, programs, tile) of a second pass."""
    c = x.shape[1]
    m = x.numel() // c
    rows, channels = APPLY_TILE[0], min(APPLY_TILE[1], max(16, triton.next_power_of_2(c)))
    return m, c, (triton.cdiv(m, rows), triton.cdiv(c, channels)), (rows, channels)


def _scratch(x: Tensor, blocks: int, columns: int, channels: int) -> tuple[Tensor, Tensor]:
    """Room for the blocks' sums, and the tickets by which the last block knows itself.

    Kernels leave their tickets at zero, and those of one stream follow one another, so that they can share them.
    """
    key = x.device, torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
    ticket = _tickets.get(key)
    if ticket is None or len(ticket) < columns:
        ticket = _tickets[key] = torch.zeros(max(1024, columns), dtype=torch.int32, device=x.device)
    return torch.empty(columns, blocks, 2, channels, dtype=torch.float32, device=x.device), ticket


def compute_statistics(
    x: Tensor, running_mean: Tensor, running_var: Tensor, tracked: Tensor, momentum: float
) -> Tensor:
    """Mean and biased variance by channel [2, C]; the running statistics are updated."""
    m, c, blocks, columns = _grid(x, SUM_TILE)
    partial, ticket = _scratch(x, blocks, columns, SUM_TILE[1])
    stats = torch.empty(2, c, dtype=torch.float32, device=x.device)
    _statistics[blocks, columns](
        x, running_mean, running_var, tracked, partial, ticket, stats, m, c, blocks, momentum, *SUM_TILE, ADDED
    )
    return stats


def apply_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    residual: Tensor | None,
    eps: float,
    relu: bool,
) -> Tensor:
    """relu((x - mean) / sqrt(variance + eps) weight + bias + residual)."""
    m, c, programs, tile = _apply_grid(x)
    y = torch.empty_like(x)
    _apply_forward[programs](x, residual, weight, bias, mean, variance, y, m, c, eps, residual is not None, relu, *tile)
    return y


def differentiate_norm(
    dy: Tensor,
    dy_second: Tensor | None,
    x: Tensor,
    y: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    stats: Tensor,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dx, g, [d_weight, d_bias]); g is empty where it would be dy. `y` is given where there was a residual."""
    written = dy_second is not None or (relu and y is not None)
    tile = FORK_TILE if written else SUM_TILE
    m, c, blocks, columns = _grid(x, tile)
    partial, ticket = _scratch(x, blocks, columns, tile[1])
    sums = torch.empty(2, c, dtype=torch.float32, device=x.device)
    dx = torch.empty_like(x)
    g = torch.empty_like(x) if written else x.new_empty(0)
    _sum_backward[blocks, columns](
        dy, dy_second, y, x, weight, bias, stats, partial, ticket, g, sums, m, c, blocks, eps,
        relu, y is not None, dy_second is not None, *tile, ADDED,
    )  # fmt: skip
    _, _, programs, tile = _apply_grid(x)
    _apply_backward[programs](
        g if written else dy, x, weight, bias, stats, sums, dx, m, c, eps, relu and not written, *tile
    )
    return dx, g, sums
