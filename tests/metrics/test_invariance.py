"""The same samples give the same numbers: any split, order, merge tree, rotation, scale or naming of classes."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ncollapse as nc

PER_CLASS = ("class_accuracy", "counts", "mean_norms", "weight_norms", "empty_classes")


def draw(seed, classes=4, dim=6, samples=60, spread=0.5):
    g = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.arange(classes), torch.randint(classes, (samples - classes,), generator=g)])
    means = torch.randn(classes, dim, generator=g)
    features = means[labels] + spread * torch.randn(samples, dim, generator=g)
    return features, labels, torch.randn(classes, dim, generator=g), torch.randn(classes, generator=g)


def flat(measurement, skip=()):
    result = {}
    for name, value in measurement.to_dict().items():
        if name in skip:
            continue
        for key, item in value.items() if isinstance(value, dict) else [("", value)]:
            result[f"{name}.{key}"] = item
    return result


def assert_same(left, right, skip=(), tolerance=1e-12):
    a, b = flat(left, skip), flat(right, skip)
    assert a.keys() == b.keys()
    for name, value in a.items():
        for x, y in zip(value, b[name], strict=True) if isinstance(value, list) else [(value, b[name])]:
            if isinstance(x, float) and math.isnan(x):
                assert math.isnan(y), name
            elif x is None or isinstance(x, bool):
                assert x == y, name
            else:
                assert abs(x - y) <= tolerance * max(1.0, abs(x)), f"{name}: {x!r} {y!r}"


class Batches:
    """A re-iterable that cuts arrays at given places, in a new order of samples each time if asked."""

    def __init__(self, features, labels, cuts, reshuffle=False):
        self.features, self.labels, self.cuts, self.reshuffle = features, labels, cuts, reshuffle
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        order = torch.arange(len(self.labels))
        if self.reshuffle:
            order = torch.randperm(len(order), generator=torch.Generator().manual_seed(self.passes))
        edges = [0, *sorted(set(self.cuts)), len(order)]
        for start, stop in itertools.pairwise(edges):
            yield self.features[order[start:stop]], self.labels[order[start:stop]]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), cuts=st.lists(st.integers(0, 60), max_size=8), reshuffle=st.booleans())
def test_any_split_and_order(seed, cuts, reshuffle):
    features, labels, weight, bias = draw(seed)
    whole = nc.measure(features, labels, weight, bias)
    assert_same(whole, nc.measure(Batches(features, labels, cuts, reshuffle), weight=weight, bias=bias))


@pytest.mark.parametrize("rows", [1, 7, 64, 1000])
def test_any_size_of_chunk(rows, monkeypatch):
    features, labels, weight, bias = draw(0, samples=300)
    whole = nc.measure(features, labels, weight, bias, numerical_rank=True)
    monkeypatch.setattr("ncollapse.metrics.batches.Source.rows", lambda self, classes=0: rows)
    assert_same(whole, nc.measure(features, labels, weight, bias, numerical_rank=True))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_any_merge_tree(seed, data):
    features, labels, weight, bias = draw(seed)
    order = torch.tensor(data.draw(st.permutations(range(len(labels)))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(labels) - 1), max_size=7)))
    parts = [
        nc.ClassStatistics(4, 6).update(features[index], labels[index]) for index in torch.tensor_split(order, cuts)
    ]
    while len(parts) > 1:
        left = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        parts.append(parts.pop(data.draw(st.integers(0, len(parts) - 1))).merge(left))
    single = nc.ClassStatistics(4, 6).update(features, labels)
    assert_same(nc.measure(single, weight=weight, bias=bias), nc.measure(parts[0], weight=weight, bias=bias))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_rotation(seed):
    features, labels, weight, bias = (
        tensor.double() if tensor.is_floating_point() else tensor for tensor in draw(seed)
    )
    turn = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(seed)).double()).Q
    assert_same(
        nc.measure(features, labels, weight, bias),
        nc.measure(features @ turn, labels, weight @ turn, bias),
        tolerance=1e-10,
    )


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), power=st.integers(-20, 20))
def test_scale(seed, power):
    """Features times a power of two, classifier divided by it: scores stay, energies and norms follow."""
    features, labels, weight, bias = draw(seed)
    factor = 2.0**power
    left = nc.measure(features, labels, weight, bias)
    right = nc.measure(features.double() * factor, labels, weight.double() / factor, bias)
    skip = ("feature_energy", "weight_energy", "mean_norms", "weight_norms", "means_smallest_singular_value")
    assert_same(left, right, skip)
    assert right.feature_energy == pytest.approx(left.feature_energy * factor**2, rel=1e-12)
    assert right.weight_energy == pytest.approx(left.weight_energy / factor**2, rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), names=st.permutations(range(4)))
def test_naming_of_classes(seed, names):
    features, labels, weight, bias = draw(seed)
    names = torch.tensor(names)
    left = nc.measure(features, labels, weight, bias)
    right = nc.measure(features, names[labels], weight[names.argsort()], bias[names.argsort()])
    assert_same(left, right, PER_CLASS)
    for name in ("class_accuracy", "counts", "mean_norms", "weight_norms"):
        renamed = [getattr(right, name)[index] for index in names.tolist()]
        assert renamed == pytest.approx(list(getattr(left, name)), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes_are_read_exactly(dtype):
    features, labels, weight, bias = draw(0)
    rounded = features.to(dtype)
    assert_same(nc.measure(rounded.double(), labels, weight, bias), nc.measure(rounded, labels, weight, bias))


def test_numpy_and_memory_maps(tmp_path):
    features, labels, weight, bias = draw(0)
    whole = nc.measure(features, labels, weight, bias)
    assert_same(whole, nc.measure(features.numpy(), labels.numpy(), weight.numpy(), bias.numpy()))
    np.save(tmp_path / "features.npy", features.numpy())
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    assert_same(whole, nc.measure(mapped, labels.int(), weight, bias))
    swapped = features.numpy().astype(">f4")
    for kind in (np.uint8, np.uint32, ">i8"):
        assert_same(whole, nc.measure(swapped, labels.numpy().astype(kind), weight, bias))


def test_inputs_are_left_alone():
    tensors = [tensor.double() if tensor.is_floating_point() else tensor for tensor in draw(0)]
    before = [tensor.clone() for tensor in tensors]
    nc.measure(*tensors, numerical_rank=True)
    nc.measure([(tensors[0], tensors[1])], weight=tensors[2], bias=tensors[3])
    assert all(torch.equal(a, b) for a, b in zip(before, tensors))


def test_statistics_do_not_lose_a_large_offset():
    """Whole numbers, four a class: the class means are exact at any offset, and centring must leave them so."""
    features = torch.randint(-8, 8, (20, 6), generator=torch.Generator().manual_seed(0)).double()
    labels = torch.arange(20) % 5
    near, far = (nc.measure(nc.ClassStatistics(5, 6).update(features + offset, labels)) for offset in (0.0, 2.0**30))
    for name in ("nc1", "nc1_quotient", "nc2_means", "equinorm_means", "means_smallest_singular_value"):
        assert getattr(far, name) == pytest.approx(getattr(near, name), rel=1e-12), name


def test_saved_statistics_come_back(tmp_path):
    features, labels, weight, _ = draw(0)
    statistics = nc.ClassStatistics(4, 6).update(features, labels)
    statistics.save(tmp_path / "s.safetensors")
    back = nc.ClassStatistics.load(tmp_path / "s.safetensors")
    assert_same(nc.measure(statistics, weight=weight), nc.measure(back, weight=weight), tolerance=0.0)
    assert back.counts.tolist() == statistics.counts.tolist()
    back.update(features, labels)
    assert back.counts.sum() == 2 * len(labels)


def test_an_nn_linear_has_its_bias_flipped():
    features, labels, weight, bias = draw(0)
    linear = torch.nn.Linear(6, 4)
    with torch.no_grad():
        linear.weight.copy_(weight)
        linear.bias.copy_(-bias)
    assert_same(nc.measure(features, labels, weight, bias), nc.measure(features, labels, head=linear))
    logits = linear(features)
    assert nc.measure(features, labels, head=linear).accuracy == pytest.approx(
        (logits.argmax(1) == labels).double().mean().item()
    )


@pytest.mark.parametrize(("samples", "classes"), [(300, 5), (6000, 200)], ids=["float64", "float32 first"])
@pytest.mark.parametrize("kind", ["arrays", "batches", "reference"])
def test_one_sample_far_away_changes_no_decision_of_another(samples, classes, kind):
    """A sample 1e10 times larger must not cost the others their digits, wherever it stands."""
    g = np.random.default_rng(0)
    labels = np.r_[np.arange(classes), g.integers(classes, size=samples - classes)]
    features, weight, bias = g.normal(size=(samples, 8)), g.normal(size=(classes, 8)), g.normal(size=classes)
    features[0] *= 1e10
    means = np.stack([features[labels == k].mean(0) for k in range(classes)])
    nearest = np.array([((means - h) ** 2).sum(1).argmin() for h in features])
    expected = (nearest == (features @ weight.T - bias).argmax(1)).mean(), (nearest == labels).mean()
    for order in (np.arange(samples), np.roll(np.arange(samples), -1), g.permutation(samples)):
        x, y = features[order], labels[order]
        cuts = sorted({1, samples // 3, samples})
        given = (x, y) if kind != "batches" else (Batches(torch.tensor(x), torch.tensor(y), cuts),)
        other = (features, labels) if kind == "reference" else None
        m = nc.measure(*given, weight=weight, bias=bias, reference=other, fields=["nc4", "nearest_mean_accuracy"])
        assert (m.nc4, m.nearest_mean_accuracy) == pytest.approx(expected, abs=1e-12)
