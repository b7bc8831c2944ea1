"""Compare the fused updates of weights (`train.weight_updates`) with torch's optimiser before a run relies on them."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch
from torch import Tensor, nn

from ncollapse.train.optimiser import PlainOptimiser, make
from ncollapse.train.recipe import OptimSpec
from ncollapse.train.verify import describe_errors, name_fault, verify
from ncollapse.train.weight_updates import WeightUpdates

log = logging.getLogger("ncollapse.train")
LARGEST_ERROR, UPDATES = 1e-4, 4
"""Relative, of weights and of the optimiser's state after so many updates. torch's Adam on a GPU subtracts its second
beta from one in float32, which changes the squares by 1.3e-5."""


def verify_update(spec: OptimSpec, device: torch.device) -> bool:
    """Whether the fused updates of this optimiser can be used: where they disagree with torch's, the rest still is."""
    facts = "update", spec.name, spec.momentum, spec.weight_decay
    find = lambda: describe_errors(lambda: compare_updates(spec, device))  # noqa: E731
    return verify(f"optim.name = {spec.name!r}", facts, device, find, stop=warn)


def warn(what: str, fault: str) -> None:
    log.warning("%s: the fused updates are not used on this GPU, torch's own are: %s", what, fault)


def compare_updates(spec: OptimSpec, device: torch.device) -> str | None:
    """Weights and state after some updates by random gradients, fused and by torch; and the copies in bfloat16."""
    generator = torch.Generator().manual_seed(0)
    start, *grads = torch.randn(1 + UPDATES, 65, 64, generator=generator).to(device)
    found, wanted = (_update_often(spec, start, [grad.bfloat16() for grad in grads], fused) for fused in (True, False))
    if not torch.allclose(found[2].float(), found[0], rtol=2**-7, atol=0.0):
        return "their copies in bfloat16 are not those of the weights"
    return name_fault(found[:2], wanted[:2], (LARGEST_ERROR,) * 2, ("weights", "states"))


def _update_often(spec: OptimSpec, start: Tensor, grads: list[Tensor], fused: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The weight, the state as one vector, and the copy in bfloat16."""
    layer = nn.Linear(start.shape[1], start.shape[0], bias=False).to(start.device)
    weight = layer.weight
    with torch.no_grad():
        weight.copy_(start)
    solver = make(replace(spec, lr=0.1, scale_lr=False), layer)
    assert isinstance(solver, PlainOptimiser)
    solver.param_groups[0]["lr"] = torch.tensor(0.1, device=start.device)  # as on a GPU
    updates = WeightUpdates(solver, [weight])
    for grad in grads:
        if fused:
            updates.finish((grad,))
        else:
            weight.grad = grad.float()
            solver.step()
    state = [value.flatten() for value in solver.state[weight].values()]
    return weight.detach(), torch.cat([*state, torch.ones(1, device=start.device)]), updates.copies[0]
