"""The trunk's weights cast to bfloat16 all at once, and their gradients back: two launches instead of two a layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ncollapse.models import Network


class CastTogether(torch.autograd.Function):
    """Float32 tensors as bfloat16, their gradients as float32."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        copies = [torch.empty_like(weight, dtype=torch.bfloat16) for weight in weights]
        torch._foreach_copy_(copies, list(weights))
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        wide = [torch.empty_like(grad, dtype=torch.float32) for grad in grads]
        torch._foreach_copy_(wide, list(grads))
        return tuple(wide)


class CastFeatures:
    """`model.features` for training under bfloat16 autocast, which would cast each layer's weights by itself."""

    def __init__(self, model: Network) -> None:
        self.model = model
        self.weights = {
            f"{name}.weight" if name else "weight": module.weight
            for name, module in model.trunk.named_modules()
            if isinstance(module, (nn.Conv2d, nn.Linear)) and module.weight.dtype == torch.float32
        }

    def __call__(self, x: Tensor) -> Tensor:
        copies = dict(zip(self.weights, CastTogether.apply(*self.weights.values())))  # type: ignore[no-untyped-call]
        return self.model.forward_head(functional_call(self.model.trunk, copies, (x,)), pre_logits=True)
