"""Frames, angles and duality of few classes, in NumPy on the host: the same numbers as collapse.py and pairs.py find.

For few classes the time goes into calls, not into arithmetic, and NumPy's calls are the cheapest. All matrices [K, d]
fit into memory several times, and so do tables [K, K].
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from .collapse import Moments
from .pairs import CLOSE
from .rows import ROUNDING, Rows, differ
from .scores import Spread, Values, finish_spread, rank_array
from .selection import Selection

CLASSES = 256  # up to here tables of all pairs of classes are made at once

Table = np.ndarray[Any, np.dtype[np.int64]]


def is_few(rows: Rows) -> bool:
    """Whether the rows of this matrix are compared here."""
    return 1 < rows.held <= min(CLASSES, rows.dim + 1) and rows.is_small and rows.device.type == "cpu"


def compare_means(moments: Moments, wanted: Selection) -> dict[str, Any]:
    """The fields about angles and norms of class means, as `class_fields.measure_means` has them."""
    values: dict[str, Any] = {}
    centred = moments.centred()
    matrix, norms = centred.matrix.numpy(), centred.norms().numpy()
    pairs = len(norms) * (len(norms) - 1) / 2
    gram = matrix @ matrix.T
    with np.errstate(all="ignore"):
        values["nc2_means"] = distance_to_simplex(gram)
        values["equinorm_means"] = vary(norms)
        if wanted.any("equiangle_means", "cdnv"):
            away = np.abs(find_cosines(gram, norms) + 1 / (len(norms) - 1)).sum() / pairs
            values["equiangle_means"] = float(away) if moments.means_differ else math.nan
        if wanted.any("cdnv") and moments.variances is not None:
            values["cdnv"] = average_variance(matrix, gram, norms, moments.variances.numpy())
        if wanted.any("mean_cosines", "mean_orthogonality"):
            means = moments.means()
            values["mean_cosines"], _, values["mean_orthogonality"] = spread_cosines(means)
    return values


def compare_weights(rows: Rows, wanted: Selection) -> dict[str, Any]:
    """The fields about angles and norms of a classifier's rows, as `class_fields.measure_classifier` has them."""
    values: dict[str, Any] = {}
    centred = rows.centre().matrix.numpy()
    with np.errstate(all="ignore"):
        values["nc2"] = distance_to_simplex(centred @ centred.T) if differ(rows) else math.nan
        if wanted.any("nc2_uncentred", "nc2_rank", "equiangle_weights", "weight_cosines"):
            values["nc2_uncentred"] = distance_to_simplex(rows.products.numpy())
            values["nc2_rank"] = values["nc2_uncentred"]  # the simplex is the only frame of rank K - 1
        values["equinorm_weights"] = vary(rows.norms().numpy())
        if wanted.any("equiangle_weights", "weight_cosines"):
            values["weight_cosines"], values["equiangle_weights"], _ = spread_cosines(rows)
    return values


def compare_both(weight: Rows, moments: Moments) -> dict[str, float]:
    """Classifier against class means, as `collapse.measure_duality` has it."""
    rows, centred = weight.matrix.numpy(), weight.centre().matrix.numpy()
    means, scales = moments.centred().matrix.numpy(), np.sqrt(moments.counts.numpy())
    uncentred = moments.means().matrix.numpy()
    optimal = (len(rows) * scales)[:, None] * uncentred - scales @ uncentred  # imbalanced-relu Eq. 20
    with np.errstate(all="ignore"):
        unit = rows / size_of(rows)
        return {
            "nc3": distance_to_simplex(rows @ means.T),
            "nc3_centred": distance_to_simplex(centred @ means.T) if differ(weight) else math.nan,
            "nc3_distance": size_of(unit - means / size_of(means)),
            "nc2_relu": size_of(unit - optimal / size_of(optimal)),
        }


def spread_cosines(rows: Rows) -> tuple[Spread, float, float]:
    """What `pairs.measure_cosines` finds."""
    norms = rows.norms().numpy()
    cosines = find_cosines(rows.products.numpy(), norms)
    filled = int(np.count_nonzero(norms))
    others = filled * (filled - 1) / 2
    angle = float(np.abs(cosines + 1 / (len(norms) - 1)).sum()) / len(cosines)
    spread = finish_spread(rank_array(cosines).tolist(), len(cosines))
    return spread, angle, float(np.abs(cosines).sum()) / others if others else math.nan


def distance_to_simplex(gram: Values) -> float:
    """| G / |G|_F - (I - 11^T / K) / sqrt(K - 1) |_F, bce-vs-ce Eqs. 33 and 34."""
    classes = len(gram)
    ideal = 1 / math.sqrt(classes - 1)
    away = gram / size_of(gram) + ideal / classes
    away.ravel()[:: classes + 1] -= ideal
    return size_of(away)


def average_variance(matrix: Values, gram: Values, norms: Values, variances: Values) -> float:
    """CDNV, with the distances of close pairs taken from the differences of their rows."""
    first, second = _pairs(len(norms))
    squares = norms * norms
    around = squares[first] + squares[second]
    distances = around - 2 * gram[first, second]
    (close,) = (distances <= CLOSE * around).nonzero()
    if len(close):
        gaps = matrix[first[close]] - matrix[second[close]]
        exact = np.einsum("ij,ij->i", gaps, gaps)
        distances[close] = np.where(exact <= ROUNDING**2 * around[close], 0.0, exact)
    return float(((variances[first] + variances[second]) / (2 * distances)).sum()) / len(first)


def find_cosines(gram: Values, norms: Values) -> Values:
    """The cosines of all pairs k < l of rows with this Gram matrix and these norms; 0 for a zero row."""
    inverse = np.where(norms > 0, 1 / np.where(norms > 0, norms, 1.0), 0.0)
    first, second = _pairs(len(norms))
    cosines: Values = gram[first, second] * inverse[first] * inverse[second]
    return cosines


def vary(norms: Values) -> float:
    """Standard deviation over mean."""
    mean = norms.sum() / len(norms)
    away = norms - mean
    return math.sqrt(away @ away / len(norms)) / float(mean) if mean else math.nan


def size_of(matrix: Values) -> float:
    """|A|_F."""
    return math.sqrt(np.vdot(matrix, matrix))


@lru_cache(maxsize=4)
def _pairs(count: int) -> tuple[Table, Table]:
    first, second = np.triu_indices(count, 1)
    return first, second
