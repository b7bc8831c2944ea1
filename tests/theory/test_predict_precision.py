"""Scalar equations hold to 1e-12 for any K and decay; thresholds are where the phase changes."""

import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncollapse as nc
from ncollapse.losses.binary_cross_entropy import SigmoidSlopes
from ncollapse.theory.separable import find_critical_bias_decay

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


@pytest.mark.parametrize("kmu", [1e-9, 3e-4, 0.0123, 0.37, 0.5, 0.86])
def test_terms_that_cancel_leave_no_critical_bias_decay(kmu):
    """H >= 0: K = 4 has P = Q at the border, c = -a + K mu / lb; MSE has c = a there. Neither ever saturates."""
    cases = [("bce", 4, {})]
    cases += [("mse", k, {}) for k in (2, 3, 7, 30)] + [("mse", 5, {"alpha": 5.0, "M": 2.0})]
    for n in (1, 2, 5, 12.8):
        for loss, k, params in cases:
            decays = {"weight_decay": kmu / k * 0.3, "feature_decay": kmu / k / 0.3 / n}
            p = nc.predict(loss, k, per_class=n, features="relu", **decays, **params)
            assert p.critical_bias_decay == math.inf


@pytest.mark.parametrize("distance", [1e-2, 1e-6, 1e-10, 1e-13])
def test_critical_bias_decay_near_its_end(distance):
    """mu / B(mu) in 50 digits, as B(mu) -> 0; B is known to 1e-15 of its terms."""
    for border, k in ((1 / (4 + 2 * math.sqrt(2)), 3), (0.25, 4)):
        mu = border * (1 - distance)
        with mpmath.workdps(50):
            exact_mu = mpmath.mpf(mu)
            odds = [mpmath.log(1 / (factor * exact_mu) - 1) for factor in (2, k - 2)]
            exact = float(k * exact_mu / ((k - 1) * odds[0] - odds[1]))
        assert find_critical_bias_decay(SigmoidSlopes(), k, mu, relu=False) == pytest.approx(
            exact, rel=1e-14 / distance
        )


@pytest.mark.parametrize("decay", [1e-60, 1e-120, 1e-170, 1e-200])
def test_tiny_decays(decay):
    """lb = 0, H free: a = l((K-1) mu) + l(mu), rho = (K-1) a, and the loss vanishes beside the decays."""
    p = nc.predict("bce", 10, per_class=1, weight_decay=decay, feature_decay=decay)
    assert p.gap == pytest.approx(-2 * math.log(decay) - math.log(9), rel=1e-14)
    assert p.objective == pytest.approx(decay * (9 * p.gap + 18), rel=1e-10)
    assert p.collapse_weight_decay == pytest.approx(0.01 / decay, rel=1e-14)
    assert p.sensitivity()["gap"]["weight_decay"] == pytest.approx(-1 / decay, rel=1e-12)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("features", ["free", "relu"])
@pytest.mark.parametrize(
    ("loss", "params"), [("ce", {}), ("bce", {}), ("bce", {"label_smoothing": 0.2}), ("mse", {}), ("focal", {})]
)
def test_the_ends_of_the_range(loss, params, features):
    for decay in (1e-200, 1e-160, 1e100):
        for lb in (0.0, 1e-200, 1e-3, 1e100, None):
            p = nc.predict(make(loss, 10, 10 * decay, lb, features, **params))
            assert all(math.isfinite(value) for value in (p.objective, p.bias, p.gap, p.weight_energy))
            assert all(not math.isnan(value) for row in p.sensitivity().values() for value in row.values())
            p.to_dict(), p.printed_theorem()


def test_printed_theorem_with_next_to_no_bias_decay():
    p = nc.predict("bce", 10, per_class=1, weight_decay=1e-100, feature_decay=1e-3, bias_decay=1e-100, features="relu")
    free = nc.predict(p.problem.replace(features="free"))
    assert p.printed_theorem()["bias"] == pytest.approx(free.bias, rel=1e-12)


def test_no_negative_zeros():
    decays = {"weight_decay": 1e-3, "feature_decay": 1e-3}
    relu = nc.predict("mse", 4, per_class=2, features="relu", **decays)
    gone = nc.predict("ce", class_counts=[3, 1], weight_decay=9, feature_decay=9, features="relu", bias=False)
    for p in (relu, gone, nc.predict("bce", 2, per_class=1, bias=False, **decays)):
        zeros = [value for value in p.to_dict().values() if isinstance(value, float) and value == 0]
        assert zeros
        assert all(math.copysign(1, value) == 1 for value in zeros)


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
