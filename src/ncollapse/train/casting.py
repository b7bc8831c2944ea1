"""The trunk's weights cast to bfloat16 all at once, and their gradients back: two launches instead of two a layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ncollapse.models import Network
from ncollapse.models.norm import is_fusing
from ncollapse.models.overlap import Beside, overlapping


class CastTogether(torch.autograd.Function):
    """Float32 tensors as bfloat16, their gradients as float32."""

    @staticmethod
    def forward(ctx: Any, beside: Beside | None, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.beside = beside
        copies = [torch.empty_like(weight, dtype=torch.bfloat16) for weight in weights]
        torch._foreach_copy_(copies, list(weights))
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.beside is not None:
            ctx.beside.join()
        wide = [torch.empty_like(grad, dtype=torch.float32) for grad in grads]
        torch._foreach_copy_(wide, list(grads))
        return None, *wide


class CastFeatures:
    """`model.features` for training under bfloat16 autocast, which would cast each layer's weights by itself.

    With `overlap` a captured step uses streams of its own for what can go on side by side.
    """

    def __init__(self, model: Network, *, overlap: bool = True) -> None:
        self.model, self.overlap = model, overlap
        self.beside: Beside | None = None
        self.weights = {
            f"{name}.weight" if name else "weight": module.weight
            for name, module in model.trunk.named_modules()
            if isinstance(module, (nn.Conv2d, nn.Linear)) and module.weight.dtype == torch.float32
        }

    def __call__(self, x: Tensor) -> Tensor:
        beside = self.find_beside(x)
        copies = dict(zip(self.weights, CastTogether.apply(beside, *self.weights.values())))  # type: ignore[no-untyped-call]
        with overlapping(beside):
            features = functional_call(self.model.trunk, copies, (x,))
        return self.model.forward_head(features, pre_logits=True)

    def find_beside(self, x: Tensor) -> Beside | None:
        """Streams for what can go on side by side in a captured step; launched one by one, nothing overlaps."""
        if not (self.overlap and x.is_cuda and is_fusing() and torch.is_grad_enabled()):
            return None
        if self.beside is None or self.beside.own != torch.cuda.current_stream(x.device):
            self.beside = Beside(x.device)
        return self.beside
