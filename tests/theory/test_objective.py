"""The scaled objective of the numerical minimisation, against its definition, differences and other points."""

import numpy as np
import pytest
from scipy.special import logsumexp

import ncollapse as nc
from ncollapse.theory.objective import ScaledObjective

DECAYS = {"weight_decay": 3e-3, "feature_decay": 2e-2}
CASES = {
    "CE": nc.Problem("ce", 3, per_class=5, bias_decay=0.2, **DECAYS),
    "BCE, a large bias decay": nc.Problem("bce", 3, per_class=5, bias_decay=7.0, **DECAYS),
    "unequal classes, no bias": nc.Problem("ce", class_counts=[9, 4, 1], bias=False, features="relu", **DECAYS),
    "unequal classes, an offset": nc.Problem(
        "bce", class_counts=[6, 3, 3], bias_decay=0.5, logit_offset=(0.3, -1.0, 0.1), **DECAYS
    ),
    "soft targets": nc.Problem(
        "ce", 3, targets=[(0.9, 0.1, 0.0), (0.2, 0.6, 0.2)], target_counts=[5, 2], bias_decay=0.1, **DECAYS
    ),
}
each_case = pytest.mark.parametrize("case", CASES)


def draw(case, dim=4, seed=0):
    objective = ScaledObjective(CASES[case], dim)
    point = np.random.default_rng(seed).normal(size=sum(objective.sizes))
    if objective.relu:
        first, second, _ = objective.sizes
        point[first : first + second] = np.abs(point[first : first + second])
    return objective, point


def define(problem, h, w, b):
    """The objective from its definition: losses averaged over samples, and a decay of each sample's feature."""
    groups, b = problem.groups, np.zeros(len(w)) if b is None else b
    z = h @ w.T - b + np.array(problem.logit_offset or [0.0] * len(w))
    t = groups.targets
    if problem.loss.name == "ce":
        losses = t.sum(axis=1) * logsumexp(z, axis=1) - (t * z).sum(axis=1)
    else:
        losses = (t * np.logaddexp(0, -z) + (1 - t) * np.logaddexp(0, z)).sum(axis=1)
    counts = np.array(problem.class_counts or problem.target_counts or [5, 5, 5], dtype=float)
    decays = problem.weight_decay * np.sum(w**2) + problem.feature_decay * counts @ (h**2).sum(axis=1)
    return counts @ losses / counts.sum() + 0.5 * (decays + problem.bias_decay * b @ b)


@each_case
def test_the_value_is_that_of_the_definition(case):
    objective, point = draw(case)
    h, w, b = objective.read(point)
    if CASES[case].loss.name == "ce" and CASES[case].bias:
        assert CASES[case].bias_decay, "else the bias is read less its mean"
    assert objective.evaluate(point)[0] == pytest.approx(define(CASES[case], h, w, b), rel=1e-12)


@each_case
def test_the_gradient_is_that_of_differences(case):
    objective, point = draw(case)
    found = objective.evaluate(point)[1]
    for index, step in enumerate(1e-5 * np.eye(len(point))):
        slope = (objective.evaluate(point + step)[0] - objective.evaluate(point - step)[0]) / 2e-5
        assert found[index] == pytest.approx(slope, rel=1e-6, abs=1e-9)


@each_case
def test_the_ways_to_write_a_point_keep_its_logits_and_do_not_raise_its_value(case):
    objective, point = draw(case, dim=6)
    value = objective.evaluate(point)[0]
    h, w, b = objective.read(point)
    ways = {"pad": (ScaledObjective(CASES[case], 9), objective.pad(point, 9)), "compress": objective.compress(point)}
    if not objective.relu:
        ways["polar"] = objective.polar(point)
    for name, (other, moved) in ways.items():
        new_h, new_w, new_b = other.read(moved)
        assert new_h @ new_w.T == pytest.approx(h @ w.T, abs=1e-10), name
        assert (b is None and new_b is None) or new_b == pytest.approx(b, abs=1e-12), name
        found = other.evaluate(moved)[0]
        assert found == pytest.approx(value, rel=1e-12) if name == "pad" else found <= value * (1 + 1e-12), name


def test_parallel_columns_become_one():
    """Of V = a v: the scores of a sum of columns, at the cost of one column of balanced length."""
    objective, _ = draw("unequal classes, no bias", dim=5)
    v, w = np.array([1.0, 2.0, 2.0]), np.array([[1.0, -1.0, 0.5], [0.0, 2.0, 1.0]])
    u = np.column_stack([w[0], w[1], [1.0, 0.0, 0.0], np.zeros(3), [0.0, 0.0, 3.0]])
    columns = np.column_stack([v, 3 * v, [0.0, 0.0, 2.0], [1.0, 1.0, 0.0], np.zeros(3)])
    smaller, point = objective.compress(objective.join(u, columns, np.zeros(0)))
    new_u, new_v, _ = smaller.split(point)
    assert new_u.shape[1] == 2, "an empty partner leaves nothing"
    assert new_v @ new_u.T == pytest.approx(columns @ u.T, abs=1e-12)
    lengths = np.linalg.norm(new_u, axis=0), np.linalg.norm(new_v, axis=0)
    assert lengths[0] == pytest.approx(lengths[1], rel=1e-12)
    merged = np.linalg.norm(v) * np.linalg.norm(w[0] + 3 * w[1])
    assert sorted(lengths[0] * lengths[1]) == pytest.approx(sorted([2.0, merged]), rel=1e-12)


def test_a_new_column_is_in_units_of_the_others():
    objective, point = draw("unequal classes, an offset")
    rng = np.random.default_rng(1)
    u, v = rng.normal(size=3), rng.normal(size=3)
    wider, longer = objective.add_atom(point, u, v)
    old_u, old_v, bias = objective.split(point)
    new_u, new_v, new_bias = wider.split(longer)
    assert new_v @ new_u.T == pytest.approx(old_v @ old_u.T + np.outer(v, u), abs=1e-12)
    assert new_bias == pytest.approx(bias)


def test_the_slope_at_a_bound_is_what_a_step_can_gain():
    """Where V is 0 a gradient that points outside counts for nothing, and one that points inside counts whole."""
    objective, point = draw("unequal classes, no bias")
    first, second, _ = objective.sizes
    point[first : first + second] = 0.0
    gradient = objective.evaluate(point)[1]
    of_v = gradient[first : first + second]
    assert of_v.min() < 0 < of_v.max()
    assert objective.slope(point) == pytest.approx(max(np.abs(gradient[:first]).max(), -of_v.min()), rel=1e-12)


@each_case
def test_descents_end_where_nothing_is_to_gain(case):
    objective, _ = draw(case, dim=5)
    values = []
    for index in range(3):
        value, point = objective.descend(objective.start(index, np.random.default_rng(index)), 2000)
        assert objective.slope(point) < 1e-7
        values.append(value)
        if objective.relu:
            assert objective.read(point)[0].min() >= 0
    if not objective.relu:  # for H >= 0 there are local minima
        assert values == pytest.approx([min(values)] * 3, rel=1e-8)
