"""What docs/theory.md says about the two open questions, against its record and one live solution each."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

import ncollapse as nc

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def record():
    return json.loads((ROOT / "results" / "theory" / "open-questions.json").read_text())


def test_minority_classes_collapse_where_predicted(record):
    rows = record["minority_collapse"]
    assert len(rows) == 80
    for row in rows:
        assert abs(row["gap"]) < 1e-6
        collapsed = abs(row["minority_margin"]) < 1e-5 and row["minority_distance"] < 1e-4
        assert collapsed == (row["factor"] > 1), row


def test_bce_keeps_the_larger_margin_with_a_bias(record):
    rows = {(r["majority"], r["features"], r["loss"], r["factor"]): r for r in record["minority_collapse"] if r["bias"]}
    ratios = [
        row["minority_margin"] / rows[majority, features, "ce", factor]["minority_margin"]
        for (majority, features, loss, factor), row in rows.items()
        if loss == "bce" and factor < 1
    ]
    assert min(ratios) > 1.4
    assert max(ratios) < 2.4


@pytest.mark.parametrize(
    ("loss", "params", "share"), [("ce", {}, 1.0), ("bce", {}, 1.0), ("mse", {}, 1.0), ("ls", {"alpha": 0.3}, 0.7)]
)
def test_the_threshold_of_the_theorem(loss, params, share):
    # (1 - alpha) sqrt(n_B) = N sqrt(lW lH): one sample more or less of the majority decides.
    decay, minority = 0.02, 4
    total = share * np.sqrt(minority) / decay
    for factor, apart in ((0.97, True), (1.03, False)):
        counts = [factor * total - 2 * minority, minority, minority]
        problem = nc.Problem(
            loss, class_counts=counts, weight_decay=decay, feature_decay=decay, bias_decay=0.01, **params
        )
        solution = nc.solve(problem, restarts=1)
        assert solution.certificate.gap < 1e-6
        distance = float((solution.features[1] - solution.features[2]).norm())
        assert (distance > 1e-2) == apart


def test_small_dimensions(record):
    rows = {(r["num_classes"], r["dim"], r["decay"], r["bias"], r["loss"]): r for r in record["small_dimension"]}
    for (k, d, _, bias, loss), row in rows.items():
        assert row["objective"] >= row["full_dimension"] - 1e-12
        assert row["lower_bound"] <= row["full_dimension"] + 1e-12
        if bias and loss == "bce":
            assert row["uniform"]
            if (k, d) != (7, 3):
                assert np.ptp(row["weight_norms"]) < 1e-3
                assert np.ptp(row["biases"]) < 1e-3
        if bias and k == 2 * d:
            assert row["largest_cosine"] == pytest.approx(0.0, abs=1e-4)
            assert row["smallest_cosine"] == pytest.approx(-1.0, abs=1e-4)
        if bias and d == k - 1:
            assert row["objective"] == pytest.approx(row["full_dimension"], abs=1e-9)
    for decay in (5e-3, 5e-4):
        assert rows[6, 2, decay, True, "ce"]["weight_norms"][0] < 1e-4
        assert not rows[6, 2, decay, True, "ce"]["uniform"]
        assert np.ptp(rows[8, 3, decay, True, "ce"]["biases"]) > 0.5
        assert not rows[6, 2, decay, False, "bce"]["correct"]
    uneven = rows[7, 3, 5e-3, True, "bce"]
    assert uneven["weight_norms"][0] == pytest.approx(3.04, abs=5e-3)
    assert uneven["weight_norms"][-1] == pytest.approx(3.15, abs=6e-3)
    assert np.ptp(uneven["biases"]) == pytest.approx(0.93, abs=5e-3)
    assert rows[4, 2, 5e-4, False, "bce"]["objective"] == pytest.approx(0.823091, abs=1e-6)


def test_strong_bias_decay_makes_minority_features_vanish_early(record):
    rows = {(r["loss"], r["factor"]): r for r in record["early_collapse"]}
    for loss, before, after in (("ce", 0.85, 0.9), ("bce", 0.985, 0.994), ("mse", 0.985, 0.994)):
        assert rows[loss, before]["minority_margin"] > 1e-3
        assert rows[loss, after]["minority_margin"] < 1e-6
        assert rows[loss, after]["minority_norm"] < 1e-6
        assert all(abs(row["gap"]) < 1e-7 for row in rows.values())


def test_the_scripts_threshold_is_that_of_the_theorem():
    threshold = runpy.run_path(str(ROOT / "scripts" / "open_questions.py"))["predicted_threshold"]
    same = {
        threshold(loss, relu, bias, 5, 5) for loss in ("ce", "bce") for relu in (False, True) for bias in (False, True)
    }
    assert len(same) == 2  # all but CE, ReLU, no bias
    assert threshold("ce", True, False, 5, 5) == min(same)
