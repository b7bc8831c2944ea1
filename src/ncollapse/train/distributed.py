"""The processes that train together: one, or those that torchrun started."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")
LOST = re.compile(
    r"connection (was )?(closed|reset|refused)|by peer|broken pipe|socket|timed? ?out|failed to recv|gloo|nccl", re.I
)
"""What torch.distributed says of a process that is no longer there, with any backend."""


class LostProcess(RuntimeError):
    """Another process of this run has ended, so that it cannot go on."""


@dataclass(frozen=True)
class World:
    """This process among `size`; the process of rank 0 writes, reads and measures."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, work: Callable[[], T]) -> T:
        """Call a function on rank 0 and return its result, or raise its exception, in every process."""
        if self.size == 1:
            return work()
        box: list[Any] = [None, None]
        if self.first:
            try:
                box[0] = work()
            except Exception as error:
                box[1] = error
        dist.broadcast_object_list(box, src=0, device=self.device)
        if box[1] is not None:
            raise box[1]
        return box[0]  # type: ignore[no-any-return]

    def broadcast(self, tensors: dict[str, Tensor]) -> None:
        """Copy the tensors of rank 0 to every process, in place."""
        for tensor in tensors.values() if self.size > 1 else ():
            moved = tensor.to(self.device)
            dist.broadcast(moved, src=0)
            tensor.copy_(moved)

    def mean(self, tensor: Tensor) -> Tensor:
        """Average a tensor over the processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
            tensor /= self.size
        return tensor

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes in the order of their ranks; each may have another number of rows."""
        if self.size == 1:
            return rows
        counts = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.size)]
        dist.all_gather(counts, torch.tensor([len(rows)], device=self.device))
        most = int(torch.stack(counts).max())
        padded = torch.cat([rows, rows.new_zeros(most - len(rows), *rows.shape[1:])])
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        return torch.cat([part[: int(count)] for part, count in zip(parts, counts)])

    def find_loss(self, error: BaseException) -> LostProcess | None:
        """Return the error to raise if another one comes from a process that was lost; None if it does not."""
        if self.size == 1 or isinstance(error, LostProcess) or not isinstance(error, (RuntimeError, OSError)):
            return None
        said = str(error).strip().splitlines()
        if not LOST.search(str(error)) and not isinstance(error, getattr(dist, "DistError", ())):
            return None
        return LostProcess(
            f"another of the {self.size} processes of this run has ended ({said[0] if said else type(error).__name__})"
        )


def find_device(device: str | torch.device | None = None, local: int = 0) -> torch.device:
    """Return the device of a name (cpu, cuda or cuda:N); by default GPU number `local`, or the CPU without a GPU."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(device)
    except RuntimeError:
        place = torch.device("meta")
    if place.type not in ("cpu", "cuda"):
        raise ValueError(f"device = {str(device)!r} is not supported; it is cpu, cuda or cuda:N")
    if place.type == "cpu":
        return place
    if not torch.cuda.is_available():
        raise ValueError("device = cuda: torch sees no GPU here; leave device out, or name cpu")
    if place.index is not None and place.index >= torch.cuda.device_count():
        raise ValueError(f"device = {str(device)!r}: torch sees {torch.cuda.device_count()} here, counted from cuda:0")
    return torch.device("cuda", place.index if place.index is not None else local)


def join(device: str | torch.device | None = None) -> World:
    """Join the processes that train together, as torch.distributed or torchrun's environment says; else train alone.

    Without a name the device is the GPU of this process if there is one, else the CPU.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ
    local = int(os.environ.get("LOCAL_RANK", "0")) if launched else 0
    place = find_device(device, local)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if launched and not dist.is_initialized():
        import_module("torch.distributed.nn")  # imported later (by DDP) it keeps the group it finds alive, as a default
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size(), place)
    return World(0, 1, place)


def leave() -> None:
    """Leave the group that `join` joined and end its threads: one that outlives the interpreter aborts the process.

    The threads end with the last reference to the group, so reference cycles that hold one (a model in training) are
    collected first.
    """
    if dist.is_available() and dist.is_initialized():
        gc.collect()
        with suppress(RuntimeError):  # of a process that was lost
            dist.destroy_process_group()
