"""A dense block's training step on a GPU: one wide map that every layer reads from and appends to.

Layer by layer, torch would copy the whole map to append a few channels, take the statistics of channels that the layer
before had taken too, and add up the gradients of every prefix of the map. Here each channel is written and summed once.
In the backward pass layers add to the gradient of the wide map in one pass, and what depends on the means of their
gradients is subtracted where a channel's gradient is used (`fused_dense`).

Layers share these passes (`share_pass`): one pass reads a channel of the wide map for several layers that need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ncollapse.models.convolution import differentiate_convolution
from ncollapse.models.known_statistics import remember_statistics
from ncollapse.models.overlap import find_beside

if TYPE_CHECKING:
    from ncollapse.models.densenet import DenseLayer
    from ncollapse.models.fused_dense import LayerGradient

PARTS = 6
"""Parameters of a layer: weight and bias of a norm, a convolution, and the same again."""
GROUP, FORWARD_GROUP = 4, 2
"""Layers that share a pass at most, in the backward and in the forward pass: powers of two."""


class DenseBlock(torch.autograd.Function):
    """The wide map [B, C + growth * layers, H, W] of x [B, C, H, W], and its mean and variance by channel.

    `tensors` are the layers' parameters in order.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, layers: list[DenseLayer], *tensors: Tensor) -> tuple[Tensor, Tensor]:
        from ncollapse.models.fused_dense import append_channels, apply_norms
        from ncollapse.models.fused_norm import apply_norm, compute_statistics

        channels = x.shape[1]
        growth = layers[0].conv2.out_channels
        wide = _make_map(x, channels + growth * len(layers))
        stats = torch.empty(2, wide.shape[1], dtype=torch.float32, device=x.device)
        kept: list[Tensor] = []
        norms: list[Any] = [layer.norm1 for layer in layers]  # with running statistics
        hidden = [_make_map(wide, channels + growth * i) for i in range(len(layers))]
        with torch.cuda.device(x.device):  # Triton launches on the current one
            append_channels(x, wide, stats, 0)
            for i in range(len(layers)):
                _, _, k1, w2, b2, k2 = tensors[PARTS * i : PARTS * (i + 1)]
                two: Any = layers[i].norm2
                number, low, start = share_pass(i, FORWARD_GROUP, channels, growth)
                apply_norms(norms[i : i + number], hidden[i : i + number], wide, stats, low, start)
                u = F.conv2d(hidden[i], k1).contiguous(memory_format=torch.channels_last)  # as cuDNN leaves it
                s = compute_statistics(u, two.running_mean, two.running_var, two.num_batches_tracked, two.momentum)
                z = apply_norm(u, w2, b2, s[0], s[1], None, two.eps, True)
                new = F.conv2d(z, k2, padding=1).contiguous(memory_format=torch.channels_last)
                append_channels(new, wide, stats, start)
                kept += [hidden[i], u, s, z]
        ctx.layers, ctx.channels, ctx.beside = layers, channels, find_beside()
        ctx.save_for_backward(wide, stats, *kept, *tensors)
        ctx.mark_non_differentiable(stats)
        ctx.set_materialize_grads(False)
        return wide, stats

    @staticmethod
    def backward(ctx: Any, d_wide: Tensor, d_stats: None) -> tuple[Tensor | None, ...]:
        from ncollapse.models.fused_dense import LayerGradient, add_gradients, copy_gradient
        from ncollapse.models.fused_norm import differentiate_norm

        layers, count = ctx.layers, len(ctx.layers)
        wide, stats, *rest = ctx.saved_tensors
        kept, tensors = rest[: 4 * count], rest[4 * count :]
        grads: list[Tensor | None] = [None] * len(tensors)
        given = d_wide.to(wide.dtype).contiguous(memory_format=torch.channels_last)
        total, coefficients = torch.empty_like(wide), torch.empty_like(stats)
        growth = layers[0].conv2.out_channels
        done: list[LayerGradient] = []  # the last layer first
        with torch.cuda.device(wide.device):
            for i in reversed(range(count)):
                layer, (h, u, s, z) = layers[i], kept[4 * i : 4 * i + 4]
                w1, b1, k1, w2, b2, k2 = tensors[PARTS * i : PARTS * (i + 1)]
                number, low, start = share_pass(i, GROUP, ctx.channels, growth)
                if i == count - 1:  # no later layer has added to these channels
                    new = given[:, start:].contiguous(memory_format=torch.channels_last)
                else:
                    new = copy_gradient(total, wide, stats, coefficients, start, start + growth)
                dz, d_k2 = differentiate_convolution(new, z, k2, (1, 1), (1, 1), ctx.beside)
                dz = dz.contiguous(memory_format=torch.channels_last)  # as cuDNN leaves it
                du, _, sums2 = differentiate_norm(dz, None, u, None, w2, b2, s, layer.norm2.eps, True)
                dh, d_k1 = differentiate_convolution(du, h, k1, (1, 1), (0, 0), ctx.beside)
                dh = dh.contiguous(memory_format=torch.channels_last)
                sums1 = torch.empty(2, start, dtype=stats.dtype, device=stats.device)
                done.append(LayerGradient(dh, w1, b1, layer.norm1.eps, sums1))
                source = given if i + number >= count else total
                add_gradients(done[-number:], wide, stats, source, total, coefficients, low, start)
                if low == 0:
                    done.clear()  # their memory is not needed any longer
                grads[PARTS * i : PARTS * (i + 1)] = [sums1[0], sums1[1], d_k1, sums2[0], sums2[1], d_k2]
            dx = copy_gradient(total, wide, stats, coefficients, 0, ctx.channels)
        return dx, None, *grads


def share_pass(i: int, group: int, channels: int, growth: int) -> tuple[int, int, int]:
    """(number, low, high): layers i...i + number - 1 share a pass over channels low...high - 1, made when layer i runs.

    Every `group` layers the pass covers all channels. In between it covers those that the last `number` layers before i
    have appended, where `number` is the largest power of two that divides i. So each layer meets each channel that it
    reads exactly once: layer k meets the channels of layer j of its group in the pass of layer i, which is k with all
    bits cleared below the highest one in which j and k differ.
    """
    high = channels + growth * i
    if i % group == 0:
        return group, 0, high
    number = i & -i
    return number, high - growth * number, high


def run_block(layers: list[DenseLayer], x: Tensor) -> Tensor:
    """The block's wide map of x, in training mode. A norm of it finds its statistics there."""
    tensors: list[Tensor] = []
    for layer in layers:
        for norm, conv in ((layer.norm1, layer.conv1), (layer.norm2, layer.conv2)):
            tensors += [norm.weight, norm.bias, conv.weight.to(x.dtype)]
    wide: Tensor
    wide, stats = DenseBlock.apply(x, layers, *tensors)  # type: ignore[no-untyped-call]
    remember_statistics(wide, stats)
    return wide


def _make_map(like: Tensor, channels: int) -> Tensor:
    images, _, height, width = like.shape
    shape = (images, channels, height, width)
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)
