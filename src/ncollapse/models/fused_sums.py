"""What the Triton kernels of the norms and the last layer share: sums over programs, and running statistics."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

_tickets: dict[tuple[torch.device, int], Tensor] = {}


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def is_last(ticket, blocks):  # type: ignore[no-untyped-def]
    """Whether this program is the last of `blocks` to come here; what the others stored before is then visible."""
    tl.debug_barrier()  # every thread of this program has stored its part
    return tl.atomic_add(ticket, 1, sem="acq_rel") == blocks - 1


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def add_up(partial, blocks, CHANNELS: tl.constexpr, ADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """The two sums over [blocks, 2, CHANNELS], always in the same order."""
    first = tl.zeros((ADDED, CHANNELS), tl.float32)
    second = tl.zeros((ADDED, CHANNELS), tl.float32)
    for start in range(0, blocks, ADDED):
        block = start + tl.arange(0, ADDED)[:, None]
        at = partial + block * 2 * CHANNELS + tl.arange(0, CHANNELS)[None, :]
        first += tl.load(at, mask=block < blocks, other=0.0, cache_modifier=".cg")
        second += tl.load(at + CHANNELS, mask=block < blocks, other=0.0, cache_modifier=".cg")
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def track(  # type: ignore[no-untyped-def]
    running_mean, running_var, tracked, mean, variance, m, momentum, channel, inside, column,
):  # fmt: skip
    """Move the running statistics towards the batch's."""
    r = tl.load(running_mean + channel, mask=inside, other=0.0)
    v = tl.load(running_var + channel, mask=inside, other=0.0)
    tl.store(running_mean + channel, r + momentum * (mean - r), mask=inside)
    tl.store(running_var + channel, v + momentum * (variance * (m / (m - 1.0)) - v), mask=inside)
    if column == 0:
        tl.store(tracked, tl.load(tracked) + 1)


def find_tickets(x: Tensor, count: int) -> Tensor:
    """Zeros by which the last of several programs knows itself.

    Kernels leave their tickets at zero, and those of one stream follow one another, so that they can share them.
    """
    key = x.device, torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
    ticket = _tickets.get(key)
    if ticket is None or len(ticket) < count:
        ticket = _tickets[key] = torch.zeros(max(1024, count), dtype=torch.int32, device=x.device)
    return ticket
