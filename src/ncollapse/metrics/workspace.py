"""Memory that is used again for every chunk."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor


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
            held = self._held[name] = torch.empty(size, dtype=dtype, device=self.device)
        return held[:size].view(shape)
