"""The kernels of a dense block by their definitions."""

from collections import namedtuple

import torch

from reference.norm_ops import apply_norm, compute_statistics, widen

LayerGradient = namedtuple("LayerGradient", "dy weight bias eps sums")


def append_channels(new, wide, stats, start):
    end = start + new.shape[1]
    wide[:, start:end] = new
    stats[1, start:end], stats[0, start:end] = torch.var_mean(widen(new), (0, 2, 3), correction=0)


def apply_norms(norms, hidden, wide, stats, low, high):
    x, (mean, variance) = wide[:, low:high], stats[:, low:high]
    for norm, y in zip(norms, hidden, strict=True):
        tracked = norm.num_batches_tracked if low == 0 else torch.zeros(())
        compute_statistics(x, norm.running_mean[low:high], norm.running_var[low:high], tracked, norm.momentum)
        y[:, low:high] = apply_norm(x, norm.weight[low:high], norm.bias[low:high], mean, variance, None, norm.eps, True)


def track_statistics(norm, stats, m):
    norm.running_mean.lerp_(stats[0].to(norm.running_mean), norm.momentum)
    norm.running_var.lerp_(stats[1].to(norm.running_var) * m / (m - 1), norm.momentum)
    norm.num_batches_tracked.add_(1)


def add_gradients(layers, wide, stats, source, total, coefficients, low, high):
    x = wide[:, low:high]
    count = x.numel() // x.shape[1]
    mean, variance = stats[:, low:high, None, None]
    found = widen(source[:, low:high])
    if source is not total:
        coefficients[:, low:high] = 0
    for dy, weight, bias, eps, sums in layers:
        invstd = 1 / (variance + eps).sqrt()
        scale, xhat = weight[low:high, None, None] * invstd, (widen(x) - mean) * invstd
        g = widen(dy[:, low:high]) * (xhat * weight[low:high, None, None] + bias[low:high, None, None] > 0)
        found = found + scale * g
        sums[:, low:high] = torch.stack([(g * xhat).sum((0, 2, 3)), g.sum((0, 2, 3))])
        mean_gx, mean_g = sums[:, low:high, None, None] / count
        coefficients[:, low:high] += torch.stack([scale * mean_g, scale * invstd * mean_gx])[..., 0, 0]
    total[:, low:high] = found


def copy_gradient(total, wide, stats, coefficients, low, high):
    offset, slope = coefficients[:, low:high, None, None]
    dx = widen(total[:, low:high]) - offset - slope * (widen(wide[:, low:high]) - stats[0, low:high, None, None])
    return dx.to(total.dtype).contiguous(memory_format=torch.channels_last)
