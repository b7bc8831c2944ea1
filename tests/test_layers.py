"""Every layer in one pass: the numbers of one layer at a time, and a model that is left as it was."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ncollapse as nc
from ncollapse.features.spool import FeatureSpool
from ncollapse.monitoring import layers as module

X = torch.randn(60, 3, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 4
X = X + 0.7 * torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))[Y]
LOADER = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
        self.blocks = nn.ModuleList([nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.ReLU()) for _ in range(3)])
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(6, 4)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.drop(x.mean((2, 3))))


def hook_one(model, name):
    """The output of one layer for all samples, by a hook of its own."""
    taken = []
    handle = model.get_submodule(name).register_forward_hook(lambda m, args, out: taken.append(out.detach()))
    with torch.no_grad():
        model.eval()(X)
    handle.remove()
    return taken[0]


def slow_values(rows):
    """Nearest class mean and effective rank, sample by sample."""
    rows = rows.double()
    means = torch.stack([rows[k == Y].mean(0) for k in range(4)])
    nearest = torch.tensor([min(range(4), key=lambda k: float((row - means[k]).norm())) for row in rows])
    eigenvalues = torch.linalg.eigvalsh(torch.cov(rows.T, correction=0))
    return float((nearest == Y).double().mean()), float(eigenvalues.sum() ** 2 / eigenvalues.square().sum())


@pytest.mark.parametrize("pool", [None, "mean", lambda out: out.flatten(2).amax(2) if out.ndim == 4 else out])
def test_one_pass_gives_what_one_layer_at_a_time_gives(pool):
    model, names = Net(), ["stem", "blocks.0", "blocks.1", "blocks.2", "head"]
    profile = nc.measure_layers(model, LOADER, ["head", "blocks.*", "stem"], pool=pool)
    assert list(profile) == names  # in the order in which they ran
    for name in names:
        output = hook_one(model, name)
        if pool == "mean" and output.ndim == 4:
            output = output.mean((2, 3))
        rows = pool(output) if callable(pool) else output.flatten(1)
        exact = nc.measure(rows, Y)
        accuracy, rank = slow_values(rows)
        values = profile[name]
        assert values.nc1 == pytest.approx(exact.nc1, rel=1e-4)
        assert values.nc2_means == pytest.approx(exact.nc2_means, rel=1e-4)
        assert values.cdnv == pytest.approx(exact.cdnv, rel=1e-4)
        assert values.means_rank == exact.means_rank
        assert values.nearest_mean_accuracy == pytest.approx(accuracy)
        assert values.effective_rank == pytest.approx(rank, rel=1e-4)
        assert (values.dim, values.num_samples) == (rows.shape[1], 60)


def test_the_model_runs_once_and_is_left_as_it_was():
    model, calls = Net(), []
    model.register_forward_pre_hook(lambda m, args: calls.append(len(args[0])))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    nc.measure_layers(model, LOADER, ["stem", "blocks.?", "head"], pool="mean")
    assert calls == [16, 16, 16, 12]
    assert all(part.training for part in model.modules())
    assert not any(part._forward_hooks for part in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_full_collapse_and_wide_layers(monkeypatch):
    ideal = torch.eye(4).repeat(5, 1)
    profile = nc.measure_layers(nn.Sequential(nn.Identity()), [(ideal, torch.arange(20) % 4)])
    assert profile["0"].effective_rank == pytest.approx(3)
    assert (profile["0"].nc1, profile["0"].nearest_mean_accuracy, profile["0"].means_rank) == (0, 1, 3)
    monkeypatch.setattr(module, "WIDEST_RANKED", 3)
    wide = nc.measure_layers(nn.Sequential(nn.Identity()), [(ideal, torch.arange(20) % 4)])
    assert math.isnan(wide["0"].effective_rank)


def test_tokens_with_labels_of_their_own():
    model = nn.Sequential(nn.Embedding(9, 5), nn.Linear(5, 7))
    tokens = torch.arange(24).reshape(4, 6) % 9
    labels = tokens % 3
    labels[0, :2] = -100
    profile = nc.measure_layers(model, [(tokens, labels)], shift=True)
    rows = model[0](tokens)[:, :-1].flatten(0, 1).detach()
    kept = labels[:, 1:].flatten()
    assert profile["0"].num_samples == 19
    assert profile["0"].nc1 == pytest.approx(nc.measure(rows[kept >= 0], kept[kept >= 0]).nc1)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.act, self.fc, self.unused = nn.ReLU(), nn.Linear(3, 4), nn.Linear(3, 3)
        self.text = nn.Identity()

    def forward(self, x):
        self.text("no tensor")
        return self.fc(self.act(self.act(x)))


def test_layers_are_named_not_numbered():
    with pytest.raises(TypeError, match=r"layers: expected dotted names such as 'layer1.0', got 0"):
        nc.measure_layers(Twice(), [(X[:, :, 0, 0], Y)], layers=[0])


@pytest.mark.parametrize(
    ("layers", "options", "message"),
    [
        ("blocks.9", {}, "layers: 'blocks.9' names no module of Twice; its modules are act, fc"),
        ("act", {}, "layers: 'act' was called twice in one forward pass"),
        ("unused", {}, "layers: unused did not run in the forward pass"),
        ("text", {}, "layers: 'text' returned no tensor but str"),
        ("fc", {"pool": "max"}, "pool: expected None, 'mean' or a function, got 'max'"),
        ("fc", {"pool": lambda out: out.sum()}, r"pool: expected a matrix \[B, d\] for the layer 'fc', got \(\)"),
    ],
)
def test_what_cannot_be_measured(layers, options, message):
    with pytest.raises(ValueError, match=message):
        nc.measure_layers(Twice(), [(X[:, :, 0, 0], Y)], layers, **options)


def test_the_monitor_measures_layers_too():
    model = Net()
    logged = {}
    with nc.monitor(
        model, LOADER, layers="blocks.*", pool="mean", log=lambda numbers, at: logged.update({at: numbers})
    ) as watch:
        nn.functional.cross_entropy(model(X), Y).backward()
        torch.optim.SGD(model.parameters(), lr=0.5).step()
        watch.step()
    whole = nc.measure_layers(model, LOADER, "blocks.*", pool="mean")
    assert watch.history[-1].layers == whole
    assert watch.history[0].layers != whole
    assert logged[1]["layers/blocks.1/nc1"] == whole["blocks.1"].nc1
    assert watch.last.nc1 == pytest.approx(nc.monitor(model, LOADER).observe().measurement.nc1)
    drawn = [curve for curve in watch.plot().data if curve.name in ("epoch 0", "epoch 1")]
    assert len(drawn) == 10  # five fields, two epochs
    assert list(drawn[1].text) == ["blocks.0", "blocks.1", "blocks.2"]
    assert list(drawn[1].y) == pytest.approx([values.nc1 for values in whole.values()], rel=1e-4)


def test_a_profile_is_printed_and_drawn():
    profile = nc.measure_layers(Net(), LOADER, pool="mean", layers=["stem", "head"])
    header, *rows = str(profile).splitlines()
    assert header.split()[:3] == ["layer", "nc1", "nc2_means"]
    assert [row.split()[0] for row in rows] == ["stem", "head"]
    figure = profile.plot()
    assert [len(curve.x) for curve in figure.data] == [2] * 5
    assert figure.layout.paper_bgcolor == "#ffffff"
    assert figure.layout.margin.t >= 55, "plotly's buttons would cover the titles of the panels"


def test_layers_share_the_memory(monkeypatch):
    spools = []
    original = FeatureSpool.__init__

    def watch(self, device="cpu", limit=None):
        original(self, device, limit)
        spools.append(limit)

    monkeypatch.setattr(FeatureSpool, "__init__", watch)
    monkeypatch.setattr(module, "HELD_BYTES", 900)
    on_disk = nc.measure_layers(Net(), LOADER, ["stem", "blocks.*"])
    monkeypatch.undo()
    assert spools == [225] * 4
    assert on_disk == nc.measure_layers(Net(), LOADER, ["stem", "blocks.*"])
