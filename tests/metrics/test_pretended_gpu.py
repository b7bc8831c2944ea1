"""Samples on a GPU: the same numbers, few waits. No GPU is needed; tests/reference/pretend_gpu.py stands for one."""

import math
import warnings

import pytest
import torch

import ncollapse as nc
from metrics.test_definitions import agree
from ncollapse.metrics import collect
from reference.pretend_gpu import PretendGpu

WAITS = 6  # labels, classifier, first pass, second pass, and two to spare


def draw(samples=60, dim=8, classes=5, empty=(), dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, dim, generator=g)
    labels = torch.randint(classes, (samples,), generator=g)
    for label in empty:
        labels[labels == label] = (label + 1) % classes
    features = (weight[labels] + 0.7 * torch.randn(samples, dim, generator=g)).to(dtype)
    return features, labels, weight, torch.randn(classes, generator=g)


def measure(*data, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return nc.measure(*data, **options)


def compare(found, expected):
    found, expected = found.to_dict(), expected.to_dict()
    assert {name for name, value in found.items() if value is None} == {n for n, v in expected.items() if v is None}
    known = {name: value for name, value in expected.items() if value is not None}
    agree({name: found[name] for name in known}, known, "", relative=1e-12, absolute=1e-13)


CASES = {
    "few classes": {},
    "empty class": {"empty": (2,)},
    "K > d": {"classes": 12, "samples": 150},
    "K > N": {"classes": 12, "samples": 9},
    "bfloat16": {"dtype": torch.bfloat16},
    "float16": {"dtype": torch.float16},
    "one class": {"classes": 1},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("with_head", [True, False])
def test_every_field_is_the_same_with_few_waits(case, with_head):
    features, labels, weight, bias = draw(**CASES[case])
    head = (weight, bias) if with_head else ()
    options = {} if with_head else {"num_classes": len(weight)}
    expected = measure(features, labels, *head, **options)
    with PretendGpu() as gpu:
        found = measure(*(gpu.move(value) for value in (features, labels, *head)), **options)
    compare(found, expected)
    assert 0 < gpu.waits <= WAITS, gpu.counts


@pytest.mark.parametrize("case", ["few classes", "empty class", "K > d"])
def test_statistics_on_a_gpu(case):
    features, labels, weight, bias = draw(**CASES[case])
    statistics = nc.ClassStatistics(len(weight), features.shape[1]).update(features, labels)
    expected = measure(statistics, weight=weight, bias=bias)
    compared = measure(features, labels, weight, bias, reference=statistics)
    with PretendGpu() as gpu:
        statistics.state = {name: gpu.move(value) for name, value in statistics.state.items()}
        head = {"weight": gpu.move(weight), "bias": gpu.move(bias)}
        found = measure(statistics, **head)
        waits = gpu.waits
        samples = gpu.move(features), gpu.move(labels)
        found_compared = measure(*samples, **head, reference=statistics)
    compare(found, expected)
    compare(found_compared, compared)
    assert waits <= WAITS


@pytest.mark.parametrize("samples", [20, 300])
def test_the_numerical_rank_is_that_of_a_loop_over_classes(samples):
    features, labels, _, _ = draw(samples=samples, dtype=torch.float64)
    with PretendGpu() as gpu:
        found = measure(gpu.move(features), gpu.move(labels), numerical_rank=True)
    ranks = []
    for label in range(5):
        singular = torch.linalg.svdvals(features[labels == label])
        ranks.append(float(singular.sum() ** 2 / singular.square().sum()))
    assert found.numerical_rank == pytest.approx(sum(ranks) / 5, rel=1e-12)
    assert measure(features, labels, numerical_rank=True).numerical_rank == pytest.approx(sum(ranks) / 5, rel=1e-12)


def test_many_samples_need_no_more_waits(monkeypatch):
    """Several chunks, several tiles of scores, and quantiles of negative scores that are counted in bins."""
    monkeypatch.setattr("ncollapse.metrics.batches.CUDA_NUMBERS", 100)
    monkeypatch.setattr("ncollapse.metrics.exact_scores.CUDA_SCORES", 400)
    data = draw(samples=700)
    expected = measure(*data)
    with PretendGpu() as gpu:
        found = measure(*(gpu.move(value) for value in data))
    compare(found, expected)
    assert gpu.waits <= WAITS, gpu.counts
    monkeypatch.setattr("ncollapse.metrics.distribution.EXACT", 0)
    monkeypatch.setattr("ncollapse.metrics.sample_pass.EXACT", 1 << 20)
    with PretendGpu() as gpu:
        binned = measure(*(gpu.move(value) for value in data))
    assert binned.negative_score.median == pytest.approx(expected.negative_score.median, rel=1e-3, abs=1e-3)
    assert binned.negative_score.std == pytest.approx(expected.negative_score.std, rel=1e-12)
    assert gpu.waits <= WAITS, gpu.counts


@pytest.mark.parametrize("case", ["few classes", "empty class", "K > d"])
def test_class_level_work_on_the_gpu_finds_the_same(case, monkeypatch):
    """As it is done for many classes."""
    monkeypatch.setattr("ncollapse.metrics.transfer.HOST_VALUES", 0)
    data = draw(**CASES[case])
    expected = measure(*data)
    with PretendGpu() as gpu:
        found = measure(*(gpu.move(value) for value in data))
    compare(found, expected)
    assert gpu.waits > WAITS  # what is saved for few classes


@pytest.mark.parametrize("fields", [["nc1"], ["nc4", "accuracy"], ["positive_score"], ["compactness", "nc2"]])
def test_some_fields(fields):
    data = draw()
    expected = measure(*data, fields=fields)
    with PretendGpu() as gpu:
        found = measure(*(gpu.move(value) for value in data), fields=fields)
    compare(found, expected)
    assert gpu.waits <= WAITS, gpu.counts


def test_min_count_and_reference_and_batches():
    data, (train, train_labels, *_) = draw(), draw(seed=1)
    ways = ({"min_count": 9}, {"reference": (train, train_labels)}, {"missing_classes": "strict"})
    for options in ways:
        expected = measure(*data, **options)
        with PretendGpu() as gpu:
            moved = {
                name: tuple(gpu.move(part) for part in value) if name == "reference" else value
                for name, value in options.items()
            }
            found = measure(*(gpu.move(value) for value in data), **moved)
        compare(found, expected)
    features, labels, weight, bias = data
    expected = measure(*data)
    with PretendGpu() as gpu:
        batches = [(gpu.move(x), gpu.move(y)) for x, y in zip(features.split(17), labels.split(17))]
        found = measure(batches, weight=gpu.move(weight), bias=bias)
    compare(found, expected)


@pytest.mark.parametrize("host_values", [0, 1 << 15])
@pytest.mark.parametrize("case", ["few classes", "empty class", "K > N"])
def test_numerical_rank(case, host_values, monkeypatch):
    monkeypatch.setattr("ncollapse.metrics.transfer.HOST_VALUES", host_values)
    data = draw(**CASES[case])
    expected = measure(*data, numerical_rank=True)
    with PretendGpu() as gpu:
        found = measure(*(gpu.move(value) for value in data), numerical_rank=True)
    compare(found, expected)
    assert found.numerical_rank == pytest.approx(expected.numerical_rank, rel=1e-12)


def test_collect_waits_little_longer():
    data = draw(samples=300)
    expected = collect(*data, bins=16, keep=3)
    with PretendGpu() as gpu:
        found = collect(*(gpu.move(value) for value in data), bins=16, keep=3)
    for name, value in expected.tensors().items():
        torch.testing.assert_close(found.tensors()[name], value, rtol=1e-12, atol=1e-12)
    assert gpu.waits <= WAITS + 7, gpu.counts  # three histograms and their edges, the labels and the features kept


def test_bad_input_is_named():
    features, labels, weight, _ = draw()
    with PretendGpu() as gpu:
        wrong = features.clone()
        wrong[7, 2] = math.nan
        with pytest.raises(ValueError, match=r"^features: NaN or Inf in row 7"):
            nc.measure(gpu.move(wrong), gpu.move(labels), gpu.move(weight))
        with pytest.raises(ValueError, match=r"^labels: expected integers 0..K-1, got -1 in row 0"):
            nc.measure(gpu.move(features), gpu.move(labels - 1 - labels[0]), gpu.move(weight))
        with pytest.raises(ValueError, match=r"^weight: holds NaN or Inf"):
            nc.measure(gpu.move(features), gpu.move(labels), gpu.move(weight * math.nan))
