"""How far a sample may be from its class mean and still be decided for its class, whatever the direction.

Near collapse most samples are that close, and need no score of any other class.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .classifier import Classifier
from .collapse import Moments
from .pairs import CPU_TILE, CUDA_TILE
from .rows import Rows, split_range, square_norms

WORTHWHILE = 32  # samples a class from which the products of all pairs of classes are cheap beside those of all samples
PRODUCTS = 1 << 24  # fewer products of numbers than these take less time than finding the radii
CUDA_SCORES = 1 << 26  # the same on a GPU, in scores
SLACK = 1e-9  # of the numbers compared: far more than their rounding


def is_worthwhile(moments: Moments, num_classes: int, device: torch.device) -> bool:
    """Whether radii are likely to save more work than they take, for samples on this device.

    On a GPU the products are cheap, and looking which samples are left means to wait for it.
    """
    samples = moments.num_samples
    if device.type != "cpu":
        return samples >= WORTHWHILE * num_classes and samples * num_classes > CUDA_SCORES
    return samples >= WORTHWHILE * num_classes and samples * num_classes * moments.offsets.shape[1] >= PRODUCTS


def nearest_mean_radii(moments: Moments) -> Tensor:
    """Half the distance of each class mean to the nearest other one [P]: samples closer than that are nearest to it."""
    rows, least = moments.centred(), torch.full_like(moments.counts, torch.inf)
    norms = rows.norms().square()
    for left, right, products in _tables(rows, rows):
        around = norms[left][:, None] + norms[right]
        distances = (products.mul_(-2).add_(around)).sub_(around.mul_(SLACK))
        if left == right:
            distances.fill_diagonal_(torch.inf)
        least[left] = torch.minimum(least[left], distances.amin(1))
    return least.clamp_min(0.0).sqrt_() / 2 * (1 - SLACK)


def decision_radii(classifier: Classifier, moments: Moments, classes: Tensor | None) -> Tensor:
    """The distance of each class mean to the nearest decision boundary of its class [P], 0 where it is beyond one.

    With z_j the logits of the mean of class k: the least over j of (z_k - z_j) / |w_k - w_j|.
    """
    weight = classifier.rows().centre()
    own = Rows(weight.values, weight.minus, classes)
    means, least = moments.means(), torch.full_like(moments.counts, torch.inf)
    squares = torch.cat([square_norms(block) for block in weight.blocks()])
    sizes = squares.sqrt()
    for left, right, products in _tables(own, weight):
        index = torch.arange(left.start, left.stop, device=least.device) if classes is None else classes[left]
        around = squares[index][:, None] + squares[right]
        apart = products.mul_(-2).add_(around).clamp_min_(0.0).add_(around.mul_(SLACK)).sqrt_()
        block, bias = means.block(left), classifier.bias
        logits = block @ weight.block(right).T - bias[right]
        positive = torch.linalg.vecdot(block, weight.pick(index)) - bias[index]
        doubt = torch.linalg.vector_norm(block, dim=1)[:, None] * (sizes[index][:, None] + sizes[right])
        doubt += bias[index].abs()[:, None] + bias[right].abs()
        gaps = positive[:, None].sub(logits).sub_(doubt.mul_(SLACK))
        ratios = torch.where(apart > 0, gaps / apart, -torch.inf)
        inside = ((index >= right.start) & (index < right.stop)).nonzero().flatten()
        ratios[inside, index[inside] - right.start] = torch.inf
        least[left] = torch.minimum(least[left], ratios.amin(1))
    return least.clamp_min_(0.0) * (1 - SLACK)


def _tables(left: Rows, right: Rows) -> Iterator[tuple[slice, slice, Tensor]]:
    """Products of all rows of two matrices, in tiles: their places and the products."""
    side = CUDA_TILE if left.device.type == "cuda" else CPU_TILE
    for first in split_range(len(left), side):
        block = left.block(first)
        for second in split_range(len(right), side):
            yield first, second, block @ right.block(second).T
