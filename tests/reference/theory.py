"""A brute-force minimiser over every entry of W, H and b, written from the papers' objective alone.

It shares no code with the package: losses and gradients are spelled out in numpy, and where n is whole every sample has
its own feature.
"""

import math

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_softmax


def ce(z, y, alpha=0.0):
    target = (1 - alpha) * y + alpha / z.shape[1]
    log_p = log_softmax(z, axis=1)
    return -(target * log_p).sum(axis=1), np.exp(log_p) - target


def bce(z, y, label_smoothing=0.0):
    target = (1 - label_smoothing) * y + label_smoothing / z.shape[1]
    return (np.logaddexp(0, z) - target * z).sum(axis=1), expit(z) - target


def focal(z, y, gamma=3.0):
    log_p_all = log_softmax(z, axis=1)
    log_p = (log_p_all * y).sum(axis=1)
    q = -np.expm1(log_p)
    d_log_p = gamma * q ** (gamma - 1) * np.exp(log_p) * log_p - q**gamma
    return -(q**gamma) * log_p, d_log_p[:, None] * (y - np.exp(log_p_all))


def mse(z, y, A=1.0, B=1.0, C=1.0):
    weight, goal = C + (A - C) * y, B * y
    return (weight * (z - goal) ** 2).sum(axis=1) / 2, weight * (z - goal)


LOSSES = {"ce": ce, "ls": ce, "bce": bce, "focal": focal, "mse": mse}


def minimise(
    loss,
    counts,
    lw,
    lh,
    lb=0.0,
    *,
    bias=True,
    relu=False,
    dim=None,
    restarts=3,
    seed=0,
    scale=1.0,
    targets=None,
    class_weight=None,
    offset=0.0,
    most_samples=60,
    **loss_params,
):
    """The least objective of several random starts, with its scores (means over the samples) and bias.

    Whole counts give every sample its own feature. Fractional ones cannot: one feature a class then carries its count.
    `targets` [G, K] are soft target rows, of which `counts` [G] are given. `offset` [K] is added to the logits.
    """
    counts = np.asarray(counts, dtype=float)
    rows = np.eye(len(counts)) if targets is None else np.asarray(targets, dtype=float)
    k = rows.shape[1]
    whole = bool(np.all(counts == counts.round())) and counts.sum() <= most_samples
    labels = np.repeat(np.arange(len(counts)), counts.astype(int)) if whole else np.flatnonzero(counts)
    copies = np.ones(len(labels)) if whole else counts[labels]
    d = dim or (3 * k if relu else k)  # room to spare: with d = K non-negative descent often gets stuck
    y = rows[labels]
    weighted = copies if class_weight is None else copies * (y @ np.asarray(class_weight))
    share_of_loss = weighted / weighted.sum()
    stiffness = np.sqrt(1 + 10 * lb)  # a scale for b at which a large decay does not slow the descent
    shapes = [(k, d), (len(labels), d), (k,)]
    cuts = np.cumsum([np.prod(shape) for shape in shapes])[:2]

    def unpack(x):
        return [part.reshape(shape) for part, shape in zip(np.split(x, cuts), shapes, strict=True)]

    def objective(x):
        w, h, b = unpack(x)
        b = b / stiffness
        z = h @ w.T - (b if bias else 0) + offset
        value, slope = LOSSES[loss](z, y, **loss_params)
        slope = slope * share_of_loss[:, None]
        f = share_of_loss @ value
        f += lw / 2 * (w**2).sum() + lh / 2 * (copies[:, None] * h**2).sum() + lb / 2 * (b**2).sum()
        grad_b = (lb * b - slope.sum(axis=0)) / stiffness if bias else np.zeros(k)
        grads = (slope.T @ h + lw * w, slope @ w + lh * copies[:, None] * h, grad_b)
        return f, np.concatenate([grad.ravel() for grad in grads])

    generator = np.random.default_rng(seed)
    best = None
    for _ in range(restarts):
        w, h = (scale * generator.standard_normal(shape) for shape in shapes[:2])
        x = np.concatenate([w.ravel(), (np.abs(h) if relu else h).ravel(), np.zeros(k)])
        bounds = [(None, None)] * cuts[0] + [(0 if relu else None, None)] * (cuts[1] - cuts[0]) + [(None, None)] * k
        for _ in range(6):
            options = {"maxiter": 5000, "maxfun": 20000, "ftol": 0, "gtol": 1e-14, "maxcor": 25}
            result = minimize(objective, x, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
            improved = np.abs(result.x - x).max() > 1e-9
            x = result.x
            if not improved:
                break
        if best is None or result.fun < best.fun:
            best = result
    w, h, b = unpack(best.x)
    b = b / stiffness
    scores = h @ w.T
    share = copies / copies.sum()
    own = (scores * y).sum(axis=1)
    return {
        "objective": float(best.fun),
        "positive_score": float(share @ own),
        "negative_score": float(share @ (scores.sum(axis=1) - own) / (k - 1)),
        "bias": float(b.mean()),
        "weight_energy": float((w**2).sum()),
        "feature_energy": float(share @ (h**2).sum(axis=1)),
        "weight": w,
        "features": h,
        "labels": labels,
        "b": b,
    }


def minimise_symmetric(loss, k, mu, lb, *, bias=True, relu=False, **loss_params):
    """The least objective over logits a (I - J/K) + c J/K - b, by direct search: for K too large for `minimise`."""

    def gauge(a, c):
        if relu and abs(c) < abs(a):
            return math.sqrt(k * ((k - 1) * a**2 + c**2))
        return (k - 1) * abs(a) + abs(c)

    def objective(x):
        a, mean, b = x.tolist()  # plain floats: many times faster here than numpy's
        c, b = mean * k, b if bias else 0.0
        pos, neg = ((k - 1) * a + c) / k - b, (c - a) / k - b
        return value(pos, neg) + mu * gauge(a, c) + k * lb * b**2 / 2

    def softplus(t):
        return max(t, 0.0) + math.log1p(math.exp(-abs(t)))

    def value(pos, neg):
        if loss == "bce":
            return softplus(-pos) + (k - 1) * softplus(neg)
        if loss == "mse":
            return ((pos - 1) ** 2 + (k - 1) * neg**2) / 2
        log_p = -softplus(math.log(k - 1) + neg - pos)
        if loss == "focal":
            return -((-math.expm1(log_p)) ** loss_params["gamma"]) * log_p
        share = loss_params.get("alpha", 0.0) * (k - 1) / k
        return -log_p + share * (pos - neg)

    best = None
    for start in ([5.0, 0.0, 1.0], [12.0, -3.0, 0.1], [1.0, 0.0, 0.0], [0.0, 0.0, 2.0], [0.0, -4.0, 0.1]):
        x = np.array(start)
        for _ in range(8):
            options = {"xatol": 1e-13, "fatol": 1e-16, "maxiter": 4000, "maxfev": 4000}
            result = minimize(objective, x, method="Nelder-Mead", options=options)
            if np.abs(result.x - x).max() < 1e-12:
                break
            x = result.x
        if best is None or result.fun < best.fun:
            best = result
    return {"objective": float(best.fun), "gap": best.x[0], "mean_component": best.x[1] * k, "bias": best.x[2]}
