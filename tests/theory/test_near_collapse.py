"""What a certified gap implies for the geometry: each bound holds at every point, and is not empty near the optimum."""

import math

import numpy as np
import pytest
import torch

import ncollapse as nc
from ncollapse.theory.dual import lower_bound
from ncollapse.theory.near_collapse import bound_geometry
from ncollapse.theory.point import read_point, symmetrise

DECAYS = {"weight_decay": 5e-3, "feature_decay": 5e-3}


def disturb(p, scale, seed, per_class=6):
    """The predicted optimum with every sample's feature, W and b disturbed."""
    rng = np.random.default_rng(seed)
    h, y, w, b = (part.numpy() for part in p.configuration(p.problem.num_classes + 2))
    first = np.unique(y, return_index=True)[1]
    h, y = np.repeat(h[first], per_class, axis=0), np.repeat(y[first], per_class)
    h = h + scale * rng.standard_normal(h.shape)
    w = w + scale * rng.standard_normal(w.shape)
    b = b + scale * rng.standard_normal(b.shape) if p.problem.bias else b
    return (np.abs(h) if p.problem.features == "relu" else h), y, w, b


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize(
    ("loss", "lb"), [("ce", 0.0), ("ce", 0.1), ("bce", 0.0), ("bce", 0.1), ("mse", 0.1), ("ls", 0.0)]
)
def test_every_bound_holds(loss, lb, features):
    p = nc.predict(loss, 4, per_class=6, bias_decay=lb, features=features, **DECAYS)
    informative = 0
    for seed, scale in enumerate((3e-4, 3e-3, 0.03, 0.1, 0.3, 1.0)):
        h, y, w, b = disturb(p, scale, seed)
        c = nc.certify(h, y, w, b, p.problem)
        m = nc.measure(h, y, w, b)
        means = np.stack([h[y == k].mean(axis=0) for k in range(4)])
        assert np.mean(((h - means[y]) ** 2).sum(axis=1)) <= c.within_class_bound * (1 + 1e-9)
        assert m.accuracy >= c.accuracy_bound - 1e-12
        if not math.isnan(c.uniform_accuracy_bound):
            assert m.uniform_accuracy >= c.uniform_accuracy_bound - 1e-12
            informative += c.uniform_accuracy_bound > 0.9
        informative += c.accuracy_bound > 0.9
    assert informative


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize("loss", ["ce", "bce", "mse"])
def test_the_gap_is_a_sum_of_terms_that_are_not_negative(loss, features):
    """The decomposition behind the bounds, term by term from the definitions."""
    p = nc.predict(loss, 4, per_class=6, bias_decay=0.05, features=features, **DECAYS)
    for seed, scale in enumerate((0.01, 0.2)):
        h, y, w, b = disturb(p, scale, seed)
        point = read_point(h, y, w, b, p.problem, None, {})
        bound, averaged = lower_bound(point), lower_bound(symmetrise(point))
        q, n = bound.gradients, len(y)
        if averaged.value >= bound.value:  # one row stands for all
            own, other = averaged.gradients[0, :2]
            q = np.full((4, 4), other) + (own - other) * np.eye(4)
        columns = q[y].T / n  # Y [K, N]
        z = h @ w.T - b
        plain = nc.make_loss(loss, reduction="none")
        values = plain(torch.from_numpy(z), torch.from_numpy(y)).numpy()
        young = values + point.form.conjugate(q)[y] - (q[y] * z).sum(axis=1)
        assert (young > -1e-12).all()
        a, f = math.sqrt(5e-3) * w, math.sqrt(5e-3) * h
        image = columns @ f / 5e-3
        dual = 0.5 * ((a + image) ** 2).sum()
        spare = 0.5 * ((f**2).sum() - (image**2).sum())
        bias = 0.5 * ((math.sqrt(0.05) * b - columns.sum(axis=1) / math.sqrt(0.05)) ** 2).sum()
        assert min(dual, spare, bias) > -1e-12
        gap = nc.certify(h, y, w, b, p.problem).gap
        if abs(columns.sum()) > 1e-12 or bias > 1e-9:  # the best dual point may be one with Y 1 = 0
            assert young.mean() + dual + spare + bias == pytest.approx(gap, rel=1e-6, abs=1e-10)
        assert math.sqrt(2 * dual / 5e-3) / np.linalg.norm(w) <= nc.certify(h, y, w, b, p.problem).duality_bound * (
            1 + 1e-6
        )


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize("loss", ["ce", "bce", "mse", "ls"])
def test_the_metrics_are_within_their_bounds(loss, features):
    informative = 0
    for lb in (0.0, 0.02, 2.0):
        p = nc.predict(loss, 4, per_class=6, bias_decay=lb, features=features, **DECAYS)
        for seed, scale in enumerate((1e-6, 1e-4, 1e-3, 1e-2, 0.1, 0.5)):
            h, y, w, b = disturb(p, scale, seed)
            c, m = nc.certify(h, y, w, b, p.problem), nc.measure(h, y, w, b)
            for name in ("nc1", "nc2", "nc3"):
                bound = getattr(c, f"{name}_bound")
                assert math.isnan(bound) or getattr(m, name) <= bound * (1 + 1e-9) + 1e-12, (name, lb, scale)
                informative += bound < 0.1
    assert informative >= 9


@pytest.mark.parametrize("lb", [0.02, 2.0])
@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_the_bounds_shrink_as_the_gap_does(loss, lb):
    """Near the optimum, where t = 1: A = B, and B B^T has the eigenvalue |A|^2 / (K - 1), which is tau sqrt(n) a."""
    p = nc.predict(loss, 4, per_class=6, bias_decay=lb, **DECAYS)
    h, y, w, _ = (part.numpy() for part in p.configuration())
    means = h[np.unique(y, return_index=True)[1]]
    size = math.sqrt(5e-3) * np.linalg.norm(w - w.mean(axis=0))
    assert size == pytest.approx(math.sqrt(6 * 5e-3) * np.linalg.norm(means - means.mean(axis=0)), rel=1e-9)
    c = nc.certify(*disturb(p, 2e-7, 0), p.problem)
    eigenvalue = size**2 / 3
    assert c.nc1_bound == pytest.approx(2 * c.gap / (4 * eigenvalue), rel=2e-2)
    logits = eigenvalue / (5e-3 * math.sqrt(6)) * math.sqrt(3)  # |Z - its mean| = a |I - J / K|
    assert c.nc2_bound - c.nc3_bound == pytest.approx(
        2 * math.sqrt(2 * c.gap) * math.sqrt(5e-3) * np.linalg.norm(w) / (5e-3 * math.sqrt(6)) / logits, rel=2e-2
    )


def test_unequal_classes_have_no_bound_on_the_frames():
    problem = nc.Problem("ce", class_counts=[6, 6, 3], **DECAYS)
    s = nc.solve(problem)
    rows = torch.tensor([0] * 6 + [1] * 6 + [2] * 3)
    c = nc.certify(s.features[rows], rows, s.weight, s.bias, problem)
    assert math.isnan(c.nc2_bound)
    assert c.within_class_bound < 1e-5


def test_bounds_at_the_optimum_are_sharp():
    p = nc.predict("bce", 10, per_class=6, bias_decay=5e-3, **DECAYS)
    c = nc.certify(*p.configuration(), p.problem)
    assert c.within_class_bound < 1e-10
    assert c.duality_bound < 1e-5
    assert c.accuracy_bound > 1 - 1e-9
    assert c.uniform_accuracy_bound > 1 - 1e-9
    assert max(c.nc1_bound, c.nc2_bound, c.nc3_bound) < 1e-3


def test_far_from_the_optimum_nothing_is_promised():
    rng = np.random.default_rng(0)
    h, y, w = rng.standard_normal((12, 5)), np.arange(12) % 4, rng.standard_normal((4, 5))
    c = nc.certify(h, y, w, None, nc.Problem("ce", 4, batch_size=12, **DECAYS))
    assert c.accuracy_bound == 0
    assert math.isnan(c.uniform_accuracy_bound)


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize(("loss", "lb"), [("ce", 0.0), ("bce", 0.05), ("mse", 0.1)])
def test_the_bounds_on_duality_and_spread_are_attained(loss, lb, features):
    """Along an axis that neither W nor H uses nothing but a decay grows: all of the gap is in one term."""
    p = nc.predict(loss, 4, per_class=6, bias_decay=lb, features=features, **DECAYS)
    h, y, w, b = (part.numpy() for part in p.configuration(7))
    h, y = h[np.repeat(np.unique(y, return_index=True)[1], 6)], np.repeat(np.arange(4), 6)
    axis = np.linalg.svd(np.concatenate([w, h]))[2][-1]
    rng = np.random.default_rng(0)
    step = 0.2 * rng.standard_normal(4)
    moved = w + np.outer(step, axis)
    c = nc.certify(h, y, moved, b, p.problem)
    assert c.gap == pytest.approx(5e-3 / 2 * (step**2).sum(), rel=1e-6)
    assert c.duality_bound == pytest.approx(np.linalg.norm(step) / np.linalg.norm(moved), rel=1e-6)
    if features == "free":
        spread = 0.2 * rng.standard_normal((4, 6))
        spread -= spread.mean(axis=1, keepdims=True)
        c = nc.certify(h + np.outer(spread.ravel(), axis), y, w, b, p.problem)
        assert c.within_class_bound == pytest.approx((spread**2).mean(), rel=1e-6)


@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_the_bound_on_errors_is_what_the_gap_pays_for(loss):
    """A gap that pays for so many errors among 24 samples, and for no more, allows just as many."""
    p = nc.predict(loss, 4, per_class=6, bias_decay=0.05, **DECAYS)
    h, y, w, b = (part.numpy() for part in p.configuration())
    h, y = h[np.repeat(np.unique(y, return_index=True)[1], 6)], np.repeat(np.arange(4), 6)
    point = read_point(h, y, w, b, p.problem, None, {})
    costs = point.form.confusion_cost(lower_bound(point).gradients)
    for wrong in (0.5, 1.0, 2.5, 7.0):
        found = bound_geometry(point, lower_bound(point), wrong * costs[0] / 24)
        assert found.accuracy == pytest.approx(1 - wrong / 24, rel=1e-6)


def read_optimum(loss, num_classes, decay, **options):
    """A predicted optimum of six samples a class: its problem, the arguments of `certify`, and the class means."""
    p = nc.predict(loss, num_classes, per_class=6, weight_decay=decay, feature_decay=decay, **options)
    h, y, w, b = (part.numpy() for part in p.configuration(num_classes + 2))
    means = h[np.unique(y, return_index=True)[1]]
    return p.problem, (np.repeat(means, 6, axis=0), np.repeat(np.arange(num_classes), 6), w, b), means


@pytest.mark.parametrize("decay", [1e-5, 1e-7])
def test_a_loss_of_differences_does_not_see_the_mean_of_the_weight(decay):
    """All rows of W moved along the largest direction of the features: NC3 grows by more than the loss accounts for."""
    problem, (h, y, w, b), means = read_optimum("ce", 2, decay, bias=False)
    direction = np.linalg.svd(means - means.mean(axis=0))[2][0]
    moved = w + 1e-3 * np.linalg.norm(w) * direction
    c, m = nc.certify(h, y, moved, b, problem), nc.measure(h, y, moved, b)
    z = means @ w.T
    least = 1 / (1 + math.exp(z[0, 0] - z[0, 1]))  # the least probability, the curvature
    seen = math.sqrt(2 * 2 * c.gap / least) / np.linalg.norm(z - z.mean(axis=1, keepdims=True))
    assert m.nc3 > 2 * seen, "what the loss sees does not bound it"
    assert c.nc3_bound == pytest.approx(2 * math.hypot(m.nc3, seen), rel=1e-3)


@pytest.mark.parametrize(("loss", "features"), [("bce", "free"), ("bce", "relu"), ("mse", "free"), ("mse", "relu")])
def test_the_bounds_have_the_constants_of_the_theory(loss, features):
    """Of any gap at the optimum itself, where A = t B: the least eigenvalue of B B^T, and what the gap takes off it."""
    k, decay = 4, 5e-3
    problem, (h, y, w, b), means = read_optimum(loss, k, decay, bias_decay=0.05, features=features)
    point = symmetrise(read_point(h, y, w, b, problem, None, {}))
    bound = lower_bound(point)
    spread = math.sqrt(6 * decay) * (means - means.mean(axis=0))
    eigenvalue = np.linalg.svd(spread)[1][k - 2] ** 2
    t = math.sqrt(decay) * np.linalg.norm(w - w.mean(axis=0)) / np.linalg.norm(spread)
    assert (t > 1.01) == (features == "relu")
    z = means @ w.T - b
    size = np.linalg.norm(z - z.mean(axis=1, keepdims=True) - z.mean(axis=0) + z.mean())
    scale = decay * math.sqrt(6)
    for gap in (1e-18, 1e-12, 1e-8):
        found, epsilon = bound_geometry(point, bound, gap), math.sqrt(2 * gap)
        delta = found.nc3 * size / 2
        weight, everything = math.sqrt(decay) * np.linalg.norm(w), math.sqrt(decay) * np.linalg.norm(h)
        floor = eigenvalue - (scale * delta + epsilon * everything) / t
        assert found.nc1 == pytest.approx(2 * gap / (k * floor), rel=1e-6, abs=0)
        assert found.nc2 - found.nc3 == pytest.approx(2 * epsilon * weight / (t * scale) / size, rel=1e-6, abs=0)
        if loss == "mse":  # 1/2 |z - y|^2: of curvature 1
            assert delta == pytest.approx(math.sqrt(2 * k * gap), rel=1e-6, abs=0)


def test_a_loss_of_unknown_curvature_has_no_bound_on_the_frames():
    problem, arrays, _ = read_optimum("ce", 4, 5e-3, bias=False)
    point = symmetrise(read_point(*arrays, problem, None, {}))
    point.form.least_curvature = lambda gradient, budget: None
    found = bound_geometry(point, lower_bound(point), 1e-9)
    assert found.within_class > 0
    assert all(map(math.isnan, (found.nc1, found.nc2, found.nc3)))
