"""The operators of the fused norm on a CPU: by Triton's interpreter where it is on, else by their definitions."""

import os
from importlib.util import find_spec

import torch

from ncollapse.models import norm_ops, norm_pair

INTERPRETED = (
    not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
)


def widen(x):
    return x if x.dtype == torch.float64 else x.float()


def compute_statistics(x, running_mean, running_var, tracked, momentum):
    variance, mean = torch.var_mean(widen(x), (0, 2, 3), correction=0)
    count = x.numel() // x.shape[1]
    running_mean.lerp_(mean, momentum)
    running_var.lerp_(variance * count / (count - 1), momentum)
    tracked.add_(1)
    return torch.stack([mean, variance])


def apply_norm(x, weight, bias, mean, variance, residual, eps, relu, pool=False):
    scale = weight / (variance + eps).sqrt()
    y = (widen(x) - mean[:, None, None]) * scale[:, None, None] + bias[:, None, None]
    if residual is not None:
        y = y + residual
    y = y.relu() if relu else y
    y = torch.nn.functional.avg_pool2d(y, 2) if pool else y
    return y.to(x.dtype).contiguous(memory_format=torch.channels_last)


def apply_norm_bits(x, weight, bias, mean, variance, residual, eps):
    y = apply_norm(x, weight, bias, mean, variance, residual, eps, True)
    return y, pack_bits(y > 0)


def pack_bits(positive):
    """Bytes [B H W, C / 8] of a map [B, C, H, W] of booleans."""
    groups = positive.permute(0, 2, 3, 1).reshape(-1, positive.shape[1] // 8, 8)
    return sum(groups[:, :, i].to(torch.uint8) << i for i in range(8))


def unpack_bits(packed, shape):
    """The map [B, C, H, W] of booleans that was packed."""
    images, channels, height, width = shape
    groups = torch.stack([(packed >> i) & 1 for i in range(8)], 2)
    return groups.reshape(images, height, width, channels).permute(0, 3, 1, 2).bool()


def differentiate_norm(dy, dy_second, x, positive, weight, bias, stats, eps, relu, pool=False):
    written = dy_second is not None or (relu and positive is not None)
    if pool:
        dy = dy.repeat_interleave(2, 2).repeat_interleave(2, 3) / 4
    invstd = 1 / (stats[1] + eps).sqrt()
    xhat = (widen(x) - stats[0][:, None, None]) * invstd[:, None, None]
    g = widen(dy) if dy_second is None else widen(dy) + widen(dy_second)
    if relu:
        if positive is None:
            positive = xhat * weight[:, None, None] + bias[:, None, None] > 0
        elif positive.dtype == torch.uint8:
            positive = unpack_bits(positive, x.shape)
        else:
            positive = positive > 0
        g = torch.where(positive, g, 0.0)
    sums = torch.stack([(g * xhat).sum((0, 2, 3)), g.sum((0, 2, 3))])
    mean_gx, mean_g = sums[:, :, None, None] / (x.numel() // x.shape[1])
    dx = (weight * invstd)[:, None, None] * (g - mean_g - xhat * mean_gx)
    return dx.to(x.dtype), g.to(x.dtype) if written else x.new_empty(0), sums


def apply_pair(x, x_other, weight, bias, stats, weight_other, bias_other, stats_other, eps, eps_other):
    residual = apply_norm(widen(x_other), weight_other, bias_other, *stats_other, None, eps_other, False)
    y = apply_norm(widen(x), weight, bias, *stats, residual, eps, True).to(x.dtype)
    return y, pack_bits(y > 0)


def differentiate_pair(
    dy, dy_second, x, x_other, bits, weight, stats, weight_other, stats_other, eps, eps_other
):  # fmt: skip
    g = torch.where(unpack_bits(bits, x.shape), dy if dy_second is None else dy + dy_second, 0.0)
    dx, _, sums = differentiate_norm(g, None, x, None, weight, weight, stats, eps, False)
    dx_other, _, others = differentiate_norm(
        g, None, x_other, None, weight_other, weight, stats_other, eps_other, False
    )
    return dx, dx_other, torch.cat([sums, others])


def register():
    """Make the operators work on the CPU; once a process is enough."""
    if INTERPRETED:
        from ncollapse.models import fused_norm, fused_norm_pair

        source = vars(fused_norm) | vars(fused_norm_pair)
    else:
        source = globals()
    for operator, name in (
        (norm_ops.norm_statistics, "compute_statistics"),
        (norm_ops.norm_apply, "apply_norm"),
        (norm_ops.norm_apply_bits, "apply_norm_bits"),
        (norm_ops.norm_backward, "differentiate_norm"),
        (norm_pair.norm_pair_apply, "apply_pair"),
        (norm_pair.norm_pair_backward, "differentiate_pair"),
    ):
        operator.register_kernel("cpu")(source[name])
