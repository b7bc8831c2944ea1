"""Cross-entropy on unequal classes with non-negative features, against brute force, with collapsed classes."""

import math

import numpy as np
import pytest

import ncollapse as nc
from reference.theory import minimise


def make(counts, tau, ratio=2.0, loss="ce", **more):
    decays = {"weight_decay": tau * ratio, "feature_decay": tau / ratio}
    return nc.Problem(loss, class_counts=counts, bias=False, features="relu", **decays, **more)


@pytest.mark.parametrize("loss", ["ce", "ls"])
@pytest.mark.parametrize(
    ("counts", "tau", "collapsed"),
    [
        ([20, 10, 4], 5e-3, 0),
        ([20, 10, 1], 3e-2, 1),
        ([12, 12, 1, 1], 4e-2, 2),
        ([12, 2, 2, 1], 8e-2, 3),
        ([5, 4, 3], 0.3, 3),
        ([6.4, 3.2, 0.4], 2e-2, 0),
        ([3, 1], 1e-2, 0),
    ],
)
def test_closed_form_equals_brute_force(counts, tau, collapsed, loss):
    problem = make(counts, tau, loss=loss)
    prediction = nc.predict(problem)
    params = {"alpha": 0.1} if loss == "ls" else {}
    found = minimise(
        loss, counts, problem.weight_decay, problem.feature_decay, bias=False, relu=True, restarts=5, **params
    )
    assert sum(gap == 0 for gap in prediction.class_gaps) == collapsed
    assert prediction.phase == ("collapsed" if collapsed == len(counts) else "orthogonal-frame")
    assert found["objective"] == pytest.approx(prediction.objective, abs=1e-10)
    for name in ("positive_score", "negative_score", "weight_energy", "feature_energy"):
        assert found[name] == pytest.approx(getattr(prediction, name), abs=1e-5), name
    norms = np.linalg.norm(found["features"], axis=1)
    expected = np.array(prediction.class_norms)[found["labels"]]
    assert norms == pytest.approx(expected, abs=1e-5)
    assert np.linalg.norm(found["weight"], axis=1) == pytest.approx(prediction.weight_norms, abs=1e-5)
    if collapsed >= 2:  # minority collapse: collapsed classes share one classifier
        gone = [index for index, gap in enumerate(prediction.class_gaps) if gap == 0]
        weight = prediction.configuration().weight
        assert weight[gone] == pytest.approx(weight[gone[:1]].expand(len(gone), -1), abs=1e-12)


def test_weight_norms_follow_proposition_1():
    """imbalanced-relu Prop. 1: |w_k|^2 from the margins of all classes."""
    problem = make([20, 10, 4], 5e-3)
    prediction = nc.predict(problem)
    k, gaps, counts = 3, prediction.class_gaps, problem.counts
    factor = math.sqrt(problem.feature_decay / problem.weight_decay) / (k * math.sqrt(k * (k - 1)))
    for index, norm in enumerate(prediction.weight_norms):
        terms = [
            math.sqrt(n) * gap * ((k - 1) ** 2 if j == index else 1) for j, (n, gap) in enumerate(zip(counts, gaps))
        ]
        assert norm**2 == pytest.approx(factor * sum(terms), rel=1e-12)


def test_equal_counts_are_the_balanced_problem():
    balanced = nc.predict("ce", num_classes=3, per_class=7, weight_decay=1e-2, feature_decay=1e-3, features="relu")
    nearly = nc.predict(make([7, 7, 7 - 1e-9], math.sqrt(1e-5), ratio=math.sqrt(10)))
    for name in ("positive_score", "negative_score", "weight_energy", "feature_energy", "objective"):
        assert getattr(nearly, name) == pytest.approx(getattr(balanced, name), rel=1e-6)
    assert nc.predict("ce", class_counts=[7, 7, 7], weight_decay=1e-2, feature_decay=1e-3).phase == "centred"


@pytest.mark.parametrize("batch_size", [None, 40.0])
@pytest.mark.parametrize("loss", ["ce", "ls"])
def test_collapse_thresholds(batch_size, loss):
    """At the predicted count, ratio and mu, and not just before, classes collapse."""
    problem = make([100, 100, 10, 10], 4e-3 if batch_size is None else 8e-3, loss=loss, batch_size=batch_size)
    prediction = nc.predict(problem)
    for factor, collapsed in ((0.999, True), (1.001, False)):
        small = 100 / prediction.collapse_ratio * factor
        gaps = nc.predict(problem.replace(class_counts=[100, 100, small, small], batch_size=batch_size)).class_gaps
        assert [gap == 0 for gap in gaps] == [False, False, collapsed, collapsed]
    for factor, collapsed in ((0.999, False), (1.001, True)):
        decay = prediction.collapse_weight_decay * factor
        assert (nc.predict(problem.replace(weight_decay=decay)).phase == "collapsed") == collapsed
    # the count: every class at or below it, and none above it, has collapsed
    heavy = nc.predict(problem.replace(weight_decay=problem.weight_decay * 8))
    for count, gap in zip((100, 100, 10, 10), heavy.class_gaps):
        assert (gap == 0) == (count <= heavy.collapse_count)
    assert heavy.collapse_count == pytest.approx(8 * prediction.collapse_count)


def test_corollary_4():
    """imbalanced-relu Eq. 17 for a step imbalance, implicit in R through N, agrees with the explicit ratio."""
    problem = make([50] * 3 + [5] * 2, 3e-3)
    ratio = nc.predict(problem).collapse_ratio
    small = 50 / ratio
    total = 150 + 2 * small
    product = problem.weight_decay * problem.feature_decay
    assert small == pytest.approx(total**2 * 5 / 4 * product, rel=1e-10)


def test_a_collapsed_class_at_any_ratio():
    assert nc.predict(make([10, 10, 9], 0.2)).collapse_ratio == 1.0
