"""The dual bound: never above the objective, tight at every optimum, the same however the samples arrive."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ncollapse as nc
from ncollapse.losses import make_loss
from ncollapse.theory import certify_if_known, mixing_law
from reference import dual

LOSSES = {
    "ce": {},
    "bce": {},
    "ls": {"alpha": 0.1},
    "mse": {},
    "mse-landscape": {"alpha": 3.0, "M": 4.0},
    "mse-all-losses": {"kappa": 1.5, "beta": 6.0},
}
SMOOTHED = {"ce-smoothed": {"label_smoothing": 0.2}, "bce-smoothed": {"label_smoothing": 0.2}}


def loss_of(name):
    return make_loss(name.partition("-")[0], **{**LOSSES, **SMOOTHED}[name])


def draw_point(rng, num_classes, dim, num_samples, scale, bias=True):
    y = np.concatenate([np.arange(num_classes), rng.integers(0, num_classes, num_samples - num_classes)])
    h = scale * rng.standard_normal((num_samples, dim)) / math.sqrt(dim)
    w = scale * rng.standard_normal((num_classes, dim))
    return h, y, w, scale * rng.standard_normal(num_classes) if bias else None


@pytest.mark.parametrize("name", [*LOSSES, *SMOOTHED])
@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_classes=st.integers(2, 6),
    dim=st.integers(1, 7),
    extra=st.integers(0, 8),
    scale=st.floats(0.01, 30.0),
    decays=st.tuples(st.floats(1e-4, 0.3), st.floats(1e-4, 0.3), st.sampled_from([0.0, 1e-5, 1e-2, 1.0, 1e3])),
    relu=st.booleans(),
    bias=st.booleans(),
)
def test_bound_is_below_the_objective_of_every_point(name, seed, num_classes, dim, extra, scale, decays, relu, bias):
    rng = np.random.default_rng(seed)
    loss = loss_of(name)
    lw, lh, lb = decays
    n = num_classes + extra
    h, y, w, b = draw_point(rng, num_classes, dim, n, scale, bias)
    h = np.abs(h) if relu else h
    kwargs = {"weight_decay": lw, "feature_decay": lh, "bias_decay": lb}
    problem = nc.Problem(loss, num_classes, batch_size=n, features="relu" if relu else "free", **kwargs)
    c = nc.certify(h, y, w, b, problem)
    assert c.lower_bound <= c.objective + 1e-12 * abs(c.objective)
    # The bound holds for every point of the problem, so also for the others: shrunk ones, random ones and the origin.
    others = [(t * h, t * w, None if b is None else t * b) for t in (0.0, 0.3)]
    other_h, _, other_w, other_b = draw_point(rng, num_classes, dim, n, 1.0, bias)
    others.append((np.abs(other_h) if relu else other_h, other_w, other_b))
    target = torch.from_numpy(y)
    for oh, ow, ob in others:
        decay = lw * np.sum(ow**2) + lh * np.sum(oh**2) + (0.0 if ob is None else lb * np.sum(ob**2))
        value = float(loss(torch.from_numpy(oh @ ow.T - (0.0 if ob is None else ob)), target)) + decay / 2
        assert c.lower_bound <= value + 1e-12


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("bias_decay", [None, 0.05])
def test_objective_and_bound_against_the_slow_twin(name, bias_decay):
    rng = np.random.default_rng(3)
    loss = loss_of(name)
    for scale in (0.1, 1.0, 4.0):
        h, y, w, b = draw_point(rng, 4, 6, 13, scale, bias_decay is not None)
        lb = bias_decay or 0.0
        c = nc.certify(h, y, w, b, loss, weight_decay=0.02, feature_decay=0.03, bias_decay=lb)
        assert c.objective == pytest.approx(dual.objective(h, y, w, b, loss, 0.02, 0.03, lb), rel=1e-12)
        # Averaged columns, the best scale and the best bias can only help.
        assert c.lower_bound >= dual.plain_bound(h, y, w, b, loss, 0.02, 0.03, lb) - 1e-12


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("bias_decay", [0.0, 1e-2, 1.0, None])
@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize(
    ("num_classes", "per_class", "decay"), [(2, 1.0, 0.05), (4, 12.8, 5e-3), (10, 1.28, 0.02), (6, 5, 0.3)]
)
def test_gap_vanishes_at_the_predicted_optimum(name, bias_decay, features, num_classes, per_class, decay):
    problem = nc.Problem(
        loss_of(name),
        num_classes,
        per_class=per_class,
        weight_decay=decay,
        feature_decay=2 * decay,
        bias_decay=bias_decay or 0.0,
        bias=bias_decay is not None,
        features=features,
    )
    prediction = nc.predict(problem)
    h, y, w, b = prediction.configuration(num_classes + 1)
    c = nc.certify(h, y, w, b, problem)
    assert c.objective == pytest.approx(prediction.objective, abs=1e-12)
    assert abs(c.gap) < 1e-9


@pytest.mark.parametrize(
    ("loss", "settings", "phase"),
    [
        ("bce", {"num_classes": 10, "per_class": 1, "decay": 0.2, "bias_decay": 10.0}, "mean-only"),
        (
            "bce",
            {"num_classes": 10, "batch_size": 128, "decay": 5e-4, "bias_decay": 5e-4, "features": "relu"},
            "saturated",
        ),
        ("bce", {"num_classes": 200, "per_class": 1.28, "decay": 1e-4, "features": "relu"}, "orthogonal-frame"),
        ("ce", {"num_classes": 200, "per_class": 1.28, "decay": 1e-4}, "centred"),
        ("ce", {"class_counts": [500, 300, 100, 2], "decay": 2e-3, "bias": False, "features": "relu"}, None),
        ("ce", {"class_counts": [50, 30, 10], "decay": 0.2, "bias": False, "features": "relu"}, "collapsed"),
    ],
)
def test_gap_vanishes_in_the_other_phases(loss, settings, phase):
    decay = settings.pop("decay")
    p = nc.predict(loss, weight_decay=decay, feature_decay=decay, **settings)
    assert phase is None or p.phase == phase
    h, y, w, b = p.configuration(p.problem.num_classes)
    c = nc.certify(h, y, w, b, p.problem.replace(batch_size=p.problem.per_class * p.problem.num_classes))
    assert c.objective == pytest.approx(p.objective, abs=1e-11)
    assert abs(c.gap) < 1e-9


@pytest.mark.parametrize("name", [*LOSSES, "ce-smoothed"])
def test_conjugates_are_suprema(name):
    loss = loss_of(name)
    convex = loss.convex_form(np.eye(4))
    rng = np.random.default_rng(8)
    for scale in (0.3, 2.0):
        z = scale * rng.standard_normal((4, 4))
        logits = torch.tensor(z, requires_grad=True)
        values = make_loss(loss.name, reduction="none", **loss.params())(logits, torch.arange(4))
        values.sum().backward()
        q = logits.grad.numpy()
        # Fenchel: equality at the gradient, and q.z' - L(z') is below it everywhere else.
        assert np.allclose(convex.conjugate(q), (q * z).sum(axis=1) - values.detach().numpy(), atol=1e-12)
        others = torch.tensor(3 * rng.standard_normal((50, 4, 4)))
        for other in others:
            below = (q * other.numpy()).sum(axis=1) - convex.evaluate(other, torch.arange(4))[0].numpy()
            assert (below <= convex.conjugate(q) + 1e-12).all()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("bias_decay", [0.0, 5e-3])
def test_gap_goes_to_zero_along_a_descent(name, bias_decay):
    loss = loss_of(name)
    generator = torch.Generator().manual_seed(0)
    h, w = (torch.randn(n, 5, dtype=torch.float64, generator=generator) for n in (12, 4))
    b = torch.randn(4, dtype=torch.float64, generator=generator)
    y = torch.arange(12) % 4
    parameters = [p.requires_grad_() for p in (h, w, b)]
    optimiser = torch.optim.LBFGS(
        parameters, max_iter=10, tolerance_grad=0, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        value = loss(h @ w.T - b, y) + 0.005 * w.square().sum() + 0.005 * h.square().sum()
        value = value + bias_decay / 2 * b.square().sum()
        value.backward()
        return value

    gaps = []
    for _ in range(40):
        c = nc.certify(h, y, w, b, loss, weight_decay=0.01, feature_decay=0.01, bias_decay=bias_decay)
        gaps.append(c.gap)
        if c.gap < 1e-7:
            break
        optimiser.step(closure)
    assert gaps[-1] < 1e-7
    best = np.minimum.accumulate(gaps)
    assert best[len(gaps) // 2] < 0.05 * gaps[0]
    assert min(gaps) > -1e-13


def test_relu_bound_is_the_tighter_one():
    rng = np.random.default_rng(0)
    for name in LOSSES:
        h, y, w, b = draw_point(rng, 5, 6, 20, 2.0)
        kwargs = {"weight_decay": 0.02, "feature_decay": 0.02, "bias_decay": 0.1}
        free = nc.certify(np.abs(h), y, w, b, loss_of(name), **kwargs)
        problem = nc.Problem(loss_of(name), 5, batch_size=20, features="relu", **kwargs)
        relu = nc.certify(np.abs(h), y, w, b, problem)
        assert relu.lower_bound >= free.lower_bound - 1e-14
        assert relu.objective == free.objective


def test_batches_devices_and_types_agree():
    rng = np.random.default_rng(1)
    h, y, w, b = draw_point(rng, 7, 9, 500, 1.0)
    h, w, b = (part.astype(np.float32) for part in (h, w, b))
    kwargs = {"weight_decay": 0.01, "feature_decay": 0.02, "bias_decay": 0.0, "batch_size": 64}
    whole = nc.certify(h, y, w, b, "bce", **kwargs)
    tensors = nc.certify(
        torch.from_numpy(h), torch.from_numpy(y), torch.from_numpy(w), torch.from_numpy(b), "bce", **kwargs
    )
    batches = [(h[start : start + 37], y[start : start + 37]) for start in range(0, 500, 37)]
    parts = nc.certify(batches, None, w, b, "bce", **kwargs)
    linear = torch.nn.Linear(9, 7)
    linear.weight.data, linear.bias.data = torch.from_numpy(w), -torch.from_numpy(b)
    head = nc.certify(h, y, loss="bce", head=linear, **kwargs)
    for other in (tensors, parts, head):
        assert other.lower_bound == pytest.approx(whole.lower_bound, rel=1e-12)
        assert other.objective == pytest.approx(whole.objective, rel=1e-12)
        assert other.num_samples == 500
    doubles = nc.certify(h.astype(np.float64), y, w.astype(np.float64), b.astype(np.float64), "bce", **kwargs)
    assert doubles == whole


def test_batch_size_and_class_counts_stand_for_samples():
    rng = np.random.default_rng(2)
    h, y, w, b = draw_point(rng, 3, 4, 3, 1.5)
    counts = np.array([5, 2, 9])
    kwargs = {"weight_decay": 0.03, "bias_decay": 0.2}
    repeated = nc.certify(np.repeat(h, counts, axis=0), np.repeat(y, counts), w, b, "ce", feature_decay=0.01, **kwargs)
    counted = nc.certify(h, y, w, b, "ce", feature_decay=0.01, class_counts=counts, **kwargs)
    assert counted.objective == pytest.approx(repeated.objective, rel=1e-13)
    assert counted.lower_bound == pytest.approx(repeated.lower_bound, rel=1e-13)
    batched = nc.certify(h, y, w, b, "ce", feature_decay=0.01, batch_size=12, **kwargs)
    direct = nc.certify(h, y, w, b, "ce", feature_decay=0.01 * 12 / 3, **kwargs)
    assert batched == direct


def test_many_classes_take_the_other_way_to_the_same_sums():
    rng = np.random.default_rng(4)
    h, y, w, b = draw_point(rng, 80, 12, 200, 1.0)
    kwargs = {"weight_decay": 1e-3, "feature_decay": 1e-3, "bias_decay": 0.01}
    c = nc.certify(h, y, w, b, "bce", **kwargs)
    assert c.objective == pytest.approx(dual.objective(h, y, w, b, make_loss("bce"), 1e-3, 1e-3, 0.01), rel=1e-12)
    assert dual.plain_bound(h, y, w, b, make_loss("bce"), 1e-3, 1e-3, 0.01) - 1e-12 <= c.lower_bound < c.objective


def test_class_weights():
    rng = np.random.default_rng(5)
    h, y, w, b = draw_point(rng, 3, 4, 11, 1.0)
    loss = make_loss("bce", weight=[1.0, 2.0, 0.5])
    c = nc.certify(h, y, w, b, loss, weight_decay=0.01, feature_decay=0.01, bias_decay=0.1)
    z = torch.tensor(h @ w.T - b)
    assert c.data_loss == pytest.approx(float(loss(z, torch.tensor(y))), rel=1e-12)
    # A weight is a share of the loss: two samples of weight 1 at one point are one of weight 2 at sqrt(2) the decay.
    assert c.lower_bound < c.objective
    for t in (0.0, 0.1, 0.5, 1.0):
        zt = torch.tensor(t * t * (h @ w.T) - t * b)
        value = float(loss(zt, torch.tensor(y))) + 0.005 * t * t * (np.sum(w**2) + np.sum(h**2)) + 0.05 * t * t * b @ b
        assert c.lower_bound <= value


def test_a_bias_under_way_does_not_spoil_the_bound():
    p = nc.predict("bce", num_classes=10, batch_size=128, weight_decay=5e-4, feature_decay=5e-4, bias_decay=5e-6)
    h, y, w, b = p.configuration(12)
    kwargs = {"weight_decay": 5e-4, "feature_decay": 5e-4, "bias_decay": 5e-6, "batch_size": 128}
    moved = nc.certify(h, y, w, b + torch.linspace(-0.3, 0.4, 10, dtype=torch.float64), "bce", **kwargs)
    assert moved.lower_bound == pytest.approx(p.objective, abs=1e-7)
    assert moved.gap == pytest.approx(moved.objective - p.objective, abs=1e-7)


def test_a_certificate_is_one_json_object():
    rng = np.random.default_rng(9)
    c = nc.certify(*draw_point(rng, 3, 4, 6, 1.0), "mse", weight_decay=0.01, feature_decay=0.01)
    assert json.loads(c.to_json()) == {key: None if value != value else value for key, value in c.to_dict().items()}


@pytest.mark.parametrize("loss", ["ce", "bce", "mse"])
def test_tiny_decays_do_not_underflow(loss):
    p = nc.predict(loss, 3, per_class=1, weight_decay=1e-200, feature_decay=1e-200)
    c = nc.certify(*p.configuration(), loss, weight_decay=1e-200, feature_decay=1e-200)
    assert abs(c.gap) <= 1e-14
    far = nc.certify(2 * np.eye(3), np.arange(3), np.eye(3), None, loss, weight_decay=1e-200, feature_decay=1e-200)
    assert far.dual_norm > 1e199
    assert far.lower_bound <= p.objective + 1e-14


def test_no_negative_zero():
    c = nc.certify(np.eye(3), np.arange(3), np.eye(3), None, "mse", weight_decay=1e-3, feature_decay=1e-3)
    assert str(c.lower_bound) == "0.0"


def test_old_keywords_still_work_and_the_old_name_of_features_warns():
    rng = np.random.default_rng(4)
    h, y, w, b = draw_point(rng, 3, 4, 9, 1.0)
    decays = {"weight_decay": 0.02, "feature_decay": 0.03, "bias_decay": 0.1}
    new = nc.certify(np.abs(h), y, w, b, nc.Problem("bce", 3, batch_size=9, features="relu", **decays))
    with pytest.warns(DeprecationWarning, match="features_model is deprecated"):
        old = nc.certify(np.abs(h), y, w, b, "bce", features_model="relu", **decays)
    assert old == new
    with pytest.warns(DeprecationWarning, match="use .features"):
        assert old.features_model == "relu"
    counted = nc.certify(h, y, w, b, loss="ce", class_counts=[4, 5, 6], **decays)
    assert counted == nc.certify(h, y, w, b, nc.Problem("ce", class_counts=[4, 5, 6], **decays))
    batches = nc.certify(h, y, w, b, loss="ce", batch_size=3, **decays)
    assert batches == nc.certify(h, y, w, b, nc.Problem("ce", 3, batch_size=3, **decays))


def test_a_problem_and_the_point_must_fit():
    rng = np.random.default_rng(4)
    h, y, w, b = draw_point(rng, 3, 4, 9, 1.0)
    problem = nc.Problem("ce", 3, batch_size=9, weight_decay=0.02, feature_decay=0.03)
    with pytest.raises(TypeError, match="problem says all of weight_decay already"):
        nc.certify(h, y, w, b, problem, weight_decay=0.1)
    with pytest.raises(ValueError, match="problem: expected 3 classes as weight has rows, got 4"):
        nc.certify(h, y, w, b, problem.replace(num_classes=4))
    with pytest.raises(ValueError, match="bias: expected None or zeros as the problem has bias=False"):
        nc.certify(h, y, w, b, problem.replace(bias=False))
    assert nc.certify(h, y, w, 0 * b, problem.replace(bias=False)) == nc.certify(h, y, w, None, problem)
    with pytest.raises(ValueError, match="features='relu' is for non-negative ones"):
        nc.certify(h, y, w, b, problem.replace(features="relu"))
    with pytest.raises(
        ValueError, match="weight: expected a row for each of 2 or more classes, got 1; two classes are"
    ):
        nc.certify(torch.ones(2, 3), torch.arange(2), torch.ones(1, 3), weight_decay=1e-3, feature_decay=1e-3)
    with pytest.raises(TypeError, match="weight_decay is missing"):
        nc.certify(h, y, w, b)


def test_empty_classes_are_left_out():
    rng = np.random.default_rng(6)
    h, y, w, b = draw_point(rng, 3, 4, 30, 1.0)
    keep = y != 1
    c = nc.certify(h[keep], y[keep], w, b, "ce", weight_decay=0.01, feature_decay=0.01, bias_decay=0.1)
    assert c.lower_bound < c.objective
    assert c.num_samples == keep.sum()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight_decay": 0.0}, "weight_decay is 0: the minimum"),
        ({"feature_decay": -1.0}, "feature_decay: expected a finite number that is not negative, got -1.0"),
        ({"bias_decay": math.nan}, "bias_decay: expected a finite number that is not negative, got nan"),
        ({"weight_decay": None}, "weight_decay: expected a number, got None"),
        ({"feature_decay": "1"}, "feature_decay: expected a number, got '1'"),
        ({"bias_decay": None}, "bias_decay: expected a number, got None"),
        ({"weight_decay": 1e-300}, "weight_decay: expected a number between 1e-200 and 1e.100, got 1e-300"),
        ({"batch_size": 0}, "batch_size: expected a positive number, got 0"),
        ({"batch_size": "8"}, "batch_size: expected a number, got '8'"),
        ({"loss": "focal"}, "loss: expected one with a known convex conjugate, got 'focal'"),
        ({"loss": "hinge"}, "hinge"),
        ({"class_counts": [1, 2]}, "class_counts has 2 entries but num_classes is 3"),
        ({"head": torch.nn.Linear(4, 3)}, "not both"),
        ({"labels": np.array([0, 1, 5])}, "outside 0..2"),
        ({"labels": np.array([0, 1])}, "labels"),
        ({"weight": np.ones((3, 7))}, "columns"),
        ({"features": np.full((3, 4), np.nan)}, "non-finite"),
    ],
)
def test_bad_input_is_explained(change, message):
    rng = np.random.default_rng(7)
    arguments = {
        "features": rng.standard_normal((3, 4)),
        "labels": np.arange(3),
        "weight": rng.standard_normal((3, 4)),
        "bias": np.zeros(3),
        "loss": "ce",
        "weight_decay": 0.01,
        "feature_decay": 0.01,
    }
    with pytest.raises((ValueError, TypeError), match=message):
        nc.certify(**{**arguments, **change})


def test_a_module_in_the_place_of_the_weight_is_named():
    """Its weight and bias would be taken with the wrong sign of the bias; head= knows it."""
    linear = torch.nn.Linear(3, 2)
    with pytest.raises(TypeError, match=r"^weight: expected an array \[K, d\], got Linear; .* head=$"):
        nc.certify(torch.ones(4, 3), torch.tensor([0, 1, 0, 1]), linear, weight_decay=0.1, feature_decay=0.1)


def test_the_relative_gap_is_a_share_of_the_objective():
    rng = np.random.default_rng(8)
    h, y, w, b = draw_point(rng, 3, 4, 12, 1.0)
    c = nc.certify(h, y, w, b, "bce", weight_decay=0.02, feature_decay=0.03, bias_decay=0.1)
    assert c.gap == pytest.approx(c.objective - c.lower_bound, rel=1e-12)
    assert c.relative_gap * c.objective == pytest.approx(c.gap, rel=1e-12)
    assert 0.01 < c.relative_gap < 1


@pytest.mark.parametrize(
    ("sizes", "seen", "known"),
    [
        ({"class_counts": (4, 2, 6)}, (0, 1, 2), True),
        ({"class_counts": (4, 2, 6)}, (0, 2), False),
        ({"class_counts": (4, 0, 6)}, (0, 2), True),
        ({"class_counts": (4, 2, 6), "batch_size": 6}, (0, 2), False),
        ({"per_class": 4, "num_classes": 3}, (0, 1), False),
        ({"per_class": 4, "num_classes": 3}, (0, 1, 2), True),
        ({"batch_size": 6, "num_classes": 3}, (0, 1), True),
    ],
)
def test_a_class_that_counts_must_have_been_measured(sizes, seen, known):
    h, y, w, b = map(torch.from_numpy, draw_point(np.random.default_rng(9), 3, 4, 12, 1.0))
    kept = torch.isin(y, torch.tensor(seen))
    problem = nc.Problem("ce", weight_decay=0.02, feature_decay=0.03, bias_decay=0.1, **sizes)
    found = certify_if_known(h[kept], y[kept], nc.Head(w, b), problem)
    assert (found is not None) == known
    if known:
        assert found.gap == nc.certify(h[kept], y[kept], w, b, problem).gap


def test_nothing_is_certified_without_a_problem_or_a_convex_loss():
    h, y, w, b = map(torch.from_numpy, draw_point(np.random.default_rng(9), 3, 4, 12, 1.0))
    sizes = {"num_classes": 3, "per_class": 4, "weight_decay": 0.02, "feature_decay": 0.03}
    smooth = nc.Problem("ce", mixing=mixing_law(3, label_smoothing=0.1), **sizes)
    for problem in (None, nc.Problem("focal", **sizes), smooth):
        assert certify_if_known(h, y, nc.Head(w, b), problem) is None
