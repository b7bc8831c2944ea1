"""Scalar equations hold to 1e-12 for any K and decay; thresholds are where the phase changes."""

import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncollapse as nc

CLASSES = st.sampled_from([2, 3, 4, 5, 10, 100, 1000, 10**6])
KMU = st.floats(-30, -0.01).map(lambda x: 10.0**x)
DECAYS = st.one_of(st.none(), st.just(0.0), st.floats(-12, 6).map(lambda x: 10.0**x))


def make(loss, k, kmu, lb, features, **params):
    decays = {"weight_decay": kmu / k, "feature_decay": kmu / k, "bias_decay": lb or 0.0}
    return nc.Problem(loss, k, per_class=1, bias=lb is not None, features=features, **decays, **params)


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


@settings(max_examples=200, deadline=None)
@given(k=CLASSES, kmu=KMU, lb=DECAYS, features=st.sampled_from(["free", "relu"]))
def test_bce_is_stationary(k, kmu, lb, features):
    """P, Q read off the scores: P + Q = S(beta), (K-1) Q - P = K beta, beta = lb b, and the phase's own condition."""
    problem = make("bce", k, kmu, lb, features)
    p = nc.predict(problem)
    mu = problem.mu
    pos, neg = p.positive_score - p.bias, p.negative_score - p.bias
    big_p, big_q = sigmoid(-pos), sigmoid(neg)
    # scores of size 70 lose that many units in the last place when the bias is taken off
    tolerance = 1e-12 * max(1.0, abs(p.positive_score), abs(p.negative_score)) * k * mu
    beta = ((k - 1) * big_q - big_p) / k
    if p.phase in ("collapsed", "mean-only"):
        assert big_p + big_q == pytest.approx(1.0)
        return
    assert abs(beta) <= mu * (1 + 1e-9)
    span = k * math.sqrt(max(0.0, (k * mu**2 - beta**2) / (k - 1))) if p.phase == "orthogonal-frame" else k * mu
    assert big_p + big_q == pytest.approx(span, rel=1e-9, abs=tolerance)
    if p.phase == "saturated":
        assert beta == pytest.approx(mu, rel=1e-9)
        assert p.bias == pytest.approx(0.0 if lb is None else mu / lb, rel=1e-12)
        assert abs(p.mean_component) >= (p.gap if features == "relu" else 0) * (1 - 1e-12)
    elif lb is not None:
        assert lb * p.bias == pytest.approx(beta, rel=1e-9, abs=max(tolerance / k, 1e-12 * lb))
    if features == "relu" and p.phase == "orthogonal-frame":
        assert p.mean_component == pytest.approx(-k * p.gap * beta / span, rel=1e-6, abs=1e-9 * k)
    assert p.separates == (big_p < 0.5 and big_q < 0.5)


@settings(max_examples=200, deadline=None)
@given(
    k=CLASSES,
    kmu=KMU,
    features=st.sampled_from(["free", "relu"]),
    gamma=st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0, 10.0]),
)
def test_focal_is_stationary(k, kmu, features, gamma):
    problem = make("focal", k, kmu, 0.0, features, gamma=gamma)
    p = nc.predict(problem)
    slope = problem.loss.at(p.gap, 0.0, k).d_pos
    stretch = math.sqrt(k / (k - 1)) if features == "relu" else 1.0
    if p.gap > 0:
        assert -slope == pytest.approx((k - 1) * problem.mu * stretch, rel=1e-10)
    assert p.objective <= problem.loss.at(0.0, 0.0, k).value + 1e-12
    assert p.transition.mu_lo <= p.transition.mu_c <= p.transition.mu_hi
    assert (p.gap > 0) == (problem.mu < p.transition.mu_c)


@settings(max_examples=200, deadline=None)
@given(k=CLASSES, kmu=KMU, alpha=st.sampled_from([0.0, 0.1, 0.9]), features=st.sampled_from(["free", "relu"]))
def test_cross_entropy_is_stationary(k, kmu, alpha, features):
    problem = make("ls", k, kmu, 0.0, features, alpha=alpha)
    p = nc.predict(problem)
    wrong = 1 / (math.exp(p.gap) + k - 1)
    stretch = math.sqrt(k / (k - 1)) if features == "relu" else 1.0
    if p.gap > 0:
        assert wrong == pytest.approx(problem.mu * stretch + alpha / k, rel=1e-11)
    else:
        assert problem.mu >= p.separation_mu * (1 - 1e-12)


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize("lb", [0.0, 0.01, 0.3, 1e3, None])
@pytest.mark.parametrize(
    ("loss", "params"),
    [
        ("ce", {}),
        ("ls", {"alpha": 0.2}),
        ("bce", {}),
        ("bce", {"label_smoothing": 0.2}),
        ("mse", {}),
        ("mse", {"kappa": 1.0, "beta": 15.0}),
        ("mse", {"alpha": 5.0, "M": 2.0}),
        ("focal", {"gamma": 2.0}),
    ],
)
def test_thresholds_are_where_the_phase_changes(loss, params, lb, features):
    for k in (3, 8, 30):
        start = nc.predict(make(loss, k, 0.3, lb, features, **params))
        assert start.separation_mu <= start.collapse_mu
        for limit, gone in ((start.separation_mu, {"mean-only", "collapsed"}), (start.collapse_mu, {"collapsed"})):
            for factor, expected in ((1 - 1e-6, False), (1 + 1e-6, True)):
                phase = nc.predict(make(loss, k, k * limit * factor, lb, features, **params)).phase
                assert (phase in gone) == expected
        weight_decay = start.collapse_weight_decay
        for factor, separated in ((1 - 1e-6, True), (1 + 1e-6, False)):
            assert (nc.predict(start.problem.replace(weight_decay=weight_decay * factor)).gap > 0) == separated


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_critical_bias_decay_is_where_the_mean_appears(loss, features):
    for k, kmu in ((3, 0.1), (10, 0.01), (100, 0.5), (7, 1.3)):
        critical = nc.predict(make(loss, k, kmu, 0.0, features)).critical_bias_decay
        if math.isinf(critical):
            assert nc.predict(make(loss, k, kmu, 1e9, features)).phase in ("centred", "orthogonal-frame", "collapsed")
            continue
        for factor, expected in ((1 - 1e-6, False), (1 + 1e-6, True)):
            phase = nc.predict(make(loss, k, kmu, critical * factor, features)).phase
            assert (phase in ("saturated", "mean-only")) == expected


def test_three_classes_never_saturate_above_the_known_mu():
    """K = 3: the bias never saturates for mu >= 1/(4 + 2 sqrt 2)."""
    border = 1 / (4 + 2 * math.sqrt(2))
    for factor, never in ((1 + 1e-6, True), (1 - 1e-6, False)):
        assert math.isinf(nc.predict(make("bce", 3, 3 * border * factor, 0.0, "free")).critical_bias_decay) == never


def test_closed_forms_of_the_bce_theorem():
    """bias_decay = 0: a = l((K-1)mu) + l(mu); K = 2: b = 0 at any bias decay."""

    def odds(p):
        return math.log(1 / p - 1)

    p = nc.predict(make("bce", 10, 0.02, 0.0, "free"))
    mu = p.mu
    assert p.gap == pytest.approx(odds(9 * mu) + odds(mu), rel=1e-13)
    assert p.bias == pytest.approx((9 * odds(mu) - odds(9 * mu)) / 10, rel=1e-13)
    for lb in (0.0, 0.1, 1e3, None):
        two = nc.predict(make("bce", 2, 0.02, lb, "free"))
        assert two.bias == 0.0
        assert two.phase == "centred"
        assert two.gap == pytest.approx(2 * odds(0.01), rel=1e-13)
        assert math.copysign(1, two.bias) == 1


@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize("k", [3, 10, 10**6])
@pytest.mark.parametrize("kmu", [1e-12, 0.3, 0.8])
def test_bce_to_twelve_digits(k, kmu, features):
    """The scalar equation in 60 digits, at bias decays from none to just below the critical one."""
    critical = nc.predict(make("bce", k, kmu, 0.0, features)).critical_bias_decay
    decays = [0.0, 1e-3, 0.5, 0.999] if math.isfinite(critical) else [0.0, 0.01, 10.0]
    for decay in decays:
        lb = decay * critical if math.isfinite(critical) else decay
        problem = make("bce", k, kmu, lb, features)
        p = nc.predict(problem)
        assert p.phase in ("centred", "orthogonal-frame")
        with mpmath.workdps(60):
            gap, mean, bias = solve_in_many_digits(problem, p.bias * lb)
        assert p.gap == pytest.approx(float(gap), rel=1e-12)
        assert p.bias == pytest.approx(float(bias), rel=1e-12)
        assert p.mean_component / k == pytest.approx(float(mean) / k, rel=1e-12, abs=1e-12)


def solve_in_many_digits(problem, start):
    """(a, c, b) of a centred or orthogonal-frame optimum: beta + lb (T + a beta / S) = 0, S = K mu or the ellipse."""
    k = mpmath.mpf(problem.num_classes)
    mu, lb = mpmath.mpf(problem.mu), mpmath.mpf(problem.bias_decay)
    relu = problem.features == "relu"

    def visit(beta):
        s = k * mpmath.sqrt((k * mu**2 - beta**2) / (k - 1)) if relu else k * mu
        p, q = (k - 1) * s / k - beta, s / k + beta
        pos, neg = mpmath.log(1 / p - 1), -mpmath.log(1 / q - 1)
        c = -k * (pos - neg) * beta / s if relu else mpmath.mpf(0)
        return pos - neg, c, c / k - (pos + (k - 1) * neg) / k

    beta = mpmath.mpf(0)
    if lb > 0:
        near = mpmath.mpf(start)
        beta = mpmath.findroot(
            lambda x: (x - lb * visit(x)[2]) / mu, (near, near * (1 + mpmath.mpf("1e-9"))), tol=1e-80
        )
    return visit(beta)
