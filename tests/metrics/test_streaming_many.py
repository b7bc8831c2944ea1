"""The metric and the statistics with more classes than a product with one-hot labels is good for."""

import math
import pickle

import pytest
import torch

import ncollapse as nc
from ncollapse.metrics import streaming
from ncollapse.metrics.statistics import absorb

CLASSES, DIM, SAMPLES = 90, 7, 400


def draw(seed=0, offset=0.0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES - 3, (SAMPLES,), generator=g)  # three classes stay empty
    features = torch.randn(CLASSES, DIM, generator=g)[labels] + 0.3 * torch.randn(SAMPLES, DIM, generator=g) + offset
    return features, labels, nc.Head(torch.randn(CLASSES, DIM, generator=g), torch.randn(CLASSES, generator=g))


def expect(found, measured):
    for name, value in found.items():
        field, _, part = name.partition(".")
        exact = getattr(measured, field)
        exact = getattr(exact, part) if part else exact
        assert float(value) == pytest.approx(math.nan if exact is None else exact, rel=1e-9, abs=1e-12, nan_ok=True), (
            name
        )


def fill(metric, features, labels, size=37):
    for x, y in zip(features.split(size), labels.split(size)):
        metric.update(x, y)
    return metric


pytestmark = pytest.mark.filterwarnings("ignore:measure. no sample of classes")


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("size", [1, 37, 500])
@pytest.mark.parametrize("buffered", [40 * DIM, 1 << 21])
def test_any_split_gives_the_two_pass_numbers(offset, size, buffered, monkeypatch):
    monkeypatch.setattr(streaming, "BUFFERED_NUMBERS", buffered)
    features, labels, head = draw(offset=offset)
    found = fill(nc.NeuralCollapse(CLASSES, DIM), features, labels, size).compute(head)
    assert float(found["present_classes"]) < CLASSES
    assert float(found["nc1"]) > 0
    expect(found, nc.measure(features.double(), labels, head=head))


def test_masked_and_refused_samples_are_left_out():
    features, labels, _ = draw()
    keep = torch.arange(SAMPLES) % 3 != 0
    spoiled, wrong = features.clone(), labels.clone()
    spoiled[~keep], wrong[~keep] = torch.nan, CLASSES + 7
    metric = nc.NeuralCollapse(CLASSES, DIM)
    for part in torch.arange(SAMPLES).split(31):
        metric.update(spoiled[part], wrong[part], mask=keep[part])
    expect(metric.compute(), nc.measure(features[keep].double(), labels[keep], num_classes=CLASSES))
    state = nc.ClassStatistics(CLASSES, DIM).state
    refused = absorb(state, spoiled.double(), wrong)["refused"]  # as on a GPU, where nothing is looked at before
    assert refused.tolist() == [float((~keep).sum())] * 2
    assert int(state["counts"].sum()) == int(keep.sum())


def test_statistics_handed_out_do_not_change_with_later_batches():
    features, labels, _ = draw()
    metric = fill(nc.NeuralCollapse(CLASSES, DIM), features[:200], labels[:200])
    held, scatter = metric.class_statistics(), metric.class_statistics().scatter
    counts = held.counts.clone()
    fill(metric, features[200:], labels[200:])
    assert torch.equal(held.counts, counts)
    assert torch.equal(held.scatter, scatter)
    assert metric.class_statistics().counts.sum() == SAMPLES


def test_merged_pickled_saved_and_reset(tmp_path):
    features, labels, head = draw()
    exact = nc.measure(features.double(), labels, head=head)
    left = fill(nc.NeuralCollapse(CLASSES, DIM), features[:150], labels[:150])
    right = fill(nc.NeuralCollapse(CLASSES, DIM), features[150:], labels[150:])
    twin = pickle.loads(pickle.dumps(left))
    twin.merge_state(right)
    expect(twin.compute(head), exact)
    assert left.class_statistics().counts.sum() == 150
    left.reset()
    fill(left, features, labels)
    expect(left.compute(head), exact)
    statistics = nc.ClassStatistics(CLASSES, DIM).update(features[:150], labels[:150])
    statistics.merge(nc.ClassStatistics(CLASSES, DIM).update(features[150:], labels[150:]))
    statistics.save(tmp_path / "s.safetensors")
    expect(left.compute(head), nc.measure(nc.ClassStatistics.load(tmp_path / "s.safetensors"), head=head))


def test_forward_gives_the_batch_and_keeps_the_whole():
    features, labels, head = draw()
    metric = nc.NeuralCollapse(CLASSES, DIM)
    for x, y in zip(features.split(100), labels.split(100)):
        assert float(metric(x, y)["num_samples"]) == 100
    expect(metric.compute(head), nc.measure(features.double(), labels, head=head))


def test_fields_by_choice():
    features, labels, head = draw()
    metric = fill(nc.NeuralCollapse(CLASSES, DIM), features, labels)
    found = metric.compute(head, fields=["nc1", "nc2"])
    assert {"nc1", "nc2"} <= set(found)
    assert "cdnv" not in found
    whole = metric.compute(head)
    assert float(found["nc1"]) == float(whole["nc1"])
