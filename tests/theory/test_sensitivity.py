"""Derivatives with respect to the decays, against finite differences of the prediction itself."""

import math

import pytest

import ncollapse as nc

BASE = {"per_class": 2.5, "weight_decay": 5e-3, "feature_decay": 1e-2}
CASES = [
    ("ce", 6, {}),
    ("ce", 6, {"features": "relu"}),
    ("ls", 4, {"features": "relu"}),
    ("focal", 6, {"gamma": 2.0}),
    ("focal", 40, {"gamma": 1.5, "features": "relu", "weight_decay": 1e-4}),
    ("bce", 6, {"bias_decay": 1e-3}),
    ("bce", 6, {"bias_decay": 0.5}),
    ("bce", 6, {"bias": False}),
    ("bce", 3, {"bias_decay": 1.0, "weight_decay": 0.95, "feature_decay": 0.01}),
    ("bce", 6, {"bias_decay": 1e-3, "features": "relu"}),
    ("bce", 6, {"bias_decay": 0.5, "features": "relu"}),
    ("bce", 3, {"bias": False, "features": "relu"}),
    ("bce", 6, {"bias_decay": 5.0, "weight_decay": 1.5}),
    ("bce", 6, {"bias_decay": 0.5, "weight_decay": 20.0}),
    ("bce", 6, {"bias_decay": 0.02, "label_smoothing": 0.1}),
    ("mse", 5, {"bias_decay": 0.05}),
    ("mse", 5, {"bias_decay": 5.0}),
    ("mse", 5, {"bias_decay": 0.7, "features": "relu"}),
    ("mse", 5, {"bias_decay": 0.7, "dim": 2}),
    ("mse", 10, {"bias_decay": 0.0, "dim": 1, "weight_decay": 0.05}),
    ("mse", 5, {"bias": False, "dim": 3}),
    ("mse", 5, {"bias_decay": 0.7, "dim": 2, "weight_decay": 50.0}),
    ("mse", 5, {"bias_decay": 0.7, "kappa": 2.0, "beta": 4.0}),
    ("ce", None, {"class_counts": [9, 4, 1], "per_class": None, "bias": False, "features": "relu"}),
    ("ce", None, {"class_counts": [9, 4, 0.05], "per_class": None, "bias": False, "features": "relu"}),
    ("ce", 6, {"weight_decay": 50.0}),
]


@pytest.mark.parametrize(("loss", "k", "more"), CASES)
def test_against_finite_differences(loss, k, more):
    prediction = nc.predict(loss, num_classes=k, **{**BASE, **more})
    table = prediction.sensitivity()
    problem = prediction.problem
    assert set(table["positive_score"]) == {"weight_decay", "feature_decay"} | (
        {"bias_decay"} if problem.bias else set()
    )
    for decay in table["objective"]:
        value = getattr(problem, decay)
        step = 1e-5 * (value or 1e-2)
        up = nc.predict(problem.replace(**{decay: value + step}))
        down = nc.predict(problem.replace(**{decay: value - step})) if value else prediction
        assert up.phase == prediction.phase == down.phase
        for name, row in table.items():
            slope = (getattr(up, name) - getattr(down, name)) / (2 * step if value else step)
            assert row[decay] == pytest.approx(slope, rel=1e-4, abs=1e-6), (name, decay)
            assert row[decay] or math.copysign(1.0, row[decay]) > 0, "printed as 0, not as -0"


@pytest.mark.parametrize("features", ["free", "relu"])
def test_at_no_bias_decay(features):
    """One-sided there, by Richardson extrapolation."""
    prediction = nc.predict("bce", num_classes=6, **BASE, features=features)
    for name, row in prediction.sensitivity().items():
        near, far = (
            (getattr(nc.predict(prediction.problem.replace(bias_decay=step)), name) - getattr(prediction, name)) / step
            for step in (1e-6, 2e-6)
        )
        assert row["bias_decay"] == pytest.approx(2 * near - far, rel=1e-4, abs=1e-4), name


def test_of_a_numerical_prediction_is_the_envelope():
    problem = nc.Problem("bce", class_counts=[4, 2, 1], weight_decay=5e-3, feature_decay=1e-2, bias_decay=0.1)
    prediction = nc.predict(problem, method="numerical")
    table = prediction.sensitivity()
    assert set(table) == {"objective"}
    for decay, slope in table["objective"].items():
        step = 1e-3 * getattr(problem, decay)
        up, down = (
            nc.solve(problem.replace(**{decay: getattr(problem, decay) + sign * step}), restarts=2).objective
            for sign in (1, -1)
        )
        assert slope == pytest.approx((up - down) / (2 * step), rel=1e-4)
