"""relu(norm(x) + norm'(x')) in training as operators that torch knows, and their derivative (see `norm_ops`)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.library import custom_op

from ncollapse.models.operators import call_operator


@custom_op("ncollapse::norm_pair_apply", mutates_args=(), device_types="cuda")
def norm_pair_apply(
    x: Tensor,
    x_other: Tensor,
    weight: Tensor,
    bias: Tensor,
    stats: Tensor,
    weight_other: Tensor,
    bias_other: Tensor,
    stats_other: Tensor,
    eps: float,
    eps_other: float,
) -> tuple[Tensor, Tensor]:
    """(y, the bits of y > 0, as those of `norm_apply_bits`); stats are means and biased variances [2, C]."""
    from ncollapse.models.fused_norm_pair import apply_pair

    with torch.cuda.device(x.device):  # Triton launches on the current one
        return apply_pair(
            x, x_other, weight, bias, stats, weight_other, bias_other, stats_other, eps, eps_other
        )  # fmt: skip


@custom_op("ncollapse::norm_pair_backward", mutates_args=(), device_types="cuda")
def norm_pair_backward(
    dy: Tensor,
    dy_second: Tensor | None,
    x: Tensor,
    x_other: Tensor,
    bits: Tensor,
    weight: Tensor,
    stats: Tensor,
    weight_other: Tensor,
    stats_other: Tensor,
    eps: float,
    eps_other: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dx, dx', the gradients of weight, bias, weight' and bias' [4, C])."""
    from ncollapse.models.fused_norm_pair import differentiate_pair

    with torch.cuda.device(x.device):
        return differentiate_pair(
            dy, dy_second, x, x_other, bits, weight, stats, weight_other, stats_other, eps, eps_other
        )


@norm_pair_apply.register_fake
def _(
    x: Tensor,
    x_other: Tensor,
    weight: Tensor,
    bias: Tensor,
    stats: Tensor,
    weight_other: Tensor,
    bias_other: Tensor,
    stats_other: Tensor,
    eps: float,
    eps_other: float,
) -> tuple[Tensor, Tensor]:
    images, channels, height, width = x.shape
    return torch.empty_like(x), x.new_empty((images * height * width, channels // 8), dtype=torch.uint8)


@norm_pair_backward.register_fake
def _(
    dy: Tensor,
    dy_second: Tensor | None,
    x: Tensor,
    x_other: Tensor,
    bits: Tensor,
    weight: Tensor,
    stats: Tensor,
    weight_other: Tensor,
    stats_other: Tensor,
    eps: float,
    eps_other: float,
) -> tuple[Tensor, Tensor, Tensor]:
    sums = x.new_empty((4, x.shape[1]), dtype=torch.float32)
    return torch.empty_like(x), torch.empty_like(x_other), sums


class NormPairReLU(torch.autograd.Function):
    """y = relu(norm(x) + norm'(x')) with the batch's own statistics, which are functions of x and x' too.

    With `fork` y is returned twice, so that the gradients of its two uses arrive apart and are added in the kernel.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        x_other: Tensor,
        weight_other: Tensor,
        bias_other: Tensor,
        stats: Tensor,
        stats_other: Tensor,
        eps: tuple[float, float],
        fork: bool,
    ) -> Any:
        parameters = weight, bias, stats, weight_other, bias_other, stats_other
        y, bits = call_operator(norm_pair_apply, x, x_other, *parameters, *eps)
        ctx.eps, ctx.fork = eps, fork
        ctx.save_for_backward(x, x_other, bits, weight, stats, weight_other, stats_other)
        return (y, y.view_as(y)) if fork else y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x = ctx.saved_tensors[0]
        dy, *rest = [dy.to(x.dtype).contiguous(memory_format=torch.channels_last) for dy in grads]
        second = rest[0] if ctx.fork else None
        dx, dx_other, sums = call_operator(norm_pair_backward, dy, second, *ctx.saved_tensors, *ctx.eps)
        return dx, sums[0], sums[1], dx_other, sums[2], sums[3], None, None, None, None


def train_pair(
    one: tuple[nn.BatchNorm2d, Tensor, Tensor], other: tuple[nn.BatchNorm2d, Tensor, Tensor], *, fork: bool
) -> Any:
    """relu of the sum of two norms in training mode, each given with its map and the map's statistics."""
    norm, x, stats = one
    norm_other, x_other, stats_other = other
    return NormPairReLU.apply(  # type: ignore[no-untyped-call]
        x, norm.weight, norm.bias, x_other, norm_other.weight, norm_other.bias,
        stats, stats_other, (norm.eps, norm_other.eps), fork,
    )  # fmt: skip
