"""The frames to which class means and weights converge, and the distance to them.

A frame is a matrix [K, d] whose K rows are vectors in R^d. Frames are compared by their Gram matrices divided by
their Frobenius norm, so neither scale nor rotation matters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def simplex_etf(
    num_classes: int,
    dim: int | None = None,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Return K unit vectors in R^d with pairwise cosine -1/(K-1): a simplex equiangular tight frame, d >= K - 1.

    Gram matrix K/(K-1) (I - 11^T/K). `dim` defaults to K - 1. Without a generator the frame spans the first K - 1
    axes; with one it is rotated at random.

    >>> frame = simplex_etf(3, 5)
    >>> (frame @ frame.T).round(decimals=6).tolist()
    [[1.0, -0.5, -0.5], [-0.5, 1.0, -0.5], [-0.5, -0.5, 1.0]]
    """
    _check_classes(num_classes)
    dim = num_classes - 1 if dim is None else dim
    if dim < num_classes - 1:
        raise ValueError(
            f"dim: expected at least num_classes - 1 = {num_classes - 1} for a simplex ETF, got {dim}; "
            "low_rank_etf gives the nearest frame of a lower rank"
        )
    return _embed(_centred_basis(num_classes) * _etf_norm(num_classes), dim, generator, dtype)


def low_rank_etf(
    num_classes: int, dim: int, *, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Return a best rank-d approximation of the simplex ETF as K vectors in R^d, for d below K - 1.

    Gram matrix K/(K-1) P with P a projection of rank d and P 1 = 0 (mse-landscape Theorem 3.1). Every such P is equally
    near; this one is spanned by Fourier vectors, which gives all vectors the same length if d or K is even.
    For d >= K - 1 it is the simplex ETF.

    >>> low_rank_etf(6, 2).norm(dim=1).round(decimals=4).tolist()
    [0.6325, 0.6325, 0.6325, 0.6325, 0.6325, 0.6325]
    """
    _check_classes(num_classes)
    if dim < 1:
        raise ValueError(f"dim: expected at least 1, got {dim}")
    if dim >= num_classes - 1:
        return simplex_etf(num_classes, dim, generator=generator, dtype=dtype)
    basis = _centred_basis(num_classes)
    # An even K's basis starts with the alternating vector; an even d leaves it out to keep whole cosine-sine pairs.
    first = 1 if num_classes % 2 == 0 and dim % 2 == 0 else 0
    return _embed(basis[:, first : first + dim] * _etf_norm(num_classes), dim, generator, dtype)


def orthogonal_frame(
    num_classes: int,
    dim: int | None = None,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Return K orthonormal vectors in R^d, d >= K: the first K axes, or with a generator a random rotation of them.

    The optimal features of non-negative models with balanced classes; centring it gives a simplex ETF
    (imbalanced-relu Sec. 2).

    >>> orthogonal_frame(2, 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    _check_classes(num_classes)
    return general_orthogonal_frame([1.0] * num_classes, dim, generator=generator, dtype=dtype)


def general_orthogonal_frame(
    lengths: Sequence[float] | Tensor,
    dim: int | None = None,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Return pairwise orthogonal vectors in R^d of the given lengths, one a class (imbalanced-relu Theorem 1).

    A length may be 0: a collapsed minority class.

    >>> general_orthogonal_frame([2.0, 0.0], 3).tolist()
    [[2.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    sizes = _check_lengths(lengths)
    dim = len(sizes) if dim is None else dim
    if dim < len(sizes):
        raise ValueError(f"dim: expected at least the number of classes {len(sizes)} for orthogonal vectors, got {dim}")
    return _embed(torch.diag(sizes), dim, generator, dtype)


def etf_gram(num_classes: int) -> Tensor:
    """Return the simplex ETF's Gram matrix at Frobenius norm 1: (I - 11^T/K)/sqrt(K-1), bce-vs-ce Eq. 33.

    >>> etf_gram(2).tolist()
    [[0.5, -0.5], [-0.5, 0.5]]
    """
    _check_classes(num_classes)
    centring = torch.eye(num_classes, dtype=torch.float64) - 1.0 / num_classes
    return centring / math.sqrt(num_classes - 1)


def orthogonal_gram(num_classes: int) -> Tensor:
    """Return the orthogonal frame's Gram matrix at Frobenius norm 1: I/sqrt(K).

    >>> orthogonal_gram(4).diagonal().tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    _check_classes(num_classes)
    return torch.eye(num_classes, dtype=torch.float64) / math.sqrt(num_classes)


def general_orthogonal_gram(lengths: Sequence[float] | Tensor) -> Tensor:
    """Return a general orthogonal frame's Gram matrix at Frobenius norm 1: the squared lengths on the diagonal.

    >>> general_orthogonal_gram([1.0, 0.0]).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    squares = _check_lengths(lengths).square()
    return torch.diag(squares / squares.norm())


def nearest_low_rank_gram(vectors: Tensor, rank: int) -> Tensor:
    """Return P/sqrt(r) for the rank-r projection P with P 1 = 0 that is nearest to the vectors' Gram matrix.

    It projects on the top r eigenvectors of the centred Gram matrix. For r = K - 1 this is `etf_gram(K)`.

    >>> torch.allclose(nearest_low_rank_gram(simplex_etf(4), 3), etf_gram(4))
    True
    """
    vectors = _check_vectors(vectors)
    if not 1 <= rank <= len(vectors) - 1:
        raise ValueError(f"rank: expected a value between 1 and K - 1 = {len(vectors) - 1}, got {rank}")
    # In a basis of 1's complement, so that P 1 = 0 holds even where the centred Gram matrix has a larger null space.
    basis = _centred_basis(len(vectors)).to(vectors.device)
    reduced = basis.T @ vectors
    top = basis @ torch.linalg.eigh(reduced @ reduced.T).eigenvectors[:, -rank:]
    gram: Tensor = top @ top.T / math.sqrt(rank)
    return gram


def frame_distance(vectors: Tensor, gram: Tensor) -> Tensor:
    """Return |V V^T/|V V^T|_F - gram|_F for vectors [K, d] and an ideal Gram matrix [K, K] of Frobenius norm 1.

    In float64 on the vectors' device; NaN if all vectors are 0.

    >>> float(frame_distance(3.0 * simplex_etf(4, 7), etf_gram(4))) < 1e-12
    True
    """
    vectors = _check_vectors(vectors)
    if tuple(gram.shape) != (len(vectors), len(vectors)):
        raise ValueError(f"gram: expected the shape {[len(vectors)] * 2} to fit the vectors, got {list(gram.shape)}")
    return gram_distance(vectors @ vectors.T, gram)


def gram_distance(gram: Tensor, ideal: Tensor) -> Tensor:
    """Return |G/|G|_F - ideal|_F for a matrix G [K, K] and an ideal one of Frobenius norm 1; NaN if G is 0.

    G need not be symmetric: bce-vs-ce Eq. 34 compares W H^T with the Gram matrix of a simplex ETF.

    >>> float(gram_distance(5.0 * etf_gram(4), etf_gram(4))) < 1e-12
    True
    """
    distance: Tensor = torch.linalg.norm(gram / torch.linalg.norm(gram) - ideal.to(gram))
    return distance


def _check_classes(num_classes: int) -> None:
    if num_classes < 2:
        raise ValueError(f"num_classes: expected at least 2, got {num_classes}")


def _check_vectors(vectors: Tensor) -> Tensor:
    if vectors.ndim != 2 or len(vectors) < 2:
        raise ValueError(f"vectors: expected the shape [K, d] with K at least 2, got {list(vectors.shape)}")
    return vectors.double()


def _check_lengths(lengths: Sequence[float] | Tensor) -> Tensor:
    sizes = torch.as_tensor(lengths, dtype=torch.float64)
    if sizes.ndim != 1 or len(sizes) < 2:
        raise ValueError(f"lengths: expected one number for each of at least 2 classes, got shape {list(sizes.shape)}")
    if not bool((sizes.isfinite() & (sizes >= 0)).all()):
        raise ValueError(f"lengths: expected finite numbers >= 0, got {sizes.tolist()}")
    return sizes


def _etf_norm(num_classes: int) -> float:
    return math.sqrt(num_classes / (num_classes - 1))


def _centred_basis(num_classes: int) -> Tensor:
    """Return an orthonormal basis [K, K-1] of the vectors that sum to 0: the real Fourier vectors but the constant."""
    place = torch.arange(num_classes, dtype=torch.float64)
    columns = [1.0 - 2.0 * (place % 2)] if num_classes % 2 == 0 else []
    for frequency in range(1, (num_classes + 1) // 2):
        angle = 2.0 * math.pi / num_classes * ((frequency * place) % num_classes)
        columns += [math.sqrt(2.0) * angle.cos(), math.sqrt(2.0) * angle.sin()]
    return torch.stack(columns, dim=1) / math.sqrt(num_classes)


def _embed(frame: Tensor, dim: int, generator: torch.Generator | None, dtype: torch.dtype) -> Tensor:
    """Place the rows [K, r] in R^dim: on the first r axes, or on r random orthonormal directions."""
    rank = frame.shape[1]
    if generator is None:
        return torch.nn.functional.pad(frame, (0, dim - rank)).to(dtype)
    directions = torch.linalg.qr(torch.randn(dim, rank, dtype=torch.float64, generator=generator)).Q
    rotated: Tensor = frame @ directions.T
    return rotated.to(dtype)
