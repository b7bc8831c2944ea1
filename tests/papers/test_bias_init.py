"""What our own experiments on the initial bias ask, on runs made by hand: which runs are compared, and how."""

import math
from dataclasses import replace

import pytest

from ncollapse.papers.bias_init import (
    bias_starts,
    collapses_sooner,
    leaves_the_minimum,
    narrow_bias_starts,
    split_by_start,
    starts_at_the_optimum,
)
from reference.paper_runs import curve, run


def start(bias_init, *, gap=0.1, bias=1.0, objective=0.3, uniform=0.9, early=1.0, decay=0.0, dim=5):
    """A run of 20 epochs whose NC1 is `early` in the first fifth, 0.5 in the next epoch and 0.001 at the end."""
    record = run(
        epochs=20,
        history=curve(*[early] * 4, 0.5, *[0.001] * 15),
        certificate__relative_gap=gap,
        certificate__objective=objective,
        train__bias=bias,
        test__uniform_accuracy=uniform,
    )
    return {"loss": "bce", "bias_decay": decay, "dim": dim, "bias_init": bias_init}, record


@pytest.mark.parametrize(
    ("gap", "early", "holds"), [(0.05, 0.9, [True, True]), (0.05, 1.0, [True, False]), (0.1, 0.9, [False, True])]
)
def test_the_gap_and_the_pace_from_both_starts(gap, early, holds):
    """Against a gap of 0.1 and an NC1 of 1: as much is not less."""
    claims = starts_at_the_optimum([start(0.0), start("theory", gap=gap, early=early)])
    assert [claim.holds for claim in claims] == holds
    assert claims[0].text == "lambda_b = 0: from the predicted bias, BCE ends closer to its optimum than from 0"


def test_ours_come_first_in_what_is_shown():
    runs = [start(0.0, gap=0.25, bias=2.0, early=0.8), start("theory", gap=0.125, bias=3.0, early=0.4)]
    gap, pace = starts_at_the_optimum(runs)
    assert gap.detail == "certified relative gap 0.125 against 0.25, bias 3.0000 against 2.0000"
    assert pace.detail == "NC1 over the first fifth, geometric mean: 0.4 against 0.8"
    runs = [start(0.0, objective=0.5, uniform=0.7), start("theory", objective=0.25, uniform=0.8)]
    found = leaves_the_minimum(runs)
    assert found[0].detail == "objective 0.2500 against 0.5000"
    assert found[2].detail == "80.00 % against 70.00 % of the test samples"


def test_each_decay_and_dimension_is_compared_with_itself():
    runs = [start("theory", gap=0.2, decay=5e-4), start(0.0, gap=0.3, decay=5e-4)]
    runs += [start("theory", gap=0.2), start(0.0, gap=0.1)]
    claims = starts_at_the_optimum(runs)
    assert [claim.holds for claim in claims[::2]] == [False, True]
    assert [claim.text.partition(":")[0] for claim in claims[::2]] == ["lambda_b = 0", "lambda_b = 0.0005"]
    (alone,) = starts_at_the_optimum(runs[:1])
    assert alone.holds is None
    assert alone.detail == "runs from both starts are needed"
    runs = [start("theory", objective=0.2, dim=2), start(0.0, objective=0.1, dim=3), start(0.0, objective=0.3, dim=2)]
    found = leaves_the_minimum(runs)
    assert [claim.holds for claim in found[:4]] == [True, False, False, None]
    assert found[3].text == "d = 3: from the predicted bias, BCE ends lower than from 0"


def test_several_seeds_count_by_their_mean():
    """The medians, and the first runs, say the opposite."""
    ours = [start("theory", gap=gap, objective=gap, uniform=1 - gap, early=gap) for gap in (0.1, 0.1, 0.9)]
    theirs = [start(0.0, gap=gap, objective=gap, uniform=1 - gap, early=0.22) for gap in (0.2, 0.2, 0.2)]
    assert [claim.holds for claim in starts_at_the_optimum(ours + theirs)] == [False, True], "geometric mean 0.208"
    assert [claim.holds for claim in leaves_the_minimum(ours + theirs)][:3] == [False, True, False]
    slower = [start("theory", early=value) for value in (0.1, 0.1, 2.0)]
    claim = collapses_sooner("ours", [record for _, record in slower], [record for _, record in theirs])
    assert claim.holds is False, "geometric mean 0.271"
    assert claim.detail.endswith(f"{math.cbrt(0.1 * 0.1 * 2.0):.3g} against 0.22")


def test_an_early_pace_needs_runs_of_one_length():
    (_, ours), (_, theirs) = start("theory", early=0.5), start(0.0)
    other = replace(theirs, config={**theirs.config, "optim": {"epochs": 10}}, history=theirs.history[:10])
    assert collapses_sooner("ours", [ours], [theirs]).holds is True
    assert collapses_sooner("ours", [ours], [other]).holds is None
    once = [replace(record, history=record.history[3:]) for record in (ours, theirs)]
    assert collapses_sooner("ours", once[:1], once[1:]).detail == "NC1 at epoch 4 alone: 0.5 against 1"


def test_runs_are_told_apart_by_their_start():
    runs = [start("theory", bias=1.0), start(0.0, bias=2.0), start("theory", bias=3.0, decay=1.0), start(2.0)]
    predicted, zero = split_by_start(runs, "bias_decay", 0.0)
    assert [record.final("train.bias.mean") for record in predicted] == [1.0]
    assert [record.final("train.bias.mean") for record in zero] == [2.0]


@pytest.mark.parametrize("grid", [bias_starts, narrow_bias_starts])
def test_the_keys_of_a_run_are_its_recipe(grid):
    points = grid()
    assert len({point.recipe.run_id for point in points}) == len(points) >= 4
    for point in points:
        keys, recipe = point.keys, point.recipe
        assert recipe.model.bias_init == keys["bias_init"]
        assert recipe.decays.bias == keys.get("bias_decay", recipe.decays.bias)
        assert recipe.model.feature_dim_linear == keys.get("dim", recipe.model.feature_dim_linear)
        assert recipe.loss.name == keys["loss"] == "bce"
