"""What the experiment on weak decays at first asks, checked on runs made by hand and on its grid."""

import pytest

from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.experiment import expand
from ncollapse.papers.matching import match
from ncollapse.papers.weak_decays import RATIOS, keep_rare_classes
from ncollapse.runs.identity import point_key
from reference.paper_runs import run


def record(weak_epochs, means, accuracy, *, ratio=10, epochs=100, seed=0):
    """A run of two classes, the second of them rare; at the optimum it keeps half the norm of the first."""
    found = run(
        seed=seed,
        epochs=epochs,
        train__mean_norms=list(means),
        train__weight_norms=[4.0, 2.0],
        train__counts=[60, 60 // ratio],
        test__accuracy=accuracy,
    )
    found.summary["prediction"] = {"class_norms": [1.0, 0.5], "weight_norms": [4.0, 2.0]}
    return {"loss": "ce", "ratio": ratio, "weak_epochs": weak_epochs}, found


def judge(runs):
    """The claims on the ratios that were run."""
    ratios = {keys["ratio"] for keys, _ in runs}
    claims = keep_rare_classes(runs)
    assert len(claims) == 3 * len(RATIOS)
    found = [claim for claim in claims if int(claim.text.split(",")[0].removeprefix("ratio ")) in ratios]
    assert all(claim.holds is None for claim in claims if claim not in found)
    return found


def test_runs_with_weak_decays_are_compared_with_the_optimum_and_the_others():
    full = record(0, [1.0, 0.0], 0.51)
    claims = judge([full, record(40, [1.0, 0.49], 0.9), record(40, [1.0, 0.5], 0.93)])
    assert [claim.holds for claim in claims] == [True] * 3
    assert all(claim.text.startswith("ratio 10, weak decays first: ") for claim in claims)
    assert claims[0].detail == "4 of 4 classes over 2 runs", "the run with full decays does not count"
    assert claims[2].detail == "90.0 to 93.0 % against 51.0 %"


@pytest.mark.parametrize(
    ("means", "accuracy", "wanted"),
    [
        ([1.0, 0.05], 0.9, [False, False, True]),
        ([1.0, 0.4], 0.9, [True, False, True]),
        ([1.0, 0.5], 0.51, [True, True, False]),
    ],
)
def test_each_claim_can_fail(means, accuracy, wanted):
    runs = [record(0, [1.0, 0.0], rate) for rate in (0.5, 0.52)]
    assert [claim.holds for claim in judge([*runs, record(40, means, accuracy)])] == wanted


def test_ratios_are_judged_apart_and_lengths_not_compared():
    runs = [record(40, [1.0, 0.5], 0.9), record(40, [1.0, 0.0], 0.5, ratio=20)]
    claims = judge([*runs, record(0, [1.0, 0.0], 0.4, epochs=50)])
    assert [claim.holds for claim in claims] == [True, True, None, False, False, None]
    assert claims[0].lengths == (100,)


def test_the_grid_trains_each_ratio_both_ways():
    points = get_experiment("ncollapse/weak-decays-first").grid()
    assert [point.keys["ratio"] for point in points[::2]] == list(RATIOS)
    for full, weak in zip(points[::2], points[1::2]):
        assert full.recipe.decays.weak_epochs == 0 < weak.recipe.decays.weak_epochs
        assert weak.recipe.override(decays__weak_epochs=0) == full.recipe
    shared = [point for point in get_experiment("ncollapse/minority-collapse").grid() if point.keys["ratio"] in RATIOS]
    assert {point_key(p.recipe.to_dict()) for p in shared} < {point_key(p.recipe.to_dict()) for p in points}


def test_shortened_runs_are_those_of_their_point():
    experiment = get_experiment("ncollapse/weak-decays-first")
    (short,) = expand(experiment, {"ratio": ("30",), "weak_epochs": ("40",)}, seeds=1, epochs=50)
    assert short.recipe.decays.weak_epochs == 20
    found = run(epochs=50)
    found.config.clear()
    found.config.update(short.recipe.to_dict())
    matched = [part.point.keys for part in match(experiment.grid(), [found]) if part.records]
    assert [(keys["ratio"], keys["weak_epochs"]) for keys in matched] == [(30, 40)]
