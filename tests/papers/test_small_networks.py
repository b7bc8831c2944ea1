"""What our own experiments on perceptrons ask, checked on runs made by hand, and their grids."""

from dataclasses import replace

import pytest

from ncollapse.papers.all_losses_claims import LOSSES
from ncollapse.papers.bias_init import leaves_the_minimum
from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.judge import predict_field
from ncollapse.papers.small_networks import (
    PARAMETERS,
    ends_at_the_optimum,
    losses_end_alike,
    narrow_collapse,
    optimisers_end_alike,
)
from ncollapse.train import recipes
from reference.paper_runs import curve, run

OPTIMUM = {"positive_score": 5.0, "negative_score": -1.0, "weight_energy": 200.0}


def perceptron(loss, *, by=1.0, accuracy=0.98, fall=0.001):
    """A run that ends `by` times its optimum, and whose metrics fall to a share of their first value."""
    scores = {f"train__{name}": by * value for name, value in OPTIMUM.items()}
    record = run(history=curve(1.0, 0.5, fall), train__accuracy=1.0, test__accuracy=accuracy, **scores)
    for row in record.history:
        row["train"] |= {"nc3_centred": row["train"]["nc3"], "accuracy": 1.0}
    return {"loss": loss}, replace(record, summary={**record.summary, "prediction": OPTIMUM})


def test_losses_that_end_alike():
    claims = losses_end_alike([perceptron(loss, by=1.005) for loss in LOSSES])
    assert [claim.holds for claim in claims] == [True] * 10
    assert claims[0].text == "training accuracy reaches 100 % under every loss"
    assert claims[5].text == "under CE the mean scores and |W|^2 end within 2 % of the predicted optimum"


def test_optimisers_that_end_alike():
    def end(optimizer, **changes):
        return {"loss": "mse", "optimizer": optimizer}, perceptron("mse", **changes)[1]

    claims = optimisers_end_alike([end("sgd", accuracy=0.95), end("adam", accuracy=0.96), end("lbfgs", accuracy=0.97)])
    assert [claim.holds for claim in claims] == [True] * 4
    assert claims[2].text == "under L-BFGS the mean scores and |W|^2 end within 2 % of the predicted optimum"
    others = optimisers_end_alike([end("sgd"), end("adam", by=0.9), end("lbfgs")])
    assert [claim.holds for claim in others] == [True, False, True, False]


def test_all_optimisers_pose_one_problem():
    points = get_experiment("ncollapse/three-optimisers").grid()
    assert [point.recipe.optim.name for point in points] == [point.keys["optimizer"] for point in points]
    problems = {predict_field(point, "train.weight_energy") for point in points}
    assert len(problems) == 1
    assert None not in problems


def test_losses_that_do_not():
    runs = [perceptron(loss) for loss in LOSSES[:3]] + [perceptron("mse", by=0.97, accuracy=0.96, fall=0.2)]
    holds = [claim.holds for claim in losses_end_alike(runs)]
    assert holds == [True, True, True, True, False, True, True, True, False, False]


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        ({"train__positive_score": 5.11}, True),  # 0.11 of a distance of 6 between the scores
        ({"train__positive_score": 5.13}, False),
        ({"train__negative_score": -1.13}, False),
        ({"train__weight_energy": 204.1}, False),
        ({"train__weight_energy": 196.1}, True),
        ({"train__weight_energy": float("nan")}, None),
    ],
)
def test_ends_are_measured_in_the_scale_of_the_scores(changes, holds):
    values = {f"train__{name}": value for name, value in OPTIMUM.items()} | changes
    record = run(**values)
    record = replace(record, summary={**record.summary, "prediction": OPTIMUM})
    assert ends_at_the_optimum([({"loss": "ce"}, record)]).holds is holds


def narrow(loss, *, faster=1.0, uniform=0.9, fall=0.001):
    record = run(history=curve(faster, 0.5, *[fall] * 8), test__uniform_accuracy=uniform)
    return {"loss": loss, "dim": 3}, record


def test_bce_in_few_dimensions():
    ce = narrow("ce")
    assert [claim.holds for claim in narrow_collapse([ce, narrow("bce", faster=0.5, uniform=0.95)])] == [True] * 4
    slower = narrow("bce", faster=2.0, uniform=0.8, fall=0.3)
    assert [claim.holds for claim in narrow_collapse([ce, slower])] == [True, False, False, False]


def start(bias_init, *, objective, faster=1.0, uniform=0.9, fall=0.001):
    record = run(
        history=curve(faster, 0.5, *[fall] * 8), certificate__objective=objective, test__uniform_accuracy=uniform
    )
    return {"loss": "bce", "dim": 5, "bias_init": bias_init}, record


def test_the_predicted_bias_is_compared_with_0():
    usual = start(0.0, objective=0.34)
    better = start("theory", objective=0.30, faster=0.5, uniform=0.95)
    assert [claim.holds for claim in leaves_the_minimum([usual, better])] == [True] * 4
    worse = start("theory", objective=0.35, faster=2.0, uniform=0.8, fall=0.9)
    assert [claim.holds for claim in leaves_the_minimum([usual, worse])] == [False] * 4
    means = leaves_the_minimum([usual, better, start("theory", objective=0.39, faster=0.5)])
    assert means[0].holds is False, "means over seeds"
    assert [claim.holds for claim in leaves_the_minimum([better])] == [None, True]


def test_the_four_losses_have_the_parameters_of_the_paper_s_recipe():
    points = get_experiment("ncollapse/four-losses").grid()
    assert [point.keys["loss"] for point in points] == list(LOSSES) == list(PARAMETERS)
    for point in points:
        assert point.recipe.loss == recipes.get("all-losses", loss=point.keys["loss"]).loss
        assert point.recipe.decays == points[0].recipe.decays
        assert point.recipe.problem(num_classes=10, samples=60_000) is not None, "theory knows where it ends"


def test_features_of_the_narrow_networks_are_free_and_have_too_few_dimensions():
    for point in get_experiment("ncollapse/k-greater-than-d").grid():
        problem = point.recipe.problem(num_classes=10, samples=60_000)
        assert (problem.dim, problem.features) == (point.keys["dim"], "free")
        assert problem.dim < problem.num_classes - 1


def test_recipes_are_as_their_captions_say():
    narrow = get_experiment("ncollapse/k-greater-than-d")
    dims = sorted({point.recipe.model.feature_dim_linear for point in narrow.grid()})
    assert f"projected to {dims[0]}, {dims[1]} and {dims[2]} dimensions." in narrow.caption
    assert len(dims) == 3
    three = get_experiment("ncollapse/three-optimisers")
    recipes_of = {point.recipe.optim.name: point.recipe for point in three.grid()}
    plain = recipes_of["sgd"]
    assert f"on {plain.data.samples_per_class} images of each class" in three.caption
    assert f"with a batch size of {plain.optim.batch_size} and decays" in three.caption
    assert f"{plain.optim.epochs} epochs of SGD and Adam, {recipes_of['lbfgs'].optim.epochs} of L-BFGS" in three.caption
    assert plain.decays.weight == plain.decays.feature == plain.decays.bias == 5e-4
    for recipe in recipes_of.values():
        assert recipe.data == plain.data
        assert recipe.optim.batch_size == plain.optim.batch_size
        assert (recipe.loss.kappa, recipe.loss.beta) == (1.0, 1.0), "plain MSE"
        assert recipe.optim.epochs % recipe.measure_every == 0, "the last epoch is measured"
