"""What makes a problem, and what does not."""

import math

import pytest

import ncollapse as nc
from ncollapse.theory import Mixing

DECAYS = {"weight_decay": 5e-4, "feature_decay": 5e-4}


def test_sizes_say_the_same_thing():
    by_batch = nc.Problem("bce", 10, batch_size=128, **DECAYS)
    by_class = nc.Problem("bce", 10, per_class=12.8, **DECAYS)
    by_counts = nc.Problem("bce", class_counts=[12.8] * 10, **DECAYS)
    for problem in (by_batch, by_class, by_counts):
        assert problem.per_class == pytest.approx(12.8)
        assert problem.mu == pytest.approx(math.sqrt(12.8) * 5e-4, rel=1e-14)
        assert problem.counts == pytest.approx((12.8,) * 10)
        assert problem.balanced


def test_counts_are_scaled_to_the_batch():
    problem = nc.Problem("ce", class_counts=[600, 300, 100], batch_size=50, **DECAYS)
    assert problem.num_classes == 3
    assert problem.counts == pytest.approx((30, 15, 5))
    assert not problem.balanced
    # the same problem, its feature decay spread over the data set
    spread = nc.Problem("ce", class_counts=[600, 300, 100], weight_decay=5e-4, feature_decay=5e-4 * 50 / 1000)
    assert problem.mu == pytest.approx(spread.mu, rel=1e-14)


def test_is_a_value():
    problem = nc.Problem("focal", 4, per_class=2, gamma=2, **DECAYS)
    assert problem == nc.Problem(nc.FocalLoss(gamma=2), 4, per_class=2, **DECAYS)
    assert hash(problem) == hash(problem.replace())
    assert problem != problem.replace(bias_decay=1.0)
    assert problem.replace(class_counts=[1, 2, 3, 4]).counts == (1, 2, 3, 4)
    assert problem.replace(features="relu").features == "relu"
    assert problem.to_dict()["loss_params"] == {"gamma": 2.0}
    assert "focal" in repr(problem)
    with pytest.raises(AttributeError):
        problem.num_classes = 5


def test_mu_does_not_underflow():
    problem = nc.Problem("ce", 2, per_class=1, weight_decay=1e-200, feature_decay=1e-200)
    assert problem.mu == pytest.approx(1e-200)
    assert nc.predict(problem).gap == pytest.approx(200 * math.log(10))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight_decay": -1e-3}, "weight_decay: expected"),
        ({"feature_decay": -1.0}, "feature_decay: expected"),
        ({"bias_decay": -1.0}, "bias_decay: expected"),
        ({"bias_decay": math.inf}, "bias_decay: expected"),
        ({"feature_decay": 0.0}, "feature_decay is 0: .* infinity"),
        ({"weight_decay": 0.0}, "weight_decay is 0: .* infinity"),
        ({"weight_decay": math.nan}, "weight_decay: expected"),
        ({"weight_decay": 1e-300}, "weight_decay: expected a number between 1e-200 and 1e.100, got 1e-300"),
        ({"feature_decay": 1e200}, "feature_decay: expected a number between 1e-200 and 1e.100, got 1e.200"),
        ({"bias_decay": 1e-201}, "bias_decay: expected a number between 1e-200 and 1e.100, got 1e-201"),
        ({"num_classes": 1}, "num_classes: expected .* got 1"),
        ({"num_classes": 2.5}, "num_classes: expected"),
        ({"num_classes": None}, "num_classes is missing"),
        ({"num_classes": "10"}, "num_classes: expected .* got '10'"),
        ({"num_classes": math.nan}, "num_classes: expected .* got nan"),
        ({"dim": 0}, "dim: expected .* got 0"),
        ({"dim": 1.5}, "dim: expected"),
        ({"per_class": 0}, "per_class: expected a positive number"),
        ({"per_class": None}, "per_class, batch_size or class_counts"),
        ({"per_class": None, "batch_size": -3}, "batch_size: expected a positive number"),
        ({"batch_size": 4}, "give one"),
        ({"per_class": None, "class_counts": [3, -1, 1]}, "class_counts must not be negative: class 1 has -1"),
        ({"per_class": None, "class_counts": [0, 0, 0]}, "class_counts must not all be 0"),
        ({"per_class": None, "class_counts": [3, 1]}, "2 entries but num_classes is 3"),
        (
            {"num_classes": None, "per_class": None, "class_counts": [3]},
            "class_counts: expected the samples of at least 2 classes, got 1 entry",
        ),
        ({"features": "tanh"}, "features: expected one of free, relu, got 'tanh'"),
        ({"loss": "hinge"}, "loss: expected one of ce, bce, focal, ls, mse"),
        ({"loss": nc.BinaryLoss()}, "one logit a class"),
        ({"loss": nc.CELoss(weight=[1.0, 2.0])}, "loss has 2 class weights, but num_classes is 3"),
        ({"method": "guess"}, "method: expected one of auto, closed, numerical"),
    ],
)
def test_impossible_input_is_explained(change, message):
    arguments = {"loss": "ce", "num_classes": 3, "per_class": 1, "weight_decay": 1e-3, "feature_decay": 1e-3, **change}
    loss = arguments.pop("loss")
    with pytest.raises(ValueError, match=message):
        nc.predict(loss, **arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight_decay": "5e-4"}, "weight_decay: expected a number, got '5e-4'"),
        ({"feature_decay": None}, "feature_decay: expected a number, got None"),
        ({"per_class": [2]}, "per_class: expected a number"),
        ({"bias": "no"}, "bias: expected True or False, got 'no'"),
        ({"bias": None}, "bias: expected True or False, got None"),
        ({"per_class": None, "class_counts": 7}, "class_counts: expected numbers, one for each class, got 7"),
        ({"per_class": None, "class_counts": ["a", 1, 1]}, "class_counts: expected numbers"),
    ],
)
def test_values_of_the_wrong_type_are_named(change, message):
    arguments = {"num_classes": 3, "per_class": 1, **DECAYS, **change}
    with pytest.raises(TypeError, match=message):
        nc.predict("ce", **arguments)


def test_unknown_loss_parameter():
    with pytest.raises(TypeError, match="gamma"):
        nc.predict("ce", num_classes=3, per_class=1, gamma=2, **DECAYS)


def test_parameters_beside_a_loss_object():
    problem = nc.Problem(nc.FocalLoss(gamma=2), 3, per_class=1, **DECAYS)
    with pytest.raises(TypeError, match=r"FocalLoss\(gamma=2\) already; .* loss='focal', gamma=3$"):
        nc.predict(problem, gamma=3)
    assert nc.predict(problem, loss="focal", gamma=3).problem.loss_params == {"gamma": 3}


def test_the_suggested_closed_form_is_one():
    arguments = {"class_counts": [5, 3, 1], **DECAYS}
    with pytest.raises(ValueError, match=r"free features and a bias \(features='relu' with bias=False has one\)"):
        nc.predict("ce", method="closed", **arguments)
    assert nc.predict("ce", features="relu", bias=False, **arguments).method == "closed"
    with pytest.raises(ValueError, match="a bias; method='numerical'"):  # nothing else has one in so few dimensions
        nc.predict("ce", dim=2, method="closed", **arguments)


@pytest.mark.parametrize(
    ("loss", "change", "message"),
    [
        ("bce", {"class_counts": [5, 3, 1]}, "bce with unequal class counts"),
        ("focal", {"class_counts": [5, 3, 1]}, "focal with unequal class counts"),
        ("ce", {"class_counts": [5, 3, 1]}, "free features"),
        ("ce", {"class_counts": [5, 3, 1], "features": "relu"}, "and a bias"),
        ("ce", {"num_classes": 5, "per_class": 1, "dim": 3}, "dim=3"),
        ("bce", {"num_classes": 5, "per_class": 1, "dim": 4, "bias_decay": 1.0}, "needs 5"),
        ("mse", {"num_classes": 5, "per_class": 1, "dim": 4, "features": "relu"}, "dim=4"),
        ("mse", {"num_classes": 5, "per_class": 1, "dim": 3, "kappa": 2, "beta": 2}, "dim=3"),
    ],
)
def test_no_closed_form_is_said(loss, change, message):
    with pytest.raises(ValueError, match=f"no closed form is known for .*{message}.*method='numerical'"):
        nc.predict(loss, method="closed", **DECAYS, **change)
    found = nc.predict(loss, **DECAYS, **change)  # by default it is minimised, with a bracket of the minimum
    assert found.method == "numerical"
    assert found.solution.objective == found.objective
    if loss != "focal":
        assert found.lower_bound <= found.objective * (1 + 1e-12)
    if change.get("dim") is None and loss != "focal":
        assert found.objective - found.lower_bound < 1e-7


def test_a_law_of_targets_knows_its_classes():
    law = Mixing.of_shares(4, [1.0, 0.7], [0.5, 0.5])
    assert nc.Problem("ce", mixing=law, per_class=2, **DECAYS).num_classes == 4
    assert nc.Problem("ce", 4, mixing=law, per_class=2, **DECAYS).num_classes == 4
    with pytest.raises(ValueError, match=r"mixing: expected a law of 5 classes, got one of 4"):
        nc.Problem("ce", 5, mixing=law, per_class=2, **DECAYS)
    with pytest.raises(TypeError, match=r"mixing: expected a Mixing, as theory\.mixing_law returns, got 0\.2"):
        nc.Problem("ce", 4, mixing=0.2, per_class=2, **DECAYS)
    others = {"class_counts": [1, 1, 1, 1], "logit_offset": [0.0] * 4}
    for name, value in others.items():
        with pytest.raises(ValueError, match="mixing: expected neither class_counts, targets nor logit_offset"):
            nc.Problem("ce", mixing=law, **{name: value}, **DECAYS)


def test_groups_of_soft_targets_are_weighted_by_their_classes():
    """Counts are scaled to the batch, equal rows are put together, and a row weighs what its classes do."""
    rows, counts = [(0.25, 0.75), (1.0, 0.0), (0.25, 0.75)], [2, 3, 5]
    loss = nc.CELoss(weight=[1.0, 3.0])
    groups = nc.Problem(loss, targets=rows, target_counts=counts, batch_size=20, **DECAYS).groups
    assert groups.targets.tolist() == [[0.25, 0.75], [1.0, 0.0]]
    assert groups.counts == pytest.approx([14.0, 6.0])
    assert groups.shares == pytest.approx([7 * 2.5 / 20.5, 3 / 20.5])
    assert groups.labels is None
