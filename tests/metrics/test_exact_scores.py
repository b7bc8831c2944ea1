"""Tiles of scores that are filled by chunks of another size, and samples that are zero, against plain numpy."""

import numpy as np
import pytest
import torch

import ncollapse as nc
from ncollapse.metrics import batches, exact_scores

FIELDS = ["accuracy", "class_accuracy", "uniform_accuracy", "positive_score", "negative_score", "cosine_margin", "nc4"]


def draw(samples, classes=5, dim=6, offset=0.0):
    rng = np.random.default_rng(samples)
    means, labels = rng.normal(size=(classes, dim)), np.arange(samples) % classes
    features = means[labels] + rng.normal(size=(samples, dim)) + offset
    return features, labels, rng.normal(size=(classes, dim)), rng.normal(size=classes)


def score(features, labels, weight, bias):
    """Scores and logits, those of the own class, and the largest of the others."""
    scores, own = features @ weight.T, np.eye(len(weight), dtype=bool)[labels]
    logits = scores - bias
    return scores, logits, own


@pytest.mark.parametrize("rows", [40, 64, 100, 128, 150])
def test_chunks_may_start_within_a_tile_and_reach_beyond_it(rows, monkeypatch):
    """Tiles of 64 samples: a chunk of 100 leaves 36 of them waiting, and the next one goes on there."""
    monkeypatch.setattr(exact_scores, "CPU_SCORES", 1)
    monkeypatch.setattr(batches, "CPU_ROWS", rows)
    features, labels, weight, bias = draw(270)
    assert exact_scores.tile_rows(5, torch.device("cpu")) == 64
    m = nc.measure([(features[i : i + 37], labels[i : i + 37]) for i in range(0, 270, 37)], None, weight, bias)
    scores, logits, own = score(features, labels, weight, bias)
    decisions = logits.argmax(axis=1)
    assert m.accuracy == np.mean(decisions == labels)
    means = np.stack([features[labels == k].mean(axis=0) for k in range(5)])
    nearest = ((features[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert m.nc4 == pytest.approx(np.mean(decisions == nearest), rel=1e-12)
    assert m.nearest_mean_accuracy == np.mean(nearest == labels)
    for found, expected in ((m.positive_score, scores[own]), (m.negative_score, scores[~own])):
        assert (found.mean, found.std) == pytest.approx((expected.mean(), expected.std()), rel=1e-10)
        assert (found.min, found.max) == pytest.approx((expected.min(), expected.max()), rel=1e-12)
    rows_of_weight, centred = weight - weight.mean(axis=0), features - means.mean(axis=0)
    cosines = centred @ rows_of_weight.T
    cosines /= np.linalg.norm(centred, axis=1)[:, None] * np.linalg.norm(rows_of_weight, axis=1)
    margins = cosines[own] - np.where(own, -np.inf, cosines).max(axis=1)
    assert (m.cosine_margin.mean, m.cosine_margin.std) == pytest.approx((margins.mean(), margins.std()), rel=1e-10)
    assert (m.cosine_margin.min, m.cosine_margin.max) == pytest.approx((margins.min(), margins.max()), rel=1e-10)


@pytest.mark.parametrize("where", ["first", "last", "scattered"])
def test_the_scores_of_a_few_samples_that_are_zero_are_exactly_zero(where, monkeypatch):
    """Around the middle of the others their scores cancel up to rounding only, which would break ties."""
    monkeypatch.setattr(exact_scores, "CPU_SCORES", 1)
    features, labels, weight, _ = draw(150, classes=7, offset=30.0)
    labels = np.arange(150) % 7
    dead = {"first": np.arange(9), "last": np.arange(141, 150), "scattered": np.arange(0, 150, 11)}[where]
    features[dead] = 0.0
    bias = np.full(7, 0.3)
    m = nc.measure(features, labels, weight, bias, fields=FIELDS)
    scores, logits, own = score(features, labels, weight, bias)
    decisions = logits.argmax(axis=1)
    assert set(decisions[dead]) == {0}
    assert m.accuracy == np.mean(decisions == labels)
    by_class = [np.mean(decisions[labels == k] == k) for k in range(7)]
    assert m.class_accuracy == pytest.approx(by_class, rel=1e-12)
    other = np.where(own, -np.inf, logits).max(axis=1)
    values = np.concatenate([logits[own], other])
    best = max(np.mean((logits[own] > t) & (other <= t)) for t in values)
    assert m.uniform_accuracy == pytest.approx(best, rel=1e-12)
    assert m.negative_score.std == pytest.approx(scores[~own].std(), rel=1e-10)
