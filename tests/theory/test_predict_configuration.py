"""A predicted configuration, measured and certified, gives the prediction back."""

import json
import math

import pytest
import torch

import ncollapse as nc
from ncollapse.theory import escape
from reference.theory import LOSSES

FIELDS = ("positive_score", "negative_score", "bias", "weight_energy", "feature_energy")


def problems():
    sizes = {"weight_decay": 5e-3, "feature_decay": 1e-2, "per_class": 2.5}
    for features in ("free", "relu"):
        for loss in LOSSES:
            for lb in (0.0, 0.02, 1e3, None):
                more = {"bias_decay": lb or 0.0, "bias": lb is not None, "features": features}
                yield nc.Problem(loss, 6, **sizes, **more)
            yield nc.Problem(loss, 2, **sizes, bias_decay=0.1, features=features)
            yield nc.Problem(
                loss, 6, per_class=2.5, weight_decay=1.5, feature_decay=0.01, bias_decay=9.0, features=features
            )
            yield nc.Problem(loss, 6, per_class=2.5, weight_decay=9.0, feature_decay=0.1, features=features)
        critical = nc.predict("bce", num_classes=6, **sizes, features=features).critical_bias_decay
        yield nc.Problem("bce", 6, **sizes, bias_decay=critical, features=features)
    yield nc.Problem(
        "ce", class_counts=[50, 30, 20, 1], weight_decay=1e-2, feature_decay=1e-3, bias=False, features="relu"
    )
    yield nc.Problem("ls", class_counts=[5, 3, 2], weight_decay=1e-2, feature_decay=1e-3, bias=False, features="relu")
    for dim in (1, 2, 3, 4):
        yield nc.Problem("mse", 5, dim=dim, **sizes)
        yield nc.Problem("mse", 6, dim=dim, **sizes, bias_decay=0.1)


PROBLEMS = list(problems())
NAMES = [f"{p.loss.name}-{p.features}-{i}" for i, p in enumerate(PROBLEMS)]


@pytest.mark.filterwarnings("ignore:measure. all class means coincide")  # of collapsed optima
@pytest.mark.parametrize("problem", PROBLEMS, ids=NAMES)
def test_measure_gives_the_fields_back(problem):
    prediction = nc.predict(problem)
    for dim in (problem.dim,) if problem.dim else (problem.num_classes, problem.num_classes + 3):
        configuration = prediction.configuration(dim)
        assert configuration.features.shape[1] == dim
        assert problem.features == "free" or bool((configuration.features >= 0).all())
        measured = nc.measure(*configuration)
        for name in FIELDS:
            found = getattr(measured, name)
            assert getattr(found, "mean", found) == pytest.approx(getattr(prediction, name), rel=1e-9, abs=1e-12), name
        if prediction.rank >= problem.num_classes - 1 and problem.balanced:
            assert measured.positive_score.std < 1e-9
        comparison = measured.compare(prediction)
        assert all(abs(comparison[name].deviation) < 1e-8 for name in FIELDS)
        assert measured.weight_norms == pytest.approx(prediction.weight_norms, rel=1e-8, abs=1e-12)
        assert measured.mean_norms == pytest.approx(prediction.class_norms, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("problem", [problem for problem in PROBLEMS if problem.loss.convex])
def test_certificate_is_tight(problem):
    prediction = nc.predict(problem)
    features, _, weight, bias = prediction.configuration()
    if not problem.balanced:
        features = torch.stack(
            [features[prediction.configuration().labels == k][0] for k in range(problem.num_classes)]
        )
    counted = problem.replace(class_counts=problem.counts)
    certificate = nc.certify(features, torch.arange(problem.num_classes), weight, bias, counted)
    assert certificate.objective == pytest.approx(prediction.objective, abs=1e-12)
    if problem.dim is None or problem.dim >= problem.num_classes - 1:  # in fewer dimensions the bound is not tight
        assert abs(certificate.gap) < 1e-9


@pytest.mark.parametrize("bias_decay", [5e-4, 0.5])
def test_printed_theorem_is_not_optimal(bias_decay):
    """Above the critical bias decay: higher, and certified so; a strict saddle of curvature -2 (lb b - mu)/sqrt(n)."""
    problem = nc.Problem("bce", 10, per_class=4, weight_decay=5e-4, feature_decay=1e-3, bias_decay=bias_decay)
    prediction = nc.predict(problem)
    printed = prediction.printed_theorem()
    assert bias_decay > prediction.critical_bias_decay
    t = math.sqrt(problem.balance)
    gap = printed["positive_score"] - printed["negative_score"]
    etf = math.sqrt(gap) * (torch.eye(10, dtype=torch.float64) - 0.1)
    point = (etf / t, torch.arange(10), etf * t, torch.full((10,), printed["bias"], dtype=torch.float64))
    decays = {"weight_decay": 5e-4, "feature_decay": 1e-3, "bias_decay": bias_decay, "class_counts": problem.counts}
    certificate = nc.certify(*point, "bce", **decays)
    assert certificate.objective == pytest.approx(printed["objective"], abs=1e-10)
    assert printed["objective"] > prediction.objective + 1e-6
    assert certificate.lower_bound <= prediction.objective
    assert certificate.dual_norm > 1
    down = escape(*point, "bce", **decays)
    assert abs(down.slope) < 1e-9
    assert down.curvature == pytest.approx(-2 * (bias_decay * printed["bias"] - problem.mu) / 2, rel=1e-6)


def test_printed_theorem_where_it_holds():
    decays = {"num_classes": 10, "per_class": 4, "weight_decay": 5e-4, "feature_decay": 1e-3}
    assert nc.predict("bce", **decays, bias_decay=1e-6).printed_theorem() is None
    assert nc.predict("bce", **decays, bias=False).printed_theorem() is None
    assert nc.predict("mse", **decays, features="relu").printed_theorem() is None
    assert nc.predict("ce", **decays).printed_theorem() is None
    printed = nc.predict("ce", **decays, features="relu").printed_theorem()
    assert printed["theorem"] == "bce-vs-ce Theorem 3.1"
    assert printed["weight_energy"] == pytest.approx(nc.predict("ce", **decays).weight_energy)


def test_printed_values():
    """bce-vs-ce Theorem 3.2 at the paper's batch size 128 and its extreme bias decays, where P is as small as e^-36."""
    decays = {"num_classes": 10, "batch_size": 128, "weight_decay": 5e-4, "feature_decay": 5e-4, "features": "relu"}
    for lb, rho, bias in ((0.5, 1279.4, 0.032), (5e-3, 348.98, 2.990), (5e-4, 314.62, 4.527), (0.0, 336.07, 5.281)):
        printed = nc.predict("bce", **decays, bias_decay=lb).printed_theorem()
        assert printed["weight_energy"] == pytest.approx(rho, abs=0.06)
        assert printed["bias"] == pytest.approx(bias, abs=6e-4)
        # Eq. 12 itself
        pos, neg, b = printed["positive_score"], printed["negative_score"], printed["bias"]
        residual = -9 / 10 / (1 + math.exp(b - neg)) + 0.1 / (1 + math.exp(pos - b)) + lb * b
        assert abs(residual) < 1e-12


def test_unlisted_fields_are_those_of_the_configuration():
    centred = nc.predict("ce", num_classes=4, per_class=1, weight_decay=0.01, feature_decay=0.01)
    assert centred.nc1 == pytest.approx(0, abs=1e-12)
    assert centred.nc2 == pytest.approx(0, abs=1e-7)
    assert centred.accuracy == centred.uniform_accuracy == 1.0
    frame = nc.predict("ce", num_classes=4, per_class=1, weight_decay=0.01, feature_decay=0.01, features="relu")
    assert frame.distinctiveness == pytest.approx(0.5, abs=1e-12)
    assert frame.class_norms == pytest.approx([math.sqrt(frame.feature_energy)] * 4)
    assert frame.mean_norms == pytest.approx(frame.class_norms)
    for name in ("num_samples", "dim", "no_such_field"):
        with pytest.raises(AttributeError, match=name):
            getattr(frame, name)


def test_configuration_refuses_too_few_dimensions():
    with pytest.raises(ValueError, match="dim: expected a whole number of at least 4 for this optimum, got 3"):
        nc.predict("ce", num_classes=5, per_class=1, weight_decay=0.01, feature_decay=0.01).configuration(3)
    mse = nc.predict("mse", num_classes=5, dim=12, per_class=1, weight_decay=0.01, feature_decay=0.01)
    assert mse.configuration(20).features.shape == (5, 20)
    numerical = nc.predict("ce", num_classes=3, per_class=1, weight_decay=0.01, feature_decay=0.01, method="numerical")
    assert numerical.configuration(5).features.shape == (3, 5)
    with pytest.raises(ValueError, match="was made for dim=3"):
        numerical.configuration(2)
    with pytest.raises(ValueError, match="was made for dim=2"):
        nc.predict("mse", num_classes=5, dim=2, per_class=1, weight_decay=0.01, feature_decay=0.01).configuration(3)


@pytest.mark.parametrize("dim", [2.5, "4", None])
def test_dimensions_are_whole_numbers(dim):
    prediction = nc.predict("ce", num_classes=3, per_class=2, weight_decay=1e-2, feature_decay=1e-2)
    if dim is None:
        assert prediction.configuration(dim).features.shape == (3, 3)
        return
    with pytest.raises(ValueError, match="dim: expected a whole number of at least 2"):
        prediction.configuration(dim)


@pytest.mark.parametrize("counts", [[2.5, 1.5, 0.5], [6.4, 3.2, 0.1], [12, 8, 4]])
def test_fractional_counts_are_repeated_in_proportion(counts):
    prediction = nc.predict(
        "ce", class_counts=counts, weight_decay=1e-3, feature_decay=1e-3, bias=False, features="relu"
    )
    configuration = prediction.configuration(5)
    rows = torch.bincount(configuration.labels).double()
    assert torch.allclose(rows / rows.sum(), torch.tensor(counts, dtype=torch.float64) / sum(counts), atol=1e-12)
    measured = nc.measure(*configuration)
    assert measured.positive_score.mean == pytest.approx(prediction.positive_score, rel=1e-12)
    assert measured.feature_energy == pytest.approx(prediction.feature_energy, rel=1e-12)


def test_norms_do_not_need_a_row_a_sample():
    """Ten million samples: the norms come from one feature a class; irrational shares are rounded."""
    more = {"weight_decay": 1e-9, "feature_decay": 1e-9, "bias": False, "features": "relu"}
    large = nc.predict("ce", class_counts=[9_999_991, 5_000_011, 3], **more)
    rows = nc.predict("ce", class_counts=[9_999_991, 5_000_011, 3], batch_size=3, **more)
    assert len(large.class_norms) == len(large.weight_norms) == 3
    # |h_k|^2 = sqrt(lW / (lH n_k)) sqrt((K-1)/K) M_k
    for norm, gap, count in zip(large.class_norms, large.class_gaps, large.problem.counts):
        assert norm**2 == pytest.approx(math.sqrt(2 / 3 / count) * gap, rel=1e-12)
    assert sum(norm**2 for norm in rows.weight_norms) == pytest.approx(rows.weight_energy, rel=1e-12)
    odd = nc.predict("ce", class_counts=[math.pi, math.e, math.sqrt(2)], **more)
    labels = odd.configuration().labels
    assert (labels == 0).sum() / (labels == 1).sum() == pytest.approx(math.pi / math.e, rel=1e-4)


def test_bias_separates_every_class_or_not_at_all():
    """A collapsed class scores 0 = b everywhere, however high the mean over the classes is."""
    more = {"weight_decay": 3e-2, "feature_decay": 3e-2, "bias": False, "features": "relu"}
    assert not nc.predict("ce", class_counts=[20, 10, 1], **more).separates
    assert nc.predict("ce", class_counts=[20, 10, 9], **more).separates
    collapsed = nc.predict("ce", class_counts=[20, 10, 1], method="numerical", **more)
    assert collapsed.negative_score < collapsed.bias < collapsed.positive_score
    assert not collapsed.separates
    # in the plane CE puts one class of six at the origin, where its bias alone wins; BCE keeps a threshold for all
    for loss, separates in (("ce", False), ("bce", True)):
        problem = nc.Problem(loss, 6, per_class=1, dim=2, weight_decay=5e-3, feature_decay=5e-3)
        assert nc.predict(problem, method="numerical").separates == separates


def test_loss_and_classes_may_be_positional():
    decays = {"per_class": 2, "weight_decay": 1e-2, "feature_decay": 1e-2}
    assert nc.predict("bce", 4, **decays) == nc.predict("bce", num_classes=4, **decays)
    assert nc.predict(nc.Problem("bce", 4, **decays), 5).problem.num_classes == 5


def test_json_holds_the_norms_of_unequal_classes():
    decays = {"weight_decay": 1e-2, "feature_decay": 1e-3}
    imbalanced = nc.predict("ce", class_counts=[5, 3, 1], bias=False, features="relu", **decays)
    found = json.loads(imbalanced.to_json())
    assert found["class_norms"] == list(imbalanced.class_norms)
    assert found["weight_norms"] == list(imbalanced.weight_norms)
    assert found["collapse_weight_decay"] == imbalanced.collapse_weight_decay
    balanced = nc.predict("ce", num_classes=3, per_class=3, **decays)
    assert "class_norms" not in balanced.to_dict()


def test_the_rarest_class_has_a_row():
    """A count that is 0 as a fraction of small denominator, beside another."""
    p = nc.predict("ce", class_counts=[1.0, 1e-5], bias=False, features="relu", weight_decay=1e-3, feature_decay=1e-3)
    labels = p.configuration().labels
    assert set(labels.tolist()) == {0, 1}
    assert (labels == 1).sum() == 1
    assert len(labels) == pytest.approx(100_000, abs=1), "as many as a configuration has at most"
