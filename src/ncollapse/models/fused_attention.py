"""Triton kernels of attention over short sequences: one program holds all tokens of one head of one image.

A ViT on 32 x 32 pixels has 65 tokens, so that the whole matrix of scores fits into registers: one pass in each
direction, nothing but queries, keys and values kept, and no transposed copies. Tokens come in two tiles, since the size
of a tile is a power of two: 64 and 16 for 65 tokens.

    P = softmax(Q K^T / sqrt(d)), O = P V;   dV = P^T dO, dS = P (dO V^T - rowsum(P dO V^T)), dQ = dS K, dK = dS^T Q
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _load(base, start, tokens, stride, TILE: tl.constexpr, DIM: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows [TILE, DIM] from token `start` on, zeros past the last one."""
    token = start + tl.arange(0, TILE)[:, None]
    return tl.load(base + token * stride + tl.arange(0, DIM)[None, :], mask=token < tokens, other=0.0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _store(base, value, start, tokens, stride, TILE: tl.constexpr, DIM: tl.constexpr):  # type: ignore[no-untyped-def]
    token = start + tl.arange(0, TILE)[:, None]
    at = base + token * stride + tl.arange(0, DIM)[None, :]
    tl.store(at, value.to(base.dtype.element_ty), mask=token < tokens)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _score(q, k, start, tokens, scale, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Scores of the keys from token `start` on, minus infinity past the last one."""
    token = start + tl.arange(0, TILE)
    return tl.where((token < tokens)[None, :], tl.dot(q, tl.trans(k)) * scale, float("-inf"))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _weigh(q, k, k2, tokens, scale, TILE: tl.constexpr, REST: tl.constexpr):  # type: ignore[no-untyped-def]
    """softmax(Q K^T) over the keys of both tiles."""
    first = _score(q, k, 0, tokens, scale, TILE)
    second = _score(q, k2, TILE, tokens, scale, REST)
    top = tl.maximum(tl.max(first, 1), tl.max(second, 1))[:, None]
    first = tl.exp(first - top)
    second = tl.exp(second - top)
    total = (tl.sum(first, 1) + tl.sum(second, 1))[:, None]
    return first / total, second / total


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _attend(  # type: ignore[no-untyped-def]
    qkv, out, tokens, heads, scale, TILE: tl.constexpr, REST: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    image, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    width = heads * DIM
    base = qkv + image * tokens * 3 * width + head * DIM
    k = _load(base + width, 0, tokens, 3 * width, TILE, DIM)
    k2 = _load(base + width, TILE, tokens, 3 * width, REST, DIM)
    v = _load(base + 2 * width, 0, tokens, 3 * width, TILE, DIM)
    v2 = _load(base + 2 * width, TILE, tokens, 3 * width, REST, DIM)
    to = out + image * tokens * width + head * DIM
    q = _load(base, 0, tokens, 3 * width, TILE, DIM)
    p, p2 = _weigh(q, k, k2, tokens, scale, TILE, REST)
    _store(to, tl.dot(p.to(v.dtype), v) + tl.dot(p2.to(v.dtype), v2), 0, tokens, width, TILE, DIM)
    if tokens > TILE:
        q2 = _load(base, TILE, tokens, 3 * width, REST, DIM)
        p21, p22 = _weigh(q2, k, k2, tokens, scale, TILE, REST)
        _store(to, tl.dot(p21.to(v.dtype), v) + tl.dot(p22.to(v.dtype), v2), TILE, tokens, width, REST, DIM)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _differentiate_scores(do, v, v2, p, p2, scale):  # type: ignore[no-untyped-def]
    """The gradients of the scores of both tiles of keys."""
    dp = tl.dot(do, tl.trans(v))
    dp2 = tl.dot(do, tl.trans(v2))
    mean = (tl.sum(dp * p, 1) + tl.sum(dp2 * p2, 1))[:, None]
    return (p * (dp - mean) * scale).to(do.dtype), (p2 * (dp2 - mean) * scale).to(do.dtype)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _attend_backward(  # type: ignore[no-untyped-def]
    d_out, qkv, d_qkv, sums, tokens, heads, scale, ld_sums,
    SUMS: tl.constexpr, TILE: tl.constexpr, REST: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """With SUMS the gradient's sums over the tokens of this image are stored too.

    Those of the values' are sums of dO, since the rows of P sum to 1; those of the keys' are 0, as the rows of dS are.
    """
    image, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    width = heads * DIM
    base = qkv + image * tokens * 3 * width + head * DIM
    to = d_qkv + image * tokens * 3 * width + head * DIM
    come = d_out + image * tokens * width + head * DIM
    k = _load(base + width, 0, tokens, 3 * width, TILE, DIM)
    k2 = _load(base + width, TILE, tokens, 3 * width, REST, DIM)
    v = _load(base + 2 * width, 0, tokens, 3 * width, TILE, DIM)
    v2 = _load(base + 2 * width, TILE, tokens, 3 * width, REST, DIM)
    q = _load(base, 0, tokens, 3 * width, TILE, DIM)
    do = _load(come, 0, tokens, width, TILE, DIM)  # zero past the last token: those rows add nothing
    p, p2 = _weigh(q, k, k2, tokens, scale, TILE, REST)
    ds, ds2 = _differentiate_scores(do, v, v2, p, p2, scale)
    dq = tl.dot(ds, k) + tl.dot(ds2, k2)
    _store(to, dq, 0, tokens, 3 * width, TILE, DIM)
    sum_q = tl.sum(dq, 0)  # zero past the last token, as dS is
    sum_v = tl.sum(do.to(tl.float32), 0)
    dk = tl.dot(tl.trans(ds), q)
    dk2 = tl.dot(tl.trans(ds2), q)
    dv = tl.dot(tl.trans(p.to(do.dtype)), do)
    dv2 = tl.dot(tl.trans(p2.to(do.dtype)), do)
    if tokens > TILE:
        q2 = _load(base, TILE, tokens, 3 * width, REST, DIM)
        do2 = _load(come, TILE, tokens, width, REST, DIM)
        p21, p22 = _weigh(q2, k, k2, tokens, scale, TILE, REST)
        ds21, ds22 = _differentiate_scores(do2, v, v2, p21, p22, scale)
        dq2 = tl.dot(ds21, k) + tl.dot(ds22, k2)
        _store(to, dq2, TILE, tokens, 3 * width, REST, DIM)
        sum_q += tl.sum(dq2, 0)
        sum_v += tl.sum(do2.to(tl.float32), 0)
        dk += tl.dot(tl.trans(ds21), q2)
        dk2 += tl.dot(tl.trans(ds22), q2)
        dv += tl.dot(tl.trans(p21.to(do2.dtype)), do2)
        dv2 += tl.dot(tl.trans(p22.to(do2.dtype)), do2)
    _store(to + width, dk, 0, tokens, 3 * width, TILE, DIM)
    _store(to + width, dk2, TILE, tokens, 3 * width, REST, DIM)
    _store(to + 2 * width, dv, 0, tokens, 3 * width, TILE, DIM)
    _store(to + 2 * width, dv2, TILE, tokens, 3 * width, REST, DIM)
    if SUMS:
        mine = sums + image * ld_sums + head * DIM + tl.arange(0, DIM)
        tl.store(mine, sum_q)
        tl.store(mine + width, tl.zeros((DIM,), tl.float32))
        tl.store(mine + 2 * width, sum_v)


def choose_tiles(tokens: int) -> tuple[int, int]:
    """Two powers of two from 16 on that hold all tokens, their sum as small as possible, the larger one first.

    >>> [choose_tiles(tokens) for tokens in (1, 33, 65, 100, 128)]
    [(16, 16), (32, 16), (64, 16), (64, 64), (64, 64)]
    """
    sizes = (16, 32, 64)
    fitting = [(first, rest) for first in sizes for rest in sizes if rest <= first and first + rest >= tokens]
    return min(fitting, key=sum)


def compute_attention(qkv: Tensor, heads: int) -> Tensor:
    """qkv [B, N, 3 width], the heads side by side in each third; returns [B, N, width]."""
    images, tokens, triple = qkv.shape
    out = qkv.new_empty(images, tokens, triple // 3)
    dim = triple // 3 // heads
    _attend[images, heads](qkv, out, tokens, heads, dim**-0.5, *choose_tiles(tokens), dim)
    return out


def differentiate_attention(d_out: Tensor, qkv: Tensor, heads: int, sums: Tensor | None = None) -> Tensor:
    """The gradient of qkv; sums [B, 3 width] get its sums over the tokens of each image."""
    images, tokens, triple = qkv.shape
    d_qkv = torch.empty_like(qkv)
    dim = triple // 3 // heads
    _attend_backward[images, heads](
        d_out, qkv, d_qkv, sums, tokens, heads, dim**-0.5, 0 if sums is None else sums.stride(0),
        sums is not None, *choose_tiles(tokens), dim,
    )  # fmt: skip
    return d_qkv
