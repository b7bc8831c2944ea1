"""The last layer, its loss and its decays as one operation in a captured step on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ncollapse.heads import LinearHead
from ncollapse.losses import BCELoss, CELoss, Loss
from ncollapse.models.norm import has_kernels, is_fusing
from ncollapse.train.recipe import DecaySpec

MOST_CLASSES = 256
"""A program of the kernels holds a sample's scores of all classes."""


def can_fuse_last_layer(head: nn.Module, loss: Loss, features: Tensor, target: Tensor) -> bool:
    """Whether the kernels know this case: a linear head in float32, and CE or BCE without weights or smoothing."""
    if not (features.is_cuda and has_kernels() and is_fusing()) or torch.compiler.is_compiling():
        return False
    return knows_last_layer(head, loss) and features.dtype == torch.float32 and features.ndim == 2 and len(target) > 0


def knows_last_layer(head: nn.Module, loss: Loss) -> bool:
    """Whether the kernels know this head and loss, wherever they are."""
    if type(head) is not LinearHead or len(head.weight) > MOST_CLASSES or head.weight.dtype != torch.float32:
        return False
    if not isinstance(loss, CELoss | BCELoss) or type(loss) not in (CELoss, BCELoss):
        return False
    hooked = any((*module._forward_hooks, *module._forward_pre_hooks) for module in (head, loss))
    return not (hooked or loss.label_smoothing or loss.weight is not None) and loss.reduction == "mean"


class LastLayer(torch.autograd.Function):
    """(objective, mean loss) of features, weight and bias; the mean loss has no derivative."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        decays: tuple[float, float, float],
        softmax: bool,
    ) -> tuple[Tensor, Tensor]:
        from ncollapse.models.fused_last_layer import compute_total

        result, slopes = compute_total(features, weight, bias, target, decays, softmax)
        ctx.save_for_backward(features, weight, bias, slopes)
        ctx.decays = decays
        total, loss = result.unbind()
        ctx.mark_non_differentiable(loss)
        return total, loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        from ncollapse.models.fused_last_layer import differentiate_total

        features, weight, bias, slopes = ctx.saved_tensors
        return *differentiate_total(upstream.contiguous(), slopes, features, weight, bias, ctx.decays), None, None, None


def fuse_last_layer(
    head: LinearHead, loss: Loss, decays: DecaySpec, features: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """(mean loss plus decays, mean loss), where `can_fuse_last_layer`."""
    target = target.contiguous() if target.ndim == 2 else target.long()
    strengths = decays.weight, decays.feature, decays.bias
    found: tuple[Tensor, Tensor] = LastLayer.apply(  # type: ignore[no-untyped-call]
        features.contiguous(), head.weight, head.bias, target, strengths, isinstance(loss, CELoss)
    )
    return found
