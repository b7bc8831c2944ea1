"""Cross-entropy on unequal classes with non-negative features and no bias (imbalanced-relu Theorem 1).

Class means are orthogonal and the logits of class k are M_k (e_k - 1/K), with

    1/(e^M_k + K-1) = x_k + alpha/K,   x_k = N sqrt(weight_decay feature_decay / (n_k K (K-1)))

(its Eq. 6, extended to label smoothing alpha), and M_k = 0 where that has no positive root: the class has collapsed.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ncollapse.theory.balanced import smoothing
from ncollapse.theory.prediction import Prediction, refuse, require_dim, summarise
from ncollapse.theory.problem import Problem


def predict_imbalanced(problem: Problem) -> Prediction:
    """The optimum of an imbalanced problem; a ValueError where no closed form is known."""
    k = problem.num_classes
    if problem.loss.name not in ("ce", "ls"):
        raise refuse(problem, "with unequal class counts")
    lacking = {"free features": "features='relu'"} if problem.features != "relu" else {}
    lacking |= {"a bias": "bias=False"} if problem.bias else {}
    if lacking:
        fits = problem.dim is None or problem.dim >= k
        hint = f" ({' with '.join(lacking.values())} has one)" if fits else ""
        raise refuse(problem, f"with unequal class counts and {' and '.join(lacking)}{hint}")
    counts = np.asarray(problem.counts)
    margins = find_margins(problem)
    mean = float(counts @ margins / counts.sum())
    loss = float(counts @ problem.loss.at(margins, 0.0, k).value / counts.sum())
    # |z_k| = sqrt((K-1)/K) M_k, and orthogonal features make the cost of W and H a sum over classes
    gauge = math.sqrt((k - 1) / k) * float(np.sqrt(counts / problem.per_class) @ margins)
    collapsed = int((margins == 0).sum())
    values = {
        "phase": "collapsed" if collapsed == k else "orthogonal-frame",
        "positive_score": (k - 1) / k * mean,
        "negative_score": -mean / k,
        "bias": 0.0,
        "objective": loss + problem.mu * gauge,
        "rank": k - collapsed,
        "separates": collapsed == 0,  # the scores of a collapsed class are 0, like the bias
        "critical_bias_decay": math.inf,
        "separation_mu": _find_separation(problem),
        "collapse_mu": _find_separation(problem),
        "class_gaps": tuple(margins.tolist()),
        "collapse_count": _find_collapse_constant(problem) * sum(problem.class_counts or problem.counts) ** 2,
        "collapse_ratio": _find_collapse_ratio(problem),
    }
    notes = (f"{collapsed} of {k} classes collapse: their features are 0",) if 0 < collapsed < k else ()
    return require_dim(summarise(problem, values, gauge, notes))


def find_prices(problem: Problem) -> NDArray[np.float64]:
    """x_k, the price of a margin in each class."""
    k = problem.num_classes
    # mu sqrt(n / n_k) sqrt(K/(K-1)) = N sqrt(weight_decay feature_decay / (n_k K (K-1)))
    return problem.mu * np.sqrt(problem.per_class / np.asarray(problem.counts) * k / (k - 1))


def find_margins(problem: Problem) -> NDArray[np.float64]:
    """M_k of each class."""
    k, alpha, prices = problem.num_classes, smoothing(problem.loss), find_prices(problem)
    return np.log1p(np.maximum(0.0, 1 - alpha - k * prices) / (prices + alpha / k))


def _find_separation(problem: Problem) -> float:
    """The mu from which on every class has collapsed (complete collapse, imbalanced-relu Eq. 18)."""
    k = problem.num_classes
    return (1 - smoothing(problem.loss)) / k * problem.mu / float(find_prices(problem).min())


def _find_collapse_constant(problem: Problem) -> float:
    """C of n_k <= C N^2, in counts of the data set (imbalanced-relu Cor. 4); a batch scales the feature decay."""
    k, full = problem.num_classes, sum(problem.class_counts or problem.counts)
    feature_decay = problem.feature_decay * sum(problem.counts) / full
    return k / (k - 1) * problem.weight_decay * feature_decay / (1 - smoothing(problem.loss)) ** 2


def _find_collapse_ratio(problem: Problem) -> float:
    """Largest over smallest count at which the smallest classes, thinned out together, collapse (at least 1).

    n = C (rest + m n)^2 for the m smallest classes, solved for its smaller root: imbalanced-relu Eq. 17, made explicit.
    """
    counts = problem.class_counts or problem.counts
    m = counts.count(min(counts))
    rest = sum(counts) - m * min(counts)
    # a batch fixes the decay per data set, so C falls as 1/N: n = (C N0) (rest + m n)
    constant = _find_collapse_constant(problem)
    if problem.batch_size is not None:
        linear = constant * sum(counts)
        return max(1.0, max(counts) * (1 - linear * m) / (linear * rest))
    b = 1 - 2 * constant * m * rest
    root = b**2 - 4 * (constant * m * rest) ** 2
    if root < 0:
        return 1.0
    return max(1.0, max(counts) * (b + math.sqrt(root)) / (2 * constant * rest**2))
