"""Triton kernels of batch normalisation + residual + ReLU over a channels-last map, read as a matrix [M, C].

Each direction makes two passes over the map, one launch each:

    forward:   sums of (x - r) and (x - r)^2 by channel, r the running mean;  y = relu(x scale + shift + residual)
    backward:  g = (dy + dy') [y > 0]; sums of g and g xhat;  dx = weight invstd (g - mean g - xhat mean(g xhat))

dy' is the gradient of a second use of y: in a residual network every map has two, and adding their gradients here saves
a pass. Without a residual y is not read again, because its sign follows from x. With a residual the forward pass writes
the bits of y > 0, one byte for eight channels, and the backward pass reads these instead of y.

Sums are float32, by blocks of rows. The last block to end adds the blocks up in a fixed order, so that the result is
deterministic. The first pass goes through the map from its end and the second one from its start: what was touched last
is still in the cache.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

SUM_TILE, APPLY_TILE = (64, 32), (32, 128)
"""Rows and channels of a program at a time: in the sums, and in the second passes."""
LARGE, LARGE_TILE, SMALL_TILE = 1 << 24, (32, 64), (64, 32)
"""The same in the sums that write g too: for maps of so many values, and for smaller ones."""
ADDED, PROGRAMS = 32, 528
"""Blocks of sums that are added at a time, and programs that sum side by side at most, four for each multiprocessor."""
STATISTICS_STAGES, BACKWARD_STAGES = 4, 3
"""How many tiles a program that sums has under way, forward and backward: while it adds one up, those after it are
copied into shared memory. Four programs must fit into a multiprocessor's registers, so that tiles are this small.

All of these are the fastest of those tried on an H200, in whole steps of ResNet18 and ResNet50."""

_tickets: dict[tuple[torch.device, int], Tensor] = {}


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def is_last(ticket, blocks):  # type: ignore[no-untyped-def]
    """Whether this program is the last of `blocks` to come here; what the others stored before is then visible."""
    tl.debug_barrier()  # every thread of this program has stored its part
    return tl.atomic_add(ticket, 1, sem="acq_rel") == blocks - 1


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def add_up(partial, blocks, CHANNELS: tl.constexpr, ADDED: tl.constexpr):  # type: ignore[no-untyped-def]
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
def track(  # type: ignore[no-untyped-def]
    running_mean, running_var, tracked, mean, variance, m, momentum, channel, inside, column,
):  # fmt: skip
    """Move the running statistics towards the batch's."""
    r = tl.load(running_mean + channel, mask=inside, other=0.0)
    v = tl.load(running_var + channel, mask=inside, other=0.0)
    tl.store(running_mean + channel, r + momentum * (mean - r), mask=inside)
    tl.store(running_var + channel, v + momentum * (variance * (m / (m - 1.0)) - v), mask=inside)
    if column == 0:
        tl.store(tracked, tl.load(tracked) + 1)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _pooled(row, height, width):  # type: ignore[no-untyped-def]
    """Of pixels, by their rows in the map, the rows in the map of means over 2 x 2 pixels."""
    image, pixel = row // (height * width), row % (height * width)
    return (image * (height // 2) + pixel // width // 2) * (width // 2) + pixel % width // 2


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _statistics(  # type: ignore[no-untyped-def]
    x, copy, running_mean, running_var, tracked, partial, ticket, mean, variance, m, c, ld_copy, blocks, momentum,
    TRACK: tl.constexpr, COPY: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, ADDED: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Without TRACK `running_mean` may be any numbers near the means, which keep the sums exact."""
    block, column = tl.program_id(0), tl.program_id(1)
    channel = column * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < c
    r = tl.load(running_mean + channel, mask=inside, other=0.0).to(tl.float32)
    first = tl.zeros((ROWS, CHANNELS), tl.float32)  # added up once, at the end
    second = tl.zeros((ROWS, CHANNELS), tl.float32)
    tiles = tl.cdiv(m, ROWS)
    for tile in tl.range(block, tiles, blocks, num_stages=STAGES):
        row = (tiles - 1 - tile) * ROWS + tl.arange(0, ROWS)
        mask = (row < m)[:, None] & inside[None, :]
        at = row[:, None].to(tl.int64)
        value = tl.load(x + at * c + channel[None, :], mask=mask, other=0.0)
        if COPY:
            tl.store(copy + at * ld_copy + channel[None, :], value, mask=mask)
        value = tl.where(mask, value.to(tl.float32) - r[None, :], 0.0)
        first += value
        second += value * value
    mine = partial + (column * blocks + block) * 2 * CHANNELS + tl.arange(0, CHANNELS)
    tl.store(mine, tl.sum(first, 0))
    tl.store(mine + CHANNELS, tl.sum(second, 0))
    if is_last(ticket + column, blocks):
        tl.store(ticket + column, 0)
        total, squares = add_up(partial + column * blocks * 2 * CHANNELS, blocks, CHANNELS, ADDED)
        offset = total / m
        spread = squares / m - offset * offset
        spread = tl.where(spread < 0.0, 0.0, spread)  # not a maximum, which would lose NaN
        tl.store(mean + channel, r + offset, mask=inside)
        tl.store(variance + channel, spread, mask=inside)
        if TRACK:
            track(running_mean, running_var, tracked, r + offset, spread, m, momentum, channel, inside, column)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def locate_tile(m, c, ROWS: tl.constexpr, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """(rows, channels, which channels are inside the map, which values are, where they lie) of this program's tile."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < c
    return row, channel, inside, (row < m)[:, None] & inside[None, :], row[:, None].to(tl.int64) * c + channel[None, :]


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def load_channels(mean, variance, weight, channel, inside, eps):  # type: ignore[no-untyped-def]
    """(mean, 1 / standard deviation, that times the weight) by channel."""
    centre = tl.load(mean + channel, mask=inside, other=0.0)
    invstd = 1.0 / tl.sqrt(tl.load(variance + channel, mask=inside, other=1.0) + eps)
    return centre, invstd, invstd * tl.load(weight + channel, mask=inside, other=0.0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _pack(bits, ROWS: tl.constexpr, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Bytes [ROWS, CHANNELS / 8] of bits [ROWS, CHANNELS]. A thread holds eight neighbours of a bfloat16 map: no data
    moves between threads."""
    groups = tl.reshape(bits.to(tl.int32), (ROWS, CHANNELS // 8, 8))
    return tl.sum(groups << tl.arange(0, 8)[None, None, :], 2).to(tl.uint8)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def unpack(packed, ROWS: tl.constexpr, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Bits [ROWS, CHANNELS] of bytes [ROWS, CHANNELS / 8]."""
    groups = (packed.to(tl.int32)[:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1
    return tl.reshape(groups, (ROWS, CHANNELS)) != 0


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _locate_bytes(row, m, c, column, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where the bytes of a tile's bits lie in [M, C / 8], and which of them are inside."""
    byte = column * (CHANNELS // 8) + tl.arange(0, CHANNELS // 8)
    at = row[:, None].to(tl.int64) * (c // 8) + byte[None, :]
    # without this hint the compiler gives a thread several bytes, and exchanges them through shared memory
    at = tl.multiple_of(at, (1, 1))
    return at, ((row >= 0) & (row < m))[:, None] & (byte < c // 8)[None, :]


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def load_bytes(bits, row, m, c, column, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The bytes of a tile's bits; zeros where its rows are outside the map."""
    at, inside = _locate_bytes(row, m, c, column, CHANNELS)
    return tl.load(bits + at, mask=inside, other=0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def store_bits(bits, y, row, m, c, column, ROWS: tl.constexpr, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store the bits of y > 0 of a tile."""
    at, inside = _locate_bytes(row, m, c, column, CHANNELS)
    tl.store(bits + at, _pack(y.to(tl.float32) > 0.0, ROWS, CHANNELS), mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _apply_forward(  # type: ignore[no-untyped-def]
    x, residual, weight, bias, mean, variance, y, bits, m, c, height, width, eps,
    HAS_RESIDUAL: tl.constexpr, RELU: tl.constexpr, POOL: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """With POOL the rows are those of the means, `height` and `width` those of x. `bits` takes those of y > 0."""
    row, channel, inside, mask, at = locate_tile(m, c, ROWS, CHANNELS)
    if HAS_RESIDUAL:  # before the parameters: exchanging those between threads would hold this load up
        rest = tl.load(residual + at, mask=mask, other=0.0)
    centre, _, scale = load_channels(mean, variance, weight, channel, inside, eps)
    shift = tl.load(bias + channel, mask=inside, other=0.0)
    if POOL:
        half = width // 2
        first = (row // half * 2) * width + row % half * 2  # two rows of pixels for each row of means
        value = tl.zeros((ROWS, CHANNELS), tl.float32)
        for i in tl.static_range(4):
            source = (first + i // 2 * width + i % 2)[:, None].to(tl.int64) * c + channel[None, :]
            one = tl.load(x + source, mask=mask, other=0.0).to(tl.float32)
            one = (one - centre[None, :]) * scale[None, :] + shift[None, :]
            value += 0.25 * tl.where(one < 0.0, 0.0, one)
    else:
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        value = (value - centre[None, :]) * scale[None, :] + shift[None, :]
        if HAS_RESIDUAL:
            value += rest.to(tl.float32)
        if RELU:
            value = tl.where(value < 0.0, 0.0, value)
    rounded = value.to(y.dtype.element_ty)
    tl.store(y + at, rounded, mask=mask)
    if bits is not None:
        store_bits(bits, rounded, row, m, c, tl.program_id(1), ROWS, CHANNELS)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _load_gradient(dy, row, channel, mask, c, height, width, POOL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of a map, or a quarter of that of the mean a pixel belongs to."""
    if POOL:
        at = _pooled(row, height, width)[:, None].to(tl.int64) * c + channel[None, :]
        return 0.25 * tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
    return tl.load(dy + row[:, None].to(tl.int64) * c + channel[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _sum_backward(  # type: ignore[no-untyped-def]
    dy, dy_second, positive, x, weight, bias, mean, variance, partial, ticket, g_out, sums,
    m, c, height, width, blocks, eps,
    RELU: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_SECOND: tl.constexpr, POOL: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, ADDED: tl.constexpr, BITS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """`positive` is y, or with BITS the bits of y > 0."""
    block, column = tl.program_id(0), tl.program_id(1)
    channel = column * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < c
    centre, invstd, scale = load_channels(mean, variance, weight, channel, inside, eps)
    shift = tl.load(bias + channel, mask=inside, other=0.0)
    first = tl.zeros((ROWS, CHANNELS), tl.float32)
    second = tl.zeros((ROWS, CHANNELS), tl.float32)
    tiles = tl.cdiv(m, ROWS)
    if BITS:  # always one tile ahead: single bytes cannot be copied into shared memory meanwhile
        packed = load_bytes(positive, (tiles - 1 - block) * ROWS + tl.arange(0, ROWS), m, c, column, CHANNELS)
    for tile in tl.range(block, tiles, blocks, num_stages=STAGES):
        row = (tiles - 1 - tile) * ROWS + tl.arange(0, ROWS)
        mask = (row < m)[:, None] & inside[None, :]
        at = row[:, None].to(tl.int64) * c + channel[None, :]
        g = _load_gradient(dy, row, channel, mask, c, height, width, POOL)
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        value -= centre[None, :]
        if HAS_SECOND:
            g += tl.load(dy_second + at, mask=mask, other=0.0).to(tl.float32)
        if RELU:
            if BITS:
                g = tl.where(unpack(packed, ROWS, CHANNELS), g, 0.0)
                packed = load_bytes(positive, row - blocks * ROWS, m, c, column, CHANNELS)
            elif HAS_RESIDUAL:
                g = tl.where(tl.load(positive + at, mask=mask, other=0.0).to(tl.float32) > 0.0, g, 0.0)
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
    if is_last(ticket + column, blocks):
        tl.store(ticket + column, 0)
        total, products = add_up(partial + column * blocks * 2 * CHANNELS, blocks, CHANNELS, ADDED)
        tl.store(sums + channel, products * invstd, mask=inside)
        tl.store(sums + c + channel, total, mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _apply_backward(  # type: ignore[no-untyped-def]
    dy, x, weight, bias, mean, variance, sums, dx, m, c, height, width, eps,
    RELU: tl.constexpr, POOL: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row, channel, inside, mask, at = locate_tile(m, c, ROWS, CHANNELS)
    centre, invstd, scale = load_channels(mean, variance, weight, channel, inside, eps)
    mean_gx = tl.load(sums + channel, mask=inside, other=0.0) / m
    mean_g = tl.load(sums + c + channel, mask=inside, other=0.0) / m
    g = _load_gradient(dy, row, channel, mask, c, height, width, POOL)
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - centre[None, :]
    if RELU:
        shift = tl.load(bias + channel, mask=inside, other=0.0)
        g = tl.where(value * scale[None, :] + shift[None, :] > 0.0, g, 0.0)
    grad = scale[None, :] * (g - mean_g[None, :] - value * (invstd * mean_gx)[None, :])
    tl.store(dx + at, grad.to(dx.dtype.element_ty), mask=mask)


def plan_sums(x: Tensor, tile: tuple[int, int], programs: int | None = None) -> tuple[int, int, int, int]:
    """(rows M, channels C, blocks that sum side by side, blocks of channels)."""
    c = x.shape[1]
    m = x.numel() // c
    columns = triton.cdiv(c, tile[1])
    return m, c, max(1, min(triton.cdiv(m, tile[0]), (programs or PROGRAMS) // columns)), columns


def plan_pass(x: Tensor, values: int | None = None) -> tuple[int, int, tuple[int, int], tuple[int, int]]:
    """(rows M, channels C, programs, tile) of a pass that sums nothing.

    With `values` a narrow map has taller tiles, so that they have so many values.
    """
    c = x.shape[1]
    m = x.numel() // c
    channels = min(APPLY_TILE[1], max(16, triton.next_power_of_2(c)))
    rows = APPLY_TILE[0] if values is None else values // channels
    return m, c, (triton.cdiv(m, rows), triton.cdiv(c, channels)), (rows, channels)


def find_tickets(x: Tensor, count: int) -> Tensor:
    """Zeros by which the last of several programs knows itself.

    Kernels leave their tickets at zero, and those of one stream follow one another, so that they can share them.
    """
    key = x.device, torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
    ticket = _tickets.get(key)
    if ticket is None or len(ticket) < count:
        ticket = _tickets[key] = torch.zeros(max(1024, count), dtype=torch.int32, device=x.device)
    return ticket


def choose_tile(x: Tensor) -> tuple[int, int]:
    """Rows and channels at a time of a pass over a map that sums and writes."""
    return LARGE_TILE if x.numel() >= LARGE else SMALL_TILE


def make_scratch(x: Tensor, blocks: int, columns: int, values: int) -> tuple[Tensor, Tensor]:
    """Room for the sums of each block, so many values, and the tickets."""
    return torch.empty(columns, blocks, values, dtype=torch.float32, device=x.device), find_tickets(x, columns)


def compute_statistics(
    x: Tensor, running_mean: Tensor, running_var: Tensor, tracked: Tensor, momentum: float
) -> Tensor:
    """Mean and biased variance by channel [2, C]; the running statistics are updated."""
    m, c, blocks, columns = plan_sums(x, SUM_TILE)
    partial, ticket = make_scratch(x, blocks, columns, 2 * SUM_TILE[1])
    stats = torch.empty(2, c, dtype=torch.float32, device=x.device)
    _statistics[blocks, columns](
        x, None, running_mean, running_var, tracked, partial, ticket, stats, stats[1],
        m, c, 0, blocks, momentum, True, False, *SUM_TILE, ADDED, STATISTICS_STAGES,
    )  # fmt: skip
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
    pool: bool = False,
) -> Tensor:
    """relu((x - mean) / sqrt(variance + eps) weight + bias + residual), with `pool` its means over 2 x 2 pixels."""
    images, c, height, width = x.shape
    shape = (images, c, height // 2, width // 2) if pool else x.shape
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    m, _, programs, tile = plan_pass(y)
    _apply_forward[programs](
        x, residual, weight, bias, mean, variance, y, None, m, c, height, width, eps,
        residual is not None, relu, pool, *tile,
    )  # fmt: skip
    return y


def apply_norm_bits(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, residual: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """(y, the bits of y > 0) of y = relu(norm(x) + residual); bit i of byte j belongs to channel 8 j + i."""
    y = torch.empty_like(x)
    m, c, programs, tile = plan_pass(y)
    bits = torch.empty(m, c // 8, dtype=torch.uint8, device=x.device)
    _apply_forward[programs](
        x, residual, weight, bias, mean, variance, y, bits, m, c, 0, 0, eps, True, True, False, *tile,
    )  # fmt: skip
    return y, bits


def differentiate_norm(
    dy: Tensor,
    dy_second: Tensor | None,
    x: Tensor,
    positive: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    stats: Tensor,
    eps: float,
    relu: bool,
    pool: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dx, g, [d_weight, d_bias]); g is empty where it would be dy.

    `positive` is given where there was a residual: y itself, or the bits of y > 0.
    """
    written = dy_second is not None or (relu and positive is not None)
    bits = relu and positive is not None and positive.dtype == torch.uint8
    tile = choose_tile(x) if written else SUM_TILE
    m, c, blocks, columns = plan_sums(x, tile)
    partial, ticket = make_scratch(x, blocks, columns, 2 * tile[1])
    sums = torch.empty(2, c, dtype=torch.float32, device=x.device)
    dx = torch.empty_like(x)
    g = torch.empty_like(x) if written else x.new_empty(0)
    height, width = x.shape[2:]
    _sum_backward[blocks, columns](
        dy, dy_second, positive, x, weight, bias, stats, stats[1], partial, ticket, g, sums,
        m, c, height, width, blocks, eps,
        relu, positive is not None, dy_second is not None, pool, *tile, ADDED, bits, BACKWARD_STAGES,
    )  # fmt: skip
    _, _, programs, tile = plan_pass(x)
    _apply_backward[programs](
        g if written else dy, x, weight, bias, stats, stats[1], sums, dx, m, c, height, width, eps,
        relu and not written, pool, *tile,
    )  # fmt: skip
    return dx, g, sums
