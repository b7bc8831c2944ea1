"""Streams beside a run's own, on which parts of a captured training step go on side by side.

The weight gradient of a convolution is needed only at the end of the backward pass. On a stream of its own it fills
the multiprocessors that other kernels leave idle: small maps, the last blocks of a convolution, and norms, which wait
for memory. A shortcut with a convolution runs beside the block that it skips, for the same reason, and a weight is
updated beside the gradients of the layers below its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")
LAG = 8
"""Weight gradients that may be under way at a time; until they are done, their inputs stay in memory."""
_here = threading.local()


class Beside:
    """The streams beside one run's own, which is the current one.

    `change(weight, gradient)` launches a weight's update; it keeps the gradient until `join`.
    """

    def __init__(self, device: torch.device, change: Callable[[Tensor, Tensor], None] | None = None) -> None:
        self.own, self.change = torch.cuda.current_stream(device), change
        self.gradients, self.branch, self.updates = (torch.cuda.Stream(device) for _ in range(3))  # type: ignore[no-untyped-call]
        self.used: list[torch.cuda.Stream] = []
        """Those with work since the last `join`: a capture must not wait for a stream that is not part of it."""
        self.pending: deque[tuple[Any, tuple[Tensor, ...]]] = deque()
        self.kept: list[tuple[Tensor, ...]] = []
        """What was started from other streams than the run's own reads. Memory of those streams, given back to them,
        would be used again by work on them that does not wait for the weight gradients."""

    def start(self, work: Callable[[], Tensor], *inputs: Tensor) -> Tensor:
        """The result of `work`, which is not there before `join`; `inputs` are the tensors that it reads."""
        current = torch.cuda.current_stream()
        self.gradients.wait_stream(current)
        self._use(self.gradients)
        with torch.cuda.stream(self.gradients):
            result = work()
            done = self.gradients.record_event()
        if current != self.own:
            self.kept.append(inputs)
            return result
        self.pending.append((done, inputs))
        if len(self.pending) > LAG:
            done, _ = self.pending.popleft()
            self.own.wait_event(done)  # from here on it may use the memory of the inputs again
        return result

    def update(self, weight: Tensor, gradient: Tensor) -> None:
        """Update a weight by the gradient that `start` gave, after all that the current stream has been given so far.

        That must include whatever else reads the weight, on this stream or on those that it has waited for.
        """
        if self.change is None:
            return
        self.updates.wait_stream(torch.cuda.current_stream())
        self.updates.wait_stream(self.gradients)
        self._use(self.updates)
        with torch.cuda.stream(self.updates):
            self.change(weight, gradient)

    def join(self) -> None:
        """Have the current stream wait for everything that was started."""
        for stream in self.used:
            torch.cuda.current_stream().wait_stream(stream)
        self.used.clear()
        self.pending.clear()
        self.kept.clear()

    def _use(self, stream: torch.cuda.Stream) -> None:
        if stream not in self.used:
            self.used.append(stream)


@contextmanager
def overlapping(beside: Beside | None) -> Iterator[None]:
    """Let this thread's networks use these streams."""
    before = find_beside()
    _here.beside = beside
    try:
        yield
    finally:
        _here.beside = before


def find_beside() -> Beside | None:
    """The streams that this thread's networks may use, if there are any."""
    return None if torch.compiler.is_compiling() else getattr(_here, "beside", None)


def branch_off(work: Callable[[Tensor], Result], x: Tensor) -> Result:
    """work(x), beside what follows until `rejoin`."""
    beside = find_beside()
    if beside is None:
        return work(x)
    beside.branch.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside.branch):
        return work(x)


def rejoin() -> None:
    """Have the current stream wait for what was branched off."""
    beside = find_beside()
    if beside is not None:
        torch.cuda.current_stream().wait_stream(beside.branch)
