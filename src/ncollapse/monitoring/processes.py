"""The processes of a distributed training that measure together: they meet, collect on rank 0, share the result."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from ncollapse.features.spool import FeatureSpool
from ncollapse.train.distributed import World

T = TypeVar("T")
WARN_AFTER, GIVE_UP_AFTER = 20.0, 600.0
"""Seconds to wait for the other processes."""
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_meetings = itertools.count()


class Alone:
    """A single process, or one that measures without the others."""

    rank, size = 0, 1

    def run(self, work: Callable[[], T]) -> T:
        """Do the part of this process."""
        return work()

    def collect(self, spools: Sequence[FeatureSpool]) -> None:
        """Nothing is elsewhere."""

    def share(self, work: Callable[[], T]) -> T:
        """The result of this process."""
        return work()


class Together:
    """All processes of torch.distributed's default group; each has to take part in every measurement."""

    def __init__(self) -> None:
        device = torch.device("cuda", torch.cuda.current_device()) if "nccl" in dist.get_backend() else "cpu"
        self.world = World(dist.get_rank(), dist.get_world_size(), torch.device(device))
        self.rank, self.size = self.world.rank, self.world.size

    def run(self, work: Callable[[], T]) -> T:
        """Do the part of this process once all are there; an error in one of them is raised in all."""
        self.wait()
        result: T | None = None
        error: Exception | None = None
        try:
            result = work()
        except Exception as caught:
            error = caught
        failed: list[str | None] = [None] * self.size
        dist.all_gather_object(failed, None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for rank, text in enumerate(failed):
            if text is not None:
                raise RuntimeError(f"monitor: rank {rank} failed: {text}")
        return result  # type: ignore[return-value]

    def wait(self) -> None:
        """Return when all processes are here; say who is missing instead of waiting forever."""
        store = dist.distributed_c10d._get_default_store()
        meeting = next(_meetings)
        keys = {rank: f"ncollapse/meeting-{meeting}/rank-{rank}" for rank in range(self.size)}
        store.set(keys[self.rank], "here")
        began, warned = time.monotonic(), False
        while missing := [rank for rank, key in keys.items() if not store.check([key])]:
            waited = time.monotonic() - began
            words = (
                f"monitor: rank {self.rank} has waited {waited:.0f} s for {len(missing)} of {self.size} processes "
                f"(rank {', '.join(map(str, missing[:8]))}) to measure with it. To measure in one process alone, as in "
                "`if rank == 0:`, pass distributed=False; else call monitor and step in every process"
            )
            if waited > GIVE_UP_AFTER:
                raise RuntimeError(words)
            if waited > WARN_AFTER and not warned:
                warnings.warn(words, stacklevel=2)
                warned = True
            time.sleep(min(0.2, 0.001 + 0.1 * waited))

    def collect(self, spools: Sequence[FeatureSpool]) -> None:
        """Move every process's batches to rank 0, one batch at a time."""
        for spool in spools:
            for rank in range(1, self.size):
                if self.rank == rank:
                    self._send(spool)
                elif self.rank == 0:
                    self._receive(spool, rank)

    def share(self, work: Callable[[], T]) -> T:
        """Do something on rank 0 and give every process the result, or the exception."""
        return self.world.share(work)

    def _send(self, spool: FeatureSpool) -> None:
        place = self.world.device
        dist.send(torch.tensor([len(spool)], device=place), dst=0)
        for labels, features in zip(spool.labels, spool.read_all()):
            shape = [*features.shape, DTYPES.index(features.dtype)]
            dist.send(torch.tensor(shape, device=place), dst=0)
            dist.send(features.contiguous().view(torch.uint8).to(place), dst=0)
            dist.send(labels.to(place, torch.int64), dst=0)

    def _receive(self, spool: FeatureSpool, rank: int) -> None:
        place = self.world.device
        count = torch.zeros(1, dtype=torch.int64, device=place)
        dist.recv(count, src=rank)
        for _ in range(int(count)):
            shape = torch.zeros(3, dtype=torch.int64, device=place)
            dist.recv(shape, src=rank)
            rows, dim, kind = shape.tolist()
            dtype = DTYPES[kind]
            features = torch.empty(rows, dim * dtype.itemsize, dtype=torch.uint8, device=place)
            labels = torch.empty(rows, dtype=torch.int64, device=place)
            dist.recv(features, src=rank)
            dist.recv(labels, src=rank)
            spool.add(features.view(dtype), labels)


def find_processes(distributed: bool, model: Any) -> Alone | Together:
    """Those that measure together: all of torch.distributed's, or this one."""
    grouped = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    if not distributed and grouped and isinstance(model, nn.Module) and is_sharded(model):
        raise ValueError(
            "distributed: expected True for a model sharded by FSDP, got False; each process holds a part of its "
            "weights, so all of them have to run it"
        )
    return Together() if distributed and grouped else Alone()


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP holds the weights of a model in parts."""
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    return any(isinstance(module, (FSDPModule, FullyShardedDataParallel)) for module in model.modules())
