"""How samples are divided into steps, and steps among processes: the rules that all loaders follow."""

from __future__ import annotations

import torch
from torch import Tensor


def count_steps(count: int, batch_size: int, *, drop_last: bool, rank: int, world_size: int) -> int:
    """Return the steps of an epoch over `count` samples; raise if the batches cannot be made or divided.

    >>> count_steps(10, 4, drop_last=False, rank=0, world_size=2)
    3
    """
    if not isinstance(batch_size, int):
        raise TypeError(f"batch_size: expected a whole number, got {batch_size!r}")
    if batch_size < 1 or (drop_last and batch_size > count):
        raise ValueError(f"batch_size: expected a value in 1..{count} (the training samples), got {batch_size}")
    check_rank(rank, world_size)
    if batch_size % world_size:
        raise ValueError(f"batch_size: expected a multiple of the {world_size} processes, got {batch_size}")
    return count // batch_size if drop_last else -(-count // batch_size)


def shard_rows(count: int, batch_size: int, *, rank: int, world_size: int) -> Tensor:
    """Return the rows of one process: a contiguous shard; the shards in the order of ranks are the whole.

    >>> shard_rows(5, 2, rank=1, world_size=2).tolist()
    [3, 4]
    """
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
    check_rank(rank, world_size)
    return torch.arange(count).tensor_split(world_size)[rank]


def check_rank(rank: int, world_size: int) -> None:
    """Raise if the rank is not one of the processes."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank: expected a value in 0..{world_size - 1}, got {rank}")
