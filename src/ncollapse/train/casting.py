"""The trunk's weights cast to bfloat16 all at once, and their gradients back: two launches instead of two a layer."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
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

    With `overlap` a captured step uses streams of its own for what can go on side by side; with `compile` it is
    compiled instead, all but the cast.
    """

    def __init__(self, model: Network, *, overlap: bool = True, compile: bool = False) -> None:
        self.model, self.overlap = model, overlap and not compile
        self.beside: Beside | None = None
        self.weights = dict(find_weights(model.trunk))
        self.run = torch.compile(self._run) if compile else self._run

    def __call__(self, x: Tensor) -> Tensor:
        beside = self.find_beside(x)
        copies = dict(zip(self.weights, CastTogether.apply(beside, *self.weights.values())))  # type: ignore[no-untyped-call]
        with overlapping(beside), warnings.catch_warnings():
            # torch's compiler looks at the gradient of every input, and these are not leaves
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
            return self.run(x, copies)

    def _run(self, x: Tensor, copies: dict[str, Tensor]) -> Tensor:
        return self.model.forward_head(functional_call(self.model.trunk, copies, (x,)), pre_logits=True)

    def find_beside(self, x: Tensor) -> Beside | None:
        """Streams for what can go on side by side in a captured step; launched one by one, nothing overlaps."""
        if not (self.overlap and x.is_cuda and is_fusing() and torch.is_grad_enabled()):
            return None
        if self.beside is None or self.beside.own != torch.cuda.current_stream(x.device):
            self.beside = Beside(x.device)
        return self.beside


def find_weights(trunk: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The float32 matrices and kernels of the trunk's layers, by name."""
    keys = {nn.Conv2d: "weight", nn.Linear: "weight", nn.MultiheadAttention: "in_proj_weight"}
    for name, module in trunk.named_modules():
        key = next((key for kind, key in keys.items() if isinstance(module, kind)), None)
        weight = None if key is None else getattr(module, key)
        if weight is not None and weight.dtype == torch.float32:
            yield f"{name}.{key}" if name else str(key), weight
