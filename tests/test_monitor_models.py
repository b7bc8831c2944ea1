"""`monitor` with models beyond a plain classifier: several heads, bfloat16, compiled, gradients accumulated."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import ncollapse as nc

X, Y = torch.randn(90, 6, generator=torch.Generator().manual_seed(0)), torch.arange(90) % 3
LOADER = DataLoader(TensorDataset(X, Y), batch_size=30, shuffle=True)


class TwoHeads(nn.Module):
    """A shared trunk, one classifier of three classes and one of five."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.three, self.five = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 5)

    def forward(self, x):
        features = torch.relu(self.trunk(x))
        return {"three": self.three(features), "five": self.five(features)}


def build(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)


def test_several_heads_by_name():
    model = TwoHeads()
    targets = {"three": Y, "five": torch.arange(90) % 5}
    loader = DataLoader(TensorDataset(X, targets["three"], targets["five"]), batch_size=30)
    with pytest.raises(ValueError, match="several classifiers: three, five; name one by layer='five'"):
        nc.monitor(model, [(X, Y)]).observe()
    numbers = {}
    for place, name in enumerate(targets, 1):
        nc.monitor(
            model,
            loader,
            layer=name,
            split=lambda batch, place=place: (batch[0], batch[place]),
            prefix=name,
            log=lambda values, epoch: numbers.update(values),
        ).observe()
    with torch.no_grad():
        features = torch.relu(model.trunk(X))
    for name, labels in targets.items():
        exact = nc.measure(features, labels, head=model.get_submodule(name))
        assert numbers[f"{name}/nc/nc1"] == pytest.approx(exact.nc1, rel=1e-6)
        assert numbers[f"{name}/nc/num_classes"] == exact.num_classes


def test_a_model_in_bfloat16():
    model = build(torch.bfloat16)
    loader = DataLoader(TensorDataset(X.bfloat16(), Y), batch_size=30)
    seen = nc.monitor(model, loader).observe().measurement
    with torch.no_grad():
        exact = nc.measure(model.eval()[:3](X.bfloat16()), Y, head=model[3])
    assert seen.nc1 == pytest.approx(exact.nc1, rel=1e-9)
    with torch.no_grad():
        right = (model(X.bfloat16()).argmax(1) == Y).double().mean()
    assert seen.accuracy == pytest.approx(float(right), abs=0.03)  # in float64 the last bit of a logit may decide


def test_gradients_that_wait_are_left_as_they_are():
    plain, watched = build(), build()
    watch = nc.monitor(watched, LOADER)
    for model in (plain, watched):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(6):
            F.cross_entropy(model(X[15 * step : 15 * step + 15]), Y[15 * step : 15 * step + 15]).backward()
            if model is watched:
                watch.observe()  # also between the steps of an accumulation
            if step % 3 == 2:
                optimiser.step()
                optimiser.zero_grad()
    assert all(map(torch.equal, plain.state_dict().values(), watched.state_dict().values()))
    energies = [seen.measurement.weight_energy for seen in watch.history]
    assert energies[0] == energies[1] == energies[2] != energies[3] == energies[5]  # the weights move every third time


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model(in_place):
    model = build()
    compiled = model if in_place else torch.compile(model, backend="eager")
    if in_place:
        model.compile(backend="eager")
    with nc.monitor(compiled, LOADER) as watch:
        optimiser = torch.optim.SGD(compiled.parameters(), lr=0.1)
        for x, y in LOADER:
            optimiser.zero_grad()
            F.cross_entropy(compiled(x), y).backward()
            optimiser.step()
        watch.step()
    with torch.no_grad():
        exact = nc.measure(model.eval()[:3](X), Y, head=model[3])
    assert watch.last.nc1 == pytest.approx(exact.nc1, rel=1e-5)


def test_a_stream_of_samples():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(zip(X, Y))

    model = build()
    seen = nc.monitor(model, DataLoader(Stream(), batch_size=25)).observe().measurement
    assert seen.nc1 == pytest.approx(nc.monitor(model, LOADER).observe().measurement.nc1, rel=1e-6)
    with pytest.raises(TypeError, match="can be gone through again, got list_iterator"):
        nc.monitor(model, iter([(X, Y)]))
