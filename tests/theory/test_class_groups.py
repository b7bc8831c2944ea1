"""Certificates that are averaged over classes which the problem treats alike: many classes, and no looser bound."""

import numpy as np
import pytest
import torch

import ncollapse as nc
from ncollapse.theory import point as points
from ncollapse.theory.class_groups import expand_rows, group_classes, read_rows, symmetric_norm
from ncollapse.theory.copositive import maximise_on_cone

DECAYS = {"weight_decay": 5e-3, "feature_decay": 5e-3}


def write_out(own, others, scales, groups, present):
    """C as a matrix: a row for each class of each group in `present`."""
    rows = []
    for g, group in enumerate(present):
        for k in np.flatnonzero(groups.index == group):
            row = others[g][groups.index].copy()
            row[k] = own[g]
            rows.append(scales[g] * row)
    return np.array(rows)


@pytest.mark.parametrize("shape", [(7,), (1, 7), (5, 7), (2, 3, 7)])
def test_sums_over_groups(shape):
    values = np.random.default_rng(0).standard_normal(shape)
    groups = group_classes(np.array([2.0, 1.0, 2.0, 0.0, 1.0, 2.0, 5.0]))
    wanted = [values[..., groups.index == g].sum(axis=-1) for g in range(4)]
    assert groups.sizes.tolist() == [1, 2, 3, 1]
    assert groups.first.tolist() == [3, 1, 0, 6]
    assert groups.add(values).shape == (*shape[:-1], 4)
    assert np.allclose(groups.add(values), np.stack(wanted, axis=-1), rtol=1e-15)
    transposed = np.asfortranarray(values)
    assert np.array_equal(groups.add(transposed), groups.add(values))


@pytest.mark.parametrize("seed", range(40))
def test_the_norm_is_that_of_the_matrix(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, int(rng.integers(1, 5)))
    groups = group_classes(rng.permutation(np.repeat(np.arange(float(len(sizes))), sizes)))
    present = np.sort(rng.choice(len(sizes), int(rng.integers(1, len(sizes) + 1)), replace=False))
    own, others = rng.standard_normal(len(present)), rng.standard_normal((len(present), len(sizes)))
    scales = rng.random(len(present))
    if seed % 4 == 0:  # clustered: all singular values of the parts equal
        own, others = np.ones(len(present)), np.zeros((len(present), len(sizes)))
        scales = np.ones(len(present))
    rows = expand_rows(own, others, groups, present)
    assert np.allclose(read_rows(rows, groups, present)[0], own)
    whole = write_out(own, others, scales, groups, present)
    assert symmetric_norm(rows, scales, groups, present, relu=False) == pytest.approx(np.linalg.norm(whole, 2))
    cone = symmetric_norm(rows, scales, groups, present, relu=True)
    exact = np.sqrt(maximise_on_cone(whole @ whole.T)[0])
    assert cone >= exact * (1 - 1e-12)
    if len(present) == 1:
        assert cone == pytest.approx(exact)


def disturbed(k, counts, scale, features, seed=0, dim=40):
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((k, dim)) / np.sqrt(dim)
    labels = np.repeat(np.arange(k), counts)
    h = 3 * w[labels] + scale * rng.standard_normal((len(labels), dim))
    return (np.abs(h) if features == "relu" else h), labels, w, 0.1 * rng.standard_normal(k)


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize(("loss", "lb"), [("ce", 0.0), ("bce", 0.0), ("bce", 0.01), ("mse", 0.01), ("ce", 0.1)])
@pytest.mark.parametrize("counts", ["equal", "few", "empty"])
def test_many_classes_against_the_matrix(monkeypatch, loss, lb, features, counts):
    """The path for many classes makes no K x K matrix; its bound is at least as good, and a bound."""
    k = 30 if counts != "equal" else 60
    sizes = {"equal": np.full(k, 3), "few": np.arange(k) % 3 + 1, "empty": np.arange(k) % 3}[counts]
    h, y, w, b = disturbed(k, sizes, 0.3, features)
    problem = nc.Problem(loss, k, batch_size=len(y), bias_decay=lb, features=features, **DECAYS)
    dense = nc.certify(h, y, w, b, problem)
    monkeypatch.setattr(points, "DENSE", 1)
    grouped = nc.certify(h, y, w, b, problem)
    for name in ("objective", "data_loss", "num_samples"):
        assert getattr(grouped, name) == pytest.approx(getattr(dense, name), rel=1e-12)
    assert grouped.lower_bound == pytest.approx(dense.lower_bound, rel=1e-9, abs=1e-12)
    assert grouped.within_class_bound == pytest.approx(dense.within_class_bound, rel=1e-6)
    best = nc.solve(problem.replace(class_counts=sizes), time_limit=2.0).objective
    assert grouped.lower_bound <= best * (1 + 1e-12)


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize("loss", ["ce", "bce", "mse"])
def test_averaging_does_not_loosen_the_bound(monkeypatch, loss, features):
    """Against the certificate of the mean gradients alone, as the K x K matrix gives it."""
    from ncollapse.theory import certificate

    h, y, w, b = disturbed(8, np.full(8, 4), 0.5, features)
    problem = nc.Problem(loss, 8, batch_size=32, bias_decay=0.01, features=features, **DECAYS)
    averaged = nc.certify(h, y, w, b, problem)
    monkeypatch.setattr(certificate, "symmetrise", lambda point: None)
    assert nc.certify(h, y, w, b, problem).lower_bound <= averaged.lower_bound + 1e-12


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize("loss", ["ce", "bce"])
def test_the_optimum_of_many_classes_is_certified(loss, features):
    """Beyond the classes of which all supports can be tried, the cone is exact for equal classes."""
    p = nc.predict(loss, 600, per_class=1, weight_decay=1e-4, feature_decay=1e-4, bias_decay=1e-4, features=features)
    c = nc.certify(*p.configuration(), p.problem)
    assert 0 <= c.gap < 1e-9 * max(1.0, c.objective)
    assert c.objective == pytest.approx(p.objective, rel=1e-12)


def test_labels_out_of_range_are_refused():
    h, y, w, b = disturbed(450, np.ones(450, dtype=int), 0.1, "free")
    y[3] = 450
    with pytest.raises(ValueError, match="labels has values outside"):
        nc.certify(h, y, w, b, nc.Problem("ce", 450, batch_size=450, **DECAYS))
    with pytest.raises(ValueError, match="outside"):
        nc.certify(h[:9], torch.arange(9) + 1, w[:9], b[:9], nc.Problem("ce", 9, batch_size=9, **DECAYS))


def test_no_matrix_of_all_classes_is_made():
    h, y, w, b = disturbed(900, np.arange(900) % 3 + 1, 0.1, "free", dim=4)
    problem = nc.Problem("ce", 900, batch_size=len(y), **DECAYS)
    point = points.read_point(h, y, w, b, problem, None, {})
    assert point.gradients.shape == (3, 900)  # a row for each of three counts
    assert point.counts.sum() == len(y)
    assert points.read_point(h, y, w, b, problem, None, {}, dense=True).gradients.shape == (900, 900)


@pytest.mark.parametrize("sizes", [(3, 2), (4, 1, 2), (2, 2, 2), (1, 1)])
def test_the_norm_for_non_negative_features_is_that_of_the_positive_part(sizes):
    """Of the whole K x K matrix, for groups of classes: the smaller of the norms of C C^T and of its positive part."""
    rng = np.random.default_rng(0)
    index = np.repeat(np.arange(len(sizes)), sizes)
    groups, present = group_classes(index.astype(float)), np.arange(len(sizes))
    tighter = 0
    for _ in range(40):
        own, others = 2 * rng.normal(size=len(sizes)), rng.normal(size=(len(sizes), len(sizes)))
        scales = rng.random(len(sizes)) + 0.1
        dense = others[index][:, index]
        np.fill_diagonal(dense, own[index])
        square = (scales[index][:, None] * dense) @ (scales[index][:, None] * dense).T
        bounds = [np.linalg.eigvalsh(part)[-1] for part in (square, np.maximum(square, 0.0))]
        found = symmetric_norm(expand_rows(own, others, groups, present), scales, groups, present, relu=True)
        assert found == pytest.approx(np.sqrt(min(bounds)), rel=1e-9)
        tighter += bounds[1] < bounds[0] * (1 - 1e-9)
    assert 0 < tighter < 40, "else one of both decides alone"
