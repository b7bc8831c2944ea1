"""Statements of docs/theory.md that no other test covers, each checked from its definition."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import ncollapse as nc
from ncollapse.theory import escape
from reference.theory import minimise

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"


def odds(p):
    return math.log(1 / p - 1)


@pytest.mark.parametrize(("k", "mu"), [(10, 1e-3), (10, 0.02), (5, 0.05), (100, 1e-3), (4, 0.1)])
def test_the_critical_bias_decay_for_relu(k, mu):
    """Section 4: mu K / [(K-2) l(2 mu) - 2 l((K-2) mu)], infinite where the bracket is not positive."""
    p = nc.predict("bce", k, per_class=1, weight_decay=mu, feature_decay=mu, features="relu")
    bracket = (k - 2) * odds(2 * mu) - 2 * odds((k - 2) * mu)
    if bracket <= 1e-12:
        assert p.critical_bias_decay == math.inf
        return
    critical = mu * k / bracket
    assert p.critical_bias_decay == pytest.approx(critical, rel=1e-9)
    below, above = (p.problem.replace(bias_decay=factor * critical) for factor in (0.999, 1.001))
    assert nc.predict(below).phase == "orthogonal-frame"
    assert nc.predict(above).phase == "saturated"


@pytest.mark.parametrize(
    ("gamma", "k", "mu"), [(2.0, 3, 0.05), (0.5, 4, 0.1), (3.0, 6, 0.02), (2.0, 20, 0.01), (3.0, 3, 0.2)]
)
@pytest.mark.parametrize("relu", [False, True])
def test_the_line_below_focal_loss(gamma, k, mu, relu):
    """Section 3: phi lies above its tangent at the predicted gap, which proves that the prediction is the minimum."""
    price = mu * (math.sqrt(k / (k - 1)) if relu else 1.0)
    assert (k - 1) * price < 1
    loss = nc.FocalLoss(gamma)
    p = nc.predict(loss, k, per_class=1, weight_decay=mu, feature_decay=mu, features="relu" if relu else "free")
    t = np.linspace(-60 * (k - 1), 400, 20001)
    slope = price if p.gap > 0 else -loss.at(0.0, 0.0, k).d_pos / (k - 1)
    line = loss.phi(-(k - 1) * p.gap, k) + slope * (t + (k - 1) * p.gap)
    assert (loss.phi(t, k) >= line - 1e-12).all()
    if k <= 4:
        brute = minimise("focal", [1] * k, mu, mu, relu=relu, gamma=gamma, restarts=4)
        assert p.objective == pytest.approx(brute["objective"], abs=1e-9)


def test_the_pull_of_focal_loss_rises_from_one_to_a_single_maximum():
    for gamma in (0.3, 1.0, 2.0, 5.0):
        a = np.linspace(-40, 40, 4001)
        pull = -np.asarray(nc.FocalLoss(gamma).at(a, 0.0, 10).d_pos)
        assert pull[0] == pytest.approx(1, abs=1e-10)
        top = int(pull.argmax())
        assert (np.diff(pull[: top + 1]) >= -1e-15).all()
        assert (np.diff(pull[top:]) <= 1e-15).all()


def test_a_small_gradient_is_not_enough_for_a_small_gap():
    """Section 5: at a strict saddle the gradient is 0 and the gap is not."""
    problem = nc.Problem("ce", 3, per_class=1, weight_decay=0.01, feature_decay=0.01)
    zero = torch.zeros(3, 4, dtype=torch.float64)
    c = nc.certify(zero, torch.arange(3), zero, torch.zeros(3), problem)
    assert c.dual_norm > 1
    assert c.gap > 0.1


@pytest.mark.parametrize("loss", ["ce", "bce", "mse"])
def test_descent_directions_stay_in_the_cone(loss):
    """Section 6: for H >= 0 the direction uses a dead unit and v >= 0, and its curvature is -2 (|G v| - tau)."""
    problem = nc.Problem(
        loss, class_counts=[6, 3, 1, 1], weight_decay=0.01, feature_decay=0.01, bias=False, features="relu"
    )
    h, w = torch.zeros(4, 5, dtype=torch.float64), torch.zeros(4, 5, dtype=torch.float64)
    found = escape(h, torch.arange(4), w, None, problem)
    assert (found.features >= 0).all()
    assert found.slope == pytest.approx(0, abs=1e-14)
    norm = nc.certify(h, torch.arange(4), w, None, problem).dual_norm * 0.01
    assert found.curvature == pytest.approx(-2 * (norm - 0.01), rel=1e-9)

    def objective(step):
        return nc.certify(h + step * found.features, torch.arange(4), w + step * found.weight, None, problem).objective

    step = 1e-3
    bend = (objective(step) - objective(0.0)) * 2 / step**2
    assert bend == pytest.approx(found.curvature, rel=1e-2)
    full = torch.ones(4, 5, dtype=torch.float64)
    assert escape(full, torch.arange(4), w, None, problem) is None  # no dead unit


def test_adding_the_direction_finds_the_minimum():
    """`solve` leaves saddles by these directions: from d = K alone it may not."""
    problem = nc.Problem("bce", 5, per_class=1, weight_decay=5e-3, feature_decay=5e-3, features="relu", dim=5)
    assert nc.solve(problem).objective == pytest.approx(nc.predict(problem).objective, abs=1e-9)


def test_every_test_named_by_the_page_exists():
    section = PAGE.read_text().split("## 11.")[1]
    names = re.findall(r"`((?:tests/\w+/)?test_\w+\.py)(?:::(\w+))?`", section)
    assert len(names) > 5
    for name in names:
        path = PAGE.parents[1] / name[0] if "/" in name[0] else Path(__file__).parent / name[0]
        assert path.exists(), name
        assert not name[1] or f"def {name[1]}(" in path.read_text()


def test_soft_targets_can_need_more_than_k_dimensions():
    """The counterexample of section 4: six edges without a triangle need six non-negative columns, and K is five."""
    scores = np.diag([0.62, 0.62, 0.42, 0.42, 0.42])
    scores[:2, 2:] = scores[2:, :2] = 0.2
    problem = nc.Problem(
        "mse",
        targets=scores + 0.05 * np.eye(5),
        target_counts=[1] * 5,
        weight_decay=0.01,
        feature_decay=0.01,
        bias=False,
    )
    free = nc.solve(problem)
    rows = np.array(problem.targets)
    lowered = rows - 0.05 * np.eye(5)[rows.argmax(axis=1)]  # the targets with their singular values lowered
    np.testing.assert_allclose((free.features @ free.weight.T).numpy(), lowered, atol=1e-6)
    assert free.objective == pytest.approx(0.02625, abs=1e-9)
    relu = problem.replace(features="relu")
    for dim in (6, 7):
        assert nc.solve(relu.replace(dim=dim), restarts=6).objective == pytest.approx(free.objective, abs=1e-9)
    assert nc.solve(relu.replace(dim=5), restarts=12).objective > free.objective + 1e-4


def test_where_the_bias_never_saturates():
    """Section 2: for K = 2, and for K = 3 from mu = 1 / (4 + 2 sqrt 2) on."""
    edge = 1 / (4 + 2 * math.sqrt(2))
    for k, mu, never in (
        (2, 0.1, True),
        (2, 0.4, True),
        (3, edge * 0.999, False),
        (3, edge * 1.001, True),
        (4, 0.24, False),
    ):
        p = nc.predict("bce", k, per_class=1, weight_decay=mu, feature_decay=mu)
        assert (p.critical_bias_decay == math.inf) == never, (k, mu)
    assert round(edge, 4) == 0.1464
