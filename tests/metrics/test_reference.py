"""Train means for the decisions of a test set, and scores of samples from elsewhere."""

import math

import numpy as np
import pytest
import torch

import ncollapse as nc
from ncollapse.metrics import ood_score


def draw(seed, samples, classes=5, dim=4, far=0.0):
    g = torch.Generator().manual_seed(7)
    means = 1.5 * torch.randn(classes, dim, generator=g)
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % classes
    return means[labels] + torch.randn(samples, dim, generator=g) + far, labels, means


@pytest.mark.parametrize("many", [False, True])
def test_nearest_means_are_those_of_the_reference(many, monkeypatch):
    if many:
        for name in ("sample_pass.FEW_SCORES", "nearest_means.FEW_SCORES"):
            monkeypatch.setattr(f"ncollapse.metrics.{name}", 0)
    train, train_labels, weight = draw(0, 200)
    test, labels, _ = draw(1, 60)
    means = torch.stack([train[train_labels == k].double().mean(0) for k in range(5)])
    nearest = torch.cdist(test.double(), means).argmin(1)
    decisions = (test.double() @ weight.double().T).argmax(1)
    statistics = nc.ClassStatistics(5, 4).update(train, train_labels)
    batches = list(zip(train.split(33), train_labels.split(33)))
    own = nc.measure(test, labels, weight)
    for reference in (statistics, (train, train_labels), (train.numpy(), train_labels.numpy()), batches):
        m = nc.measure(test, labels, weight, reference=reference, fields=["nc4", "nearest_mean_accuracy", "nc1"])
        assert m.nc4 == (nearest == decisions).double().mean()
        assert m.nearest_mean_accuracy == (nearest == labels).double().mean()
        assert m.nc1 == pytest.approx(own.nc1, rel=1e-12)  # the other fields are about the samples themselves
    assert (nearest != torch.cdist(test.double(), torch.stack([test[labels == k].double().mean(0) for k in range(5)]))
            .argmin(1)).any()  # fmt: skip


def test_a_reference_without_some_classes_names_the_others():
    train, train_labels, _ = draw(0, 200)
    keep = train_labels % 2 == 0
    test, labels, _ = draw(1, 60)
    m = nc.measure(test, labels, reference=(train[keep], train_labels[keep]), fields=["nearest_mean_accuracy"])
    means = torch.stack([train[train_labels == k].double().mean(0) for k in (0, 2, 4)])
    expected = 2 * torch.cdist(test.double(), means).argmin(1) == labels
    assert m.nearest_mean_accuracy == expected.double().mean()


def test_a_reference_of_another_width_is_refused():
    train, train_labels, _ = draw(0, 200)
    with pytest.raises(ValueError, match=r"^reference: expected features of 3 columns, got 4"):
        nc.measure(train[:, :3], train_labels, reference=(train, train_labels))
    with pytest.raises(ValueError, match=r"^reference: class statistics hold no single samples"):
        nc.measure(nc.ClassStatistics(5, 4).update(train, train_labels), reference=(train, train_labels))


def test_scores_by_their_definitions():
    train, labels, _ = draw(0, 300)
    test = torch.cat([draw(1, 40)[0], draw(2, 40, far=4.0)[0]]).double()
    statistics = nc.ClassStatistics(5, 4).update(train, labels)
    train = train.double()
    means = torch.stack([train[labels == k].mean(0) for k in range(5)])
    residuals = train - means[labels]
    inverse = torch.linalg.inv(residuals.T @ residuals / 300)
    expected = [min(float((x - m) @ inverse @ (x - m)) for m in means) for x in test]
    assert ood_score(test, statistics).tolist() == pytest.approx(expected, rel=1e-9)
    assert ood_score(test.numpy(), statistics, "distance").tolist() == pytest.approx(
        torch.cdist(test, means).amin(1).tolist(), rel=1e-9
    )
    two = nc.ClassStatistics(2, 4).update(train[labels < 2], labels[labels < 2])
    axis = means[1] - means[0]
    away = test - train[labels < 2].mean(0)
    expected = -(away @ axis).abs() / axis.norm() / away.norm(dim=1)
    assert ood_score(test, two, "neco").tolist() == pytest.approx(expected.tolist(), rel=1e-9)


@pytest.mark.parametrize("method", ["mahalanobis", "distance", "neco"])
def test_samples_from_elsewhere_score_higher(method):
    train, labels, _ = draw(0, 300, dim=12)
    train[:, 6:] = 0.01 * torch.randn(300, 6, generator=torch.Generator().manual_seed(3))  # collapsed directions
    statistics = nc.ClassStatistics(5, 12).update(train[:200], labels[:200])
    outside = torch.randn(100, 12, generator=torch.Generator().manual_seed(5)) * 4
    near, far = ood_score(train[200:], statistics, method), ood_score(outside, statistics, method)
    assert (far[:, None] > near).double().mean() > 0.9  # the area under the ROC curve


def test_bad_arguments_of_the_score():
    statistics = nc.ClassStatistics(2, 3).update(torch.randn(4, 3), torch.arange(4) % 2)
    with pytest.raises(ValueError, match=r"^method: expected mahalanobis, neco, distance, got 'x'"):
        ood_score(torch.randn(4, 3), statistics, "x")
    with pytest.raises(ValueError, match=r"^features: expected \[N, 3\]"):
        ood_score(torch.randn(4, 2), statistics)
    assert ood_score(np.zeros((0, 3)), statistics).shape == (0,)
    assert math.isfinite(float(ood_score(torch.zeros(1, 3), statistics)))
