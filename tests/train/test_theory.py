"""The theory's problem of a run, and what its summary says of it."""

import math

import pytest

import ncollapse as nc
from ncollapse.theory import mixing_law
from ncollapse.train import recipes, run
from ncollapse.train.theory import find_mixing


@pytest.mark.filterwarnings("ignore:measure. no sample of classes")
def test_empty_classes_have_a_problem(tmp_path):
    counts = (20, 20, 20, 0, 20, 20, 20, 20, 0, 20)
    recipe = recipes.get("digits").override(data__per_class_counts=counts, optim__epochs=2)
    problem = recipe.problem()
    assert problem.class_counts == counts
    assert problem.counts[3] == problem.counts[8] == 0
    summary = run(recipe, tmp_path, device="cpu")
    assert summary["status"] == "finished"
    certificate = summary["certificate"]
    assert 0 <= certificate["gap"] == pytest.approx(certificate["objective"] - certificate["lower_bound"], abs=1e-12)
    assert certificate["lower_bound"] <= nc.solve(problem.replace(dim=None)).objective
    one = recipe.override(data__per_class_counts=(20,) + (0,) * 9)
    assert one.problem() is None  # nothing to tell apart


def test_the_summary_bounds_the_geometry(tmp_path):
    """The bounds stand beside the gap, and the measured metrics keep within them."""
    recipe = recipes.get("digits").override(data__samples_per_class=12, optim__epochs=30)
    summary = run(recipe, tmp_path, device="cpu")
    certificate, train = summary["certificate"], summary["train"]
    for name in ("nc1", "nc2", "nc3"):
        bound = certificate[f"{name}_bound"]
        assert bound is None or math.isnan(bound) or train[name] <= bound * (1 + 1e-6)
    assert train["accuracy"] >= certificate["accuracy_bound"] - 1e-9
    assert {"within_class_bound", "duality_bound", "uniform_accuracy_bound"} <= certificate.keys()


def test_mixed_training_has_a_prediction_and_no_certificate(tmp_path):
    """The labels of unmixed images do not say what was minimised, so nothing is certified against them."""
    recipe = recipes.get("digits").override(augment__label_smoothing=0.1, optim__epochs=2, data__samples_per_class=12)
    assert recipe.problem().soft
    summary = run(recipe, tmp_path, device="cpu")
    assert summary["certificate"] is None
    assert summary["prediction"]["method"] == "symmetric"
    problem = recipe.problem(class_counts=(12,) * 10, features="relu")
    assert summary["prediction"]["objective"] == pytest.approx(nc.predict(problem).objective, rel=1e-6)
    assert summary["train"]["bias_residual"] is None  # undefined for mixed targets


def test_a_monitor_of_mixed_training_measures():
    import torch

    problem = recipes.get("digits").override(augment__label_smoothing=0.1).problem()
    model = torch.nn.Sequential(torch.nn.Linear(5, 12), torch.nn.ReLU(), torch.nn.Linear(12, 10))
    data = [(torch.randn(40, 5), torch.arange(40) % 10)]
    with nc.monitor(model, data, problem=problem) as watch:
        watch.observe()
    assert watch.history[-1].certificate is None
    assert watch.history[-1].measurement.accuracy >= 0


def pose(**changes):
    return recipes.get("bce-vs-ce/setting-1").override(**changes)


@pytest.mark.parametrize(("largest", "balanced"), [(150, True), (151, False)])
def test_classes_count_as_balanced_up_to_a_ratio_of_one_and_a_half(largest, balanced):
    counts = (100,) * 9 + (largest,)
    recipe = pose(data__per_class_counts=(40,) * 5 + (10,) * 5)
    problem = recipe.problem(class_counts=counts)
    assert problem.class_counts == (None if balanced else counts)
    size = recipe.optim.batch_size
    assert problem.batch_size == pytest.approx(sum(counts) / math.ceil(sum(counts) / size), rel=1e-12)
    assert recipe.problem().class_counts == recipe.data.per_class_counts, "those of the recipe where none are given"


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({}, True),
        ({"decays__feature": 0.0}, False),
        ({"decays__weight": 0.0}, False),
        ({"optim__weight_decay": 1e-4}, False),
        ({"decays__bias": 0.0}, True),
    ],
)
def test_weights_and_features_alone_must_be_decayed(changes, known):
    problem = pose(**changes).problem()
    assert (problem is not None) == known
    if known:
        decays = pose(**changes).decays
        assert (problem.weight_decay, problem.feature_decay) == (decays.weight, decays.feature)
        assert problem.bias_decay == decays.bias


def test_a_decay_of_all_parameters_counts_where_the_norm_is_given():
    """It adds to those of W and b; the feature decay is the one that gives the norm."""
    changes = {"decays__feature": 0.0, "decays__weight": 1e-4, "decays__bias": 2e-4, "optim__weight_decay": 5e-4}
    problem = pose(optim__name="sgd", **changes).problem(feature_energy=20.0)
    assert (problem.weight_decay, problem.bias_decay) == pytest.approx((6e-4, 7e-4), rel=1e-12)
    assert nc.predict(problem).feature_energy == pytest.approx(20.0, rel=1e-6)
    assert pose(optim__name="adamw", **changes).problem(feature_energy=20.0) is None
    assert pose(optim__name="sgd", **{**changes, "decays__feature": 1e-4}).problem(feature_energy=20.0) is None
    none = {**changes, "decays__weight": 0.0, "optim__weight_decay": 0.0}
    assert pose(optim__name="sgd", **none).problem(feature_energy=20.0) is None


@pytest.mark.parametrize(
    ("data", "image_size", "size"),
    [("mnist", None, 28), ("cifar10", None, 32), ("cifar10", 24, 24), ("folder:mine", None, 32)],
)
def test_boxes_are_those_of_the_images(data, image_size, size):
    recipe = pose(data__name=data, data__image_size=image_size, augment__cutmix=1.0, augment__label_smoothing=0.1)
    law = find_mixing(recipe, 10)
    assert law == mixing_law(10, cutmix=1.0, label_smoothing=0.1, image_size=size, levels=24)
    assert law != mixing_law(10, cutmix=1.0, label_smoothing=0.1, image_size=size + 4, levels=24)
