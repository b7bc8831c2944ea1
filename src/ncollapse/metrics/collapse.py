"""Within-class collapse, frames and duality: functions of the class means, the within-class scatter and the classifier.

Time O(K d min(K, d)), memory O(K d): where K > d + 1, products with d x d matrices give the norms of the K x K ones.
What compares all pairs of classes is in pairs.py. Everything is float64, where transfer.py says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ncollapse.frames import etf_gram, gram_distance

from .rows import ROUNDING, Rows, differ, dot
from .transfer import copy_together

if TYPE_CHECKING:
    from .shards import Shards

MODERATE = 2.0**20  # features of this size, or the inverse of it, are not scaled before they are rounded to float32


@dataclass(frozen=True)
class Moments:
    """Class statistics of the classes that have samples.

    The global mean (over samples, bce-vs-ce Eq. 27) is anchor + shift: kept apart, they have more digits than their
    sum, so that features with a large common offset lose none.
    """

    counts: Tensor  # [K] float64, all positive
    offsets: Tensor  # [K, d] class mean minus the global mean (bce-vs-ce Eq. 36); zero where that is rounding
    anchor: Tensor  # [d] a point near the features
    shift: Tensor  # [d] global mean minus the anchor
    energies: Tensor  # [K] mean of |h - anchor|^2: the scale against which a difference is rounding
    variances: Tensor | None = None  # [K] mean squared distance of a class's samples to its mean
    basis: Tensor | None = None  # [d, r] orthonormal columns that span the centred means; None: all of R^d
    scatter: Tensor | None = None  # [r, r] sum over samples of (h - mean)(h - mean)^T in that basis
    whitening: Whitening | None = None  # directions that `nc1` takes the scatter along
    along: Tensor | None = None  # [q] sum over samples of (direction . (h - mean))^2, instead of the scatter
    shards: Shards | None = None  # where each process holds some of the classes: counts, offsets, energies, variances

    @property
    def global_mean(self) -> Tensor:
        """The mean over samples [d]."""
        return self.anchor + self.shift

    @cached_property
    def rounding(self) -> float:
        """Differences of features or means up to this length are rounding errors."""
        return bound_rounding(self.energies, self.shards)

    @cached_property
    def float32_scale(self) -> float:
        """A power of two that brings the features near 1; 1 where they fit into float32 as they are."""
        size = math.sqrt(float(self.counts @ self.energies) / float(self.counts.sum()))
        return 1.0 if size == 0 or 1 / MODERATE < size < MODERATE else 2.0 ** -round(math.log2(size))

    @cached_property
    def num_samples(self) -> float:
        """N."""
        total = self.counts.sum()
        return float(total if self.shards is None else self.shards.add(total))

    @cached_property
    def _means(self) -> Rows:
        return Rows(self.offsets, -self.global_mean, shards=self.shards)

    @cached_property
    def _centred(self) -> Rows:
        return Rows(self.offsets, shards=self.shards)

    def means(self) -> Rows:
        """The class means."""
        return self._means

    def centred(self) -> Rows:
        """The class means minus the global mean."""
        return self._centred

    @cached_property
    def means_differ(self) -> bool:
        """Whether the class means are not all equal up to rounding."""
        return bool(self.centred().norms().any())

    def variances_or_zero(self) -> Tensor:
        """The variances of the classes, zeros where they were not measured."""
        return torch.zeros_like(self.counts) if self.variances is None else self.variances

    def within(self) -> float:
        """trace(Sigma_W): the mean squared distance of a sample to its class mean."""
        if self.variances is None:
            return 0.0
        return float(self.centred().add_up(self.counts @ self.variances)) / self.num_samples

    def add(self, **found: Any) -> Moments:
        """The same class means with more found about them."""
        made = replace(self, **found)
        for name in ("rounding", "float32_scale", "num_samples", "_means", "_centred", "means_differ"):
            if name in self.__dict__:
                made.__dict__[name] = self.__dict__[name]
        return made

    def on(self, device: torch.device) -> Moments:
        """What the passes over samples need of them, on the device of the samples."""
        if self.offsets.device == device:
            return self
        given, whitening = [self.counts, self.offsets, self.anchor, self.shift, self.energies], self.whitening
        directions = [] if whitening is None else [whitening.directions]
        counts, offsets, anchor, shift, energies, *directions = copy_together([*given, *directions], device)
        if whitening is not None:
            whitening = whitening._replace(directions=directions[0])
        made = Moments(counts, offsets, anchor, shift, energies, whitening=whitening)
        made.__dict__.update({"rounding": self.rounding, "num_samples": self.num_samples})
        return made


class Whitening(NamedTuple):
    """Directions along which the squares of the residuals h - mean add up to trace(Sigma_W pinv(Sigma_B)).

    The centred means M = U S V^T have A = M^T M with the pseudo-inverse sum_i p_i p_i^T, p_i = v_i / s_i. Around the
    mean over classes, which is e away, A becomes B = A - K e e^T, and pinv(B) = pinv(A) + K u u^T / (1 + t) with
    u = pinv(B) e and t = K e . u: one more direction gives `nc1_balanced`.
    """

    spectrum: Spectrum
    directions: Tensor  # [rank + 1, d] the p_i and u
    factor: float  # K / (1 + t)


class Spectrum(NamedTuple):
    """The singular values of the centred class means, in the basis of the moments."""

    rank: int
    singular_values: Tensor  # [min(K - 1, d)]
    triangle: Tensor | None  # [r, r] with triangle^T triangle = centred^T centred, where the rank is r
    axes: Tensor | None  # [r, rank] the directions of the centred means, where the rank is below r


def take_moments(
    counts: Tensor, offsets: Tensor, anchor: Tensor, energies: Tensor, shards: Shards | None = None
) -> Moments:
    """Moments of filled classes: counts, class means minus the anchor (overwritten), mean energies around it."""
    around_anchor = Rows(offsets, shards=shards)
    shift = around_anchor.add_up(counts @ offsets) / around_anchor.add_up(counts.sum())
    offsets.sub_(shift)
    rounding = bound_rounding(energies, shards)
    shift = torch.where(torch.linalg.vector_norm(anchor + shift) < rounding, -anchor, shift)
    offsets[torch.linalg.vector_norm(offsets, dim=1) <= rounding] = 0.0
    # so is a class mean next to 0, as of a class whose features are all 0: it has no direction; where squares
    # underflow, rounding and norms are 0 and the means are kept, so that their scale is refused by name
    vanished = Rows(offsets, -(anchor + shift)).norms() < rounding
    offsets.masked_fill_(vanished[:, None], 0.0).addr_(vanished.to(torch.float64), anchor + shift, alpha=-1)
    return Moments(counts, offsets, anchor, shift, energies, shards=shards)


def bound_rounding(energies: Tensor, shards: Shards | None) -> float:
    """The length up to which differences of vectors with these squared norms are rounding errors."""
    largest = energies.amax() if len(energies) else energies.new_zeros(())
    return ROUNDING * math.sqrt(float(largest if shards is None else shards.largest(largest)))


def span_means(moments: Moments) -> Moments:
    """Add the basis in which the within-class scatter is needed: none smaller than R^d where K >= d."""
    if len(moments.counts) >= moments.offsets.shape[1]:
        return moments
    return moments.add(basis=torch.linalg.qr(moments.centred().whole().T).Q)


def whiten_means(moments: Moments) -> Moments:
    """Add the whitening of the centred means M = U S V^T of fewer classes than dimensions, where they differ at all.

    In the coordinates U S of the class means all but the last step is [K, K].
    """
    left, singular, right = torch.linalg.svd(moments.centred().whole(), full_matrices=False)
    rank = count_above(moments, singular)
    if rank == 0:
        return moments
    axes, classes = right[:rank], len(left)
    coordinates = left[:, :rank] * singular[:rank]
    gap = coordinates.mean(0)
    triangle = torch.linalg.qr(coordinates - gap, mode="r").R
    half = torch.linalg.solve_triangular(triangle.T, gap[:, None], upper=False)
    tilt = torch.linalg.solve_triangular(triangle, half, upper=True)
    factor = classes / (1 + classes * float(half.square().sum()))
    directions = torch.cat([axes / singular[:rank, None], tilt.T @ axes])
    return moments.add(whitening=Whitening(Spectrum(rank, singular[: classes - 1], None, axes.T), directions, factor))


def finish_moments(moments: Moments, variances: Tensor, scatter: Tensor | None) -> Moments:
    """Add variances and scatter [r, r], or [q] along directions; those below the rounding of their sums are zero."""
    variances = torch.where(variances > ROUNDING**2 * moments.energies, variances, 0.0)
    if scatter is None:
        return moments.add(variances=variances)
    some = moments.centred().add_up(variances.sum())
    scatter = torch.where(some > 0, scatter, 0.0)
    return moments.add(variances=variances, **{"along" if scatter.ndim == 1 else "scatter": scatter})


def decompose_means(moments: Moments) -> Spectrum:
    """Singular values of the centred class means, whose rank is at most K - 1.

    A direction counts as absent only below the rounding error of the means themselves, so that two nearly merged
    classes keep theirs.
    """
    if moments.whitening is not None:
        return moments.whitening.spectrum
    centred = moments.centred()
    matrix = centred.triangle() if moments.basis is None else centred.whole() @ moments.basis
    most = min(len(centred) - 1, centred.dim)
    if len(matrix) == matrix.shape[1] == most:
        singular: Tensor = torch.linalg.svdvals(matrix)
        if count_above(moments, singular) == most:
            return Spectrum(most, singular, matrix, None)
    _, singular, axes = torch.linalg.svd(matrix, full_matrices=False)
    rank = count_above(moments, singular)
    return Spectrum(rank, singular[:most], None, axes[:rank].T)


def count_above(moments: Moments, singular: Tensor) -> int:
    """How many of the singular values of the centred means are no rounding errors: at most K - 1."""
    centred = moments.centred()
    rounding = ROUNDING * math.sqrt(float(centred.add_up(moments.energies.sum())))
    return int((singular[: min(len(centred) - 1, centred.dim)] > rounding).sum())


def measure_within(moments: Moments, spectrum: Spectrum) -> dict[str, float]:
    """`nc1`, `nc1_balanced` and `nc1_quotient`; NaN where all class means coincide."""
    names = ("nc1", "nc1_balanced", "nc1_quotient")
    if spectrum.rank == 0 or moments.variances is None:
        return dict.fromkeys(names, math.nan)
    if moments.along is not None:
        nc1, balanced = _along_directions(moments)
    else:
        nc1, balanced = (math.nan,) * 2 if moments.scatter is None else _from_scatter(moments, spectrum)
    total, between = moments.num_samples, float(moments.centred().energy()) / len(moments.centred())
    return dict(zip(names, (nc1 / total, balanced / total, moments.within() / between)))


def _along_directions(moments: Moments) -> tuple[float, float]:
    assert moments.along is not None
    assert moments.whitening is not None
    nc1 = float(moments.along[:-1].sum())
    return nc1, nc1 + moments.whitening.factor * float(moments.along[-1])


def _from_scatter(moments: Moments, spectrum: Spectrum) -> tuple[float, float]:
    """N nc1 and N nc1_balanced."""
    assert moments.scatter is not None
    by_class = moments.centred().centre()
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
    return nc1, trace_ratio(scatter, around_classes)


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
        "nc3_centred": distance_to_simplex(weight.centre(), centred) if differ(weight) else math.nan,
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
