"""Convolutions whose weight gradient is computed beside the rest of the backward pass, given streams for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ncollapse.models.overlap import Beside, find_beside


class Conv2d(nn.Conv2d):
    """nn.Conv2d, which in a captured step in bfloat16 overlaps its weight gradient with the other gradients."""

    def forward(self, x: Tensor) -> Tensor:
        beside = find_beside()
        if beside is None or self.bias is not None or x.dtype != torch.bfloat16 or self.weight.dtype != torch.bfloat16:
            return super().forward(x)
        return Convolution.apply(x, self.weight, self.stride, self.padding, beside)  # type: ignore[no-any-return, no-untyped-call]


class Convolution(torch.autograd.Function):
    """A convolution without bias, dilation or groups."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kernel: Tensor, stride: tuple[int, int], padding: tuple[int, int], beside: Beside
    ) -> Tensor:
        ctx.save_for_backward(x, kernel)
        ctx.stride, ctx.padding, ctx.beside = stride, padding, beside
        return torch.conv2d(x, kernel, None, stride, padding)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, kernel = ctx.saved_tensors
        dx, d_kernel = differentiate_convolution(dy, x, kernel, ctx.stride, ctx.padding, ctx.beside)
        return dx, d_kernel, None, None, None


def differentiate_convolution(
    dy: Tensor,
    x: Tensor,
    kernel: Tensor,
    stride: tuple[int, int],
    padding: tuple[int, int],
    beside: Beside | None,
) -> tuple[Tensor, Tensor]:
    """The gradients of the input and of the kernel; the latter `beside` the former where streams are given.

    Then the kernel may be updated too: nothing may read it after this.
    """

    def differentiate(wanted: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
        return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
            dy, x, kernel, None, list(stride), list(padding), [1, 1], False, [0, 0], 1, wanted
        )

    if beside is None:
        dx, d_kernel, _ = differentiate([True, True, False])
        return dx, d_kernel
    d_kernel = beside.start(lambda: differentiate([False, True, False])[1], dy, x, kernel)
    dx = differentiate([True, False, False])[0]
    beside.update(kernel, d_kernel)
    return dx, d_kernel
