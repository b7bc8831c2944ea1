"""How far the host may run ahead of a GPU."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

AHEAD = 16
"""Steps that may be queued: enough to never let the GPU wait, and a few hundred launches at most. A queue holds about a
thousand; the thread that fills it waits inside the driver, and launches of other threads wait with it."""


class Pace:
    """Called after each step; waits until the step `AHEAD` calls before has been done.

    It sleeps meanwhile, so that other threads, such as the one that measures the epoch before, have Python and the
    driver for themselves.

    >>> Pace(torch.device("cpu"))()
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.queued: deque[Any] = deque()

    def __call__(self) -> None:
        if self.device.type != "cuda":
            return
        full = len(self.queued) == AHEAD
        event = self.queued.popleft() if full else torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        if full:
            event.synchronize()
        event.record(torch.cuda.current_stream(self.device))
        self.queued.append(event)
