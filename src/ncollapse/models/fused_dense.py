"""Launches of the fused norm's kernels over the channels of a dense block's wide map."""

from __future__ import annotations

import torch
from torch import Tensor

from ncollapse.models.fused_norm import (
    ADDED,
    SUM_TILE,
    _apply_backward,
    _apply_forward,
    _apply_grid,
    _grid,
    _scratch,
    _statistics,
    _sum_backward,
)


def append_channels(new: Tensor, wide: Tensor, stats: Tensor, start: int, shift: Tensor) -> None:
    """Copy a map into channels `start`... of a wider one, and its mean and variance into those of stats [2, C].

    `shift` [C of the new ones] is near the mean, which keeps the sums exact.
    """
    m, c, blocks, columns = _grid(new, SUM_TILE)
    partial, ticket = _scratch(new, blocks, columns, SUM_TILE[1])
    _statistics[blocks, columns](
        new, wide[:, start:], shift, None, None, partial, ticket, stats[0, start:], stats[1, start:],
        m, c, wide.shape[1], blocks, 0.0, False, True, *SUM_TILE, ADDED,
    )  # fmt: skip


def apply_to_channels(
    wide: Tensor, stats: Tensor, weight: Tensor, bias: Tensor, running: tuple[Tensor, Tensor, Tensor],
    momentum: float, eps: float,
) -> Tensor:  # fmt: skip
    """relu(norm) of the first channels of a map, as many as there are weights; the running statistics are updated."""
    images, ld, height, width = wide.shape
    shape = (images, len(weight), height, width)
    y = torch.empty(shape, dtype=wide.dtype, device=wide.device, memory_format=torch.channels_last)
    m, c, programs, tile = _apply_grid(y)
    _apply_forward[programs](
        wide, None, weight, bias, stats, stats[1], y, *running, m, c, ld, height, width, momentum, eps,
        False, True, False, True, *tile,
    )  # fmt: skip
    return y


def differentiate_channels(
    dy: Tensor, wide: Tensor, stats: Tensor, weight: Tensor, bias: Tensor, d_wide: Tensor, eps: float
) -> Tensor:
    """[d_weight, d_bias] of `apply_to_channels`; its gradient is added to that of the wide map."""
    m, c, blocks, columns = _grid(dy, SUM_TILE)
    partial, ticket = _scratch(dy, blocks, columns, SUM_TILE[1])
    sums = torch.empty(2, c, dtype=torch.float32, device=dy.device)
    _, ld, height, width = wide.shape
    _sum_backward[blocks, columns](
        dy, None, None, wide, weight, bias, stats, stats[1], partial, ticket, dy, sums,
        m, c, ld, height, width, blocks, eps, True, False, False, False, *SUM_TILE, ADDED,
    )  # fmt: skip
    _, _, programs, tile = _apply_grid(dy)
    _apply_backward[programs](
        dy, wide, weight, bias, stats, stats[1], sums, d_wide, m, c, ld, height, width, eps,
        True, False, True, *tile,
    )  # fmt: skip
    return sums
