"""Sums by class of the first pass, over several chunks, against plain numpy."""

import numpy as np
import pytest
import torch

import ncollapse as nc
from ncollapse.metrics import batches
from ncollapse.metrics.batches import open_source
from ncollapse.metrics.class_sums import choose_anchor, sum_classes

ORDERS = {
    "one class more at a time": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4],
    "all of them at first": [4, 3, 2, 1, 0, 0, 0, 1, 1, 2],
    "several at once": [0, 0, 0, 4, 4, 1, 2, 2, 3, 6],
    "the last class at last": [0, 1, 2, 3, 3, 2, 1, 0, 0, 4],
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rows", [1, 2, 3, 10])
def test_classes_may_turn_up_in_any_chunk(order, rows, monkeypatch):
    """Of batches whose number of classes is not known before."""
    monkeypatch.setattr(batches, "CPU_ROWS", rows)
    rng = np.random.default_rng(0)
    labels = np.array(ORDERS[order])
    features = rng.normal(size=(10, 3)) + 5
    found = sum_classes(open_source([(features[i : i + 4], labels[i : i + 4]) for i in (0, 4, 8)], None), None)
    classes = labels.max() + 1
    assert found.counts.tolist() == np.bincount(labels, minlength=classes).tolist()
    offsets, units = features - found.anchor.numpy(), features / np.linalg.norm(features, axis=1, keepdims=True)
    for k in range(classes):
        assert found.sums[k].numpy() == pytest.approx(offsets[labels == k].sum(axis=0), abs=1e-12)
        assert float(found.energies[k]) == pytest.approx((offsets[labels == k] ** 2).sum(), abs=1e-12)
        assert found.directions.sums[k].numpy() == pytest.approx(units[labels == k].sum(axis=0), abs=1e-12)
    assert found.feature_energy == pytest.approx((features**2).sum(axis=1).mean(), rel=1e-12)


@pytest.mark.parametrize("rows", [3, 9, 10])
def test_arrays_of_one_chunk_alone_are_kept_for_the_second_pass(rows, monkeypatch):
    monkeypatch.setattr(batches, "CPU_ROWS", rows)
    features, labels = np.random.default_rng(0).normal(size=(10, 3)), np.arange(10) % 2
    found = sum_classes(open_source(features, labels), None)
    assert (found.chunk is not None) == (rows == 10)
    means = np.stack([features[labels == k].mean(axis=0) for k in range(2)])
    within = np.mean(((features - means[labels]) ** 2).sum(axis=1))
    between = np.mean(((means - features.mean(axis=0)) ** 2).sum(axis=1))
    assert nc.measure(features, labels).nc1_quotient == pytest.approx(within / between, rel=1e-12)


def test_the_anchor_is_a_median_of_about_fifteen_samples():
    features = torch.arange(60.0)[:, None].repeat(1, 2)
    features[:, 1] = -features[:, 1]
    assert choose_anchor(features).tolist() == [28.0, -28.0], "of every fourth: 0, 4, ... 56"
    assert choose_anchor(features[:7]).tolist() == [3.0, -3.0], "of all, where they are few"
    far = features.clone()
    far[:24:4] = 1e9  # six of fifteen
    assert choose_anchor(far).abs().max() < 60


@pytest.mark.parametrize("size", [1e-70, 1e70])
def test_magnitudes_are_taken_up_to_their_limits(size):
    rng = np.random.default_rng(0)
    features, labels = rng.choice([-1.0, 1.0], size=(12, 3)), np.arange(12) % 2
    features[labels == 1] += 1
    features /= np.abs(features).max()
    within = nc.measure(features * size, labels)
    assert within.nc1 == pytest.approx(nc.measure(features, labels).nc1, rel=1e-9)
    beyond = size * (1e3 if size > 1 else 1e-3)
    with pytest.raises(ValueError, match="features: expected magnitudes of 1e-70 to 1e"):
        nc.measure(features * beyond, labels)
