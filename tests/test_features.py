"""Finding classifiers, taking features, and leaving no trace."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

import ncollapse as nc
from ncollapse.features import extract, find_classifier, plain_order, split_batch, undisturbed, unwrap
from ncollapse.features.sampling import divide
from ncollapse.models import create

X, Y = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 4
BATCHES = [(X[:25], Y[:25]), (X[25:], Y[25:])]


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))


class Ends(nn.Module):
    """A trunk and whatever `end` makes of its features."""

    def __init__(self, end, **layers):
        super().__init__()
        self.trunk = nn.Linear(6, 8)
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.end = end

    def forward(self, x):
        return self.end(self, torch.relu(self.trunk(x)))


class Tokens(nn.Module):
    """Classifies every token, returns the logits of one: what decoders for sequence classification do."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(6, 4)

    def forward(self, x):
        tokens = torch.stack([x, 2 * x, x - 1], 1)
        last = torch.arange(len(x)) % 3
        return {"logits": self.score(tokens)[torch.arange(len(x)), last], "other": x}


def test_features_head_and_labels_are_the_model_s_own():
    model = mlp().eval()
    found = extract(model, BATCHES)
    assert found.layer == "4"
    assert torch.equal(found.features, model[:4](X))
    assert torch.equal(found.labels, Y)
    assert torch.allclose(found.head.logits(found.features), model(X), atol=1e-6)


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        (Ends(lambda m, h: m.first(h), second=nn.Linear(8, 4), first=nn.Linear(8, 4)), "first"),
        (Ends(lambda m, h: m.first(h), first=nn.Linear(8, 4), unused=nn.Linear(8, 4)), "first"),
        (Ends(lambda m, h: m.fc(h).log_softmax(1), fc=nn.Linear(8, 4)), "fc"),
        (Ends(lambda m, h: 30 * m.fc(h), fc=nc.LinearHead(8, 4)), "fc"),
        (Ends(lambda m, h: (m.fc(h), h), fc=nc.ETFHead(8, 4)), "fc"),
        (Ends(lambda m, h: {"logits": m.fc(h), "aux": m.aux(h)}, fc=nn.Linear(8, 4), aux=nn.Linear(8, 4)), "fc"),
        (Ends(lambda m, h: m.fc(h).double(), fc=nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))), "fc.2"),
    ],
    ids=["order", "unused", "normalised", "scaled", "tuple", "dictionary", "nested"],
)
def test_the_classifier_is_found_by_what_the_model_returns(model, layer):
    assert find_classifier(model, X) == layer
    assert extract(model, BATCHES).features.shape == (40, 8)


def test_our_networks():
    network = create("mlp-small", 4, in_channels=6, image_size=1).eval()
    found = extract(network, BATCHES)
    assert found.layer == "head"
    assert torch.equal(found.features, network.features(X))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Conv1d(6, 4, 1), nn.Flatten(0, 1)), "no linear layer at all"),
        (Ends(lambda m, h: (m.a(h), m.b(h)), a=nn.Linear(8, 4), b=nn.Linear(8, 4)), "several classifiers: a, b"),
        (Ends(lambda m, h: (m.a(h) + m.b(h)) / 2, a=nn.Linear(8, 4), b=nn.Linear(8, 4)), "several classifiers: a, b"),
        (Ends(lambda m, h: h.sum(1)), "name one of its 1 linear layers by layer=: trunk"),
        (Ends(lambda m, h: torch.cat([m.fc(h), m.fc(-h)], 1), fc=nn.Linear(8, 4)), "returns the output of no linear"),
        (Ends(lambda m, h: (m.fc(h), m.fc(-h)), fc=nn.Linear(8, 4)), "'fc' was called 2 times in one forward pass"),
    ],
    ids=["none", "two", "average", "other", "joined", "shared"],
)
def test_ambiguity_lists_the_candidates(model, message):
    batches = [(X[:, :, None], Y)] if isinstance(model, nn.Sequential) else BATCHES
    with pytest.raises(ValueError, match=message):
        extract(model, batches)


def test_a_named_layer_decides():
    model = Ends(lambda m, h: (m.a(h), m.b(h)), a=nn.Linear(8, 4), b=nn.Linear(8, 4))
    assert extract(model, BATCHES, layer="b").layer == "b"
    with pytest.raises(ValueError, match=r"layer: 'c' is no linear layer of Ends; name one of .*: trunk, a, b"):
        extract(model, BATCHES, layer="c")


def test_a_shared_module_goes_by_any_of_its_names():
    layer = nn.Linear(8, 4)
    model = Ends(lambda m, h: m.second(h), first=layer, second=layer)
    assert extract(model, BATCHES).layer == "first"
    assert extract(model, BATCHES, layer="second").features.shape == (40, 8)


def test_features_of_a_function_or_a_method_with_their_head():
    network = create("mlp-small", 4, in_channels=6, image_size=1).train()
    exact = extract(network, BATCHES)
    for features in (network.features, lambda x: network.eval().features(x)):
        found = extract(features, BATCHES, head=network.head)
        assert torch.equal(found.features, exact.features)
        assert torch.equal(found.head.bias, exact.head.bias)
        assert found.layer is None
    model = mlp()
    assert torch.equal(extract(model[:4], BATCHES, head=model[4]).features, extract(model, BATCHES).features)
    assert all(module.training for module in model.modules())
    with pytest.raises(ValueError, match=r"expected a matrix \[B, d\] from a model given with head=, got \(25,\)"):
        extract(lambda x: x.sum(1), BATCHES, head=nn.Linear(6, 4))
    with pytest.raises(ValueError, match="not both"):
        extract(model, BATCHES, head=model[4], layer="4")
    with pytest.raises(TypeError, match=r"expected a torch.nn.Module, got function; .* needs head="):
        extract(lambda x: x, BATCHES)


def test_one_output_for_two_classes_is_refused():
    with pytest.raises(ValueError, match="'fc' has one output; two classes are measured by two"):
        extract(Ends(lambda m, h: m.fc(h), fc=nn.Linear(8, 1)), [(X, Y % 2)])


def test_get_classifier_decides_between_several():
    model = Ends(lambda m, h: (m.a(h), m.b(h)), a=nn.Linear(8, 4), b=nn.Linear(8, 4))
    model.get_classifier = lambda: model.a
    assert extract(model, BATCHES).layer == "a"


def test_token_models_give_the_vector_whose_logits_they_return():
    model = Tokens()
    found = extract(model, [(X, Y)])
    assert torch.allclose(found.head.logits(found.features), model(X)["logits"], atol=1e-6)
    with pytest.raises(ValueError, match="one vector a token, so that labels"):
        extract(nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 4)), BATCHES)


@pytest.mark.parametrize(
    "wrap",
    [
        nn.DataParallel,
        lambda model: torch.compile(model, backend="eager"),
        lambda model: nn.DataParallel(torch.compile(model, backend="eager")),
    ],
    ids=["parallel", "compiled", "both"],
)
def test_wrappers_are_looked_through(wrap):
    model = mlp().eval()
    wrapped = wrap(model)
    assert unwrap(wrapped) is model
    assert torch.equal(extract(wrapped, BATCHES).features, model[:4](X))


def test_a_model_compiled_in_place_runs_eagerly():
    model = mlp().eval()
    model.compile(backend="eager")
    assert torch.equal(extract(model, BATCHES).features, model[:4](X))


def hooks(model):
    return [(dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in model.modules()]


@pytest.mark.parametrize("breaks", [False, True])
def test_no_trace_is_left(breaks):
    model = mlp()
    model[1].eval()  # a frozen batch norm in a model that trains
    model[4].register_forward_pre_hook(lambda module, args: None)
    hooks_before, buffers = hooks(model), [buffer.clone() for buffer in model.buffers()]
    modes = [module.training for module in model.modules()]
    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(TensorDataset(X, Y), 10, shuffle=True, generator=generator)
    torch.manual_seed(1), random.seed(1), np.random.seed(1)  # noqa: NPY002
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy(), generator.get_state()  # noqa: NPY002

    def batches():
        for number, (x, y) in enumerate(loader):
            torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
            if breaks and number == 2:
                yield x[:, :5], y
            yield x, y

    class Loader:
        sampler = loader.sampler
        generator = loader.generator

        def __iter__(self):
            return batches()

    if breaks:
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            extract(model, Loader())
    else:
        assert extract(model, Loader()).features.shape == (40, 8)
    assert [module.training for module in model.modules()] == modes
    assert hooks(model) == hooks_before
    assert all(map(torch.equal, buffers, model.buffers()))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])  # noqa: NPY002
    assert torch.equal(generator.get_state(), states[3])
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_measuring_inside_autocast_leaves_gradients_whole():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    with torch.autocast("cpu", torch.bfloat16):
        found = extract(model, BATCHES)
        model(X).sum().backward()
    assert found.features.dtype == torch.bfloat16
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("batch", "labels"),
    [
        ((X, Y), Y),
        ([X, Y], Y),
        ({"x": X, "labels": Y}, Y),
        ({"x": X, "label": Y}, Y),
    ],
)
def test_batches_are_split(batch, labels):
    inputs, found = split_batch(batch)
    assert found is labels
    assert inputs is X or (list(inputs) == ["x"] and inputs["x"] is X)


def test_other_batches_need_a_split():
    with pytest.raises(ValueError, match="got tuple of 3; pass split="):
        extract(mlp(), [(X, Y, Y)])
    with pytest.raises(ValueError, match="has the keys x, none of labels"):
        extract(mlp(), [{"x": X}])
    assert extract(mlp(), [(X, 1, Y)], split=lambda batch: (batch[0], batch[2])).labels.equal(Y)


def test_bad_batches():
    with pytest.raises(ValueError, match="batches: empty"):
        extract(mlp(), [])
    with pytest.raises(ValueError, match="labels: 39 for 40 rows"):
        extract(mlp(), [(X, Y[1:])])
    with pytest.raises(ValueError, match="labels: all are -100"):
        extract(mlp(), [(X, torch.full_like(Y, -100))])
    for labels in (None, "cats", ["cat"] * 40):
        with pytest.raises(ValueError, match="labels: expected integers, one a sample"):
            extract(mlp(), [(X, labels)])
    with pytest.raises(ValueError, match=r"labels: .* got a single number"):
        extract(mlp(), [(X, torch.tensor(1))])
    model = Ends(lambda m, h: m.fc(h), fc=nc.ETFHead(8, 4))
    with pytest.raises(ValueError, match="features: width 9 after batches of width 8"):
        growing(model, [8, 9])
    one_hot = nn.functional.one_hot(Y)
    with pytest.raises(ValueError, match=r"got \[40, 4\] for what enters .* one-hot or soft labels: pass"):
        extract(mlp(), [(X, one_hot)])
    narrow = mlp().half().eval()
    found = extract(narrow, [(X.half() * 1e4 * 1e2, Y)])
    with pytest.raises(ValueError, match="NaN or Inf"):
        nc.measure(found.features, found.labels, head=found.head)


def test_batches_without_samples_count_for_nothing():
    model, empty = mlp(), (X[:0], Y[:0])
    expected = extract(model, [(X, Y)])
    for batches in ([empty, (X, Y)], [empty, empty, (X, Y), empty]):
        found = extract(model, batches)
        assert torch.equal(found.features, expected.features)
        assert (found.layer, found.labels.tolist()) == (expected.layer, Y.tolist())
    with pytest.raises(ValueError, match="batches: empty"):
        extract(model, [empty])


def growing(model, widths):
    """Extract from a model whose features get wider between batches."""

    class Batches:
        def __iter__(self):
            for width in widths:
                model.trunk = nn.Linear(6, width)
                model.fc.frame = torch.randn(4, width)
                yield X, Y

    return extract(model, Batches())


def read(loader):
    return torch.cat([x for x, _ in loader]), torch.cat([y for _, y in loader])


@pytest.mark.parametrize("options", [{"shuffle": True, "drop_last": True}, {"num_workers": 1}, {"batch_size": None}])
def test_loaders_are_read_in_order_and_whole(options):
    loader = DataLoader(TensorDataset(X, Y), **{"batch_size": 16, **options})
    if options.get("batch_size", 1) is None:
        loader = [(X[:3], Y[:3]), (X[3:], Y[3:])]
    x, y = read(plain_order(loader))
    assert torch.equal(x, X)
    assert torch.equal(y, Y)


def test_a_loader_s_own_collation_is_kept():
    def collate(samples):
        return torch.stack([x for x, _ in samples]) * 2, torch.stack([y for _, y in samples])

    loader = DataLoader(TensorDataset(X, Y), 16, shuffle=True, collate_fn=collate)
    assert torch.equal(read(plain_order(loader))[0], 2 * X)


def test_subsets_are_fixed_by_the_seed_and_shared_out():
    loader = DataLoader(TensorDataset(X, Y), 16, shuffle=True)
    first, again, other = (read(plain_order(loader, 15, seed))[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert first.shape == (15, 6)
    assert not torch.equal(first, other)
    shares = [divide(loader, 15, 0, rank, 2) for rank in range(2)]
    parts = [read(share.batches)[0][: share.limit] for share in shares]
    assert [len(read(share.batches)[0]) for share in shares] == [8, 8]  # equally many batches, as FSDP needs
    assert list(map(len, parts)) == [8, 7]
    assert torch.equal(torch.cat(parts).sort(0).values, first.sort(0).values)
    assert divide(BATCHES, rank=1, size=2) == (BATCHES, None, False)
    with pytest.raises(ValueError, match="loader: 1 samples for 2 processes"):
        divide(loader, 1, 0, 0, 2)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(X[0], Y[0])] * 3)


@pytest.mark.parametrize(
    ("loader", "samples", "error", "message"),
    [
        (
            DataLoader(TensorDataset(X, Y), 2, sampler=WeightedRandomSampler([1.0] * 40, 9)),
            5,
            ValueError,
            "samples: expected a DataLoader without a sampler of its own, got .*WeightedRandomSampler",
        ),
        (iter(BATCHES), None, TypeError, "can be gone through again, got list_iterator"),
        (BATCHES, 0, ValueError, "samples: expected at least 1"),
    ],
)
def test_what_cannot_be_ordered(loader, samples, error, message):
    with pytest.raises(error, match=message):
        plain_order(loader, samples)


def test_own_samplers_are_respected():
    loader = DataLoader(TensorDataset(X, Y), 2, sampler=WeightedRandomSampler([1.0] * 40, 9))
    assert len(read(plain_order(loader))[0]) == 9
    assert len(read(plain_order(DataLoader(Stream(), 2)))[0]) == 3


def test_undisturbed_puts_the_model_into_eval_mode():
    model = mlp()
    with undisturbed(model):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
    assert all(module.training for module in model.modules())
