"""The trunk's weights in bfloat16: cast all at once, and their gradients back, or copies that the updates keep."""

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
from ncollapse.train.optimiser import Optimiser
from ncollapse.train.weight_updates import WeightUpdates, make_updates


class CastTogether(torch.autograd.Function):
    """Float32 tensors as bfloat16, their gradients as float32; with `updates` the tensors are updated, without any."""

    @staticmethod
    def forward(ctx: Any, beside: Beside | None, updates: WeightUpdates | None, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.beside, ctx.updates = beside, updates
        if updates is not None:
            return updates.lend()
        copies = [torch.empty_like(weight, dtype=torch.bfloat16) for weight in weights]
        torch._foreach_copy_(copies, list(weights))
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.beside is not None:
            ctx.beside.join()
        if ctx.updates is not None:
            ctx.updates.finish(grads)
            return None, None, *(None for _ in grads)
        wide = [torch.empty_like(grad, dtype=torch.float32) for grad in grads]
        torch._foreach_copy_(wide, list(grads))
        return None, None, *wide


class CastFeatures:
    """`model.features` for training under bfloat16 autocast, which would cast each layer's weights by itself.

    With `overlap` a captured step uses streams of its own for what can go on side by side; with `compile` it is
    compiled instead, all but the cast. Given the `optimiser`, the backward pass updates these weights where the kernels
    for it can; then `updates` is set, and the optimiser's own step has the other parameters left.
    """

    def __init__(
        self, model: Network, *, overlap: bool = True, compile: bool = False, optimiser: Optimiser | None = None
    ) -> None:
        self.model, self.overlap = model, overlap and not compile
        self.beside: Beside | None = None
        self.weights = dict(find_weights(model.trunk))
        weights = list(self.weights.values())
        self.updates = None if optimiser is None else make_updates(optimiser, weights, spread=overlap)
        self.run = torch.compile(self._run) if compile else self._run

    def __call__(self, x: Tensor) -> Tensor:
        beside, updates = self.find_beside(x), self.updates if torch.is_grad_enabled() else None
        if updates is not None and not is_capturing(x):
            updates.refresh_changed()  # a captured step has it done before each replay
        cast = CastTogether.apply(beside, updates, *self.weights.values())  # type: ignore[no-untyped-call]
        copies = dict(zip(self.weights, cast))
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
            self.beside = Beside(x.device, None if self.updates is None else self.updates.update_early)
        return self.beside


def is_capturing(x: Tensor) -> bool:
    """Whether what is done with x goes into a CUDA graph now, and is not done."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def find_weights(trunk: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The float32 matrices and kernels of the trunk's layers, by name."""
    keys = {nn.Conv2d: "weight", nn.Linear: "weight", nn.MultiheadAttention: "in_proj_weight"}
    for name, module in trunk.named_modules():
        key = next((key for kind, key in keys.items() if isinstance(module, kind)), None)
        weight = None if key is None else getattr(module, key)
        if weight is not None and weight.dtype == torch.float32:
            yield f"{name}.{key}" if name else str(key), weight
