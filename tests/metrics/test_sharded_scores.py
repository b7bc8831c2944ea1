"""The second pass over classes in shards, in one process that holds them all."""

import numpy as np
import pytest
import torch

import ncollapse as nc


@pytest.fixture
def alone():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def draw(samples=40, classes=4, dim=6):
    rng = np.random.default_rng(0)
    labels = np.arange(samples) % classes
    features = rng.normal(size=(classes, dim))[labels] + rng.normal(size=(samples, dim)) + 10
    return torch.tensor(features), torch.tensor(labels), torch.tensor(rng.normal(size=(classes, dim)))


@pytest.mark.parametrize("factor", [0.5, 0.999, 1.001, 2.0])
def test_other_samples_of_the_same_labels_are_refused(alone, factor):
    """Nearer to their mean or further away from it."""
    features, labels, _ = draw()
    metric = nc.NeuralCollapse(4, 6, shard_classes=True)
    metric.update(features, labels)
    mean = features.mean(0)
    metric.second_pass([(features, labels)])
    with pytest.raises(ValueError, match="batches: hold other samples than this metric has seen"):
        metric.second_pass([(mean + factor * (features - mean), labels)])


def test_a_sample_at_the_global_mean_has_no_direction(alone):
    """Its distance to the mean is rounding: its cosines are 0, and so is its margin."""
    features, labels, weight = draw()
    features[-1] = features[:-1].mean(0)
    features[-1, 0] += 1e-14  # a few units of the last place of 10
    metric = nc.NeuralCollapse(4, 6, shard_classes=True)
    metric.update(features, labels)
    found = metric.second_pass([(features, labels)], head=(weight, torch.zeros(4)))
    centred, rows = (features - features.mean(0)).numpy(), (weight - weight.mean(0)).numpy()
    cosines = centred @ rows.T / np.linalg.norm(centred, axis=1)[:, None] / np.linalg.norm(rows, axis=1)
    own = np.eye(4, dtype=bool)[labels]
    margins = cosines[own] - np.where(own, -np.inf, cosines).max(axis=1)
    assert abs(margins[-1]) > 0.01, "of rounding alone"
    margins[-1] = 0.0
    assert found.cosine_margin.mean == pytest.approx(margins.mean(), abs=1e-10)
    assert found.cosine_margin.std == pytest.approx(margins.std(), abs=1e-10)
