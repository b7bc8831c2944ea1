"""The optimisers of recipes against torch's own."""

import copy
import subprocess
import sys

import pytest
import torch

from ncollapse.train import optimiser
from ncollapse.train.recipe import OptimSpec


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.9, 0.0), (0.9, 5e-4), (0.0, 5e-4)])
def test_sgd_on_a_cpu_takes_the_steps_of_torch(momentum, weight_decay):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    model[2].bias.requires_grad_(False)
    twin, x = copy.deepcopy(model), torch.randn(6, 5)
    ours = optimiser.make(OptimSpec("sgd", 0.1, momentum=momentum, weight_decay=weight_decay), model)
    trained = [p for p in twin.parameters() if p.requires_grad]
    theirs = torch.optim.SGD(trained, 0.1, momentum, weight_decay=weight_decay)
    for rate in (0.1, 0.1, 0.02):
        optimiser.set_rate(ours, rate)
        optimiser.set_rate(theirs, rate)
        for network, solver in ((model, ours), (twin, theirs)):
            network.zero_grad()
            network(x).square().sum().backward()
            solver.step()
    for a, b in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_a_run_on_a_cpu_does_without_the_compiler(tmp_path):
    code = f"""
import sys
from ncollapse.train import recipes, run
run(recipes.get("digits").override(optim={{"epochs": 1}}), {str(tmp_path)!r}, device="cpu")
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
