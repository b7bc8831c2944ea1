"""Triton kernels of what lies between the products of a transformer's layers, over matrices of rows [M, C].

    forward:   x' = x + y,  h = LN(x');   g = GELU(u)
    backward:  dx = dx' + LN'(dh);        du = GELU'(u) dg

and, before the first layer, x = [token, y] + position.

x is the residual stream in float32; y, h, u and g are what products write and read, in bfloat16. Each pass reads and
writes its matrices once. Results take the place of what is not needed again, so that more of both stays in the cache.

The backward kernels also sum over the rows, which gives the gradients of the norm's weight and bias and of the bias of
the product before. The sums are float32, by blocks of rows; one kernel adds up the blocks of all layers at the end, in
a fixed order, so that the result is deterministic.

A row of the norm is held as three parts of a power of two, since the widths of vision transformers are such: 192, 384,
768. One warp holds a whole row, so that means over it need no shared memory.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

ROWS = 4
"""Rows of a program of the norm's derivative at a time, one for each of its warps. In the norm it is one row."""
BLOCK, TILE = 2048, (32, 64)
"""Values of a program of the GELU; rows and columns of one of its derivative at a time."""
BLOCKS, GELU_BLOCKS = 396, 44
"""Blocks of rows that are summed side by side at most, in the norm's derivative and in the GELU's.

They and the tiles are the fastest of those tried on an H200, on the maps of vit-small."""
ADDED, COLUMNS = 32, 128
"""Blocks that are added at a time, or images, and columns of a program that adds."""


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _load(base, at, mask, PART: tl.constexpr):  # type: ignore[no-untyped-def]
    """The three parts of rows, in float32; zeros outside."""
    a = tl.load(base + at, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(base + at + PART, mask=mask, other=0.0).to(tl.float32)
    c = tl.load(base + at + 2 * PART, mask=mask, other=0.0).to(tl.float32)
    return a, b, c


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _store(base, at, mask, a, b, c, PART: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(base + at, a.to(base.dtype.element_ty), mask=mask)
    tl.store(base + at + PART, b.to(base.dtype.element_ty), mask=mask)
    tl.store(base + at + 2 * PART, c.to(base.dtype.element_ty), mask=mask)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _average(a, b, c, PART: tl.constexpr):  # type: ignore[no-untyped-def]
    """The mean over each row, as a column."""
    return (tl.sum(a + b + c, 1) / (3 * PART))[:, None]


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _normalise(a, b, c, eps, PART: tl.constexpr):  # type: ignore[no-untyped-def]
    """(x - mean) / sqrt(variance + eps) of each row, and the factor 1 / sqrt(variance + eps)."""
    mean = _average(a, b, c, PART)
    a -= mean
    b -= mean
    c -= mean
    invstd = 1.0 / tl.sqrt(_average(a * a, b * b, c * c, PART) + eps)
    return a * invstd, b * invstd, c * invstd, invstd


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _add_norm(  # type: ignore[no-untyped-def]
    x, y, weight, bias, total, h, ld, eps, ADD: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PART)[None, :]
    every = column >= 0
    at = row * (3 * PART) + column
    a, b, c = _load(x, row * ld + column, every, PART)
    if ADD:
        y_a, y_b, y_c = _load(y, at, every, PART)
        a += y_a
        b += y_b
        c += y_c
        _store(total, at, every, a, b, c, PART)
    a, b, c, _ = _normalise(a, b, c, eps, PART)
    w_a, w_b, w_c = _load(weight, column, every, PART)
    b_a, b_b, b_c = _load(bias, column, every, PART)
    _store(h, at, every, a * w_a + b_a, b * w_b + b_b, c * w_c + b_c, PART)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _add_norm_backward(  # type: ignore[no-untyped-def]
    dh, d_total, x, weight, dx, dy, partial, rows, every, ld_partial, blocks, eps,
    RESIDUAL: tl.constexpr, ADD: tl.constexpr, EVERY: tl.constexpr, PART: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """With EVERY only each `every`-th row of x' has been used by more than the norm: d_total has those rows."""
    block = tl.program_id(0)
    column = tl.arange(0, PART)[None, :]
    w_a, w_b, w_c = _load(weight, column, column >= 0, PART)
    zero = tl.zeros((ROWS, PART), tl.float32)
    dw_a, dw_b, dw_c = zero, zero, zero
    db_a, db_b, db_c = zero, zero, zero
    dx_a, dx_b, dx_c = zero, zero, zero
    for tile in range(block, tl.cdiv(rows, ROWS), blocks):
        row = tile * ROWS + tl.arange(0, ROWS)[:, None]
        mask = row < rows
        at = row.to(tl.int64) * (3 * PART) + column
        g_a, g_b, g_c = _load(dh, at, mask, PART)
        x_a, x_b, x_c = _load(x, at, mask, PART)
        if RESIDUAL:
            if EVERY:
                used = row // every
                r_a, r_b, r_c = _load(
                    d_total, used.to(tl.int64) * (3 * PART) + column, mask & (used * every == row), PART
                )  # fmt: skip
            else:
                r_a, r_b, r_c = _load(d_total, at, mask, PART)
        x_a, x_b, x_c, invstd = _normalise(x_a, x_b, x_c, eps, PART)
        dw_a += g_a * x_a
        dw_b += g_b * x_b
        dw_c += g_c * x_c
        db_a += g_a
        db_b += g_b
        db_c += g_c
        g_a *= w_a
        g_b *= w_b
        g_c *= w_c
        mean_g = _average(g_a, g_b, g_c, PART)
        mean_gx = _average(g_a * x_a, g_b * x_b, g_c * x_c, PART)
        g_a = invstd * (g_a - mean_g - x_a * mean_gx)
        g_b = invstd * (g_b - mean_g - x_b * mean_gx)
        g_c = invstd * (g_c - mean_g - x_c * mean_gx)
        if RESIDUAL:
            g_a += r_a
            g_b += r_b
            g_c += r_c
        _store(dx, at, mask, g_a, g_b, g_c, PART)
        if ADD:
            _store(dy, at, mask, g_a, g_b, g_c, PART)
            dx_a += g_a
            dx_b += g_b
            dx_c += g_c
    mine = partial + block * ld_partial
    place = tl.arange(0, PART)
    inside = place >= 0
    _store(mine, place, inside, tl.sum(dw_a, 0), tl.sum(dw_b, 0), tl.sum(dw_c, 0), PART)
    _store(mine + 3 * PART, place, inside, tl.sum(db_a, 0), tl.sum(db_b, 0), tl.sum(db_c, 0), PART)
    if ADD:
        _store(mine + 6 * PART, place, inside, tl.sum(dx_a, 0), tl.sum(dx_b, 0), tl.sum(dx_c, 0), PART)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _normal(x):  # type: ignore[no-untyped-def]
    """The normal distribution function, and sqrt(2 pi) times the density.

    By formula 7.1.26 of Abramowitz and Stegun, whose error is at most 7.5e-8 here: as much as float32 leaves of
    1 + erf(x / sqrt 2), at a third of the instructions, with an exponential that the density needs too.
    """
    d = 1.0 + 0.2316419 * tl.abs(x)
    t = tl.rsqrt(d * d)  # 1 / d in one instruction
    e = tl.exp2(-0.7213475204444817 * (x * x))
    tail = 0.5307027145 * t - 0.7265760135
    tail = tail * t + 0.7107068705
    tail = tail * t - 0.142248368
    tail = tail * t + 0.127414796
    tail = tail * t * e
    return tl.where(x < 0.0, tail, 1.0 - tail), e


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _gelu(u, g, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(u + i, mask=i < count, other=0.0).to(tl.float32)
    below, _ = _normal(value)
    tl.store(g + i, (value * below).to(g.dtype.element_ty), mask=i < count)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _gelu_backward(  # type: ignore[no-untyped-def]
    dg, u, du, partial, rows, width, ld_partial, blocks,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(block, tl.cdiv(rows, ROWS), blocks):
        row = tile * ROWS + tl.arange(0, ROWS)[:, None]
        mask = (row < rows) & (column < width)[None, :]
        at = row.to(tl.int64) * width + column[None, :]
        value = tl.load(u + at, mask=mask, other=0.0).to(tl.float32)
        below, density = _normal(value)
        grad = tl.load(dg + at, mask=mask, other=0.0).to(tl.float32)
        grad *= below + value * density * 0.3989422804014327
        tl.store(du + at, grad.to(du.dtype.element_ty), mask=mask)
        sums += grad
    tl.store(partial + block * ld_partial + column, tl.sum(sums, 0), mask=column < width)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _add_blocks(partial, sums, blocks, width, COLUMNS: tl.constexpr, ADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ADDED, COLUMNS), tl.float32)
    for start in range(0, blocks, ADDED):
        block = start + tl.arange(0, ADDED)[:, None]
        mask = (block < blocks) & (column < width)[None, :]
        total += tl.load(partial + block.to(tl.int64) * width + column[None, :], mask=mask, other=0.0)
    tl.store(sums + column, tl.sum(total, 0), mask=column < width)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _add_positions(  # type: ignore[no-untyped-def]
    y, token, position, x, tokens, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Of ROWS tokens of one image."""
    place = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mask = (place < tokens) & (column < width)
    image = tl.program_id(0).to(tl.int64)
    value = tl.load(position + place * width + column, mask=mask, other=0.0)
    at = (image * (tokens - 1) + place - 1) * width + column
    value += tl.load(y + at, mask=mask & (place > 0), other=0.0).to(tl.float32)
    value += tl.load(token + column + 0 * place, mask=mask & (place == 0), other=0.0)
    tl.store(x + (image * tokens + place) * width + column, value, mask=mask)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _add_positions_backward(  # type: ignore[no-untyped-def]
    dx, dy, d_position, images, tokens, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Of one token of all images."""
    place = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, images, ROWS):
        image = (start + tl.arange(0, ROWS)[:, None]).to(tl.int64)
        mask = (image < images) & (column < width)
        value = tl.load(dx + (image * tokens + place) * width + column, mask=mask, other=0.0)
        at = (image * (tokens - 1) + place - 1) * width + column
        tl.store(dy + at, value.to(dy.dtype.element_ty), mask=mask & (place > 0))
        total += value
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(d_position + place * width + column, tl.sum(total, 0), mask=column < width)


def add_positions(y: Tensor, token: Tensor, position: Tensor, images: int) -> Tensor:
    """[token, y] + position [B, N, C] of y [B (N - 1), C], token [1, 1, C] and position [1, N, C]."""
    _, tokens, width = position.shape
    x = torch.empty(images, tokens, width, dtype=position.dtype, device=y.device)
    programs = images, triton.cdiv(tokens, TILE[0]), triton.cdiv(width, TILE[1])
    _add_positions[programs](y, token, position, x, tokens, width, *TILE)
    return x


def differentiate_positions(dx: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The gradients of y in `dtype` and of the positions [N, C], of dx [B, N, C]."""
    images, tokens, width = dx.shape
    dy = torch.empty(images * (tokens - 1), width, dtype=dtype, device=dx.device)
    d_position = torch.empty(tokens, width, dtype=dx.dtype, device=dx.device)
    programs = tokens, triton.cdiv(width, COLUMNS)
    _add_positions_backward[programs](dx, dy, d_position, images, tokens, width, ADDED, COLUMNS)
    return dy, d_position


def add_norm(
    x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(x + y, its norm in `dtype`); x [M, C] may be some rows of a larger matrix. Without y the former is x.

    The norm is written in the place of y where it has its type.
    """
    rows, width = x.shape
    total = x if y is None else torch.empty(rows, width, dtype=x.dtype, device=x.device)
    h = y if y is not None and y.dtype == dtype else torch.empty(rows, width, dtype=dtype, device=x.device)
    _add_norm[(rows,)](x, y, weight, bias, total, h, x.stride(0), eps, y is not None, width // 3, num_warps=1)
    return total, h


def differentiate_add_norm(
    dh: Tensor,
    d_total: Tensor | None,
    x: Tensor,
    weight: Tensor,
    eps: float,
    partial: Tensor,
    dtype: torch.dtype | None,
    every: int = 1,
) -> tuple[Tensor, Tensor]:
    """The gradient of x, and that of y in `dtype`; the latter is the former where that is None: there was no y.

    `x` is what the norm was taken of, d_total [M / every, C] the gradient of each `every`-th row of it by other uses.
    `partial` [blocks, 2 C or 3 C] gets the sums of the gradients of weight and bias, and of y if there is one.
    Given d_total, the gradients are written in its place and in that of dh, where these are as large and of their type.
    """
    rows, width = x.shape
    dx = d_total if d_total is not None and every == 1 else torch.empty_like(x)
    dy = dx
    if dtype is not None:
        dy = dh if d_total is not None and dh.dtype == dtype else torch.empty(rows, width, dtype=dtype, device=x.device)
    _add_norm_backward[(len(partial),)](
        dh, d_total, x, weight, dx, dy, partial, rows, every, partial.stride(0), len(partial), eps,
        d_total is not None, dtype is not None, every > 1, width // 3, ROWS, num_warps=ROWS,
    )  # fmt: skip
    return dx, dy


def compute_gelu(u: Tensor) -> Tensor:
    """x times the probability that a normal variable is below x."""
    g = torch.empty_like(u)
    _gelu[(triton.cdiv(u.numel(), BLOCK),)](u, g, u.numel(), BLOCK)
    return g


def differentiate_gelu(dg: Tensor, u: Tensor, partial: Tensor) -> Tensor:
    """The gradient of u [M, C], in the place of dg; partial [blocks, C] gets its sums over rows."""
    rows, width = u.shape
    columns = triton.cdiv(width, TILE[1])
    _gelu_backward[columns, len(partial)](
        dg, u, dg, partial, rows, width, partial.stride(0), len(partial), *TILE
    )  # fmt: skip
    return dg


def count_blocks(rows: int) -> tuple[int, int]:
    """Blocks of rows for the sums over them, in the norm's derivative and in the GELU's.

    >>> count_blocks(8320), count_blocks(20)
    ((396, 44), (5, 1))
    """
    return min(BLOCKS, -(-rows // ROWS)), min(GELU_BLOCKS, -(-rows // TILE[0]))


def add_blocks(partial: Tensor) -> Tensor:
    """The sums [C] over the blocks [blocks, C]."""
    blocks, width = partial.shape
    sums = torch.empty(width, dtype=partial.dtype, device=partial.device)
    _add_blocks[(triton.cdiv(width, COLUMNS),)](partial, sums, blocks, width, COLUMNS, ADDED)
    return sums
