"""The way down from strict saddles, against finite differences of the objective."""

import math

import numpy as np
import pytest
import torch

import ncollapse as nc
from ncollapse.theory import escape
from reference import dual


def along(h, y, w, b, e, t):
    return h + t * e.features.numpy()[y], y, w + t * e.weight.numpy(), b


@pytest.mark.parametrize("loss", ["ce", "bce", "ls", "mse"])
@pytest.mark.parametrize("bias_decay", [None, 0.0, 0.05])
def test_origin_is_a_strict_saddle(loss, bias_decay):
    k, d, per_class, lw, lh = 4, 5, 3, 1e-2, 2e-2
    made = nc.make_loss(loss)
    y = np.repeat(np.arange(k), per_class)
    h, w = np.zeros((k * per_class, d)), np.zeros((k, d))
    # With W = H = 0 the best common bias: sigmoid(-b) - 1/k = lb b for BCE, -1/k for MSE at lb = 0, 0 for the softmax.
    b = None
    if bias_decay is not None:
        b = np.full(k, {"ce": 0.0, "ls": 0.0, "bce": _bce_bias(k, bias_decay), "mse": -1 / k / (1 + bias_decay)}[loss])
    decays = {"weight_decay": lw, "feature_decay": lh, "bias_decay": bias_decay or 0.0}
    e = escape(h, y, w, b, loss, **decays)
    c = nc.certify(h, y, w, b, loss, **decays)
    tau = math.sqrt(lw * lh)
    assert c.dual_norm > 1
    assert e.slope == pytest.approx(0.0, abs=1e-14)
    assert e.curvature == pytest.approx(-2 * tau * (c.dual_norm - 1), rel=1e-10)
    assert _second_difference(h, y, w, b, e, made, lw, lh, bias_decay or 0.0) == pytest.approx(e.curvature, abs=1e-6)


@pytest.mark.parametrize(("num_classes", "bias_decay"), [(10, 0.05), (4, 1.0), (10, 1e3)])
def test_printed_bce_theorem_above_the_critical_bias_decay_is_a_strict_saddle(num_classes, bias_decay):
    n, lw, lh = 2, 5e-3, 5e-3
    problem = nc.Problem(
        "bce", num_classes, per_class=n, weight_decay=lw, feature_decay=lh, bias_decay=bias_decay, features="free"
    )
    p = nc.predict(problem)
    assert p.phase == "saturated"
    h, y, w, b = theorem_3_2(problem)
    h, y = np.repeat(h, n, axis=0), np.repeat(y, n)
    decays = {"weight_decay": lw, "feature_decay": lh, "bias_decay": bias_decay}
    c = nc.certify(h, y, w, b, "bce", **decays)
    assert c.objective > p.objective + 1e-3
    assert c.lower_bound <= p.objective
    assert c.dual_norm > 1
    e = escape(h, y, w, b, "bce", **decays)
    mu = math.sqrt(n * lw * lh)
    assert e.slope == pytest.approx(0.0, abs=1e-11)
    assert e.curvature == pytest.approx(-2 * (bias_decay * b[0] - mu) / math.sqrt(n), rel=1e-8)
    assert _second_difference(h, y, w, b, e, nc.make_loss("bce"), lw, lh, bias_decay) == pytest.approx(
        e.curvature, abs=1e-6
    )
    # Following it does lead below.
    down = dual.objective(*along(h, y, w, b, e, 0.1), nc.make_loss("bce"), lw, lh, bias_decay)
    assert down < c.objective


def test_derivatives_hold_at_any_point():
    rng = np.random.default_rng(0)
    y = np.array([0, 0, 1, 2, 2, 2])
    h, w, b = rng.standard_normal((6, 5)), rng.standard_normal((3, 5)), rng.standard_normal(3)
    for loss in ("ce", "bce", "mse"):
        e = escape(h, y, w, b, loss, weight_decay=0.01, feature_decay=0.02, bias_decay=0.1)
        made = nc.make_loss(loss)
        up, down = (dual.objective(*along(h, y, w, b, e, t), made, 0.01, 0.02, 0.1) for t in (1e-5, -1e-5))
        assert e.slope == pytest.approx((up - down) / 2e-5, abs=1e-7)
        assert e.curvature == pytest.approx(_second_difference(h, y, w, b, e, made, 0.01, 0.02, 0.1), abs=1e-5)


def test_no_way_down_from_an_optimum_or_without_room():
    p = nc.predict("bce", num_classes=4, per_class=2, weight_decay=0.01, feature_decay=0.01, bias_decay=0.1)
    h, y, w, b = p.configuration(6)
    kwargs = {"feature_decay": 0.01, "bias_decay": 0.1, "batch_size": 8}
    assert escape(h, y, w, b, "bce", weight_decay=0.0100001, **kwargs) is None
    full = torch.eye(4, dtype=torch.float64)
    assert escape(full, torch.arange(4), full, None, "bce", weight_decay=1e-4, feature_decay=1e-4) is None


def theorem_3_2(problem):
    """The configuration printed in bce-vs-ce Theorem 3.2: a centred ETF whose bias solves Eq. 12, by bisection."""
    k, mu = problem.num_classes, problem.mu

    def excess(b):  # P + Q = K mu gives a; the bias equation is what is left
        a = _gap(k, mu, b)
        pos, neg = (k - 1) * a / k - b, -a / k - b
        p, q = 1 / (1 + math.exp(pos)), 1 / (1 + math.exp(-neg))
        return (k - 1) * q - p - k * problem.bias_decay * b

    low, high = 0.0, 50.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    a = _gap(k, mu, low)
    z = a * (np.eye(k) - 1 / k)
    values, vectors = np.linalg.eigh(z)
    root = vectors @ np.diag(np.sqrt(np.maximum(values, 0))) @ vectors.T
    t = (problem.per_class * problem.feature_decay / problem.weight_decay) ** 0.25
    pad = np.zeros((k, 2))
    return np.hstack((root / t, pad)), np.arange(k), np.hstack((t * root, pad)), np.full(k, low)


def _gap(k, mu, b):
    low, high = 0.0, 200.0
    for _ in range(200):
        a = (low + high) / 2
        total = 1 / (1 + math.exp((k - 1) * a / k - b)) + 1 / (1 + math.exp(a / k + b))
        low, high = (a, high) if total > k * mu else (low, a)
    return low


def _bce_bias(k, bias_decay):
    low, high = 0.0, 50.0
    for _ in range(200):
        b = (low + high) / 2
        low, high = (b, high) if 1 / (1 + math.exp(b)) - 1 / k > bias_decay * b else (low, b)
    return low


def _second_difference(h, y, w, b, e, loss, lw, lh, lb, t=1e-4):
    value = [dual.objective(*along(h, y, w, b, e, s), loss, lw, lh, lb) for s in (-t, 0.0, t)]
    return (value[0] - 2 * value[1] + value[2]) / t**2
