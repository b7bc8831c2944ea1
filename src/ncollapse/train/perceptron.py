"""A training step of a multilayer perceptron on a CPU, with the gradients written out.

In so small a network autograd takes as long as the matrix products. The kernels here are those that autograd calls, so
the weights are those of `EagerStep`, bit for bit.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncollapse.heads import LinearHead
from ncollapse.train.objective import Objective, require_mean
from ncollapse.train.optimiser import Optimiser
from ncollapse.train.recipe import DecaySpec, OptimSpec
from ncollapse.train.step import EagerStep, Tally


def is_perceptron(objective: nn.Module) -> bool:
    """Whether an objective is that of layers of Linear and ReLU, perhaps a projection, and a linear head on a CPU."""
    if not isinstance(objective, Objective) or objective.features != objective.model.features:
        return False
    model = objective.model
    if not isinstance(model.trunk, nn.Sequential) or not isinstance(model.head, LinearHead):
        return False
    kinds = [type(layer) for layer in model.trunk]
    pairs = len(kinds) // 2
    if kinds != [nn.Flatten, *[nn.Linear, nn.ReLU] * pairs]:
        return False
    trained = all(p.requires_grad and p.device.type == "cpu" for p in model.parameters())
    whole = objective.world == 1 and not objective.weight_decay
    return trained and whole and objective.precision != "bf16" and not torch.is_autocast_enabled("cpu")


class PerceptronStep(EagerStep):
    """`EagerStep` for an objective that `is_perceptron`."""

    def __init__(self, objective: nn.Module, optimiser: Optimiser, spec: OptimSpec, tally: Tally) -> None:
        super().__init__(objective, optimiser, spec, tally)
        assert isinstance(objective, Objective)
        layers = [layer for layer in objective.model.trunk.children() if isinstance(layer, nn.Linear)]
        self.layers = [(Detached(layer.weight), Detached(layer.bias)) for layer in layers]
        head, projection = objective.model.head, objective.model.projection
        self.projection = None if projection is None else Detached(projection.weight)
        self.head = Detached(head.weight), None if head.bias is None else Detached(head.bias)
        self.loss, self.decays = objective.loss, objective.decays

    def set_decays(self, decays: DecaySpec) -> None:
        super().set_decays(decays)
        self.decays = decays

    @torch.no_grad()
    def find_gradients(self, x: Tensor, y: Tensor, size: int) -> Tensor:
        self.drop_gradients()  # the new ones then lie in the same memory, which is still in the processor's cache
        outputs = [x.flatten(1)]
        for weight, bias in self.layers:
            outputs.append(torch.addmm(bias.values, outputs[-1], weight.values.t()).relu_())
        features, (weight, threshold) = self.project(outputs[-1]), self.head
        logits = F.linear(features, weight.values, None if threshold is None else -threshold.values)
        loss, slope = self.loss.value_and_gradient(logits, y)
        require_mean(self.loss, loss)
        weight.parameter.grad = _add_decay(slope.t() @ features, weight.values, self.decays.weight)
        if threshold is not None:
            threshold.parameter.grad = _add_decay(-slope.sum(0), threshold.values, self.decays.bias)
        slope = _add_decay(slope @ weight.values, features, self.decays.feature)
        if self.projection is not None:
            self.projection.parameter.grad = slope.t() @ outputs[-1]
            slope = slope @ self.projection.values
        for i, (weight, bias) in reversed(list(enumerate(self.layers))):
            slope = torch.ops.aten.threshold_backward.default(slope, outputs[i + 1], 0)  # of the ReLU
            weight.parameter.grad, bias.parameter.grad = slope.t() @ outputs[i], slope.sum(0)
            if i:
                slope = slope @ weight.values
        return loss

    def project(self, x: Tensor) -> Tensor:
        """The features: the outputs of the last layer, projected where the network does so."""
        return x if self.projection is None else F.linear(x, self.projection.values)


class Detached:
    """A parameter, and its values apart from autograd: each call of a kernel with these takes a microsecond less."""

    def __init__(self, parameter: Tensor) -> None:
        self.parameter, self.values = parameter, parameter.detach()


def _add_decay(gradient: Tensor, part: Tensor, strength: float) -> Tensor:
    """Add the gradient of strength/2 |part|^2; in two roundings, as autograd does."""
    return gradient.add_(part * strength) if strength else gradient
