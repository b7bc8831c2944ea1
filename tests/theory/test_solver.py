"""The numerical minimiser against the independent one, and against its own certificate."""

import numpy as np
import pytest
import torch

import ncollapse as nc
from ncollapse.theory.objective import ScaledObjective
from reference.theory import minimise

DECAYS = {"weight_decay": 8e-3, "feature_decay": 1.5e-2}


@pytest.mark.parametrize(
    ("loss", "more"),
    [
        ("bce", {"class_counts": [6, 3, 1], "bias_decay": 0.05}),
        ("bce", {"class_counts": [6, 3, 1], "bias_decay": 0.05, "features": "relu"}),
        ("ce", {"class_counts": [6, 3, 1], "bias_decay": 0.05}),
        ("ce", {"class_counts": [6.5, 3.1, 0.7], "bias": False}),
        ("ls", {"class_counts": [6, 3, 1], "features": "relu"}),
        ("focal", {"class_counts": [6, 3, 1], "gamma": 2.0}),
        ("mse", {"class_counts": [6, 3, 1], "bias_decay": 0.2, "features": "relu"}),
        ("mse", {"num_classes": 4, "per_class": 1.0, "dim": 2, "features": "relu"}),
        ("ce", {"num_classes": 4, "per_class": 1.0, "dim": 2}),
    ],
)
def test_equals_brute_force(loss, more):
    problem = nc.Problem(loss, **DECAYS, **more)
    solution = nc.solve(problem)
    found = minimise(
        loss,
        problem.counts,
        problem.weight_decay,
        problem.feature_decay,
        problem.bias_decay,
        bias=problem.bias,
        relu=problem.features == "relu",
        dim=problem.dim,
        restarts=8,
        **({"alpha": 0.1} if loss == "ls" else problem.loss_params),
    )
    assert solution.objective == pytest.approx(found["objective"], abs=1e-9)
    assert min(solution.objectives) == pytest.approx(solution.objective, abs=1e-14)
    assert solution.slope < 1e-6
    assert problem.features == "free" or bool((solution.features >= 0).all())
    assert solution.features.shape[1] == solution.weight.shape[1] == (problem.dim or problem.num_classes)
    if loss == "focal":
        assert solution.certificate is None
    else:
        assert solution.certificate.objective == pytest.approx(solution.objective, abs=1e-12)
        assert solution.certificate.lower_bound <= solution.objective + 1e-12
        if problem.dim is None:
            assert solution.certificate.gap < 1e-7


def test_six_classes_in_five_dimensions():
    """bce-vs-ce Theorem 3.2 allows d = K-1, but without a bias the ETF is not optimal there: 0.6737 against 0.4196."""
    problem = nc.Problem("bce", 6, per_class=1, dim=5, weight_decay=5e-3, feature_decay=5e-3, bias=False)
    prediction = nc.predict(problem, method="numerical")
    assert prediction.objective == pytest.approx(0.4196174702, abs=1e-9)
    assert prediction.phase == "asymmetric"
    norms = sorted(prediction.weight_norms)
    assert norms == pytest.approx([3.185] * 4 + [3.632] * 2, abs=1e-3)


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize(
    ("loss", "bias_decay", "weight_decay", "phase"),
    [
        ("bce", 0.0, 5e-3, {"free": "centred", "relu": "orthogonal-frame"}),
        ("bce", 0.005, 5e-3, {"free": "saturated", "relu": "orthogonal-frame"}),
        ("bce", 1.0, 5e-4, {"free": "saturated", "relu": "saturated"}),
        ("bce", 9.0, 3.0, {"free": "mean-only", "relu": "mean-only"}),
        ("mse", 0.0, 90.0, {"free": "collapsed", "relu": "collapsed"}),
    ],
)
def test_numerical_prediction_names_the_phase(loss, bias_decay, weight_decay, phase, features):
    problem = nc.Problem(
        loss, 6, per_class=2.0, weight_decay=weight_decay, feature_decay=1e-2, bias_decay=bias_decay, features=features
    )
    numerical, closed = nc.predict(problem, method="numerical"), nc.predict(problem)
    assert numerical.phase == closed.phase == phase[features]
    assert numerical.rank <= closed.rank
    for name in ("positive_score", "negative_score", "bias", "gap", "mean_component", "weight_energy"):
        assert getattr(numerical, name) == pytest.approx(getattr(closed, name), abs=1e-4), name
    assert numerical.objective == pytest.approx(closed.objective, abs=1e-10)
    assert any("certified" in note for note in numerical.notes)


def test_numerical_configuration_measures_back():
    problem = nc.Problem("bce", class_counts=[6, 3, 1], bias_decay=0.05, **DECAYS)
    prediction = nc.predict(problem, method="numerical")
    measured = nc.measure(*prediction.configuration(5))
    for name in ("positive_score", "negative_score", "bias", "weight_energy", "feature_energy"):
        found = getattr(measured, name)
        assert getattr(found, "mean", found) == pytest.approx(getattr(prediction, name), rel=1e-9)
    assert prediction.printed_theorem() is None


def test_same_seed_same_digits():
    problem = nc.Problem("bce", 3, per_class=2, bias_decay=0.05, **DECAYS)
    first, second = nc.solve(problem, restarts=2, seed=3), nc.solve(problem, restarts=2, seed=3)
    assert torch.equal(first.weight, second.weight)
    assert len(first.objectives) == 2


def test_a_problem_is_asked_for():
    with pytest.raises(TypeError, match="problem: expected a Problem, got 'ce'"):
        nc.solve("ce")


def test_restarts_must_be_positive():
    with pytest.raises(ValueError, match="restarts: expected at least 1, got 0"):
        nc.solve(nc.Problem("ce", 3, per_class=2, **DECAYS), restarts=0)


def test_the_slope_is_that_of_a_projected_step():
    """|max(v - g, 0) - v| for V >= 0, |g| for the rest."""
    model = ScaledObjective(nc.Problem("ls", **DECAYS, class_counts=[6, 3, 1], features="relu"), 3)
    random = np.random.default_rng(0)
    u, v, bias = random.standard_normal((3, 3)), random.random((3, 3)), random.standard_normal(3)
    point = model.join(u, v, bias)
    gradient = model.evaluate(point)[1]
    of_v = gradient[9:18]
    assert (of_v < 0).any()
    assert (of_v > 0).any()
    moves = [abs(max(x - g, 0.0) - x) for x, g in zip(point[9:18], of_v)]
    expected = max(*np.abs(gradient[:9]), *moves, *np.abs(gradient[18:]))
    assert model.slope(point) == pytest.approx(expected, rel=1e-12)


def test_a_point_next_to_the_bound_is_stationary():
    """min over v >= 0 of a steep increasing function is at 0: one step from 1e-17 moves by no more than that."""
    model = ScaledObjective(nc.Problem("ls", **DECAYS, class_counts=[6, 3, 1], features="relu"), 3)
    solution = nc.solve(model.problem)
    width = solution.features.shape[1]
    wide = ScaledObjective(model.problem, width)
    t = np.sqrt(model.problem.balance)
    v = solution.features.numpy() / wide.reach * t
    nudged = np.where(v < 1e-12, 1e-17, v)
    for features in (v, nudged):
        point = wide.join(solution.weight.numpy() / t, features, solution.bias.numpy())
        assert wide.slope(point) < 1e-6


@pytest.mark.parametrize(("dim", "threads"), [(2, {1}), (None, {3})])
def test_small_problems_are_solved_in_one_thread(dim, threads, monkeypatch):
    """Several threads that wait for each other took twenty times the processor time on a busy machine."""
    import scipy.optimize  # noqa: F401  # loads a BLAS of its own
    from threadpoolctl import threadpool_info, threadpool_limits

    if not any(pool["user_api"] == "blas" for pool in threadpool_info()):
        pytest.skip("no BLAS whose threads can be counted")
    seen = set()
    evaluate = ScaledObjective.evaluate

    def watch(model, point):
        seen.update(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        return evaluate(model, point)

    monkeypatch.setattr(ScaledObjective, "evaluate", watch)
    if dim is None:
        monkeypatch.setattr("ncollapse.theory.solver.SMALL", 0)
    problem = nc.Problem("bce", 4, per_class=1, weight_decay=0.05, feature_decay=0.05, bias_decay=0.05, dim=dim)
    with threadpool_limits(3):
        nc.solve(problem, restarts=1, max_iterations=5)
        after = {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
    assert seen == threads
    assert after == {3}
