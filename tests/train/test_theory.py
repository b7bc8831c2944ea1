"""The theory's problem of a run, and what its summary says of it."""

import math

import pytest

import ncollapse as nc
from ncollapse.train import recipes, run


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
