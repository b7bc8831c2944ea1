"""Classes spread over processes: each holds a slice of them, and sums and factors are put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Shards:
    """Class k is held by process k // ceil(K / P), as torch shards the rows of a weight (FSDP, tensor parallel)."""

    num_classes: int
    group: Any = None  # a torch.distributed process group; None is the default one

    def __post_init__(self) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "shard_classes: needs torch.distributed.init_process_group first; leave it out in a single process"
            )

    @property
    def rank(self) -> int:
        """The number of this process."""
        return dist.get_rank(self.group)

    @property
    def processes(self) -> int:
        """How many there are."""
        return dist.get_world_size(self.group)

    def bounds(self, rank: int | None = None) -> tuple[int, int]:
        """The first class of a process, and the first after its last."""
        rank = self.rank if rank is None else rank
        size = -(-self.num_classes // self.processes)
        return min(rank * size, self.num_classes), min((rank + 1) * size, self.num_classes)

    def add(self, value: Tensor) -> Tensor:
        """The sum over processes."""
        return self._reduce(value, dist.ReduceOp.SUM)

    def least(self, value: Tensor) -> Tensor:
        """The least over processes."""
        return self._reduce(value, dist.ReduceOp.MIN)

    def largest(self, value: Tensor) -> Tensor:
        """The largest over processes."""
        return self._reduce(value, dist.ReduceOp.MAX)

    def _reduce(self, value: Tensor, operation: Any) -> Tensor:
        total = value.clone()
        dist.all_reduce(total, operation, group=self.group)
        return total

    def sizes(self, value: Tensor) -> list[int]:
        """How many rows every process has."""
        own = torch.tensor([len(value)], device=value.device)
        found = [torch.zeros_like(own) for _ in range(self.processes)]
        dist.all_gather(found, own, group=self.group)
        return [int(size) for size in found]

    def gather(self, value: Tensor) -> Tensor:
        """The rows of all processes, in their order; each may have another number of them."""
        sizes = self.sizes(value)
        padded = value.new_zeros(max(sizes), *value.shape[1:])
        padded[: len(value)] = value
        found = [torch.zeros_like(padded) for _ in sizes]
        dist.all_gather(found, padded, group=self.group)
        return torch.cat([part[:size] for part, size in zip(found, sizes)])

    def broadcast(self, value: Tensor, rank: int) -> Tensor:
        """The tensor of one process; the others pass one of its shape."""
        source = rank if self.group is None else dist.get_global_rank(self.group, rank)
        value = value.contiguous()
        dist.broadcast(value, source, group=self.group)
        return value

    def exchange(self, features: Tensor, labels: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The samples of all processes, with labels counted from this one's first class and a mask of its classes.

        A label that names no class is an error in every process.
        """
        mask = torch.ones(len(labels), dtype=torch.bool, device=features.device) if keep is None else keep
        gathered = [self.gather(part.to(features.device)) for part in (features, labels, mask.to(torch.uint8))]
        everyone, index, kept = gathered[0], gathered[1], gathered[2] > 0
        wrong = int((((index < 0) | (index >= self.num_classes)) & kept).sum())
        if wrong:
            raise ValueError(f"labels: {wrong} samples had labels outside 0..{self.num_classes - 1}")
        start, stop = self.bounds()
        return everyone, index - start, kept & (index >= start) & (index < stop)
