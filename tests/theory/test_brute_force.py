"""The short form of benchmarks/theory.py, and the problems on which an earlier minimiser or certificate failed."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import ncollapse as nc
from reference.theory import minimise

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import theory as benchmark

EQUAL = {"weight_decay": 5e-3, "feature_decay": 5e-3}


@pytest.mark.parametrize("seed", range(1000, 1016))
def test_random_problems_against_the_brute_force(seed):
    assert benchmark.failures(benchmark.check(seed, restarts=2)) == []


def test_the_benchmark_sees_a_wrong_value(monkeypatch):
    found = benchmark.check(3, restarts=1)
    assert benchmark.failures(found | {"excess": 2e-7}) == ["above the brute force by 2e-07"]
    assert benchmark.failures(found | {"bound": 1e-9})[0].startswith("bound above the best known value")
    assert benchmark.failures(found | {"tight": True, "gap": 1e-6}) == ["gap 1e-06 at an optimum"]


def test_a_saddle_of_non_negative_features_is_left():
    """Six plain descents end at 0.1719165068."""
    counts = [303.1654883566696] * 2 + [10, 10]
    solution = nc.solve(nc.Problem("mse", class_counts=counts, bias_decay=3, features="relu", **EQUAL))
    assert solution.objective == pytest.approx(0.1719162638, abs=1e-10)
    assert 0 <= solution.certificate.gap < 1e-8


def test_few_dimensions_get_enough_starts():
    """Eight starts ended at 0.831022."""
    decays = {"weight_decay": 5e-4, "feature_decay": 5e-4}
    solution = nc.solve(nc.Problem("bce", 4, per_class=1, bias=False, dim=2, **decays))
    assert solution.objective == pytest.approx(0.823091, abs=1e-6)
    assert solution.reached >= 4
    assert len(solution.objectives) >= 16


def test_progress_is_reported():
    seen = []
    problem = nc.Problem("ce", 4, per_class=1, dim=2, **EQUAL)
    solution = nc.solve(problem, restarts=3, progress=lambda starts, best: seen.append((starts, best)))
    assert [starts for starts, _ in seen] == [1, 2, 3]
    assert seen[-1][1] == solution.objective


def test_d_equal_to_k_is_as_good_as_more_for_relu():
    """Descent in d = K dimensions alone ends 15 % higher from 8 of 12 random starts."""
    narrow = nc.solve(nc.Problem("bce", 5, per_class=1, features="relu", dim=5, **EQUAL))
    assert narrow.objective == pytest.approx(nc.predict(narrow.problem).objective, abs=1e-9)


@pytest.mark.parametrize(
    ("loss", "options", "value"),
    [
        ("ce", {"bias": False}, 0.24427),
        ("bce", {"bias_decay": 1e-2}, 0.54840),
        ("ls", {"alpha": 0.1}, 0.57023),
    ],
)
def test_the_logit_of_an_empty_class_counts(loss, options, value):
    problem = nc.Problem(loss, class_counts=[4] * 5 + [0], **EQUAL, **options)
    p = nc.predict(problem, method="numerical")
    assert p.objective == pytest.approx(value, abs=1e-5)
    brute_options = {"bias": problem.bias, "lb": problem.bias_decay, **({"alpha": 0.1} if loss == "ls" else {})}
    brute = minimise(loss, [4] * 5 + [0], 5e-3, 5e-3, most_samples=0, **brute_options)
    assert p.objective == pytest.approx(brute["objective"], abs=1e-9)
    assert 0 <= p.solution.certificate.gap < 1e-8
    configuration = p.configuration()
    assert set(configuration.labels.tolist()) == {0, 1, 2, 3, 4}
    assert nc.certify(*configuration, problem.replace(class_counts=[1] * 5 + [0], feature_decay=4 * 5e-3)).gap < 1e-8


@pytest.mark.parametrize("loss", ["ce", "bce"])
def test_a_free_bias_puts_empty_classes_out_of_reach(loss):
    problem = nc.Problem(loss, class_counts=[5, 4, 3, 2, 1, 0], **EQUAL)
    solution = nc.solve(problem)
    without = nc.solve(nc.Problem(loss, class_counts=[5, 4, 3, 2, 1], **EQUAL))
    assert solution.objective == pytest.approx(without.objective, abs=1e-12)
    assert solution.certificate.objective == pytest.approx(solution.objective, abs=1e-12)
    assert 0 <= solution.certificate.gap < 1e-8
    assert solution.bias[5] > 20


def test_closed_form_with_an_empty_class():
    p = nc.predict("ce", class_counts=[50, 0, 10, 3], bias=False, features="relu", **EQUAL)
    assert nc.solve(p.problem).objective == pytest.approx(p.objective, abs=1e-10)
    assert p.class_gaps[1] == 0
    assert "no samples" in p.notes[0]
    assert nc.certify(*p.configuration(), p.problem).gap < 1e-9


@pytest.mark.parametrize("gamma", [0.5, 2.0, 3.0])
@pytest.mark.parametrize("counts", [[50, 20, 10, 3], [7, 1, 1]])
def test_focal_loss_on_unequal_classes(gamma, counts):
    p = nc.predict("focal", gamma=gamma, class_counts=counts, bias=False, features="relu", **EQUAL)
    brute = minimise("focal", counts, 5e-3, 5e-3, bias=False, relu=True, gamma=gamma, most_samples=0, restarts=4)
    assert p.objective == pytest.approx(brute["objective"], abs=1e-9)
    k, total, m = len(counts), sum(counts), np.array(p.class_gaps)
    q = 1 / (1 + np.exp(m) / (k - 1))
    slope = q**gamma * (q - gamma * (1 - q) * np.log1p(-q))
    wanted = total * math.sqrt(25e-6 * (k - 1) / k) / np.sqrt(counts)
    np.testing.assert_allclose(slope[m > 0], wanted[m > 0], rtol=1e-10)


def test_weighted_classes_in_closed_form():
    weight, counts = [0.3, 1.0, 2.5], [20, 5, 4]
    problem = nc.Problem(nc.CELoss(weight=weight).double(), class_counts=counts, bias=False, features="relu", **EQUAL)
    p = nc.predict(problem)
    brute = minimise(
        "ce", counts, 5e-3, 5e-3, bias=False, relu=True, class_weight=problem.class_weights, most_samples=0
    )
    assert p.objective == pytest.approx(brute["objective"], abs=1e-9)
    assert nc.certify(*p.configuration(), problem).gap < 1e-9
    equal = nc.predict("ce", class_counts=counts, bias=False, features="relu", **EQUAL)
    assert p.class_gaps[2] > equal.class_gaps[2]
    assert p.collapse_count is None


@pytest.mark.parametrize("loss", ["bce", "ce", "mse"])
def test_two_classes_behind_a_relu_have_a_family_of_optima(loss):
    p = nc.predict(loss, 2, per_class=1, weight_decay=1e-2, feature_decay=1e-2, features="relu")
    assert not p.unique
    assert any("not unique" in note for note in p.notes)
    logits = torch.full((2, 2), p.negative_score - p.bias, dtype=torch.float64)
    logits.diagonal().fill_(p.positive_score - p.bias)
    for s in (p.gap / 2, p.gap / 5):
        bias = torch.tensor([p.bias - s, p.bias + s], dtype=torch.float64)
        scores = logits + bias
        roots = scores.norm(dim=1).sqrt()
        weight = (scores / roots.clamp_min(1e-300)[:, None]).T
        c = nc.certify(torch.diag(roots), torch.arange(2), weight, bias, p.problem)
        assert c.objective == pytest.approx(p.objective, abs=1e-14)
    assert nc.predict(loss, 3, per_class=1, weight_decay=1e-2, feature_decay=1e-2, features="relu").unique
    assert nc.predict(
        loss, 2, per_class=1, weight_decay=1e-2, feature_decay=1e-2, bias_decay=1e-9, features="relu"
    ).unique


def test_three_classes_behind_a_relu_have_one_optimum():
    """Theory: for K >= 3 no other bias has the same value. The best value with b moved aside is strictly higher."""
    p = nc.predict("bce", 3, per_class=1, weight_decay=1e-2, feature_decay=1e-2, features="relu")
    logits = torch.full((3, 3), p.negative_score - p.bias, dtype=torch.float64)
    logits.diagonal().fill_(p.positive_score - p.bias)
    for direction in torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64):
        scores = logits + p.bias + 0.5 * direction / direction.norm()
        assert 0.01 * scores.norm(dim=1).sum() > p.mu * math.sqrt(3 * (2 * p.gap**2 + p.mean_component**2)) + 1e-5


@pytest.mark.parametrize("decay", [1e-16, 1e-12, 1e-8])
@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize("loss", ["ce", "bce", "mse"])
def test_bounds_hold_at_tiny_decays(loss, features, decay):
    """The bound was 2.6 % above the optimum for BCE and ReLU at 1e-16."""
    p = nc.predict(loss, 10, per_class=1, weight_decay=decay, feature_decay=decay, features=features)
    c = nc.certify(*p.configuration(), p.problem)
    assert c.lower_bound <= p.objective * (1 + 1e-13)
    assert c.lower_bound >= p.objective * (1 - 1e-4) if loss != "mse" else c.lower_bound > 0


def test_a_tiny_bias_decay_does_not_amplify_rounding():
    for lb in (1e-20, 1e-28, 1e-35):
        p = nc.predict("bce", 5, per_class=2, bias_decay=lb, **EQUAL)
        assert nc.certify(*p.configuration(), p.problem).gap < 1e-9


def test_a_configuration_has_few_rows():
    p = nc.predict(
        "ce",
        class_counts=[78840.59356385162, 100.0],
        weight_decay=1e-4,
        feature_decay=1e-6,
        bias=False,
        features="relu",
    )
    labels = p.configuration().labels
    assert len(labels) <= 100_100
    assert (labels == 0).sum() / (labels == 1).sum() == pytest.approx(788.4, rel=5e-3)
