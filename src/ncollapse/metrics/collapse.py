"""Within-class collapse, frames and duality: functions of the class means, the within-class scatter and the classifier.

All take and return float64 tensors on one device; nothing here looks at single samples.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    """What the metrics of this module need to know about the features."""

    counts: Tensor  # [K] float64
    means: Tensor  # [K, d] class means
    global_mean: Tensor  # [d] over samples, bce-vs-ce Eq. 27
    centred: Tensor  # [K, d] class means minus the global mean, Eq. 36
    variances: Tensor  # [K] mean squared distance of a class's samples to its mean
    basis: Tensor  # [d, r] orthonormal columns whose span holds the centred means
    scatter: Tensor  # [r, r] sum over samples of (h - mean)(h - mean)^T in that basis


class Spectrum(NamedTuple):
    """The singular values of the centred class means and what is left of the within-class scatter along them."""

    rank: int
    singular_values: Tensor  # [min(K - 1, d)]
    axes: Tensor  # [r, rank] the directions inside Moments.basis


def centre_means(sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Class means, the global mean over samples and the centred class means; empty classes give NaN rows."""
    means = sums / counts[:, None]
    weights = counts / counts.sum()
    global_mean = torch.where(counts[:, None] > 0, weights[:, None] * means, 0.0).sum(0)
    return means, global_mean, means - global_mean


def span_means(centred: Tensor) -> Tensor:
    """Orthonormal columns [d, min(K, d)] whose span holds the rows of `centred`."""
    classes, dim = centred.shape
    if dim <= classes:
        return torch.eye(dim, dtype=centred.dtype, device=centred.device)
    span: Tensor = torch.linalg.qr(torch.nan_to_num(centred).T).Q
    return span


def decompose_means(moments: Moments) -> Spectrum:
    """Singular values of the centred class means, whose rank is at most K - 1.

    A direction counts as absent only below the rounding error of the means themselves, so that two nearly merged
    classes keep theirs.
    """
    classes, dim = moments.means.shape
    _, singular, axes = torch.linalg.svd(moments.centred @ moments.basis, full_matrices=False)
    most = min(classes - 1, dim)
    singular = singular[:most]
    rounding = 16 * torch.finfo(torch.float64).eps * frobenius(moments.means)
    rank = int((singular > rounding).sum())
    return Spectrum(rank, singular, axes[:rank].T)


def measure_within(moments: Moments, spectrum: Spectrum) -> dict[str, Tensor]:
    """`nc1`, `nc1_balanced`, `nc1_quotient` and `cdnv`."""
    counts, means = moments.counts, moments.means
    total, classes = counts.sum(), len(counts)
    singular = spectrum.singular_values[: spectrum.rank]
    scatter = spectrum.axes.T @ moments.scatter @ spectrum.axes
    # Sigma_B = M^T M / K, so trace(Sigma_W pinv(Sigma_B)) / K needs the scatter along the axes of M alone
    nc1 = (torch.diagonal(scatter) / singular**2).sum() / total
    by_class = means - means.mean(0)
    triangle = torch.linalg.qr(by_class @ moments.basis @ spectrum.axes).R
    half = torch.linalg.solve_triangular(triangle.T, scatter, upper=False)
    balanced = torch.diagonal(torch.linalg.solve_triangular(triangle.T, half.T, upper=False)).sum() / total
    within = (counts * moments.variances).sum() / total
    between = (moments.centred**2).sum() / classes
    if spectrum.rank == 0:
        nc1 = balanced = torch.full_like(within, torch.nan)
    return {
        "nc1": nc1,
        "nc1_balanced": balanced,
        "nc1_quotient": within / between,
        "cdnv": average_cdnv(means, moments.variances),
    }


def average_cdnv(means: Tensor, variances: Tensor) -> Tensor:
    """Mean over pairs of classes of (v_k + v_l) / (2 |mean_k - mean_l|^2)."""
    # the product form of cdist cancels for close means
    distance = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist")
    pairs = (variances[:, None] + variances[None, :]) / (2 * distance**2)
    return average_off_diagonal(pairs)


def average_off_diagonal(matrix: Tensor) -> Tensor:
    """Mean of the entries off the diagonal; NaN for a 1 x 1 matrix."""
    classes = len(matrix)
    kept = matrix.masked_fill(torch.eye(classes, dtype=torch.bool, device=matrix.device), 0.0)
    return kept.sum() / torch.tensor(classes * (classes - 1.0), dtype=matrix.dtype, device=matrix.device)


def simplex_gram(classes: int, like: Tensor) -> Tensor:
    """(I - 11^T / K) / sqrt(K - 1): the Gram matrix of a simplex ETF at unit Frobenius norm."""
    eye = torch.eye(classes, dtype=like.dtype, device=like.device)
    scale = torch.tensor(classes - 1.0, dtype=like.dtype, device=like.device).sqrt()
    return (eye - 1.0 / classes) / scale


def distance_to_simplex(gram: Tensor) -> Tensor:
    """| G / |G|_F - (I - 11^T / K) / sqrt(K - 1) |_F, the form of bce-vs-ce Eqs. 33 and 34."""
    return frobenius(gram / frobenius(gram) - simplex_gram(len(gram), gram))


def distance_to_rank(weight: Tensor) -> Tensor:
    """Distance of W W^T / |W W^T|_F to the nearest P / sqrt(r): P a rank-r projection, P 1 = 0, r = min(d, K - 1).

    The nearest P projects onto the top r eigenvectors of the Gram matrix restricted to the complement of 1.
    """
    classes, dim = weight.shape
    if classes < 2:
        return torch.full((), torch.nan, dtype=weight.dtype, device=weight.device)
    rank = min(dim, classes - 1)
    gram = weight @ weight.T
    if rank == classes - 1:  # one projection only: I - 11^T / K
        return distance_to_simplex(gram)
    gram = gram / frobenius(gram)
    if not bool(torch.isfinite(gram).all()):
        return gram.sum()
    ones = torch.ones(classes, 1, dtype=weight.dtype, device=weight.device)
    complement = torch.linalg.qr(torch.cat([ones, torch.eye(classes, classes - 1).to(ones)], 1)).Q[:, 1:]
    top = complement @ torch.linalg.eigh(complement.T @ gram @ complement).eigenvectors[:, classes - 1 - rank :]
    return frobenius(gram - top @ top.T / rank**0.5)


def cosines(rows: Tensor) -> Tensor:
    """Matrix of cosines between rows; a zero row has cosine 0 with every other."""
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    unit = torch.where(norms == 0, 0.0, rows / norms)
    product: Tensor = unit @ unit.T
    return product


def vary_norms(rows: Tensor) -> Tensor:
    """Coefficient of variation (population standard deviation over mean) of the norms of the rows."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms.std(correction=0) / norms.mean()


def vary_angles(rows: Tensor) -> Tensor:
    """Mean over pairs of |cos + 1 / (K - 1)|: 0 for a simplex ETF."""
    ideal = 1.0 / max(len(rows) - 1, 1)
    return average_off_diagonal((cosines(rows) + ideal).abs())


def measure_orthogonality(rows: Tensor) -> Tensor:
    """Mean over pairs of |cos|, of rows that are not 0: 0 for orthogonal rows, NaN where fewer than two are left."""
    return average_off_diagonal(cosines(rows[torch.linalg.vector_norm(rows, dim=1) != 0]).abs())


def measure_means(moments: Moments) -> dict[str, Tensor]:
    """The frame of the class means: `nc2_means`, `equinorm_means`, `equiangle_means`, `mean_orthogonality`."""
    centred = moments.centred
    return {
        "nc2_means": distance_to_simplex(centred @ centred.T),
        "equinorm_means": vary_norms(centred),
        "equiangle_means": vary_angles(centred),
        "mean_orthogonality": measure_orthogonality(moments.means),
    }


def measure_weights(weight: Tensor) -> dict[str, Tensor]:
    """The frame of the classifier: `nc2`, `nc2_uncentred`, `nc2_rank`, `equinorm_weights`, `equiangle_weights`."""
    centred = weight - weight.mean(0)
    return {
        "nc2": distance_to_simplex(centred @ centred.T),
        "nc2_uncentred": distance_to_simplex(weight @ weight.T),
        "nc2_rank": distance_to_rank(weight),
        "equinorm_weights": vary_norms(weight),
        "equiangle_weights": vary_angles(weight),
        "weight_energy": (weight**2).sum(),
    }


def measure_duality(weight: Tensor, moments: Moments) -> dict[str, Tensor]:
    """Classifier against class means: `nc3`, `nc3_centred`, `nc3_distance`, `nc2_relu`."""
    centred = moments.centred
    scaled = moments.counts.sqrt()[:, None] * moments.means
    relu = len(weight) * scaled - scaled.sum(0)
    return {
        "nc3": distance_to_simplex(weight @ centred.T),
        "nc3_centred": distance_to_simplex((weight - weight.mean(0)) @ centred.T),
        "nc3_distance": distance_of_directions(weight, centred),
        "nc2_relu": distance_of_directions(weight, relu),
    }


def distance_of_directions(left: Tensor, right: Tensor) -> Tensor:
    """| A / |A|_F - B / |B|_F |_F."""
    return frobenius(left / frobenius(left) - right / frobenius(right))


def frobenius(matrix: Tensor) -> Tensor:
    """|A|_F."""
    return matrix.square().sum().sqrt()
