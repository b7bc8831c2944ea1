"""Optimisers by recipe, their state laid out before the first step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ncollapse.train.recipe import OptimSpec


def make(spec: OptimSpec, model: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of a recipe over the trainable parameters; on a GPU its rate is a tensor that graphs can read."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    device = parameters[0].device
    graph = device.type == "cuda"
    rate: float | Tensor = torch.tensor(spec.rate, device=device) if graph else spec.rate
    if spec.name == "lbfgs":
        return torch.optim.LBFGS(parameters, lr=spec.rate, history_size=10, line_search_fn="strong_wolfe")
    if spec.name == "sgd":
        optimiser: torch.optim.Optimizer = torch.optim.SGD(
            parameters, lr=rate, momentum=spec.momentum, weight_decay=spec.weight_decay, fused=True
        )
    else:
        kind = torch.optim.Adam if spec.name == "adam" else torch.optim.AdamW
        optimiser = kind(parameters, lr=rate, weight_decay=spec.weight_decay, fused=True, capturable=graph)
        # capturing is preceded by a few eager steps, of which torch would warn
        optimiser._warned_capturable_if_run_uncaptured = True
    lay_out(optimiser, spec)
    return optimiser


def lay_out(optimiser: torch.optim.Optimizer, spec: OptimSpec) -> None:
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


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate, without waiting for the device."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
