"""The operators of the fused norm on a CPU: by Triton's interpreter where it is on, else by their definitions."""

import os
from importlib.util import find_spec

import torch

from ncollapse.models import norm_ops

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


def differentiate_norm(dy, dy_second, x, y, weight, bias, stats, eps, relu, pool=False):
    if pool:
        dy = dy.repeat_interleave(2, 2).repeat_interleave(2, 3) / 4
    invstd = 1 / (stats[1] + eps).sqrt()
    xhat = (widen(x) - stats[0][:, None, None]) * invstd[:, None, None]
    g = widen(dy) if dy_second is None else widen(dy) + widen(dy_second)
    if relu:
        g = g * ((xhat * weight[:, None, None] + bias[:, None, None] if y is None else y) > 0)
    sums = torch.stack([(g * xhat).sum((0, 2, 3)), g.sum((0, 2, 3))])
    mean_gx, mean_g = sums[:, :, None, None] / (x.numel() // x.shape[1])
    dx = (weight * invstd)[:, None, None] * (g - mean_g - xhat * mean_gx)
    written = dy_second is not None or (relu and y is not None)
    return dx.to(x.dtype), g.to(x.dtype) if written else x.new_empty(0), sums


def register():
    """Make the operators work on the CPU; once a process is enough."""
    if INTERPRETED:
        from ncollapse.models import fused_norm as source
    else:
        source = None
    for operator, name in (
        (norm_ops.norm_statistics, "compute_statistics"),
        (norm_ops.norm_apply, "apply_norm"),
        (norm_ops.norm_backward, "differentiate_norm"),
    ):
        operator.register_kernel("cpu")(getattr(source, name) if source else globals()[name])
