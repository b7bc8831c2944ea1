"""Triton kernels of an optimiser's step on one weight: its float32 value, its state and its bfloat16 copy at once.

    SGD      g = dL/dw + decay w,  m = momentum m + g,  w -= rate m
    Adam     g = dL/dw + decay w,  m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,
             w -= rate / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)
    AdamW    the same without decay in g, after w -= rate decay w

The gradient is read in bfloat16, as the backward pass leaves it. Separate casts of gradients and weights would add
twelve bytes a weight to the twenty (SGD) or twenty-eight (Adam) that are read and written here.
"""

from __future__ import annotations

import math

import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

BLOCK, WARPS = 1024, 4


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _update_sgd(  # type: ignore[no-untyped-def]
    grad, weight, averages, copy, rate, momentum, decay, count, MOMENTUM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = i < count
    lr = tl.load(rate)
    w = tl.load(weight + i, mask=here)
    g = tl.load(grad + i, mask=here).to(tl.float32) + decay * w
    if MOMENTUM:
        g += momentum * tl.load(averages + i, mask=here)
        tl.store(averages + i, g, mask=here)
    w -= lr * g
    tl.store(weight + i, w, mask=here)
    tl.store(copy + i, w.to(copy.dtype.element_ty), mask=here)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _update_adam(  # type: ignore[no-untyped-def]
    grad, weight, averages, squares, copy, rate, steps, decay, count,
    BETA1: tl.constexpr, BETA2: tl.constexpr, LOG1: tl.constexpr, LOG2: tl.constexpr, EPS: tl.constexpr,
    DECOUPLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = i < count
    w = tl.load(weight + i, mask=here)
    g = tl.load(grad + i, mask=here).to(tl.float32)
    m = tl.load(averages + i, mask=here)
    v = tl.load(squares + i, mask=here)
    lr = tl.load(rate)
    # in float64: after the first step, 1 - b2 would keep two digits less
    t = tl.load(steps).to(tl.float64) + 1.0
    size = (lr.to(tl.float64) / (1.0 - tl.exp(t * tl.full((), LOG1, tl.float64)))).to(tl.float32)
    scale = tl.sqrt(1.0 - tl.exp(t * tl.full((), LOG2, tl.float64))).to(tl.float32)
    if DECOUPLED:
        w -= lr * decay * w
    else:
        g += decay * w
    m = BETA1 * m + (1.0 - BETA1) * g
    v = BETA2 * v + (1.0 - BETA2) * g * g
    w -= size * m / (tl.sqrt_rn(v) / scale + EPS)
    tl.store(averages + i, m, mask=here)
    tl.store(squares + i, v, mask=here)
    tl.store(weight + i, w, mask=here)
    tl.store(copy + i, w.to(copy.dtype.element_ty), mask=here)


def update_sgd(
    grad: Tensor, weight: Tensor, copy: Tensor, averages: Tensor | None, rate: Tensor, momentum: float, decay: float
) -> None:
    """A step of SGD; all tensors but the rate are dense and laid out alike. `averages` are None without momentum."""
    count = weight.numel()
    _update_sgd[(triton.cdiv(count, BLOCK),)](
        grad, weight, averages, copy, rate, momentum, decay, count, averages is not None, BLOCK, num_warps=WARPS,
    )  # fmt: skip


def update_adam(
    grad: Tensor,
    weight: Tensor,
    copy: Tensor,
    averages: Tensor,
    squares: Tensor,
    steps: Tensor,
    rate: Tensor,
    decay: float,
    betas: tuple[float, float],
    eps: float,
    decoupled: bool,
) -> None:
    """A step of Adam, with `decoupled` of AdamW. `steps` are those taken before it, and stay as they are."""
    count = weight.numel()
    _update_adam[(triton.cdiv(count, BLOCK),)](
        grad, weight, averages, squares, copy, rate, steps, decay, count,
        *betas, *(math.log(beta) for beta in betas), eps, decoupled, BLOCK, num_warps=WARPS,
    )  # fmt: skip
