"""What docs and causes say of our perceptrons: more classes than dimensions, rare classes, slow losses."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.class_sizes import CAUSES, EARLY
from ncollapse.papers.judge import predict_field
from ncollapse.papers.markdown import describe_claim
from ncollapse.papers.matching import match
from ncollapse.papers.outcome import evaluate
from ncollapse.papers.small_networks import NARROW_CAUSES, SLOW_CAUSES, measure_errors
from ncollapse.papers.weak_decays import FLAT
from ncollapse.runs.record import read_run, read_runs
from ncollapse.theory import predict
from reference.rare_classes import read_rare

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "results" / "runs"


def read(name):
    return json.loads((ROOT / "results" / "theory" / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def narrow():
    return {(row["loss"], row["dim"]): row for row in read("narrow-optima.json") if row["num_classes"] == 10}


def show_excess(runs, optimum):
    if not runs:
        return ""
    excess = [100 * (run["objective"] / optimum - 1) for run in runs.values()]
    low, high = (f"{value:.1f}".replace("-0.0", "0.0") for value in (min(excess), max(excess)))
    return f"{low} %" if low == high else f"{low} to {high} %"


def test_the_table_of_narrow_networks_is_that_of_the_record(narrow):
    page = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    for (loss, dim), row in narrow.items():
        best = row["optimum"]["objective"]
        assert row["minima"][0]["objective"] == pytest.approx(best, abs=1e-4)
        assert sum(found["starts"] for found in row["minima"]) == 64
        others = ", ".join(f"{found['objective']:.4f}" for found in row["minima"][1:])
        ends = [show_excess(row[kind], best) for kind in ("runs", "runs_from_predicted_bias")]
        cells = (loss.upper(), str(dim), f"{best:.4f}", others, *ends)
        assert f"| {' | '.join(cells)} |" in page
        assert len(row["runs"]) == 3


def test_bce_ends_in_a_local_minimum_of_four_dimensions(narrow):
    row, cause = narrow["bce", 5], NARROW_CAUSES[0].why
    ends = [run["objective"] for run in row["runs"].values()]
    mean = sum(ends) / len(ends)
    assert f"its objective is {mean:.3f}, that of the lowest known one {row['optimum']['objective']:.3f}" in cause
    local = min((found["objective"] for found in row["minima"]), key=lambda value: abs(value - ends[0]))
    assert max(ends) / local - 1 < 2e-3
    assert local > 1.1 * row["optimum"]["objective"]
    frame = math.sqrt(2 - 2 * math.sqrt(4 / 9))  # NC2 of a tight frame of four dimensions instead of K - 1 = 9
    for name in row["runs"]:
        assert read_run(RUNS / name).final("train.nc2") == pytest.approx(frame, abs=1e-3)
    assert f"NC2 {frame:.4f}" in cause
    biases = [narrow["bce", dim]["optimum"]["bias"] for dim in (2, 3, 5)]
    assert f"has to reach {min(biases):.1f} to {max(biases):.1f}" in NARROW_CAUSES[1].why


def test_ce_has_no_uniform_accuracy_to_gain_in_three_and_five_dimensions():
    grid = get_experiment("ncollapse/k-greater-than-d").grid()
    lost = {}
    for found in match(grid, read_runs(RUNS)):
        if found.point.keys["loss"] == "ce":
            rates = [r.final("test.accuracy") - r.final("test.uniform_accuracy") for r in found.records]
            lost[found.point.keys["dim"]] = sum(rates) / len(rates)
    assert 100 * max(lost[3], lost[5]) < 0.3 < 100 * lost[2]


def test_mse_ends_at_its_optimum_later():
    errors = measure_errors(read_run(RUNS / "d26365cbd3bb"))
    assert f"|W|^2 is {100 * errors[2]:.2f} % from the optimum and the mean scores {100 * max(errors[:2]):.1f} %" in (
        SLOW_CAUSES[0].why
    )


def test_weak_decays_at_first_keep_the_rare_classes():
    """What the cause says of all five ratios, from the runs of ncollapse/weak-decays-first."""
    found = read_rare()
    weak = [run for (_, first), runs in found.items() if first for run in runs]
    assert {run["remain"] for run in weak} == {5}
    scratch = read_runs(RUNS)
    grid = [p for p in get_experiment("ncollapse/minority-collapse").grid() if p.keys["ratio"] in (10, 20, 30, 50)]
    gaps = [r.final("certificate.relative_gap") for m in match(grid, scratch) for r in m.records]
    assert f"at least {math.floor(100 * min(gaps))} %" in EARLY
    off = [
        abs(run[f"{kind}_norm"] / run[f"predicted_{kind}_norm"] - 1)
        for (ratio, first), runs in found.items()
        for run in runs
        for kind in ("mean", "row")
        if first and ratio <= 30
    ]
    assert f"within {math.ceil(1000 * max(off)) / 10} % of the predicted norms up to a ratio of 30" in EARLY
    rates = {
        first: [round(100 * r["test_accuracy"]) for k, runs in found.items() if k[1] == first for r in runs]
        for first in (True, False)
    }
    spans = {first: f"{min(values)} to {max(values)} %" for first, values in rates.items()}
    assert f"{spans[True]} instead of {spans[False]}" in EARLY


def test_norms_are_loose_near_the_ratio_at_which_the_optimum_gives_classes_up():
    found = read_rare()
    point = get_experiment("ncollapse/weak-decays-first").grid()[0]
    optimum = predict(point.recipe.problem(class_counts=(5421,) * 5 + (271,) * 5))
    assert f"at a ratio of {optimum.collapse_ratio:.0f}." in FLAT
    gaps = [run["relative_gap"] for ratio in (40, 50) for run in found[ratio, True]]
    assert f"within {math.ceil(1000 * max(gaps)) / 10} % of the optimum" in FLAT
    outcome = evaluate(get_experiment("ncollapse/weak-decays-first"), read_runs(RUNS))
    failed = [claim for claim in outcome.claims if not claim.holds]
    assert len(failed) == 2
    assert all(FLAT in describe_claim(outcome, claim) for claim in failed)


def test_predictions_of_imbalanced_points_are_those_of_their_classes():
    """What the page predicts, from the recipe alone, against what each run predicted from its own counts."""
    grid = get_experiment("ncollapse/minority-collapse").grid()
    for found in match(grid, read_runs(RUNS)):
        for record in found.records:
            ours = predict_field(found.point, "train.weight_energy")
            assert ours == pytest.approx(record.final("prediction.weight_energy"), rel=1e-3)


def test_an_answer_says_why_where_that_is_known():
    outcome = evaluate(get_experiment("ncollapse/minority-collapse"), read_runs(RUNS))
    said = [describe_claim(outcome, claim) for claim in outcome.claims]
    assert all(sentence.startswith("does not hold") for sentence in said)
    assert sum(EARLY in sentence for sentence in said) == 2
    others = evaluate(get_experiment("ncollapse/bias-init"), read_runs(RUNS))
    assert not any("not explained" in describe_claim(others, claim) for claim in others.claims)


def test_a_few_samples_of_the_rarest_classes_keep_their_features():
    cause = CAUSES[-1].why
    records = [record for record in read_runs(RUNS) if record.get("data.step_imbalance") == 300]
    assert len(records) == 3
    kept, lengths, means = set(), [], []
    for record in records:
        snapshot = record.snapshot()
        features, labels = snapshot["train.features"], snapshot["train.labels"]
        for label in range(5, 10):
            mean = np.linalg.norm(snapshot["train.class_means"][label])
            if mean > 0.1:
                norms = np.linalg.norm(features[labels == label], axis=1)
                assert len(norms) == 18
                kept.add(int((norms > 0.1).sum()))
                lengths += norms[norms > 0.1].tolist()
                means.append(mean)
    assert kept == {3, 4}
    assert f"({min(lengths):.1f} to {max(lengths):.1f})" in cause
    assert f"is {min(means):.2f} to {max(means):.2f} long" in cause


def test_readme_says_what_was_found(narrow):
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    found = read_rare()
    means = {
        (first, name): round(100 * sum(run[name] for run in found[30, first]) / 3)
        for first in (False, True)
        for name in ("test_accuracy", "relative_gap")
    }
    assert f"ends at {means[False, 'test_accuracy']} % test accuracy" in text
    assert f"a gap of {means[False, 'relative_gap']} %" in text
    assert f"the predicted norms and {means[True, 'test_accuracy']} %" in text
    off = [abs(run["mean_norm"] / run["predicted_mean_norm"] - 1) for run in found[30, True]]
    assert max(off) < 0.01
    best, runs = narrow["bce", 5]["optimum"]["objective"], narrow["bce", 5]["runs"]
    excess = 100 * (sum(run["objective"] for run in runs.values()) / 3 / best - 1)
    assert f"it ends {excess:.0f} % above the lowest minimum" in text
    grid = get_experiment("ncollapse/narrow-bias-init").grid()
    rates = {
        found.point.keys["bias_init"]: sum(r.final("test.uniform_accuracy") for r in found.records) / 3
        for found in match(grid, read_runs(RUNS))
        if found.point.keys["dim"] == 2
    }
    assert f"decides {100 * rates['theory']:.0f} % of the test samples instead of {100 * rates[0.0]:.0f} %" in text
    theory = " ".join((ROOT / "docs" / "theory.md").read_text(encoding="utf-8").split())
    assert f"{100 * rates['theory']:.0f} instead of {100 * rates[0.0]:.0f} % of the test samples" in theory
