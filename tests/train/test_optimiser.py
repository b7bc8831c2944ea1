"""The optimisers of recipes against torch's own."""

import copy
import subprocess
import sys

import pytest
import torch

from ncollapse.train import optimiser
from ncollapse.train.recipe import OptimSpec

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
CASES = {
    "sgd": (OptimSpec("sgd", 0.1, momentum=0.9, weight_decay=5e-4), torch.optim.SGD, {"momentum": 0.9}),
    "sgd without decay": (OptimSpec("sgd", 0.1, momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
    "sgd without momentum": (OptimSpec("sgd", 0.1, momentum=0.0, weight_decay=5e-4), torch.optim.SGD, {}),
    "adam": (OptimSpec("adam", 0.01, weight_decay=5e-4), torch.optim.Adam, {}),
    "adamw": (OptimSpec("adamw", 0.01, weight_decay=0.05), torch.optim.AdamW, {}),
}


def make_network(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)).to(device)
    model[2].bias.requires_grad_(False)
    return model


def take_steps(network, solver, spec, x):
    for rate in (spec.rate, spec.rate, spec.rate / 5):
        optimiser.set_rate(solver, rate)
        network.zero_grad()
        network(x).square().sum().backward()
        solver.step()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_optimisers_take_the_steps_of_torch(name, device):
    spec, kind, options = CASES[name]
    model = make_network(device)
    twin, x = copy.deepcopy(model), torch.randn(6, 5, device=device)
    ours = optimiser.make(spec, model)
    trained = [p for p in twin.parameters() if p.requires_grad]
    theirs = kind(trained, spec.rate, weight_decay=spec.weight_decay, fused=True, **options)
    start = copy.deepcopy(model.state_dict())
    take_steps(model, ours, spec, x)
    take_steps(twin, theirs, spec, x)
    for a, b, before in zip(model.parameters(), twin.parameters(), start.values()):
        assert torch.equal(a, b)
        assert torch.equal(a, before) != a.requires_grad
        if a.requires_grad:
            for key, value in ours.state[a].items():
                assert torch.equal(value.cpu(), theirs.state[b][key].cpu()), key


def test_parameters_of_two_types_are_updated_in_their_own_calls():
    spec, model = CASES["adamw"][0], make_network("cpu")
    model[0].double()
    twins = [make_network("cpu")[0].double(), make_network("cpu")[2]]
    ours, alone = optimiser.make(spec, model), [optimiser.make(spec, twin) for twin in twins]
    for layer, twin in zip((model[0], model[2]), twins):
        for p, q in zip(layer.parameters(), twin.parameters()):
            if p.requires_grad:
                p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
    for solver in (ours, *alone):
        solver.step()
    for layer, twin in zip((model[0], model[2]), twins):
        assert torch.equal(layer.weight, twin.weight)


def test_parameters_without_gradients_stay_where_they_are():
    model = make_network("cpu")
    solver, before = optimiser.make(CASES["adam"][0], model), copy.deepcopy(model.state_dict())
    model[2].weight.grad = torch.ones_like(model[2].weight)
    solver.step()
    moved = {name: not torch.equal(value, before[name]) for name, value in model.state_dict().items()}
    assert moved == {"0.weight": False, "0.bias": False, "2.weight": True, "2.bias": False}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_run_does_without_the_compiler(tmp_path, name, device):
    changes = {"optim": {"epochs": 1, "name": name}}
    if device == "cuda":
        changes |= {"model": {"name": "resnet18"}, "precision": "bf16"}
    code = f"""
import sys
from ncollapse.train import recipes, run
run(recipes.get("digits").override(**{changes!r}), {str(tmp_path)!r}, device={device!r})
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
