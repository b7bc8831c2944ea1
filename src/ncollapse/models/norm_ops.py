"""The fused norm as operators that torch knows, so that a compiled network sees one node each, and their derivative."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.library import custom_op

from ncollapse.models.known_statistics import recall_statistics
from ncollapse.models.operators import call_operator


@custom_op("ncollapse::norm_statistics", mutates_args=("running_mean", "running_var", "tracked"), device_types="cuda")
def norm_statistics(x: Tensor, running_mean: Tensor, running_var: Tensor, tracked: Tensor, momentum: float) -> Tensor:
    """Mean and biased variance of a map by channel [2, C]; the running statistics are updated."""
    from ncollapse.models.fused_norm import compute_statistics

    with torch.cuda.device(x.device):  # Triton launches on the current one
        return compute_statistics(x, running_mean, running_var, tracked, momentum)


@custom_op("ncollapse::norm_apply", mutates_args=(), device_types="cuda")
def norm_apply(
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
    from ncollapse.models.fused_norm import apply_norm

    with torch.cuda.device(x.device):
        return apply_norm(x, weight, bias, mean, variance, residual, eps, relu, pool)


@custom_op("ncollapse::norm_apply_bits", mutates_args=(), device_types="cuda")
def norm_apply_bits(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, residual: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """(y, the bits of y > 0) of y = relu(norm(x) + residual).

    The bits are bytes [pixels, channels / 8]: bit i of byte j belongs to channel 8 j + i.
    """
    from ncollapse.models.fused_norm import apply_norm_bits

    with torch.cuda.device(x.device):
        return apply_norm_bits(x, weight, bias, mean, variance, residual, eps)


@custom_op("ncollapse::norm_backward", mutates_args=(), device_types="cuda")
def norm_backward(
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
    """(dx, the gradient before the ReLU or an empty tensor where that is dy, [d_weight, d_bias]).

    `positive` is given where there was a residual: the norm's output y, or the bits of y > 0.
    """
    from ncollapse.models.fused_norm import differentiate_norm

    with torch.cuda.device(x.device):
        return differentiate_norm(dy, dy_second, x, positive, weight, bias, stats, eps, relu, pool)


@norm_statistics.register_fake
def _(x: Tensor, running_mean: Tensor, running_var: Tensor, tracked: Tensor, momentum: float) -> Tensor:
    return x.new_empty((2, x.shape[1]), dtype=torch.float32)


@norm_apply.register_fake
def _(
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
    if not pool:
        return torch.empty_like(x)
    images, channels, height, width = x.shape
    shape = (images, channels, height // 2, width // 2)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


@norm_apply_bits.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, residual: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    images, channels, height, width = x.shape
    return torch.empty_like(x), x.new_empty((images * height * width, channels // 8), dtype=torch.uint8)


@norm_backward.register_fake
def _(
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
    written = dy_second is not None or (relu and positive is not None)
    g = torch.empty_like(x) if written else x.new_empty(0)
    return torch.empty_like(x), g, x.new_empty((2, x.shape[1]), dtype=torch.float32)


class NormReLU(torch.autograd.Function):
    """y = relu(norm(x) + residual) with the batch's own statistics, which are functions of x too.

    With `fork` y is returned twice, so that the gradients of its two uses arrive apart and are added in the kernel.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        stats: Tensor,
        eps: float,
        relu: bool,
        fork: bool,
        pool: bool,
    ) -> Any:
        ctx.has_residual, ctx.eps, ctx.relu, ctx.fork, ctx.pool = residual is not None, eps, relu, fork, pool
        if ctx.has_residual and relu and x.shape[1] % 8 == 0:
            y, positive = call_operator(norm_apply_bits, x, weight, bias, stats[0], stats[1], residual, eps)
        else:
            y = positive = call_operator(norm_apply, x, weight, bias, stats[0], stats[1], residual, eps, relu, pool)
        if ctx.has_residual and relu:
            ctx.save_for_backward(x, weight, bias, stats, positive)
        else:
            ctx.save_for_backward(x, weight, bias, stats)
        return (y, y.view_as(y)) if fork else y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, stats = ctx.saved_tensors[:4]
        positive = ctx.saved_tensors[4] if ctx.has_residual and ctx.relu else None
        dy, *rest = [dy.to(x.dtype).contiguous(memory_format=torch.channels_last) for dy in grads]
        second = rest[0] if ctx.fork else None
        options = ctx.eps, ctx.relu, ctx.pool
        dx, g, sums = call_operator(norm_backward, dy, second, x, positive, weight, bias, stats, *options)
        d_residual = None
        if ctx.has_residual:
            d_residual = g if ctx.fork or ctx.relu else dy
        return dx, sums[0], sums[1], d_residual, None, None, None, None, None


def take_statistics(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """Mean and biased variance of x by channel [2, C]; the norm's running statistics are updated."""
    stats = recall_statistics(norm, x)
    if stats is None:
        running = norm.running_mean, norm.running_var, norm.num_batches_tracked
        stats = call_operator(norm_statistics, x.detach(), *running, norm.momentum)
    return stats


def train_norm(
    norm: nn.BatchNorm2d,
    x: Tensor,
    residual: Tensor | None,
    relu: bool,
    *,
    fork: bool = False,
    pool: bool = False,
    stats: Tensor | None = None,
) -> Any:
    """relu(norm(x) + residual) of a norm in training mode; twice with `fork`, means over 2 x 2 pixels with `pool`.

    `stats` are those of x where they have been taken before.
    """
    stats = take_statistics(norm, x) if stats is None else stats
    return NormReLU.apply(x, norm.weight, norm.bias, residual, stats, norm.eps, relu, fork, pool)  # type: ignore[no-untyped-call]


def infer_norm(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, relu: bool, pool: bool = False) -> Tensor:
    """relu(norm(x) + residual) of a norm in eval mode, without derivatives."""
    given = norm.weight, norm.bias, norm.running_mean, norm.running_var, residual
    y: Tensor = call_operator(norm_apply, x, *given, norm.eps, relu, pool)
    return y
