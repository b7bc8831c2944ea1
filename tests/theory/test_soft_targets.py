"""Problems with soft targets, logit offsets and class weights."""

import numpy as np
import pytest
import torch

import ncollapse as nc
from ncollapse.theory import equalising_weights
from reference.theory import minimise

DECAYS = {"weight_decay": 1e-2, "feature_decay": 1e-2}
MIXED = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.7, 0.3, 0], [0.2, 0, 0.8], [0, 0.5, 0.5]])
COUNTS = np.array([3.0, 2, 1, 2, 1, 1])


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize(
    ("loss", "lb", "bias"), [("ce", 0.0, True), ("bce", 0.1, True), ("mse", 0.0, False), ("ls", 0.0, True)]
)
def test_soft_targets_against_the_brute_force(loss, lb, bias, features):
    problem = nc.Problem(
        loss, targets=MIXED, target_counts=COUNTS, bias_decay=lb, bias=bias, features=features, **DECAYS
    )
    params = {"alpha": 0.1} if loss == "ls" else {}
    brute = minimise(
        loss, COUNTS, 1e-2, 1e-2, lb, bias=bias, relu=features == "relu", targets=MIXED, most_samples=0, **params
    )
    p = nc.predict(problem, method="numerical")
    assert p.objective == pytest.approx(brute["objective"], abs=1e-8)
    certificate = p.solution.certificate
    assert certificate.objective == pytest.approx(p.objective, abs=1e-12)
    assert 0 <= certificate.gap < 1e-7
    # the same from samples: each target row as often as it counts, with its feature
    order = np.repeat(np.arange(6), COUNTS.astype(int))
    rows = np.array(problem.targets)
    position = [int(np.flatnonzero((rows == row).all(axis=1))[0]) for row in MIXED]
    h = p.solution.features.numpy()[position][order]
    c = nc.certify(h, MIXED[order], p.solution.weight, p.solution.bias, problem)
    assert c.objective == pytest.approx(p.objective, abs=1e-12)
    assert c.gap == pytest.approx(certificate.gap, abs=1e-9)
    with pytest.raises(ValueError, match="no labels to configure"):
        p.configuration()


def test_one_hot_rows_are_classes():
    soft = nc.Problem("bce", targets=np.eye(3), target_counts=[4, 2, 1], bias_decay=0.1, **DECAYS)
    hard = nc.Problem("bce", class_counts=[4, 2, 1], bias_decay=0.1, **DECAYS)
    assert nc.solve(soft).objective == pytest.approx(nc.solve(hard).objective, abs=1e-9)
    smoothed = 0.9 * np.eye(3) + 0.1 / 3
    rows = nc.Problem("ce", targets=smoothed, target_counts=[1, 1, 1], **DECAYS)
    assert nc.solve(rows).objective == pytest.approx(
        nc.predict("ls", 3, per_class=1, alpha=0.1, **DECAYS).objective, abs=1e-9
    )


@pytest.mark.parametrize("loss", ["ce", "bce", "mse"])
@pytest.mark.parametrize("relu", [False, True])
def test_soft_bounds_hold_at_random_points(loss, relu):
    rng = np.random.default_rng(0)
    problem = nc.Problem(loss, 4, batch_size=10, bias_decay=0.1, features="relu" if relu else "free", **DECAYS)
    for scale in (0.1, 1.0, 5.0):
        h, w, b = (scale * rng.standard_normal(shape) for shape in ((20, 5), (4, 5), 4))
        h = np.abs(h) if relu else h
        rows = rng.dirichlet(np.ones(4), 20)
        c = nc.certify(h, rows, w, b, problem)
        z = torch.from_numpy(h @ w.T - b)
        value = float(nc.make_loss(loss)(z, torch.from_numpy(rows)))
        value += 5e-3 * (w**2).sum() + 5e-3 * 10 / 20 * (h**2).sum() + 0.05 * (b**2).sum()
        assert c.objective == pytest.approx(value, rel=1e-12)
        assert c.lower_bound <= min(value, float(nc.make_loss(loss)(0 * z, torch.from_numpy(rows))))


def test_logit_offsets():
    """An offset is a bias that costs nothing: with a free bias it changes nothing, without one it does."""
    counts, offset = [6, 2, 1], np.log([6, 2, 1])
    plain = nc.Problem("ce", class_counts=counts, **DECAYS)
    assert nc.solve(plain.replace(logit_offset=offset)).objective == pytest.approx(nc.solve(plain).objective, abs=1e-9)
    adjusted = plain.replace(logit_offset=offset, bias=False)
    brute = minimise("ce", counts, 1e-2, 1e-2, bias=False, offset=offset, most_samples=0)
    solution = nc.solve(adjusted)
    assert solution.objective == pytest.approx(brute["objective"], abs=1e-9)
    assert 0 <= solution.certificate.gap < 1e-8
    assert abs(solution.objective - nc.solve(plain.replace(bias=False)).objective) > 1e-3
    c = nc.certify(solution.features, solution.labels, solution.weight, None, adjusted)
    assert c.objective == pytest.approx(solution.objective, abs=1e-12)
    with pytest.raises(ValueError, match="no closed form is known for ce with a logit offset"):
        nc.predict(adjusted.replace(features="relu"), method="closed")
    soft = nc.Problem("ce", targets=MIXED, target_counts=COUNTS, bias=False, features="relu", **DECAYS)
    with pytest.raises(ValueError, match="no closed form is known for ce with soft targets"):
        nc.predict(soft, method="closed")


@pytest.mark.parametrize(("loss", "params"), [("ce", {}), ("focal", {"gamma": 2.0}), ("ls", {"alpha": 0.1})])
def test_equalising_weights(loss, params):
    counts = [40, 10, 5, 1]
    weight = equalising_weights(counts)
    made = nc.make_loss(loss, weight=weight, **params).double()
    p = nc.predict(
        nc.Problem(made, class_counts=counts, bias=False, features="relu", weight_decay=1e-3, feature_decay=1e-3)
    )
    assert p.class_gaps == pytest.approx([p.class_gaps[0]] * 4, rel=1e-7)
    assert p.class_gaps[0] > 0
    uneven = nc.predict(
        loss, class_counts=counts, bias=False, features="relu", weight_decay=1e-3, feature_decay=1e-3, **params
    )
    assert max(uneven.class_gaps) > 1.1 * min(uneven.class_gaps)
    with pytest.raises(ValueError, match="class counts: expected positive"):
        equalising_weights([1, 0])


def test_no_weights_give_free_features_a_simplex_with_equal_margins():
    """At such a point the gradients are c (e_k - 1/K) weight_k; they are no subgradient of the nuclear norm."""
    counts = np.array([40.0, 10, 5, 1])
    best = np.inf
    for weight in (np.ones(4), counts**-0.5, 1 / counts):
        problem = nc.Problem(nc.CELoss(weight=list(weight)).double(), class_counts=list(counts), bias=False, **DECAYS)
        solution = nc.solve(problem)
        logits = (solution.features @ solution.weight.T).numpy()
        margins = [logits[k, k] - np.delete(logits[k], k).max() for k in range(4)]
        best = min(best, np.ptp(margins) / np.mean(margins))
    assert best > 0.01


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_counts": None}, "belong together"),
        ({"target_counts": [1, 2]}, "targets: expected shape"),
        ({"targets": -MIXED}, "not negative"),
        ({"class_counts": [1, 2, 3]}, "target_counts instead of other counts"),
        ({"num_classes": 4}, "one column a class"),
        ({"logit_offset": [0.0]}, "logit_offset: expected 3 finite numbers"),
    ],
)
def test_bad_targets_are_explained(change, message):
    with pytest.raises(ValueError, match=message):
        nc.Problem(**{"loss": "ce", "targets": MIXED, "target_counts": COUNTS, **DECAYS, **change})


def test_rows_must_be_distributions_for_the_softmax():
    with pytest.raises(ValueError, match="rows that sum to 1 for ce"):
        nc.solve(nc.Problem("ce", targets=[[1.0, 1.0], [0.0, 1.0]], target_counts=[1, 1], **DECAYS))


@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_rows_of_any_sum_count_alike(loss):
    """Several labels a sample: without class weights every sample has the same weight in the mean loss."""
    rows = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.2, 0.0, 0.4]])
    problem = nc.Problem(loss, targets=rows, target_counts=[1, 2, 1, 3], bias_decay=0.1, **DECAYS)
    brute = minimise(loss, [1.0, 2, 1, 3], 1e-2, 1e-2, 0.1, targets=rows, most_samples=0)
    s = nc.solve(problem)
    assert s.objective == pytest.approx(brute["objective"], abs=1e-9)
    order = [0, 1, 1, 2, 3, 3, 3]
    position = [problem.targets.index(tuple(row)) for row in rows]
    c = nc.certify(s.features.numpy()[position][order], rows[order], s.weight, s.bias, problem)
    z = torch.from_numpy(s.features.numpy()[position][order] @ s.weight.numpy().T) - s.bias
    mean = nc.make_loss(loss)(z, torch.from_numpy(rows[order])).item()  # what training would minimise
    assert c.data_loss == pytest.approx(mean, rel=1e-12)
    assert 0 <= c.gap < 1e-7
