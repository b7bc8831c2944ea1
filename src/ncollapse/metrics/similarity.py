"""Compactness and distinctiveness of features, in O(N d).

A sum of pairwise cosines is the squared norm of a sum of unit vectors, so the mean unit vector of each class is enough.
"""

from __future__ import annotations

from torch import Tensor


def compactness(directions: Tensor) -> Tensor:
    """bce-vs-ce Eq. 49 as a fraction: (1 + mean over classes of the mean cosine inside a class) / 2.

    `directions` [K, d] holds for each class the mean of (h - global mean) / |h - global mean|.

    >>> import torch
    >>> compactness(torch.eye(3)).item()
    1.0
    """
    return ((1 + (directions**2).sum(1).mean()) / 2).clamp(0, 1)


def distinctiveness(directions: Tensor) -> Tensor:
    """bce-vs-ce Eq. 50 as a fraction: (1 - mean over pairs of classes of the mean cosine between them) / 2.

    `directions` [K, d] holds for each class the mean of h / |h| (as printed) or of the centred unit vectors.

    >>> import torch
    >>> distinctiveness(torch.eye(3)).item()
    0.5
    """
    classes = len(directions)
    if classes < 2:
        return directions.sum() * float("nan")
    between = directions.sum(0).square().sum() - directions.square().sum()
    return ((1 - between / (classes * (classes - 1))) / 2).clamp(0, 1)
