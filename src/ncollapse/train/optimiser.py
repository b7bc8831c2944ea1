"""Optimisers by recipe, their state laid out before the first step."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from ncollapse.train.recipe import OptimSpec


class PlainSGD:
    """torch.optim.SGD on a CPU, by the kernel that it calls.

    Making one of torch's optimisers imports torch._dynamo. That takes 1.5 s, as long as a short run. And on a small
    network preparing the call of the kernel, which `torch.optim.sgd.sgd` does anew in each step, takes half as long as
    the kernel.
    """

    def __init__(self, parameters: list[nn.Parameter], lr: float, *, momentum: float, weight_decay: float) -> None:
        group = {"params": parameters, "lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        self.param_groups: list[dict[str, Any]] = [group]
        self.state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters by their gradients; `lay_out` has made their momentum."""
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            torch._fused_sgd_(
                moved,
                [p.grad for p in moved],
                [self.state[p]["momentum_buffer"] for p in moved] if group["momentum"] else [],
                lr=group["lr"],
                momentum=group["momentum"],
                weight_decay=group["weight_decay"],
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
            )


Optimiser = torch.optim.Optimizer | PlainSGD


def make(spec: OptimSpec, model: nn.Module) -> Optimiser:
    """The optimiser of a recipe over the trainable parameters; on a GPU its rate is a tensor that graphs can read."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    device = parameters[0].device
    graph = device.type == "cuda"
    rate: float | Tensor = torch.tensor(spec.rate, device=device) if graph else spec.rate
    if spec.name == "lbfgs":
        return torch.optim.LBFGS(parameters, lr=spec.rate, history_size=10, line_search_fn="strong_wolfe")
    if spec.name == "sgd":
        momentum, decay = spec.momentum, spec.weight_decay
        optimiser: Optimiser = (
            PlainSGD(parameters, spec.rate, momentum=momentum, weight_decay=decay)
            if device.type == "cpu"
            else torch.optim.SGD(parameters, lr=rate, momentum=momentum, weight_decay=decay, fused=True)
        )
    else:
        kind = torch.optim.Adam if spec.name == "adam" else torch.optim.AdamW
        adaptive = kind(parameters, lr=rate, weight_decay=spec.weight_decay, fused=True, capturable=graph)
        # capturing is preceded by a few eager steps, of which torch would warn
        adaptive._warned_capturable_if_run_uncaptured = True
        optimiser = adaptive
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
