"""Triton kernels of the last layer with its loss and decays: one launch forward, two backward.

    z = W h - b,  total = mean_B L(z, y) + weight/2 |W|^2 + feature/2 |H|^2 + bias/2 |b|^2

Launched one by one, the operations of a head, a loss and decays are some forty kernels of two microseconds, for almost
no arithmetic. The forward kernel keeps the gradient of the mean loss in z; the backward kernels multiply it out.
Everything is float32, sums are added in a fixed order.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from ncollapse.models.fused_norm import find_tickets, is_last

ROWS, DIMS, ADDED = 16, 64, 32
"""Samples and feature dimensions of a tile, and blocks of sums that are added at a time."""


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _log1p(x):  # type: ignore[no-untyped-def]
    """log(1 + x) for x in [0, 1], to full relative precision."""
    u = 1.0 + x
    return tl.where(u == 1.0, x, tl.log(u) * x / tl.where(u == 1.0, 1.0, u - 1.0))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _softplus(x):  # type: ignore[no-untyped-def]
    """log(1 + e^x)."""
    return tl.where(x < 0.0, 0.0, x) + _log1p(tl.exp(-tl.abs(x)))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _sigmoid(x):  # type: ignore[no-untyped-def]
    e = tl.exp(-tl.abs(x))
    return tl.where(x < 0.0, e, 1.0) / (1.0 + e)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _softmax_loss(z, y, valid, SOFT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Cross-entropy [ROWS] and its gradient in z [ROWS, CLASSES]; y marks the own class, or holds soft targets."""
    if SOFT:
        z = tl.where(valid, z, float("-inf"))
        top = tl.max(z, 1)[:, None]
        terms = tl.exp(z - top)
        total = tl.sum(terms, 1)[:, None]
        log_p = tl.where(valid, z - top - tl.log(total), 0.0)
        return -tl.sum(y * log_p, 1), terms / total * tl.sum(y, 1)[:, None] - y
    # by the lead over the others, which keeps small losses and their gradients precise
    others = tl.where(valid & (y == 0.0), z, float("-inf"))
    top = tl.max(others, 1)[:, None]
    terms = tl.exp(others - top)
    total = tl.sum(terms, 1)[:, None]
    lead = tl.sum(y * z, 1)[:, None] - top - tl.log(total)
    miss = _sigmoid(-lead)
    return tl.sum(_softplus(-lead), 1), tl.where(y == 0.0, terms / total, -1.0) * miss


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _sigmoid_loss(z, y, valid, SOFT: tl.constexpr):  # type: ignore[no-untyped-def]
    """The same for binary cross-entropy, summed over the classes."""
    if SOFT:
        value = y * _softplus(-z) + (1.0 - y) * _softplus(z)
        slope = (1.0 - y) * _sigmoid(z) - y * _sigmoid(-z)
    else:
        sign = tl.where(y == 0.0, 1.0, -1.0)
        value = _softplus(sign * z)
        slope = sign * _sigmoid(sign * z)
    return tl.sum(tl.where(valid, value, 0.0), 1), slope


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _forward(  # type: ignore[no-untyped-def]
    h, weight, bias, target, slopes, partial, ticket, result, rows, dim, classes, blocks,
    weight_decay, feature_decay, bias_decay,
    SOFTMAX: tl.constexpr, SOFT: tl.constexpr, BIAS: tl.constexpr,
    ROWS: tl.constexpr, CLASSES: tl.constexpr, DIMS: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    row = block * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, CLASSES)
    here, known = row < rows, k < classes
    z = tl.zeros((ROWS, CLASSES), tl.float32)
    h_squares = tl.zeros((ROWS, DIMS), tl.float32)
    w_squares = tl.zeros((CLASSES, DIMS), tl.float32)
    for start in range(0, dim, DIMS):
        d = start + tl.arange(0, DIMS)
        part = (d < dim)[None, :]
        a = tl.load(h + row[:, None] * dim + d[None, :], mask=here[:, None] & part, other=0.0)
        w = tl.load(weight + k[:, None] * dim + d[None, :], mask=known[:, None] & part, other=0.0)
        z += tl.dot(a, tl.trans(w), input_precision="ieee")
        h_squares += a * a
        w_squares += w * w
    b = tl.zeros((CLASSES,), tl.float32)
    if BIAS:
        b = tl.load(bias + k, mask=known, other=0.0)
        z -= b[None, :]
    valid = here[:, None] & known[None, :]
    if SOFT:
        y = tl.load(target + row[:, None] * classes + k[None, :], mask=valid, other=0.0).to(tl.float32)
    else:
        y = tl.where(tl.load(target + row, mask=here, other=0)[:, None] == k[None, :], 1.0, 0.0)
    if SOFTMAX:
        value, slope = _softmax_loss(z, y, known[None, :], SOFT)
    else:
        value, slope = _sigmoid_loss(z, y, known[None, :], SOFT)
    tl.store(slopes + row[:, None] * classes + k[None, :], slope / rows, mask=valid)
    tl.store(partial + 2 * block, tl.sum(tl.where(here, value, 0.0), 0))
    tl.store(partial + 2 * block + 1, tl.sum(tl.sum(h_squares, 1), 0))
    if is_last(ticket, blocks):
        tl.store(ticket, 0)
        losses = tl.zeros((ADDED,), tl.float32)
        squares = tl.zeros((ADDED,), tl.float32)
        for start in range(0, blocks, ADDED):
            i = start + tl.arange(0, ADDED)
            losses += tl.load(partial + 2 * i, mask=i < blocks, other=0.0, cache_modifier=".cg")
            squares += tl.load(partial + 2 * i + 1, mask=i < blocks, other=0.0, cache_modifier=".cg")
        loss = tl.sum(losses, 0) / rows
        decay = feature_decay * tl.sum(squares, 0) + weight_decay * tl.sum(tl.sum(w_squares, 1), 0)
        tl.store(result, loss + 0.5 * (decay + bias_decay * tl.sum(b * b, 0)))
        tl.store(result + 1, loss)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _backward_features(  # type: ignore[no-untyped-def]
    slopes, weight, h, upstream, d_h, rows, dim, classes, feature_decay,
    ROWS: tl.constexpr, CLASSES: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.program_id(1) * DIMS + tl.arange(0, DIMS)
    k = tl.arange(0, CLASSES)
    here, known, part = (row < rows)[:, None], k < classes, (d < dim)[None, :]
    g = tl.load(slopes + row[:, None] * classes + k[None, :], mask=here & known[None, :], other=0.0)
    w = tl.load(weight + k[:, None] * dim + d[None, :], mask=known[:, None] & part, other=0.0)
    at = row[:, None] * dim + d[None, :]
    a = tl.load(h + at, mask=here & part, other=0.0)
    found = tl.dot(g, w, input_precision="ieee") + feature_decay * a
    tl.store(d_h + at, found * tl.load(upstream), mask=here & part)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _backward_head(  # type: ignore[no-untyped-def]
    slopes, weight, bias, h, upstream, d_weight, d_bias, rows, dim, classes, weight_decay, bias_decay,
    BIAS: tl.constexpr, ROWS: tl.constexpr, CLASSES: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0)
    d = column * DIMS + tl.arange(0, DIMS)
    k = tl.arange(0, CLASSES)
    known, part = k < classes, (d < dim)[None, :]
    found = tl.zeros((CLASSES, DIMS), tl.float32)
    total = tl.zeros((CLASSES,), tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        here = (row < rows)[:, None]
        g = tl.load(slopes + row[:, None] * classes + k[None, :], mask=here & known[None, :], other=0.0)
        a = tl.load(h + row[:, None] * dim + d[None, :], mask=here & part, other=0.0)
        found += tl.dot(tl.trans(g), a, input_precision="ieee")
        total += tl.sum(g, 0)
    scale = tl.load(upstream)
    at = k[:, None] * dim + d[None, :]
    mask = known[:, None] & part
    w = tl.load(weight + at, mask=mask, other=0.0)
    tl.store(d_weight + at, (found + weight_decay * w) * scale, mask=mask)
    if BIAS:  # noqa: SIM102 - this condition is the compiler's
        if column == 0:
            b = tl.load(bias + k, mask=known, other=0.0)
            tl.store(d_bias + k, (bias_decay * b - total) * scale, mask=known)


def _pad(classes: int) -> tuple[int, int]:
    """(the classes up to a power of two, the warps of a program that holds so many)."""
    padded: int = max(16, triton.next_power_of_2(classes))
    return padded, 4 if padded <= 64 else 8


def compute_total(
    h: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, decays: tuple[float, float, float], softmax: bool
) -> tuple[Tensor, Tensor]:
    """([total, mean loss], the gradient of the mean loss in the logits [B, K]).

    `decays` are those of weight, features and bias; `softmax` chooses cross-entropy, else binary cross-entropy.
    """
    (rows, dim), classes = h.shape, len(weight)
    padded, warps = _pad(classes)
    blocks = triton.cdiv(rows, ROWS)
    slopes = torch.empty(rows, classes, dtype=torch.float32, device=h.device)
    partial = torch.empty(blocks, 2, dtype=torch.float32, device=h.device)
    result = torch.empty(2, dtype=torch.float32, device=h.device)
    _forward[(blocks,)](
        h, weight, bias, target, slopes, partial, find_tickets(h, 1), result, rows, dim, classes, blocks, *decays,
        softmax, target.ndim == 2, bias is not None, ROWS, padded, DIMS, ADDED, num_warps=warps,
    )  # fmt: skip
    return result, slopes


def differentiate_total(
    upstream: Tensor,
    slopes: Tensor,
    h: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    decays: tuple[float, float, float],
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of the total in features, weight and bias, times `upstream`."""
    (rows, dim), classes = h.shape, len(weight)
    padded, warps = _pad(classes)
    of_weight, of_features, of_bias = decays
    d_h, d_weight = torch.empty_like(h), torch.empty_like(weight)
    d_bias = None if bias is None else torch.empty_like(bias)
    columns = triton.cdiv(dim, DIMS)
    _backward_features[triton.cdiv(rows, ROWS), columns](
        slopes, weight, h, upstream, d_h, rows, dim, classes, of_features, ROWS, padded, DIMS, num_warps=warps,
    )  # fmt: skip
    _backward_head[(columns,)](
        slopes, weight, bias, h, upstream, d_weight, d_bias, rows, dim, classes, of_weight, of_bias,
        bias is not None, ROWS, padded, DIMS, num_warps=warps,
    )  # fmt: skip
    return d_h, d_weight, d_bias
