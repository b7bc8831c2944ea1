"""Losses of logit differences on unequal classes with non-negative features and no bias.

Class means are orthogonal and the logits of class k are M_k (e_k - 1/K), where M_k minimises L(M, 0) + (K-1) x_k M with

    x_k = sqrt(weight_decay feature_decay n_k / (K (K-1))) / share_k

and share_k the weight of class k in the mean loss, n_k/N without class weights. M_k = 0 means that the class has
collapsed. For cross-entropy this is imbalanced-relu Theorem 1: 1/(e^M_k + K-1) = x_k (its Eq. 6).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncollapse.losses import ContrastiveForm
from ncollapse.theory.optimum import Optimum, complete, refuse, require_dim
from ncollapse.theory.problem import Problem


def predict_imbalanced(problem: Problem) -> Optimum:
    """The optimum of an imbalanced problem; a ValueError where no closed form is known."""
    k = problem.num_classes
    for name, words in (("targets", "with soft targets"), ("logit_offset", "with a logit offset")):
        if getattr(problem, name) is not None:
            raise refuse(problem, words)
    form = problem.loss.contrastive_form(k)
    if form is None:
        raise refuse(problem, "with unequal class counts")
    lacking = {"free features": "features='relu'"} if problem.features != "relu" else {}
    lacking |= {"a bias": "bias=False"} if problem.bias else {}
    if lacking:
        fits = problem.dim is None or problem.dim >= k
        hint = f" ({' with '.join(lacking.values())} has one)" if fits else ""
        raise refuse(problem, f"with unequal class counts and {' and '.join(lacking)}{hint}")
    counts, shares = np.asarray(problem.counts), np.asarray(problem.shares)
    margins = find_margins(problem, form)
    mean = float(counts @ margins / counts.sum())
    loss = float(shares @ problem.loss.at(margins, 0.0, k).value)
    # |z_k| = sqrt((K-1)/K) M_k, and orthogonal features make the cost of W and H a sum over classes
    cost = math.sqrt((k - 1) / k) * float(np.sqrt(counts / problem.per_class) @ margins)
    collapsed = int((margins == 0).sum())
    values: dict[str, Any] = {
        "phase": "collapsed" if collapsed == k else "orthogonal-frame",
        "positive_score": (k - 1) / k * mean,
        "negative_score": -mean / k,
        "bias": 0.0,
        "objective": loss + problem.mu * cost,
        "rank": k - collapsed,
        "separates": collapsed == 0,  # the scores of a collapsed class are 0, like the bias
        "critical_bias_decay": math.inf,
        "separation_mu": _find_separation(problem, form),
        "collapse_mu": _find_separation(problem, form),
        "class_gaps": tuple(margins.tolist()),
    }
    if problem.loss.weight is None:
        full = sum(problem.class_counts or problem.counts)
        values["collapse_count"] = _find_collapse_constant(problem, form) * full**2
        values["collapse_ratio"] = _find_collapse_ratio(problem, form)
    empty = int((counts == 0).sum())
    notes = []
    if empty:
        notes.append(f"{empty} of {k} classes have no samples: their logits remain, and their margin is reported as 0")
    if empty < collapsed < k:
        notes.append(f"{collapsed - empty} of {k} classes collapse: their features are 0")
    return require_dim(complete(problem, values, cost, tuple(notes)))


def find_prices(problem: Problem) -> NDArray[np.float64]:
    """x_k, the price of a margin in each class; infinite for a class without samples."""
    k = problem.num_classes
    counts, shares = np.asarray(problem.counts), np.asarray(problem.shares)
    # mu sqrt(n_k / n) = sqrt(n_k weight_decay feature_decay), whose product may underflow
    with np.errstate(divide="ignore", invalid="ignore"):
        prices = problem.mu * np.sqrt(counts / problem.per_class / (k * (k - 1))) / shares
    return np.where(shares > 0, prices, np.inf)


def find_margins(problem: Problem, form: ContrastiveForm) -> NDArray[np.float64]:
    """M_k of each class."""
    return np.array([form.gap(price) if math.isfinite(price) else 0.0 for price in find_prices(problem).tolist()])


def _find_separation(problem: Problem, form: ContrastiveForm) -> float:
    """The mu from which on every class has collapsed (complete collapse, imbalanced-relu Eq. 18)."""
    return form.collapse_mu * problem.mu / float(find_prices(problem).min())


def _find_collapse_constant(problem: Problem, form: ContrastiveForm) -> float:
    """C of n_k <= C N^2, in counts of the data set (imbalanced-relu Cor. 4); a batch scales the feature decay."""
    k, full = problem.num_classes, sum(problem.class_counts or problem.counts)
    feature_decay = problem.feature_decay * sum(problem.counts) / full
    return problem.weight_decay * feature_decay / (k * (k - 1) * form.collapse_mu**2)


def _find_collapse_ratio(problem: Problem, form: ContrastiveForm) -> float | None:
    """Largest over smallest count at which the smallest classes, thinned out together, collapse (at least 1).

    n = C (rest + m n)^2 for the m smallest classes, solved for its smaller root: imbalanced-relu Eq. 17, made explicit.
    """
    counts = [count for count in problem.class_counts or problem.counts if count > 0]
    m = counts.count(min(counts))
    rest = sum(counts) - m * min(counts)
    if rest == 0:  # all classes with samples are equal: there is no majority
        return None
    # a batch fixes the decay per data set, so C falls as 1/N: n = (C N0) (rest + m n)
    constant = _find_collapse_constant(problem, form)
    if problem.batch_size is not None:
        linear = constant * sum(counts)
        return max(1.0, max(counts) * (1 - linear * m) / (linear * rest))
    b = 1 - 2 * constant * m * rest
    root = b**2 - 4 * (constant * m * rest) ** 2
    if root < 0:
        return 1.0
    return max(1.0, max(counts) * (b + math.sqrt(root)) / (2 * constant * rest**2))
