"""Optimisers by recipe, their state laid out before the first step."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from ncollapse.train.recipe import OptimSpec

BETAS, EPS = (0.9, 0.999), 1e-8
"""Of Adam and AdamW."""


class PlainOptimiser:
    """One of torch's optimisers by the fused kernel that it calls; `lay_out` makes its state.

    Making or stepping one of torch's optimisers imports torch._dynamo. That takes one to two seconds, as long as a
    short run. And on a small network preparing the call of the kernel, which torch does anew in each step, takes half
    as long as the kernel.
    """

    def __init__(self, parameters: list[nn.Parameter], lr: float | Tensor, **options: float) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": parameters, "lr": lr, **options}]
        self.state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        alike: defaultdict[tuple[torch.device, torch.dtype], list[nn.Parameter]] = defaultdict(list)
        for p in parameters:
            alike[p.device, p.dtype].append(p)
        self._alike = list(alike.values())
        """A call of a kernel takes tensors of one device and one type."""

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters that have gradients."""
        for parameters in self._alike:
            moved = [(p, p.grad) for p in parameters if p.grad is not None]
            if moved:
                self.update([p for p, _ in moved], [grad for _, grad in moved], self.param_groups[0])

    def update(self, parameters: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        """Call the kernel."""
        raise NotImplementedError

    def read_state(self, parameters: list[Tensor], name: str) -> list[Tensor]:
        """One tensor of the state of each parameter."""
        return [self.state[p][name] for p in parameters]


class PlainSGD(PlainOptimiser):
    """torch.optim.SGD(fused=True)."""

    def update(self, parameters: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        torch._fused_sgd_(
            parameters,
            grads,
            self.read_state(parameters, "momentum_buffer") if group["momentum"] else [],
            lr=group["lr"],
            momentum=group["momentum"],
            weight_decay=group["weight_decay"],
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )


class PlainAdam(PlainOptimiser):
    """torch.optim.Adam(fused=True, capturable=True)."""

    kernel = staticmethod(torch._fused_adam_)

    def update(self, parameters: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        steps = self.read_state(parameters, "step")
        torch._foreach_add_(steps, 1)
        self.kernel(
            parameters,
            grads,
            self.read_state(parameters, "exp_avg"),
            self.read_state(parameters, "exp_avg_sq"),
            [],
            steps,
            amsgrad=False,
            lr=group["lr"],
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=group["weight_decay"],
            eps=EPS,
            maximize=False,
        )


class PlainAdamW(PlainAdam):
    """torch.optim.AdamW(fused=True, capturable=True)."""

    kernel = staticmethod(torch._fused_adamw_)


Optimiser = torch.optim.Optimizer | PlainOptimiser


def make(spec: OptimSpec, model: nn.Module) -> Optimiser:
    """The optimiser of a recipe over the trainable parameters; on a GPU its rate is a tensor that graphs can read."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    device = parameters[0].device
    if spec.name == "lbfgs":
        return torch.optim.LBFGS(parameters, lr=spec.rate, history_size=10, line_search_fn="strong_wolfe")
    rate: float | Tensor = torch.tensor(spec.rate, device=device) if device.type == "cuda" else spec.rate
    optimiser: PlainOptimiser
    if spec.name == "sgd":
        optimiser = PlainSGD(parameters, rate, momentum=spec.momentum, weight_decay=spec.weight_decay)
    else:
        kind = PlainAdam if spec.name == "adam" else PlainAdamW
        optimiser = kind(parameters, rate, weight_decay=spec.weight_decay)
    lay_out(optimiser, spec)
    return optimiser


def lay_out(optimiser: Optimiser, spec: OptimSpec) -> None:
    """Give every parameter the zero state that its first step would make, so that all tensors are known before it."""
    if spec.name == "sgd":
        names: tuple[str, ...] = ("momentum_buffer",) if spec.momentum else ()
    else:
        names = ("exp_avg", "exp_avg_sq")
    for group in optimiser.param_groups:
        for p in group["params"]:
            for name in names:
                optimiser.state[p][name] = torch.zeros_like(p, memory_format=torch.preserve_format)
            if spec.name != "sgd":
                optimiser.state[p]["step"] = torch.zeros((), dtype=torch.float32, device=p.device)


def set_rate(optimiser: Optimiser, rate: float) -> None:
    """Set the rate, without waiting for the device."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
