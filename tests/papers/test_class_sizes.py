"""What our experiments on imbalanced classes ask, checked on runs made by hand, on their grids and on theory."""

import pytest

import ncollapse as nc
from ncollapse.compare.class_norms import ROWS, measure_error, read_norms, read_rarity
from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.class_sizes import RATIOS, follow_theorem, vanish_as_predicted
from reference.paper_runs import run


def record(means, rows=(4.0, 2.0), *, best_means=(1.0, 0.5), best_rows=(4.0, 2.0), ratio=3):
    """A run of two classes of which the first has `ratio` times the samples of the second."""
    found = run(train__mean_norms=list(means), train__weight_norms=list(rows), train__counts=[60, 60 // ratio])
    found.summary["prediction"] = {"class_norms": list(best_means), "weight_norms": list(best_rows)}
    return {"loss": "ce", "ratio": ratio}, found


def test_norms_are_read_class_by_class():
    _, found = record([0.9, 0.55])
    measured, predicted = read_norms(found)
    assert (measured.tolist(), predicted.tolist()) == ([0.9, 0.55], [1.0, 0.5])
    assert [part.tolist() for part in read_norms(found, ROWS)] == [[4.0, 2.0], [4.0, 2.0]]
    assert measure_error(found) == pytest.approx(0.1), "of the largest norm: the small class is off by 0.05"
    assert measure_error(found, ROWS) == 0
    assert read_rarity(found).tolist() == [1, 3]


@pytest.mark.parametrize(
    "change",
    [
        {"mean_norms": None},
        {"mean_norms": []},
        {"mean_norms": [1.0, None]},  # a class without samples has no mean
        {"mean_norms": [1.0, 1.0, 1.0]},
    ],
)
def test_norms_that_are_not_known_are_not_compared(change):
    keys, found = record([1.0, 0.5])
    found.summary["train"] |= change
    assert read_norms(found) is None
    assert measure_error(found) is None
    assert follow_theorem([(keys, found)]).holds is None
    assert [claim.holds for claim in vanish_as_predicted([(keys, found)])] == [None] * 3


def test_without_a_prediction_nothing_is_compared():
    keys, found = record([1.0, 0.5])
    del found.summary["prediction"]
    assert follow_theorem([(keys, found)]).holds is None
    found.summary["train"]["counts"] = [60, 0]
    assert read_rarity(found) is None


@pytest.mark.parametrize(
    ("means", "rows", "holds"),
    [
        ([1.019, 0.5], [4.0, 2.0], True),
        ([1.021, 0.5], [4.0, 2.0], False),
        ([1.0, 0.479], [4.0, 2.0], False),
        ([1.0, 0.5], [4.0, 2.07], True),
        ([1.0, 0.5], [4.0, 1.91], False),
    ],
)
def test_the_theorem_is_followed_to_two_percent_of_the_largest_norm(means, rows, holds):
    exact = record([1.0, 0.5])
    assert follow_theorem([exact, record(means, rows)]).holds is holds


def test_classes_that_vanish_too_early_are_told_from_those_that_should():
    gone = {"best_means": (1.0, 0.0)}
    kept, predicted, early = record([1.0, 0.5]), record([1.0, 0.01], ratio=6, **gone), record([1.0, 0.0], ratio=5)
    assert [claim.holds for claim in vanish_as_predicted([kept, predicted])][:2] == [True, True]
    vanish, remain, _ = vanish_as_predicted([kept, predicted, early])
    assert vanish.holds
    assert vanish.detail == "1 of 1 class over 1 run"
    assert remain.holds is False
    assert remain.detail == "4 of 5 classes over 3 runs; not at a ratio of 5"
    vanish, _, _ = vanish_as_predicted([record([1.0, 0.2], ratio=6, **gone)])
    assert vanish.holds is False


@pytest.mark.parametrize(("rare", "vanishes"), [(0.39, True), (0.41, False), (0.2, True)])
@pytest.mark.parametrize("largest", [4.0, 3.0])
def test_a_class_has_vanished_below_a_tenth_of_the_largest_norm_at_the_optimum(rare, vanishes, largest):
    """Of 4, whatever the largest in training is."""
    there = record([largest, rare], best_means=(4.0, 0.0), ratio=100)
    kept = record([largest, rare], best_means=(4.0, 1.0), ratio=20)
    vanish, remain, _ = vanish_as_predicted([there, kept])
    assert vanish.holds is vanishes
    assert remain.holds is not vanishes


def test_the_ratios_lie_on_both_sides_of_the_optimum_s():
    points = get_experiment("ncollapse/minority-collapse").grid()
    assert [point.keys["ratio"] for point in points] == list(RATIOS)
    assert RATIOS[0] == 1, "classes of equal size are what the others are compared with"
    rare = []
    for point in points:
        large = 5421  # the smallest class of MNIST, of which all large classes keep as many
        sizes = (large,) * 5 + (round(large / point.keys["ratio"]),) * 5
        found = nc.predict(point.recipe.problem(class_counts=sizes)).class_norms
        assert found is not None
        assert min(found[:5]) > 0.5
        rare.append(max(found[5:]))
    gone = [norm == 0 for norm in rare]
    assert gone == sorted(gone)
    assert 2 <= sum(gone) <= len(RATIOS) - 3


def test_the_networks_that_collapse_are_those_of_the_paper():
    points = get_experiment("ncollapse/class-sizes").grid()
    printed = [p for n in (1, 2) for p in get_experiment(f"imbalanced-relu/figure-{n}").grid()]
    assert [p.keys["model"] for p in points] == ["mlp-1024", "mlp-2048", "resnet18"]
    assert {p.recipe.run_id for p in points} <= {p.recipe.run_id for p in printed}
