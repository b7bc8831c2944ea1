"""Every balanced closed form against brute force over all of W, H and b."""

import math

import numpy as np
import pytest

import ncollapse as nc
from ncollapse.theory.balanced import make_phase_finder
from reference.theory import minimise, minimise_symmetric

PHASES = {"collapsed", "mean-only", "centred", "saturated", "orthogonal-frame"}
PARAMS = {"focal": {"gamma": 2.0}, "ls": {"alpha": 0.1}}


def make(loss, k, kmu, lb, features, n=1.0, ratio=2.0, **more):
    """A problem with K mu = `kmu` and weight_decay = ratio^2 feature_decay; `lb=None` has no bias."""
    tau = kmu / k / math.sqrt(n)
    decays = {"weight_decay": tau * ratio, "feature_decay": tau / ratio, "bias_decay": lb or 0.0}
    params = {**PARAMS.get(loss, {}), **more}
    return nc.Problem(loss, k, per_class=n, bias=lb is not None, features=features, **decays, **params)


def brute(problem, **options):
    params = {**problem.loss_params}
    if {"kappa", "beta"} <= params.keys():
        params = {"A": 2 * params["kappa"], "C": 2.0, "B": params["beta"]}
    if {"alpha", "M"} <= params.keys():
        params = {"A": params["alpha"], "C": 1.0, "B": params["M"]}
    return minimise(
        problem.loss.name,
        problem.counts,
        problem.weight_decay,
        problem.feature_decay,
        problem.bias_decay,
        bias=problem.bias,
        relu=problem.features == "relu",
        dim=problem.dim,
        **params,
        **options,
    )


def check(problem, scores=1e-6, **options):
    prediction, found = nc.predict(problem), brute(problem, **options)
    assert prediction.phase in PHASES
    assert found["objective"] == pytest.approx(prediction.objective, abs=1e-10)
    names = ["positive_score", "negative_score"]
    if not (problem.loss.contrastive and problem.bias_decay == 0):
        names.append("bias")
    for name in names:
        assert found[name] == pytest.approx(getattr(prediction, name), abs=scores), name
    for name in ("weight_energy", "feature_energy"):
        assert found[name] == pytest.approx(getattr(prediction, name), rel=1e-4, abs=scores), name
    return prediction


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize("kmu", [0.15, 0.96, 1.04])
@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("lb", [0.0, 0.03, 1e3, None])
def test_bce(k, kmu, lb, features):
    check(make("bce", k, kmu, lb, features))


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize("kmu", [0.2, 0.97, 1.03])
@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("lb", [0.0, 0.4, 1e3, None])
def test_mse(k, kmu, lb, features):
    check(make("mse", k, kmu, lb, features))


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize("kmu", [0.1, 0.9, 1.05])
@pytest.mark.parametrize("lb", [0.0, 0.05, None])
@pytest.mark.parametrize("loss", ["ce", "ls"])
def test_cross_entropy(loss, kmu, lb, features):
    check(make(loss, 4, kmu * (0.9 if loss == "ls" else 1), lb, features))


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize("gamma", [0.5, 3.0])
@pytest.mark.parametrize("kmu", [0.05, 0.4, 1.4])
def test_focal(gamma, kmu, features):
    check(make("focal", 4, kmu, 0.1, features, gamma=gamma), restarts=4)


@pytest.mark.parametrize(("loss", "features"), [("bce", "free"), ("bce", "relu"), ("mse", "free")])
@pytest.mark.parametrize("side", [0.98, 1.0, 1.02])
def test_critical_bias_decay(loss, side, features):
    """The phase changes exactly there; at the critical value itself the descent is slow, the objective still exact."""
    critical = nc.predict(make(loss, 6, 0.1, 0.01, features)).critical_bias_decay
    prediction = check(make(loss, 6, 0.1, side * critical, features), scores=1e-6 if side != 1 else 3e-4)
    if side != 1:
        assert (prediction.phase == "saturated") == (side > 1)
    else:
        assert prediction.mean_component == pytest.approx(-prediction.gap if features == "relu" else 0.0, abs=1e-9)


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize("n", [3.0, 12.8, 0.4])
@pytest.mark.parametrize("loss", ["ce", "bce", "mse", "focal"])
def test_samples_per_class(loss, n, features):
    """n = 3: a feature for each of the samples, free to differ; n fractional: n = batch/K."""
    problem = make(loss, 3, 0.2, 0.02, features, n=n)
    prediction = check(problem, restarts=4)
    batched = nc.predict(problem.replace(batch_size=3 * n))
    assert batched.objective == pytest.approx(prediction.objective, rel=1e-13)
    assert batched.phase == prediction.phase


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize(
    "params", [{"kappa": 1.0, "beta": 15.0}, {"kappa": 3.0, "beta": 2.0}, {"alpha": 0.3, "M": 2.0}]
)
@pytest.mark.parametrize("lb", [0.0, 0.5, None])
@pytest.mark.parametrize("kmu", [0.3, 1.2])
def test_rescaled_mse(params, lb, kmu, features):
    check(make("mse", 4, kmu, lb, features, **params), scores=1e-5 if "beta" in params else 1e-6)


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize("lb", [0.0, 0.01, 2.0, None])
def test_smoothed_bce(lb, features):
    check(make("bce", 5, 0.2, lb, features, label_smoothing=0.1))


@pytest.mark.parametrize("loss", ["ce", "bce", "ls", "focal", "mse"])
def test_one_dimension_less_than_classes(loss):
    """d = K-1 is enough wherever the optimum is centred."""
    problem = make(loss, 4, 0.2, 0.0, "free").replace(dim=3)
    assert check(problem, restarts=6).phase == "centred"


@pytest.mark.parametrize("k", [4, 5, 6])
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("lb", [0.0, 0.3, None])
def test_mse_in_few_dimensions(k, dim, lb):
    problem = make("mse", k, 0.2, lb, "free").replace(dim=dim)
    prediction, found = nc.predict(problem), brute(problem, restarts=4)
    assert found["objective"] == pytest.approx(prediction.objective, abs=1e-10)
    assert found["positive_score"] == pytest.approx(prediction.positive_score, abs=1e-6)
    assert found["weight_energy"] == pytest.approx(prediction.weight_energy, rel=1e-6)
    if lb is not None:  # without a bias the mean is not unique
        assert found["negative_score"] == pytest.approx(prediction.negative_score, abs=1e-6)
        assert found["b"] == pytest.approx([prediction.bias] * k, abs=1e-6)


@pytest.mark.parametrize("lb", [0.0, 0.1, 3.0])
@pytest.mark.parametrize("k", [2, 10, 1000])
def test_mse_bias_is_the_threshold(k, lb):
    """-1/(K(1+lb)) in the centred phase, which dim = K-1 enforces; mse-landscape prints +b."""
    prediction = nc.predict(make("mse", k, 0.3, lb, "free").replace(dim=k - 1))
    assert prediction.phase == "centred"
    assert prediction.bias == pytest.approx(-1 / (k * (1 + lb)), rel=1e-12)
    free = nc.predict(make("mse", k, 0.3, 0.1, "free"))
    assert free.phase == "centred"
    assert free.bias == pytest.approx(-1 / (k * 1.1), rel=1e-12)


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize(
    ("loss", "kmu", "lb"),
    [
        ("bce", 0.1, 0.0),
        ("bce", 0.1, 1e-3),
        ("bce", 0.999, 1e3),
        ("bce", 1.001, 1e3),
        ("bce", 1.001, 0.0),
        ("bce", 0.1, None),
        ("mse", 0.5, 0.1),
        ("mse", 0.999, 1e3),
        ("ce", 0.1, 0.0),
        ("ce", 1.001, 0.0),
        ("ls", 0.8, 0.0),
        ("focal", 0.9, 0.0),
    ],
)
def test_a_thousand_classes(loss, kmu, lb, features):
    """Against direct search over symmetric logits, and (convex losses) certified over everything."""
    problem = make(loss, 1000, kmu, lb, features)
    prediction = nc.predict(problem)
    found = minimise_symmetric(
        loss, 1000, problem.mu, problem.bias_decay, bias=problem.bias, relu=features == "relu", **problem.loss_params
    )
    assert found["objective"] == pytest.approx(prediction.objective, abs=1e-10)
    assert found["gap"] == pytest.approx(prediction.gap, abs=1e-6)
    assert found["mean_component"] / 1000 == pytest.approx(prediction.mean_component / 1000, abs=2e-6)


@pytest.mark.parametrize(
    ("loss", "features", "lb", "phase"),
    [
        ("bce", "relu", 1.0, "saturated"),
        ("bce", "free", 1e-6, "centred"),
        ("ce", "relu", 1.0, "orthogonal-frame"),
        ("mse", "free", 0.01, "centred"),
    ],
)
def test_a_thousand_classes_are_certified(loss, features, lb, phase):
    problem = make(loss, 1000, 0.1, lb, features)
    prediction = nc.predict(problem)
    assert prediction.phase == phase
    point = prediction.configuration()
    certificate = nc.certify(*point, problem)
    assert certificate.objective == pytest.approx(prediction.objective, abs=1e-10)
    assert abs(certificate.gap) < 1e-9


def test_all_phases_occur():
    seen = {
        nc.predict(make("bce", 6, kmu, lb, features)).phase
        for kmu in (0.15, 1.04)
        for lb in (0.0, 1e3)
        for features in ("free", "relu")
    }
    assert seen == PHASES


def test_focal_first_order_transition():
    """K = 30, gamma = 2: three thresholds, and the global minimum jumps at the middle one."""
    transition = nc.predict(make("focal", 30, 0.5, 0.0, "free")).transition
    assert transition.first_order
    assert transition.mu_lo < transition.mu_c < transition.mu_hi
    for factor, separated in ((0.999, True), (1.001, False)):
        problem = make("focal", 30, 30 * transition.mu_c * factor, 0.0, "free")
        prediction = nc.predict(problem)
        assert (prediction.gap > 0) == separated
        found = minimise_symmetric("focal", 30, problem.mu, 0.0, gamma=2.0)
        assert found["objective"] == pytest.approx(prediction.objective, abs=1e-10)
        assert found["gap"] == pytest.approx(prediction.gap, abs=1e-5)
    low, high = transition.mu_lo, transition.mu_hi
    assert any(
        "spurious" in note for note in nc.predict(make("focal", 30, 15 * (low + transition.mu_c), 0.0, "free")).notes
    )
    assert not nc.predict(make("focal", 30, 30 * low * 0.99, 0.0, "free")).notes[1:]
    assert any(
        "local" in note for note in nc.predict(make("focal", 30, 15 * (high + transition.mu_c), 0.0, "free")).notes
    )


def test_focal_orders():
    """The smallest K with a first-order transition, for each gamma."""
    for gamma, smallest in ((0.5, 57), (1.0, 24), (2.0, 18), (3.0, 18), (5.0, 20)):
        orders = [
            nc.predict(make("focal", k, 0.5, 0.0, "free", gamma=gamma)).transition.first_order
            for k in (smallest - 1, smallest)
        ]
        assert orders == [False, True]


def test_focal_without_gamma_is_cross_entropy():
    focal, ce = nc.predict(make("focal", 7, 0.3, 0.0, "free", gamma=0.0)), nc.predict(make("ce", 7, 0.3, 0.0, "free"))
    assert focal.gap == pytest.approx(ce.gap, rel=1e-13)


@pytest.mark.parametrize("dim", [None, 3])
@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize("scale", [{}, {"kappa": 1.0, "beta": 3.0}, {"alpha": 2.0, "M": 3.0}])
@pytest.mark.parametrize("lb", [0.0, 0.05, 5.0])
def test_the_mean_over_classes_is_the_sum_with_decays_times_k(features, scale, lb, dim):
    """L/K + decay/2 |.|^2 = (L + K decay/2 |.|^2)/K: the same minimiser, the value over K."""
    if dim is not None and (features == "relu" or "alpha" in scale):
        pytest.skip("no closed form")
    k, decays = 5, {"weight_decay": 2e-3, "feature_decay": 3e-3}
    mean = nc.predict(
        "mse", k, per_class=2, dim=dim, features=features, bias_decay=lb, **decays, **scale, class_reduction="mean"
    )
    times = {name: k * value for name, value in decays.items()}
    total = nc.predict("mse", k, per_class=2, dim=dim, features=features, bias_decay=k * lb, **times, **scale)
    assert mean.phase == total.phase
    for name in ("positive_score", "negative_score", "bias", "gap", "mean_component", "weight_energy"):
        assert getattr(mean, name) == pytest.approx(getattr(total, name), rel=1e-10, abs=1e-12)
    assert mean.objective == pytest.approx(total.objective / k, rel=1e-10)
    assert k * mean.collapse_mu == pytest.approx(total.collapse_mu, rel=1e-10)
    slope = mean.sensitivity()["gap"]["weight_decay"]
    assert slope == pytest.approx(k * total.sensitivity()["gap"]["weight_decay"], rel=1e-9, abs=1e-9)
    certificate = nc.certify(*mean.configuration(), mean.problem)
    assert certificate.objective == pytest.approx(mean.objective, rel=1e-12)
    if dim is None:
        assert abs(certificate.gap) < 1e-10
    landscape = nc.landscape("mse", k, **scale, class_reduction="mean")
    assert landscape.value == pytest.approx(nc.landscape("mse", k, **scale).value / k)


def test_thin_mse_of_any_scale_against_the_minimiser():
    problem = nc.Problem(
        "mse", 5, per_class=2, dim=3, weight_decay=0.02, feature_decay=0.03, bias_decay=0.1, kappa=1, beta=3
    )
    p = nc.predict(problem)
    assert nc.solve(problem).objective == pytest.approx(p.objective, abs=1e-9)
    assert nc.certify(*p.configuration(), problem).objective == pytest.approx(p.objective, rel=1e-12)


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("loss", ["ce", "bce", "focal", "ls", "mse"])
def test_a_phase_alone_is_that_of_the_whole_prediction(loss, bias, features):
    rng = np.random.default_rng(0)
    for k in (3, 10):
        find = make_phase_finder(make(loss, k, 0.1, 0.1 if bias else None, features))
        found = set()
        for _ in range(30):
            mu, lb = 10 ** rng.uniform(-3, 0), 10 ** rng.uniform(-4, 1)
            problem = make(loss, k, k * mu, lb if bias else None, features)
            phase = nc.predict(problem, method="closed").phase
            assert find(problem.mu, lb) == phase
            found.add(phase)
        assert len(found) > 1


def test_a_phase_needs_a_closed_form():
    class Bumpy(nc.CELoss):
        contrastive = False

    with pytest.raises(ValueError, match="no closed form is known"):
        make_phase_finder(nc.Problem(Bumpy(), 3, per_class=1, weight_decay=0.1, feature_decay=0.1))
