"""The step of a multilayer perceptron with its gradients written out, against autograd's, bit for bit."""

import copy

import pytest
import torch

from ncollapse.losses import make_loss
from ncollapse.models import create
from ncollapse.train import optimiser
from ncollapse.train.objective import Objective
from ncollapse.train.perceptron import PerceptronStep, is_perceptron
from ncollapse.train.recipe import DecaySpec, OptimSpec
from ncollapse.train.step import EagerStep, Tally

DECAYS = DecaySpec(5e-3, 5e-3, 1e-2)


def make_network(name="mlp-small", **options):
    torch.manual_seed(0)
    return create(name, 10, in_channels=1, image_size=8, **options)


def train(kind, network, loss, spec, decays):
    """The weights and the tally after some steps, of which the last two have short batches."""
    model, tally = copy.deepcopy(network), Tally(torch.device("cpu"))
    objective = Objective(model, loss, decays)
    assert is_perceptron(objective)
    work = kind(objective, optimiser.make(spec, model), spec, tally)
    generator = torch.Generator().manual_seed(1)
    for size in (64, 64, 64, 30, 1):
        x, y = torch.randn(size, 1, 8, 8, generator=generator), torch.randint(0, 10, (size,), generator=generator)
        work(x, y, size)
    return model.state_dict(), tally.read()


@pytest.mark.parametrize(
    ("loss", "spec", "decays", "options"),
    [
        ("ce", OptimSpec("sgd", 0.1), DECAYS, {}),
        ("bce", OptimSpec("sgd", 0.1), DECAYS, {}),
        ("focal", OptimSpec("sgd", 0.1), DECAYS, {}),
        ("mse", OptimSpec("adamw", 0.01, weight_decay=0.1), DecaySpec(), {}),
        ("ce", OptimSpec("sgd", 0.1, clip_norm=0.1), DecaySpec(weight=1e-2), {"bias": False}),
        ("bce", OptimSpec("sgd", 0.1, weight_decay=5e-4, momentum=0.0), DecaySpec(feature=1e-2), {"feature_dim": 12}),
        ("bce", OptimSpec("adamw", 0.01), DECAYS, {"feature_dim_linear": 5}),
        ("ls", OptimSpec("sgd", 0.1, clip_norm=0.1), DecaySpec(), {"feature_dim_linear": 12, "bias": False}),
    ],
)
def test_weights_and_losses_are_those_of_autograd(loss, spec, decays, options):
    network = make_network(**options)
    expected, tallied = train(EagerStep, network, make_loss(loss), spec, decays)
    got, sums = train(PerceptronStep, network, make_loss(loss), spec, decays)
    assert sums == tallied
    for name, tensor in expected.items():
        assert not torch.equal(tensor, network.state_dict()[name]), name
        assert torch.equal(got[name], tensor), name


def test_other_objectives_are_left_to_autograd():
    ce, network = make_loss("ce"), make_network()
    assert is_perceptron(Objective(network, ce, DECAYS))
    assert not is_perceptron(Objective(network, ce, DECAYS, precision="bf16"))
    assert not is_perceptron(Objective(network, ce, DECAYS, world=2))
    assert not is_perceptron(Objective(network, ce, DECAYS, weight_decay=0.1))
    assert not is_perceptron(torch.nn.Sequential(Objective(network, ce, DECAYS)))
    assert not is_perceptron(Objective(make_network(head="etf"), ce, DECAYS))
    assert not is_perceptron(Objective(make_network("resnet18"), ce, DECAYS))
    compiled = Objective(network, ce, DECAYS)
    compiled.features = lambda x: network.features(x)
    assert not is_perceptron(compiled)
    frozen = make_network()
    frozen.trunk[1].weight.requires_grad_(False)
    assert not is_perceptron(Objective(frozen, ce, DECAYS))
    projected = make_network(feature_dim_linear=16)
    projected.projection.weight.requires_grad_(False)
    assert not is_perceptron(Objective(projected, ce, DECAYS))
