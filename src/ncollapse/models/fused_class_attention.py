"""Triton kernels of attention over T + 1 tokens, T a power of two: the patches of an image and its class token.

The first T tokens make one tile. Products with the last token are products of that tile and a vector. Tensor cores
compute them with 16 columns, of which one counts: the result has the rows of the tile, a few numbers a thread, in the
layout that the softmax and the other products have. With k' the row of the last key, q' that of the last query:

    S = Q K^T, s = Q k'; r = K q', r' = q' k';   [P, p] = softmax of the rows [S, s], [w, w'] = softmax of [r, r']
    O = P V + p v', o' = V^T w + w' v';   dV = P^T dO + w do', dv' = dO^T p + w' do'
    [dS, ds] and [dw, dw'] as in the general kernel;   dQ = dS K + ds k', dq' = K^T dw + dw' k'; dK, dk' likewise
"""

from __future__ import annotations

import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
WIDE: tl.constexpr = tl.constexpr(16)
"""Least number of rows or columns in a product of tensor cores."""


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _load_rows(base, stride, T: tl.constexpr, DIM: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(base + tl.arange(0, T)[:, None] * stride + tl.arange(0, DIM)[None, :])


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _load_padded(base, stride, T: tl.constexpr, DIM: tl.constexpr):  # type: ignore[no-untyped-def]
    """The last token's row and zeros below it."""
    row = tl.arange(0, WIDE)[:, None]
    return tl.load(base + (T + row) * stride + tl.arange(0, DIM)[None, :], mask=row == 0, other=0.0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _load_last(base, stride, T: tl.constexpr, DIM: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(base + T * stride + tl.arange(0, DIM)).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _store_rows(base, value, stride, T: tl.constexpr, DIM: tl.constexpr):  # type: ignore[no-untyped-def]
    at = base + tl.arange(0, T)[:, None] * stride + tl.arange(0, DIM)[None, :]
    tl.store(at, value.to(base.dtype.element_ty))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _store_last(base, value, stride, T: tl.constexpr, DIM: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(base + T * stride + tl.arange(0, DIM), value.to(base.dtype.element_ty))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _dot_last(rows, padded):  # type: ignore[no-untyped-def]
    """The product of each row and the one padded row."""
    return tl.sum(tl.dot(rows, tl.trans(padded)), 1)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _repeat(column, like):  # type: ignore[no-untyped-def]
    """A vector as 16 equal columns, rounded as `like` is."""
    return tl.broadcast_to(column[:, None], column.shape[0], WIDE).to(like.dtype)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _pair(first, second, like):  # type: ignore[no-untyped-def]
    """Two vectors as 16 columns: the first one as column 0."""
    column = tl.arange(0, WIDE)[None, :]
    return tl.where(column == 0, first[:, None], second[:, None]).to(like.dtype)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _take(columns, INDEX: tl.constexpr):  # type: ignore[no-untyped-def]
    """One of 16 columns."""
    return tl.sum(tl.where(tl.arange(0, WIDE)[None, :] == INDEX, columns, 0.0), 1)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _weigh_rows(q, k, k1, scale):  # type: ignore[no-untyped-def]
    """The weights of the first T queries: of the first T keys, and of the last one."""
    square = tl.dot(q, tl.trans(k)) * (scale * LOG2_E)
    extra = _dot_last(q, k1) * (scale * LOG2_E)
    top = tl.maximum(tl.max(square, 1), extra)
    square = tl.exp2(square - top[:, None])
    extra = tl.exp2(extra - top)
    share = 1.0 / (tl.sum(square, 1) + extra)
    return square * share[:, None], extra * share


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _weigh_last(row, corner, scale):  # type: ignore[no-untyped-def]
    """The weights of the last query from its products with the first T keys and with the last one."""
    row *= scale * LOG2_E
    corner *= scale * LOG2_E
    top = tl.maximum(tl.max(row), corner)
    row = tl.exp2(row - top)
    corner = tl.exp2(corner - top)
    share = 1.0 / (tl.sum(row) + corner)
    return row * share, corner * share


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def attend_with_last(qkv, out, heads, scale, T: tl.constexpr, DIM: tl.constexpr):  # type: ignore[no-untyped-def]
    image, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    width = heads * DIM
    base = qkv + image * (T + 1) * 3 * width + head * DIM
    to = out + image * (T + 1) * width + head * DIM
    q = _load_rows(base, 3 * width, T, DIM)
    k = _load_rows(base + width, 3 * width, T, DIM)
    v = _load_rows(base + 2 * width, 3 * width, T, DIM)
    q1 = _load_padded(base, 3 * width, T, DIM)
    k1 = _load_padded(base + width, 3 * width, T, DIM)
    v1 = _load_padded(base + 2 * width, 3 * width, T, DIM)
    q_last = _load_last(base, 3 * width, T, DIM)
    k_last = _load_last(base + width, 3 * width, T, DIM)
    v_last = _load_last(base + 2 * width, 3 * width, T, DIM)
    p, p1 = _weigh_rows(q, k, k1, scale)
    _store_rows(to, tl.dot(_repeat(p1, v), v1, tl.dot(p.to(v.dtype), v)), width, T, DIM)
    w, w1 = _weigh_last(_dot_last(k, q1), tl.sum(q_last * k_last), scale)
    _store_last(to, _take(tl.dot(tl.trans(v), _repeat(w, v)), 0) + w1 * v_last, width, T, DIM)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def attend_with_last_backward(  # type: ignore[no-untyped-def]
    d_out, qkv, d_qkv, sums, heads, scale, ld_sums, SUMS: tl.constexpr, T: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """With SUMS the gradient's sums over the tokens of this image are stored too, as the general kernel does."""
    image, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    width = heads * DIM
    base = qkv + image * (T + 1) * 3 * width + head * DIM
    come = d_out + image * (T + 1) * width + head * DIM
    to = d_qkv + image * (T + 1) * 3 * width + head * DIM
    q = _load_rows(base, 3 * width, T, DIM)
    k = _load_rows(base + width, 3 * width, T, DIM)
    v = _load_rows(base + 2 * width, 3 * width, T, DIM)
    do = _load_rows(come, width, T, DIM)
    q1 = _load_padded(base, 3 * width, T, DIM)
    k1 = _load_padded(base + width, 3 * width, T, DIM)
    v1 = _load_padded(base + 2 * width, 3 * width, T, DIM)
    do1 = _load_padded(come, width, T, DIM)
    q_last = _load_last(base, 3 * width, T, DIM)
    k_last = _load_last(base + width, 3 * width, T, DIM)
    v_last = _load_last(base + 2 * width, 3 * width, T, DIM)
    do_last = _load_last(come, width, T, DIM)

    w, w1 = _weigh_last(_dot_last(k, q1), tl.sum(q_last * k_last), scale)
    dw = _dot_last(v, do1)
    dw1 = tl.sum(v_last * do_last)
    mean = tl.sum(w * dw) + w1 * dw1
    dw = w * (dw - mean) * scale
    dw1 = w1 * (dw1 - mean) * scale

    p, p1 = _weigh_rows(q, k, k1, scale)
    dp = tl.dot(do, tl.trans(v))
    ds1 = _dot_last(do, v1)
    mean = tl.sum(p * dp, 1) + p1 * ds1
    ds = (p * (dp - mean[:, None]) * scale).to(do.dtype)
    ds1 = p1 * (ds1 - mean) * scale

    dv = tl.dot(_repeat(w, do), do1, tl.dot(tl.trans(p.to(do.dtype)), do))
    _store_rows(to + 2 * width, dv, 3 * width, T, DIM)
    last = tl.dot(tl.trans(do), _pair(p1, tl.full((T,), 1.0, tl.float32), do))
    _store_last(to + 2 * width, _take(last, 0) + w1 * do_last, 3 * width, T, DIM)
    if SUMS:
        mine = sums + image * ld_sums + head * DIM + tl.arange(0, DIM)
        tl.store(mine + width, tl.zeros((DIM,), tl.float32))
        tl.store(mine + 2 * width, _take(last, 1) + do_last)
    dq = tl.dot(_repeat(ds1, k), k1, tl.dot(ds, k))
    _store_rows(to, dq, 3 * width, T, DIM)
    dk = tl.dot(_repeat(dw, q), q1, tl.dot(tl.trans(ds), q))
    _store_rows(to + width, dk, 3 * width, T, DIM)
    last = tl.dot(tl.trans(q), _repeat(ds1, q))
    _store_last(to + width, _take(last, 0) + dw1 * q_last, 3 * width, T, DIM)
    if SUMS:  # the sum of dQ's rows is that of K's rows, each times the sum of its column in dS
        column = tl.sum(tl.dot(tl.trans(ds), tl.full((T, WIDE), 1.0 / WIDE, ds.dtype)), 1)
        last = tl.dot(tl.trans(k), _pair(dw, column, k))
        dq1 = _take(last, 0) + dw1 * k_last
        tl.store(mine, dq1 + _take(last, 1) + tl.sum(ds1) * k_last)
    else:
        dq1 = _take(tl.dot(tl.trans(k), _repeat(dw, k)), 0) + dw1 * k_last
    _store_last(to, dq1, 3 * width, T, DIM)
