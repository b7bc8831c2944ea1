"""A classifier given as head= follows the training, or is refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ncollapse as nc

X, Y = torch.randn(90, 6, generator=torch.Generator().manual_seed(0)), torch.arange(90) % 3
BATCHES = [(X[:50], Y[:50]), (X[50:], Y[50:])]


class CosineNet(nn.Module):
    """Normalised features and weights, scaled."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.weight, self.scale = nn.Linear(6, 8), nn.Parameter(torch.randn(3, 8)), 16.0

    def embed(self, x):
        return F.normalize(self.trunk(x))

    def head(self):
        return self.scale * F.normalize(self.weight), None

    def forward(self, x):
        return F.linear(self.embed(x), self.head()[0])


def train(model, steps=20):
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        optimiser.step()


def test_a_cosine_classifier_follows_the_training():
    model = CosineNet()
    with nc.monitor(model.embed, BATCHES, head=model.head) as watch:
        train(model)
        watch.step()
    with torch.no_grad():
        exact = nc.measure(model.embed(X), Y, head=model.head())
        right = (model(X).argmax(1) == Y).double().mean()
    assert watch.last.nc2 == pytest.approx(exact.nc2, rel=1e-9)
    assert watch.last.accuracy == pytest.approx(float(right))
    assert watch.history[0].measurement.nc2 != pytest.approx(watch.last.nc2, rel=1e-3)


def test_lora_beside_the_head():
    torch.manual_seed(0)
    trunk, base = nn.Linear(6, 8), nn.Linear(8, 3)
    down, up = nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.zeros(3, 2))
    watch = nc.monitor(trunk, BATCHES, head=lambda: (base.weight + up @ down, -base.bias))
    assert watch.observe().measurement.nc2 == pytest.approx(nc.measure(trunk(X), Y, head=base).nc2)
    with torch.no_grad():
        up.normal_()
    logits = base(trunk(X)) + trunk(X) @ down.T @ up.T
    assert watch.observe().measurement.accuracy == pytest.approx(float((logits.argmax(1) == Y).float().mean()))


@pytest.mark.parametrize("make", [lambda m: m.head(), lambda m: nc.Head(*m.head()), lambda m: list(m.head())])
def test_a_head_computed_once_is_refused(make):
    model = CosineNet()
    with pytest.raises(ValueError, match=r"head: .* would not follow the training; pass a function: head=lambda"):
        nc.monitor(model.embed, BATCHES, head=make(model))


def test_a_head_that_stays_behind_is_said_once():
    model = CosineNet()
    with torch.no_grad():
        frozen = model.head()  # computed without a graph: nothing tells it from a constant
    watch = nc.monitor(model.embed, BATCHES, head=frozen)
    watch.observe()
    train(model)
    with pytest.warns(UserWarning, match=r"head: the features have changed .* the weight has not; .* head=lambda"):
        watch.observe()
    watch.observe()


def test_parameters_and_functions_need_no_warning():
    model = CosineNet()
    linear = nn.Linear(8, 3, bias=False)
    watches = [
        nc.monitor(model.embed, BATCHES, head=(model.weight, None)),  # a parameter changes in place
        nc.monitor(model.embed, BATCHES, head=lambda: linear),
        nc.monitor(model.embed, BATCHES, head=nc.ETFHead(8, 3)),
    ]
    before = [watch.observe().measurement for watch in watches]
    train(model)
    after = [watch.observe().measurement for watch in watches]
    assert before[0].nc2 != after[0].nc2
    assert before[1].nc2 == after[1].nc2
    assert [seen.nc1 for seen in before] != [seen.nc1 for seen in after]


def test_what_a_function_may_return():
    model = CosineNet()
    with pytest.raises(TypeError, match="head: expected a Head, LinearHead, ETFHead"):
        nc.monitor(model.embed, BATCHES, head=lambda: model.weight.detach()).observe()
