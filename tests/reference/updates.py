"""An optimiser's step on one weight by torch's own kernel, in place of the fused one; without a GPU."""

from ncollapse.train import weight_updates
from ncollapse.train.optimiser import PlainOptimiser
from reference.streams import pretend


def apply_update(optimiser, grad, weight, copy):
    """Write the weight, its state and its copy, and leave the count of steps, as the fused kernel does."""
    values = weight.data  # torch does not count changes made through it: it does not see a kernel's either
    state = {name: value.clone() if name == "step" else value for name, value in optimiser.state[weight].items()}
    optimiser.state[values] = state
    optimiser.update([values], [grad.float()], optimiser.param_groups[0])
    del optimiser.state[values]
    copy.data.copy_(values)


def define_updates(monkeypatch):
    """Let weights be updated in the backward pass on a CPU too."""
    monkeypatch.setattr(weight_updates, "apply_update", apply_update)
    monkeypatch.setattr(weight_updates, "can_update", lambda optimiser, weights: isinstance(optimiser, PlainOptimiser))
    pretend(monkeypatch)
