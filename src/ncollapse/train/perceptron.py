"""A training step of a multilayer perceptron on a CPU, with the gradients written out.

In so small a network autograd takes as long as the matrix products. The kernels here are those that autograd calls, so
the weights are those of `EagerStep`, bit for bit.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncollapse.heads import LinearHead
from ncollapse.train.objective import Objective
from ncollapse.train.optimiser import Optimiser
from ncollapse.train.recipe import OptimSpec
from ncollapse.train.step import EagerStep, Tally


def is_perceptron(objective: nn.Module) -> bool:
    """Whether an objective is that of layers of Linear and ReLU and a linear head, all of them trained on a CPU."""
    if not isinstance(objective, Objective) or objective.features != objective.model.features:
        return False
    model = objective.model
    if not isinstance(model.trunk, nn.Sequential) or not isinstance(model.head, LinearHead):
        return False
    kinds = [type(layer) for layer in model.trunk]
    pairs = len(kinds) // 2
    if kinds != [nn.Flatten, *[nn.Linear, nn.ReLU] * pairs] or model.projection is not None:
        return False
    trained = all(p.requires_grad and p.device.type == "cpu" for p in model.parameters())
    whole = objective.world == 1 and not objective.weight_decay
    return trained and whole and objective.precision != "bf16" and not torch.is_autocast_enabled("cpu")


class PerceptronStep(EagerStep):
    """`EagerStep` for an objective that `is_perceptron`."""

    def __init__(self, objective: nn.Module, optimiser: Optimiser, spec: OptimSpec, tally: Tally) -> None:
        super().__init__(objective, optimiser, spec, tally)
        assert isinstance(objective, Objective)
        self.layers = [layer for layer in objective.model.trunk.children() if isinstance(layer, nn.Linear)]
        self.head, self.loss, self.decays = objective.model.head, objective.loss, objective.decays

    @torch.no_grad()
    def find_gradients(self, x: Tensor, y: Tensor, size: int) -> Tensor:
        outputs = [x.flatten(1)]
        for layer in self.layers:
            outputs.append(torch.addmm(layer.bias, outputs[-1], layer.weight.t()).relu_())
        features, weight, bias = outputs[-1], self.head.weight, self.head.bias
        logits = F.linear(features, weight, None if bias is None else -bias)
        loss, slope = self.loss.value_and_gradient(logits, y)
        weight.grad = _add_decay(slope.t() @ features, weight, self.decays.weight)
        if bias is not None:
            bias.grad = _add_decay(-slope.sum(0), bias, self.decays.bias)
        slope = _add_decay(slope @ weight, features, self.decays.feature)
        for i, layer in reversed(list(enumerate(self.layers))):
            slope = torch.ops.aten.threshold_backward.default(slope, outputs[i + 1], 0)  # of the ReLU
            layer.weight.grad, layer.bias.grad = slope.t() @ outputs[i], slope.sum(0)
            if i:
                slope = slope @ layer.weight
        return loss


def _add_decay(gradient: Tensor, part: Tensor, strength: float) -> Tensor:
    """Add the gradient of strength/2 |part|^2; in two roundings, as autograd does."""
    return gradient.add_(part * strength) if strength else gradient
