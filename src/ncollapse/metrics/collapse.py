"""Within-class collapse, frames and duality: functions of the class means, the within-class scatter and the classifier.

Time O(K d min(K, d)), memory O(K d): where K > d + 1, products with d x d matrices give the norms of the K x K ones.
What compares all pairs of classes is in pairs.py. Everything is float64, on the device of the features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ncollapse.frames import etf_gram, gram_distance

from .rows import ROUNDING, Rows, dot

if TYPE_CHECKING:
    from .shards import Shards


@dataclass(frozen=True)
class Moments:
    """Class statistics of the classes that have samples, relative to an anchor near the features."""

    counts: Tensor  # [K] float64, all positive
    offsets: Tensor  # [K, d] class mean minus the anchor
    anchor: Tensor  # [d]
    shift: Tensor  # [d] global mean (over samples, bce-vs-ce Eq. 27) minus the anchor
    energies: Tensor  # [K] mean of |h - anchor|^2: the scale against which a difference is rounding
    variances: Tensor | None = None  # [K] mean squared distance of a class's samples to its mean
    basis: Tensor | None = None  # [d, r] orthonormal columns that span the centred means; None: all of R^d
    scatter: Tensor | None = None  # [r, r] sum over samples of (h - mean)(h - mean)^T in that basis
    shards: Shards | None = None  # where each process holds some of the classes: counts, offsets, energies, variances

    @property
    def global_mean(self) -> Tensor:
        """The mean over samples [d]."""
        return self.anchor + self.shift

    @property
    def rounding(self) -> float:
        """Differences of features or means up to this length are rounding errors."""
        largest = self.energies.amax() if len(self.energies) else self.energies.new_zeros(())
        return ROUNDING * math.sqrt(float(largest if self.shards is None else self.shards.largest(largest)))

    @property
    def num_samples(self) -> float:
        """N."""
        total = self.counts.sum()
        return float(total if self.shards is None else self.shards.add(total))

    def around_anchor(self) -> Rows:
        """The class means minus the anchor."""
        return Rows(self.offsets, shards=self.shards)

    def means(self) -> Rows:
        """The class means."""
        return Rows(self.offsets, -self.anchor, shards=self.shards)

    def centred(self) -> Rows:
        """The class means minus the global mean (bce-vs-ce Eq. 36); zero where the difference is rounding."""
        return Rows(self.offsets, self.shift, floor=self.rounding, shards=self.shards)

    def variances_or_zero(self) -> Tensor:
        """The variances of the classes, zeros where they were not measured."""
        return torch.zeros_like(self.counts) if self.variances is None else self.variances

    def within(self) -> float:
        """trace(Sigma_W): the mean squared distance of a sample to its class mean."""
        return float(self.around_anchor().add_up((self.counts * self.variances_or_zero()).sum())) / self.num_samples


class Spectrum(NamedTuple):
    """The singular values of the centred class means, in the basis of the moments."""

    rank: int
    singular_values: Tensor  # [min(K - 1, d)]
    triangle: Tensor | None  # [r, r] with triangle^T triangle = centred^T centred, where the rank is r
    axes: Tensor | None  # [r, rank] the directions of the centred means, where the rank is below r


def take_moments(counts: Tensor, offsets: Tensor, anchor: Tensor, energies: Tensor) -> Moments:
    """Moments of filled classes, from their counts, mean offsets and mean energies around the anchor."""
    shift = counts @ offsets / counts.sum()
    return Moments(counts, offsets, anchor, shift, energies)


def span_means(moments: Moments) -> Moments:
    """Add the basis in which the within-class scatter is needed: none smaller than R^d where K >= d."""
    if len(moments.counts) >= moments.offsets.shape[1]:
        return moments
    return replace(moments, basis=torch.linalg.qr(moments.centred().whole().T).Q)


def finish_moments(moments: Moments, variances: Tensor, scatter: Tensor) -> Moments:
    """Add variances and scatter; those below the rounding of the sums they come from are zero."""
    variances = torch.where(variances > ROUNDING**2 * moments.energies, variances, 0.0)
    if not float(moments.around_anchor().add_up(variances.sum())):
        scatter = torch.zeros_like(scatter)
    return replace(moments, variances=variances, scatter=scatter)


def decompose_means(moments: Moments) -> Spectrum:
    """Singular values of the centred class means, whose rank is at most K - 1.

    A direction counts as absent only below the rounding error of the means themselves, so that two nearly merged
    classes keep theirs.
    """
    centred = moments.centred()
    matrix = centred.triangle() if moments.basis is None else centred.whole() @ moments.basis
    most = min(len(centred) - 1, centred.dim)
    rounding = ROUNDING * float(moments.around_anchor().energy().sqrt())
    if len(matrix) == matrix.shape[1] == most:
        singular: Tensor = torch.linalg.svdvals(matrix)
        if bool((singular > rounding).all()):
            return Spectrum(most, singular, matrix, None)
    _, singular, axes = torch.linalg.svd(matrix, full_matrices=False)
    rank = int((singular[:most] > rounding).sum())
    return Spectrum(rank, singular[:most], None, axes[:rank].T)


def measure_within(moments: Moments, spectrum: Spectrum) -> dict[str, float]:
    """`nc1`, `nc1_balanced` and `nc1_quotient`; NaN where all class means coincide."""
    names = ("nc1", "nc1_balanced", "nc1_quotient")
    if spectrum.rank == 0 or moments.scatter is None:
        return dict.fromkeys(names, math.nan)
    by_class = moments.around_anchor().centre()
    total = moments.num_samples
    if spectrum.triangle is not None:
        scatter, around_samples, around_classes = moments.scatter, spectrum.triangle, by_class.triangle()
        nc1 = trace_ratio(scatter, around_samples)
    else:
        assert spectrum.axes is not None
        scatter = spectrum.axes.T @ moments.scatter @ spectrum.axes
        # Sigma_B = M^T M / K, so trace(Sigma_W pinv(Sigma_B)) / K needs the scatter along the axes of M alone
        nc1 = float((torch.diagonal(scatter) / spectrum.singular_values[: spectrum.rank] ** 2).sum())
        inside = spectrum.axes if moments.basis is None else moments.basis @ spectrum.axes
        around_classes = by_class.multiply(inside).triangle()
    between = float(moments.centred().energy()) / len(by_class)
    values = (nc1 / total, trace_ratio(scatter, around_classes) / total, moments.within() / between)
    return dict(zip(names, values))


def trace_ratio(scatter: Tensor, triangle: Tensor) -> float:
    """trace(S (R^T R)^-1)."""
    half = torch.linalg.solve_triangular(triangle.T, scatter, upper=False)
    return float(torch.diagonal(torch.linalg.solve_triangular(triangle.T, half.T, upper=False)).sum())


def distance_to_simplex(left: Rows, right: Rows) -> float:
    """| G / |G|_F - (I - 11^T / K) / sqrt(K - 1) |_F with G = A B^T, the form of bce-vs-ce Eqs. 33 and 34.

    For K > d + 1 a Gram matrix of rank d stays at least sqrt(2 - 2 sqrt(d / (K - 1))) away, and the distance is
    2 - 2 <G, simplex> / |G|_F without cancellation.
    """
    classes = len(left)
    if classes <= left.dim + 1:
        return float(gram_distance(left.whole() @ right.whole().T, etf_gram(classes)))
    size = norm_of_product(left, right)
    overlap = float(dot(left.centre(), right.centre())) / math.sqrt(classes - 1)
    return math.sqrt(max(2 - 2 * overlap / size, 0.0)) if size > 0 else math.nan


def norm_of_product(left: Rows, right: Rows) -> float:
    """|A B^T|_F from d x d matrices."""
    grams = (left.gram(), right.gram())
    square, sizes = float((grams[0] * grams[1]).sum()), [float(frobenius(gram)) for gram in grams]
    if square > 1e-4 * sizes[0] * sizes[1]:
        return math.sqrt(square)
    # nearly orthogonal row spaces: the squares would cancel, the triangular factors do not
    return float(frobenius(left.triangle() @ right.triangle().T))


def distance_to_rank(weight: Rows) -> float:
    """Distance of W W^T / |W W^T|_F to the nearest P / sqrt(r): P a rank-r projection, P 1 = 0, r = min(d, K - 1).

    For d < K - 1 the nearest P projects onto the columns of the centred W. With s its singular values and m the mean
    row of W, the squared distance is the sum over the block of P, the block of 1 and the two between them:

        sum_i (s_i^2 / g - 1 / sqrt(d))^2 + (K |m|^2 / g)^2 + 2 K |W~ m|^2 / g^2,   g = |W W^T|_F
    """
    classes, dim = len(weight), weight.dim
    if dim >= classes - 1:  # one projection only: I - 11^T / K
        return distance_to_simplex(weight, weight)
    size = norm_of_product(weight, weight)
    if not size > 0:
        return math.nan
    mean, gram = weight.mean(), weight.centre().gram()
    squares: Tensor = torch.linalg.eigvalsh(gram).clamp_min(0.0)
    inside = float((squares / size - 1 / math.sqrt(dim)).square().sum())
    along_ones = classes * float(mean @ mean) / size
    between = 2 * classes * float(mean @ gram @ mean) / size / size
    return math.sqrt(inside + along_ones**2 + between)


def vary_norms(rows: Rows) -> float:
    """Coefficient of variation (population standard deviation over mean) of the norms of the rows; NaN if all are 0."""
    norms = rows.norms()
    return float(norms.std(correction=0) / norms.mean())


def measure_duality(weight: Rows, moments: Moments) -> dict[str, float]:
    """Classifier against class means: `nc3`, `nc3_centred`, `nc3_distance`, `nc2_relu`."""
    centred = moments.centred()
    scales = moments.counts.sqrt()
    total = torch.zeros_like(moments.anchor)
    for part in centred.parts():
        total += scales[part] @ moments.means().block(part)
    optimal = _Scaled(moments, scales * len(weight), centred.add_up(total))
    return {
        "nc3": distance_to_simplex(weight, centred),
        "nc3_centred": distance_to_simplex(weight.centre(), centred),
        "nc3_distance": distance_of_rows(weight, centred),
        "nc2_relu": distance_of_rows(weight, optimal),
    }


@dataclass(frozen=True)
class _Scaled:
    """K sqrt(n_k) h_k - sum_m sqrt(n_m) h_m: the classifier optimal for non-negative means, imbalanced-relu Eq. 20."""

    moments: Moments
    scales: Tensor
    total: Tensor

    def block(self, part: slice) -> Tensor:
        rows: Tensor = self.scales[part][:, None] * self.moments.means().block(part) - self.total
        return rows

    def energy(self) -> Tensor:
        rows, total = self.moments.means(), torch.zeros_like(self.total[0])
        for part in rows.parts():
            total += self.block(part).square().sum()
        return rows.add_up(total)


def distance_of_rows(left: Rows, right: Rows | _Scaled) -> float:
    """| A / |A|_F - B / |B|_F |_F, read in blocks."""
    sizes = left.energy().sqrt(), right.energy().sqrt()
    square = torch.zeros((), dtype=torch.float64, device=left.device)
    for part in left.parts():
        square += (left.block(part) / sizes[0] - right.block(part) / sizes[1]).square().sum()
    return float(left.add_up(square).sqrt())


def frobenius(matrix: Tensor) -> Tensor:
    """|A|_F."""
    return matrix.square().sum().sqrt()
