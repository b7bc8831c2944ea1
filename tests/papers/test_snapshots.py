"""Thinned snapshots: a fraction of the size, and the figures drawn from them show the same."""

import numpy as np
import pytest
from safetensors.numpy import save

from ncollapse.compare import group_runs
from ncollapse.papers.archive import collect
from ncollapse.papers.snapshots import DIMENSIONS, thin_snapshot
from ncollapse.report.figures.feature_epochs import draw_feature_epochs
from ncollapse.report.figures.frames import grams
from ncollapse.report.figures.margins import draw_margins
from ncollapse.report.figures.scores import draw_scores
from ncollapse.report.snapshots import load_epochs
from ncollapse.runs.record import read_runs
from ncollapse.runs.schema import check_snapshot
from reference.runs import write_run


@pytest.fixture
def arrays(tmp_path):
    path = write_run(tmp_path, {"model.feature_dim": 512, "optim.epochs": 2}, per_class=100)
    (record,) = read_runs(tmp_path)
    assert record.path == path
    return record.snapshot()


def test_inner_products_of_classifier_and_means_are_kept(arrays):
    thin = thin_snapshot(arrays)
    assert thin["weight"].shape == (10, DIMENSIONS)
    before = grams(*(np.asarray(arrays[name], np.float64) for name in ("weight", "train.class_means")))
    after = grams(*(np.asarray(thin[name], np.float64) for name in ("weight", "train.class_means")))
    for first, second in zip(before, after):
        np.testing.assert_allclose(first, second, atol=1e-5)


def test_features_keep_their_distances_as_far_as_fifty_dimensions_allow(arrays):
    thin = thin_snapshot(arrays)
    features, labels = thin["test.features"].astype(np.float64), thin["test.labels"]
    assert len(features) == 300
    assert np.bincount(labels).tolist() == [30] * 10
    index = np.sort(np.concatenate([np.flatnonzero(arrays["test.labels"] == k)[:30] for k in range(10)]))
    whole = np.asarray(arrays["test.features"][index], np.float64)
    middle = [f.mean(0) for f in (features, whole)]
    sizes = [np.linalg.norm(f - m, axis=1) for f, m in zip((features, whole), middle)]
    assert (sizes[0] <= sizes[1] * 1.01).all()
    means = [np.stack([f[labels == k].mean(0) for k in range(10)]) for f in (features, whole)]
    apart = [np.linalg.norm(m[:, None] - m[None], axis=2) for m in means]
    np.testing.assert_allclose(apart[0], apart[1], rtol=0.1)


def test_a_thinned_snapshot_is_valid_and_small(arrays):
    thin = thin_snapshot(arrays)
    check_snapshot(thin)
    assert len(save(thin)) < 100_000 < len(save(arrays)) / 20


def test_histograms_keep_every_sample(arrays):
    thin = thin_snapshot({**arrays, "test.margin.edges": np.linspace(0, 1, 129), "test.margin.counts": np.arange(128)})
    assert thin["test.margin.counts"].sum() == np.arange(128).sum()
    assert thin["test.margin.counts"].size == 64
    np.testing.assert_allclose(thin["test.margin.edges"], np.linspace(0, 1, 65))


def test_many_classes_keep_features_alone():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(100), 5)
    arrays = {"weight": rng.normal(size=(100, 64)), "train.class_means": rng.normal(size=(100, 64))}
    arrays |= {"train.features": rng.normal(size=(500, 64)), "train.labels": labels}
    thin = thin_snapshot(arrays)
    assert set(thin) == {"train.features", "train.labels"}
    assert thin["train.features"].shape == (300, DIMENSIONS)
    assert thin_snapshot({"bias": np.zeros(3)}).keys() == {"bias"}


def test_records_keep_them_and_the_figures_are_drawn_from_them(tmp_path):
    write_run(tmp_path / "runs", {"model.feature_dim": 128, "optim.epochs": 2}, per_class=40, epoch_snapshots=True)
    collect(tmp_path / "runs", tmp_path / "kept")
    for folder in ("runs", "kept"):
        records = read_runs(tmp_path / folder)
        snapshots = {r.path: r.snapshot() for r in records}
        assert all(arrays is not None for arrays in snapshots.values())
        variants = group_runs(records)
        assert draw_scores(variants, snapshots) is not None
        assert draw_margins(variants, snapshots) is not None
        assert draw_feature_epochs(variants, load_epochs(records)) is not None
