"""The maximum of v^T M v over unit vectors v >= 0, for a positive semidefinite matrix M.

It decides whether a dual matrix is feasible for non-negative features. The maximiser is the top eigenvector of the
submatrix of its support: on the interior of a face of the cone every local maximum on the sphere is a top eigenvector.
So the maximum is the largest top eigenvalue among the principal submatrices whose top eigenvector is non-negative. And
v^T M v <= v^T (M + N) v for every N >= 0 gives the upper bound min_N lambda_max(M + N), which is exact up to 4 rows and
often beyond. For few rows a local maximum is found and proved by such an N; where the proof fails, every support that
may have a larger one is tried. For more rows the bound is minimised numerically.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
EPS = 2.0**-52
ENUMERATED = 12  # rows up to which supports are tried: at most 4095 eigenvalue problems
FACE_STARTS = 3  # of the local search for few rows
OPTIMISED = 64  # rows up to which the upper bound is optimised
STARTS = 32  # of each kind for the local search
SLACK = 1e-9  # entries of an eigenvector that count as non-negative; including more supports only raises the result


def maximise_on_cone(matrix: Array) -> tuple[float, Array]:
    """An upper bound on the maximum, exact up to ENUMERATED rows, and the best vector v >= 0 found."""
    k = len(matrix)
    positive = np.maximum(matrix, 0.0)
    if np.count_nonzero(positive) == np.count_nonzero(positive.diagonal()):  # nothing to gain from a second entry
        index = int(np.argmax(positive.diagonal()))
        return float(positive[index, index]), np.eye(1, k, index)[0]
    top, vector = _top_pair(matrix)
    if (vector >= 0).all() or (vector <= 0).all():
        return top, np.abs(vector)
    if k <= ENUMERATED:
        return _solve_few(matrix)
    value, best = _climb(matrix)
    bound = min(top, float(np.linalg.eigvalsh(positive)[-1]))
    if bound > value * (1 + 1e-12) and k <= OPTIMISED:
        bound = min(bound, _tighten(matrix, value))
    return max(bound, value), best


def _top_pair(matrix: Array) -> tuple[float, Array]:
    values, vectors = np.linalg.eigh(matrix)
    vector = vectors[:, -1]
    return float(values[-1]), vector if vector.sum() >= 0 else -vector


def _solve_few(matrix: Array) -> tuple[float, Array]:
    """The maximum for few rows."""
    value, best = -np.inf, np.zeros(len(matrix))
    for start in np.argsort(-matrix.diagonal())[:FACE_STARTS]:
        found, vector = _climb_faces(matrix, int(start))
        if found > value:
            value, best = found, vector
            if _bound_by_addition(matrix, best) <= value * (1.0 + 4 * len(matrix) * EPS):
                return value, best
    return _try_supports(matrix, value, best)


def _climb_faces(matrix: Array, start: int) -> tuple[float, Array]:
    """A local maximum that is reached from a row, by adding the row that gains most and dropping those that lose."""
    k = len(matrix)
    value, best = -np.inf, np.zeros(k)
    support = np.array([start])
    for _ in range(2 * k):
        top, vector = _top_pair(matrix[np.ix_(support, support)])
        if (vector < -SLACK).any():
            support = support[vector > 0.0]
            continue
        v = np.zeros(k)
        v[support] = np.maximum(vector, 0.0)
        if top > value:
            value, best = top, v
        gain = matrix @ v
        gain[support] = 0.0
        row = int(np.argmax(gain))
        if gain[row] <= 0.0:
            break
        support = np.sort(np.append(support, row))
    return value, best / np.linalg.norm(best)


def _bound_by_addition(matrix: Array, vector: Array) -> float:
    """lambda_max(M + N), an upper bound on the maximum, for an N >= 0 that leaves `vector` an eigenvector if possible.

    N vanishes on the support of v. Outside it cancels the negative entries of M. Between both it is their negative
    part, scaled so that (M + N) v = 0 there.
    """
    inside = vector > 0.0
    added = np.maximum(-matrix, 0.0)
    added[np.ix_(inside, inside)] = 0.0
    between = added[np.ix_(~inside, inside)]
    total = between @ vector[inside]
    slope = np.maximum(-(matrix @ vector)[~inside], 0.0)
    between *= np.divide(slope, total, out=np.zeros_like(total), where=total > 0.0)[:, None]
    added[np.ix_(~inside, inside)], added[np.ix_(inside, ~inside)] = between, between.T
    return float(np.linalg.eigvalsh(matrix + added)[-1])


def _try_supports(matrix: Array, value: float, best: Array) -> tuple[float, Array]:
    """The largest top eigenvalue among the supports whose top eigenvector is non-negative; at least `value`."""
    supports = _find_promising(matrix, value)
    sizes = supports.sum(axis=1)
    for size in np.unique(sizes):
        rows = supports[sizes == size].nonzero()[1].reshape(-1, size)
        values, vectors = np.linalg.eigh(matrix[rows[:, :, None], rows[:, None, :]])
        top = vectors[:, :, -1] * np.where(vectors[:, :, -1].sum(axis=1) >= 0, 1.0, -1.0)[:, None]
        allowed = np.all(top >= -SLACK, axis=1)
        found = int(np.argmax(np.where(allowed, values[:, -1], -np.inf)))
        if allowed[found] and values[found, -1] > value:
            value, best = float(values[found, -1]), np.zeros(len(matrix))
            best[rows[found]] = np.maximum(top[found], 0.0)
    return value, best / np.linalg.norm(best)


def _find_promising(matrix: Array, value: float) -> NDArray[np.bool_]:
    """The supports [S, k] of two rows or more that may have a maximum above `value`.

    For v >= 0, v^T M v is no larger than with the negative entries of M set to 0, whose eigenvalues are no larger than
    their row sums. And a row of the support without a positive entry in another gains nothing: without it, or alone,
    the maximum is as large.
    """
    supports = _list_supports(len(matrix))
    positive = np.maximum(matrix, 0.0)
    links = positive > 0.0
    np.fill_diagonal(links, False)
    linked = (supports @ links.astype(np.float64) > 0.0) | (supports == 0.0)
    bounds = (supports * (supports @ positive)).max(axis=1)
    return np.asarray(supports[linked.all(axis=1) & (bounds > value * (1.0 - 1e-12))] > 0.0)


@cache
def _list_supports(rows: int) -> Array:
    """All supports of two rows or more, as rows of zeros and ones."""
    found = np.arange(2**rows)[:, None] >> np.arange(rows) & 1
    return np.asarray(found[found.sum(axis=1) > 1], dtype=np.float64)


def _climb(matrix: Array) -> tuple[float, Array]:
    """The best local maximum of the projected power iteration from many starts; it never descends."""
    k = len(matrix)
    _, vectors = np.linalg.eigh(matrix)
    few = min(k, STARTS)
    axes = np.eye(k)[np.argsort(-matrix.diagonal())[:few]]
    starts = np.concatenate([axes, np.maximum(vectors.T[-few:], 0.0), np.maximum(-vectors.T[-few:], 0.0)])
    starts = starts[np.linalg.norm(starts, axis=1) > 0]
    v = starts / np.linalg.norm(starts, axis=1, keepdims=True)
    for _ in range(300):
        step = np.maximum(v @ matrix, 0.0)
        sizes = np.linalg.norm(step, axis=1, keepdims=True)
        v = np.where(sizes > 0, step / np.where(sizes > 0, sizes, 1.0), v)
    values = np.einsum("ij,jk,ik->i", v, matrix, v)
    best = int(np.argmax(values))
    return float(values[best]), v[best]


def _tighten(matrix: Array, goal: float) -> float:
    """Minimise lambda_max(M + N) over N >= 0, smoothed by a sharpening soft maximum of the eigenvalues."""
    from scipy.optimize import minimize

    k = len(matrix)
    rows, columns = np.triu_indices(k, 1)
    scale = float(np.abs(matrix).max())
    target = matrix / scale
    x = np.maximum(-target[rows, columns], 0.0)
    best = np.inf

    def fill(x: Array) -> Array:
        full = target.copy()
        full[rows, columns] += x
        full[columns, rows] += x
        return full

    for sharpness in (1e2, 1e3, 1e4, 1e5, 1e6):

        def smooth(x: Array, sharpness: float = sharpness) -> tuple[float, Array]:
            values, vectors = np.linalg.eigh(fill(x))
            weights = np.exp(sharpness * (values - values[-1]))
            density = (vectors * (weights / weights.sum())) @ vectors.T
            return float(values[-1] + np.log(weights.sum()) / sharpness), 2.0 * density[rows, columns]

        found = minimize(smooth, x, jac=True, method="L-BFGS-B", bounds=[(0.0, None)] * len(x), options={"maxiter": 60})
        x = np.asarray(found.x)
        best = min(best, float(np.linalg.eigvalsh(fill(x))[-1]))
        if best * scale <= goal * (1 + 1e-10):
            break
    return best * scale
