"""Triton kernels of attention over short sequences: one program holds all tokens of one head of one image.

A ViT on 32 x 32 pixels has 65 tokens, so that the whole matrix of scores fits into registers: one pass in each
direction, nothing but queries, keys and values kept, and no transposed copies.

    P = softmax(Q K^T / sqrt(d)), O = P V;   dV = P^T dO, dS = P (dO V^T - rowsum(P dO V^T)), dQ = dS K, dK = dS^T Q
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _score(q, k, token, tokens, scale):  # type: ignore[no-untyped-def]
    """The softmax over the tokens that there are."""
    scores = tl.dot(q, tl.trans(k)) * scale
    scores = tl.where((token < tokens)[None, :], scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _attend(qkv, out, tokens, heads, scale, TOKENS: tl.constexpr, DIM: tl.constexpr):  # type: ignore[no-untyped-def]
    image, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token, dim = tl.arange(0, TOKENS), tl.arange(0, DIM)
    mask = (token < tokens)[:, None]
    width = heads * DIM
    at = qkv + (image * tokens + token[:, None]) * 3 * width + head * DIM + dim[None, :]
    q = tl.load(at, mask=mask, other=0.0)
    k = tl.load(at + width, mask=mask, other=0.0)
    v = tl.load(at + 2 * width, mask=mask, other=0.0)
    weights = _score(q, k, token, tokens, scale)
    mixed = tl.dot(weights.to(v.dtype), v)
    to = out + (image * tokens + token[:, None]) * width + head * DIM + dim[None, :]
    tl.store(to, mixed.to(out.dtype.element_ty), mask=mask)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _attend_backward(  # type: ignore[no-untyped-def]
    d_out, qkv, d_qkv, tokens, heads, scale, TOKENS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    image, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token, dim = tl.arange(0, TOKENS), tl.arange(0, DIM)
    mask = (token < tokens)[:, None]
    width = heads * DIM
    offset = (image * tokens + token[:, None]) * 3 * width + head * DIM + dim[None, :]
    q = tl.load(qkv + offset, mask=mask, other=0.0)
    k = tl.load(qkv + offset + width, mask=mask, other=0.0)
    weights = _score(q, k, token, tokens, scale)
    come = d_out + (image * tokens + token[:, None]) * width + head * DIM + dim[None, :]
    do = tl.load(come, mask=mask, other=0.0)  # zero past the last token: those rows add nothing below
    dv = tl.dot(tl.trans(weights.to(do.dtype)), do)
    tl.store(d_qkv + offset + 2 * width, dv.to(d_qkv.dtype.element_ty), mask=mask)
    v = tl.load(qkv + offset + 2 * width, mask=mask, other=0.0)
    dp = tl.dot(do, tl.trans(v))
    ds = weights * (dp - tl.sum(dp * weights, 1)[:, None]) * scale
    ds = ds.to(q.dtype)
    tl.store(d_qkv + offset, tl.dot(ds, k).to(d_qkv.dtype.element_ty), mask=mask)
    tl.store(d_qkv + offset + width, tl.dot(tl.trans(ds), q).to(d_qkv.dtype.element_ty), mask=mask)


def compute_attention(qkv: Tensor, heads: int) -> Tensor:
    """qkv [B, N, 3 width], the heads side by side in each third; returns [B, N, width]."""
    images, tokens, triple = qkv.shape
    out = qkv.new_empty(images, tokens, triple // 3)
    dim = triple // 3 // heads
    padded = max(16, triton.next_power_of_2(tokens))
    _attend[images, heads](qkv, out, tokens, heads, dim**-0.5, padded, dim, num_warps=4)
    return out


def differentiate_attention(d_out: Tensor, qkv: Tensor, heads: int) -> Tensor:
    """The gradient of qkv."""
    images, tokens, triple = qkv.shape
    d_qkv = torch.empty_like(qkv)
    dim = triple // 3 // heads
    padded = max(16, triton.next_power_of_2(tokens))
    _attend_backward[images, heads](d_out, qkv, d_qkv, tokens, heads, dim**-0.5, padded, dim, num_warps=8)
    return d_qkv
