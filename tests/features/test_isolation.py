"""What is measured is in eval mode, and training goes on as if nothing had been."""

import functools
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import ncollapse as nc
from ncollapse.features import extract, undisturbed

X, Y = torch.randn(90, 6, generator=torch.Generator().manual_seed(0)), torch.arange(90) % 3
BATCHES = [(X[:50], Y[:50]), (X[50:], Y[50:])]


class Trunk(nn.Module):
    """A trunk with batch norm and a dropout that looks at the mode itself."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)

    def features(self, x):
        return F.dropout(self.norm(self.linear(x)), 0.5, training=self.training)

    def forward(self, x):
        return self.features(x)


class Holder:
    """A plain object that has a network, and one that is out of sight."""

    def __init__(self, net):
        self.net, self.hidden = net, [net]

    def see(self, x):
        return self.net.features(x)

    def hide(self, x):
        return self.hidden[0](x)


def decorate(function):
    @functools.wraps(function)
    def wrapper(x):
        return function(x)

    return wrapper


@pytest.mark.parametrize(
    "make",
    [
        lambda net: lambda x: net(x),
        lambda net: lambda x: net.features(x),
        lambda net: functools.partial(net.features),
        lambda net: functools.partial(net),
        lambda net: functools.partial(lambda model, x: model.features(x), net),
        lambda net: Holder(net).see,
        lambda net: Holder(net).hide,
        lambda net: decorate(lambda x: net.features(x)),
        lambda net: lambda x, at=(net,): at[0](x),
    ],
    ids=["call", "method", "partial method", "partial module", "argument", "object", "hidden", "decorated", "default"],
)
def test_a_function_is_measured_in_eval_mode(make):
    net = Trunk()
    net(X)  # statistics other than the initial ones
    exact = net.eval().features(X).detach()
    net.train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = extract(make(net), BATCHES, head=nn.Linear(8, 3))
    assert torch.equal(found.features, exact)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(module.training for module in net.modules())


def test_modules_called_in_other_threads_keep_their_mode():
    other, seen = nn.Dropout(), []

    def features(x):
        thread = threading.Thread(target=lambda: (other(x), seen.append(other.training)))
        thread.start()
        thread.join()
        return x

    extract(functools.partial(lambda call, x: call(x), features), BATCHES, head=nn.Linear(6, 3))
    assert seen == [True, True]
    assert not torch.nn.modules.module._global_forward_pre_hooks


@pytest.mark.parametrize("given", [False, True])
def test_spectral_norm_takes_no_step(given):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), spectral_norm(nn.Linear(8, 3)))
    net(X)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    watch = nc.monitor(net[:2], BATCHES, head=net[2]) if given else nc.monitor(net, BATCHES)
    watch.observe()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    net.eval()
    found = extract(net[:2], BATCHES, head=net[2]) if given else extract(net, BATCHES)
    assert torch.equal(found.head.weight, net[2].weight)


class Merging(nn.Linear):
    """LoRA that is merged into the weight by eval() and taken out again by train()."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.a, self.b = nn.Parameter(torch.randn(2, sizes[0])), nn.Parameter(torch.randn(sizes[1], 2))
        self.merged = False

    def train(self, mode=True):
        super().train(mode)
        if self.merged == mode:
            self.weight.data += (1 - 2 * mode) * (self.b @ self.a)
            self.merged = not mode
        return self

    def forward(self, x):
        out = super().forward(x)
        return out if self.merged else out + x @ self.a.T @ self.b.T


def test_what_eval_merges_is_taken_out_again():
    torch.manual_seed(0)
    net = nn.Sequential(Merging(6, 8), nn.ReLU(), Merging(8, 3))
    frozen = Merging(6, 6).eval()
    net.insert(0, frozen)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    loss = net(X).square().sum()  # waits for its backward pass while the model is measured
    expected = [torch.autograd.grad(loss, net[3].a, retain_graph=True)[0], net(X)]
    found = extract(net, BATCHES)
    assert torch.allclose(found.head.logits(found.features), expected[1], atol=1e-4)
    assert [module.merged for module in (net[0], net[1], net[3])] == [True, False, False]
    assert [module.training for module in net] == [False, True, True, True]
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    loss.backward()
    assert torch.equal(net[3].a.grad, expected[0])


def test_what_train_freezes_was_not_asked_for():
    class Freezing(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[0].requires_grad_(False)
            self[1].eval()
            return self

    net = Freezing(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    extract(net, BATCHES)
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert all(module.training for module in net.modules())


def test_compiled_parts_are_compiled_once():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph

    class Decorated(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 8)

        @torch.compile(backend=backend)
        def forward(self, x):
            return torch.relu(self.linear(x))

    class Net(nn.Module):
        def __init__(self, part):
            super().__init__()
            self.part, self.fc = part, nn.Linear(8, 3)

        def forward(self, x):
            return self.fc(self.part(x))

    for part in (Decorated(), torch.compile(nn.Linear(6, 8), backend=backend)):
        torch._dynamo.reset()
        compiled.clear()
        net = Net(part)
        net(X).sum().backward()
        assert len(compiled) == 1
        for _ in range(2):
            extract(net, [(X[:40], Y[:40]), (X[40:], Y[40:])])
            net(X).sum().backward()
        assert len(compiled) == 1


def test_measuring_a_function_inside_autocast_leaves_gradients_whole():
    net, fc = Trunk(), nn.Linear(8, 3)
    with torch.autocast("cpu", torch.bfloat16):
        extract(lambda x: net(x), BATCHES, head=fc)
        fc(net(X)).sum().backward()
        assert torch.is_autocast_cache_enabled()
    assert all(parameter.grad is not None for parameter in (*net.parameters(), *fc.parameters()))


def test_an_error_in_the_model_restores_all_the_same():
    net = Trunk()
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        extract(lambda x, at=(net,): at[0](x[:, :5]), BATCHES, head=nn.Linear(8, 3))
    assert all(module.training for module in net.modules())
    assert not torch.nn.modules.module._global_forward_pre_hooks
    with undisturbed(net) as modes, modes.follow():
        assert not net.training
    assert net.training
