"""Memory that is used again for every chunk and, on the CPU, for the next measurement."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor


KEPT_BYTES = 1 << 22  # the largest piece that is kept from one measurement to the next: 4 MB

_kept = threading.local()


class Workspace:
    """Named pieces of memory, kept from chunk to chunk: fresh memory of this size costs a page fault every 4 kB.

    >>> room = Workspace(torch.device("cpu"))
    >>> room.take("scores", 2, 3).data_ptr() == room.take("scores", 3, 2).data_ptr()
    True
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._held: dict[str, Tensor] = {}

    @cached_property
    def inner(self) -> Workspace:
        """Other memory, for work on a part of a chunk."""
        return Workspace(self.device)

    def take(self, name: str, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """A tensor of this shape with arbitrary values; it shares its memory with all others of the same name."""
        size = math.prod(shape)
        held = self._held.get(name)
        if held is None or held.numel() < size or held.dtype != dtype:
            with torch.inference_mode(False):  # else it could not be written to outside inference mode
                held = self._held[name] = torch.empty(size, dtype=dtype, device=self.device)
        return held[:size].view(shape)

    def ones(self, count: int) -> Tensor:
        """So many ones; not to be changed."""
        held = self._held.get("ones")
        if held is None or len(held) < count:
            held = self._held["ones"] = torch.ones(count, dtype=torch.float64, device=self.device)
        return held[:count]

    def drop_large(self) -> None:
        """Let go of the pieces that are too large to keep."""
        self._held = {name: piece for name, piece in self._held.items() if piece.nbytes <= KEPT_BYTES}
        self.__dict__.pop("inner", None)


@contextmanager
def borrow_workspace(device: torch.device) -> Iterator[Workspace]:
    """Memory for one measurement; on the CPU small pieces are kept for the next one in this thread.

    >>> with borrow_workspace(torch.device("cpu")) as room:
    ...     first = room.take("chunk", 4).data_ptr()
    >>> with borrow_workspace(torch.device("cpu")) as room:
    ...     room.take("chunk", 4).data_ptr() == first
    True
    """
    on_host = device.type == "cpu"
    room = _kept.__dict__.pop("room", None) if on_host else None
    room = Workspace(device) if room is None else room
    try:
        yield room
    finally:
        if on_host:
            room.drop_large()
            _kept.room = room
