"""Slow, obvious twins of the losses: one sample at a time, plain Python floats (float64), loops over the definition.

A target is a list of K numbers. Where a probability rounds to 1, sums over the other classes are used instead of 1 - p.
"""

import math


def log_probability(z, k):
    top = max(range(len(z)), key=lambda j: z[j])
    rest = math.fsum(math.exp(z[j] - z[top]) for j in range(len(z)) if j != top)
    return z[k] - z[top] - math.log1p(rest)


def other_probability(z, k):
    """1 - p_k as the sum of the other probabilities."""
    return math.fsum(math.exp(log_probability(z, j)) for j in range(len(z)) if j != k)


def smooth(y, alpha):
    return [(1 - alpha) * value + alpha / len(y) for value in y]


def log1p_exp(x):
    return x + math.log1p(math.exp(-x)) if x > 0 else math.log1p(math.exp(x))


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def cross_entropy(z, y, alpha=0.0):
    total = 0.0
    for k, value in enumerate(smooth(y, alpha)):
        total -= value * log_probability(z, k)
    return total


def cross_entropy_gradient(z, y, alpha=0.0):
    """p_j sum(y) - y_j, for targets that sum to 1: p_j (1 - y_j) - y_j (1 - p_j)."""
    target = smooth(y, alpha)
    return [
        math.exp(log_probability(z, j)) * (1 - target[j]) - target[j] * other_probability(z, j) for j in range(len(z))
    ]


def focal(z, y, gamma):
    total = 0.0
    for k in range(len(z)):
        total -= y[k] * other_probability(z, k) ** gamma * log_probability(z, k)
    return total


def focal_gradient(z, y, gamma):
    """By the chain rule through log p_k: dL/dlog p = -q^g + g q^g p log(p)/q, and dlog p_k/dz_j = [j = k] - p_j."""
    gradient = [0.0] * len(z)
    for k in range(len(z)):
        q, log_p = other_probability(z, k), log_probability(z, k)
        ratio = log_p / q if q > 0 else -1.0
        slope = q**gamma * (gamma * math.exp(log_p) * ratio - 1)
        for j in range(len(z)):
            gradient[j] += y[k] * slope * (q if j == k else -math.exp(log_probability(z, j)))
    return gradient


def binary_cross_entropy(z, y, alpha=0.0):
    total = 0.0
    for score, value in zip(z, smooth(y, alpha)):
        total += value * log1p_exp(-score) + (1 - value) * log1p_exp(score)
    return total


def binary_cross_entropy_gradient(z, y, alpha=0.0):
    return [(1 - value) * sigmoid(score) - value * sigmoid(-score) for score, value in zip(z, smooth(y, alpha))]


def mse(z, y):
    """mse-landscape Eq. 3."""
    return sum((score - value) ** 2 for score, value in zip(z, y)) / 2


def mse_alpha(z, y, alpha, M):
    """mse-landscape Eq. 4."""
    total = 0.0
    for score, value in zip(z, y):
        omega = 1 + (alpha - 1) * value
        total += omega * (score - M * value) ** 2 / 2
    return total


def mse_kappa(z, y, kappa, beta, class_reduction="sum"):
    """all-losses Eq. 6, over K in the authors' code."""
    total = 0.0
    for score, value in zip(z, y):
        omega = 1 + (kappa - 1) * value
        total += omega * (score - beta * value) ** 2
    return total / len(z) if class_reduction == "mean" else total


def quadratic_gradient(z, y, positive, goal, negative):
    return [(negative + (positive - negative) * v) * (s - goal * v) for s, v in zip(z, y)]


def reduce(values, targets, weight, reduction):
    """Weighted losses of a batch: a sample weighs sum_k y_k weight_k."""
    shares = [sum(value * w for value, w in zip(y, weight)) for y in targets]
    weighted = [share * value for share, value in zip(shares, values)]
    if reduction == "none":
        return weighted
    return sum(weighted) if reduction == "sum" else sum(weighted) / sum(shares)
