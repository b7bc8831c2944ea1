"""Where work on class-level matrices is done, and how tensors get there: each copy from a GPU waits for it once.

A GPU needs some microseconds to start any operation, and every number that is read from it waits for all work before.
On small matrices, such as the class means of 10 classes, the host is faster: the sums over samples are copied to it
together, and the results of the second pass as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

HOST = torch.device("cpu")
HOST_VALUES = 1 << 15
"""Class means of at most so many values are worked on by the host. torch splits larger ones over threads, which a busy
host starts slowly: 100 classes in 512 dimensions took 0.3 s beside an H200."""


def choose_site(device: torch.device, num_classes: int, dim: int) -> torch.device:
    """Where class-level work is done for samples on this device.

    >>> choose_site(torch.device("cuda:0"), 10, 512), choose_site(torch.device("cuda:0"), 100, 512)
    (device(type='cpu'), device(type='cuda', index=0))
    """
    return HOST if num_classes * max(num_classes, dim) <= HOST_VALUES else device


def copy_together(tensors: Sequence[Tensor], target: torch.device) -> list[Tensor]:
    """The tensors on another device, by one copy of float64 numbers; those that are there already are not copied.

    Integers up to 2^53 and bools keep their values and their dtype; all floating-point results are float64.
    """
    away = [tensor for tensor in tensors if tensor.device != target]
    if not away:
        return list(tensors)
    packed = torch.cat([tensor.reshape(-1).to(away[0].device, torch.float64) for tensor in away]).to(target)
    pieces = iter(torch.split(packed, [tensor.numel() for tensor in away]))
    return [tensor if tensor.device == target else _restore(next(pieces), tensor) for tensor in tensors]


def _restore(numbers: Tensor, like: Tensor) -> Tensor:
    shaped = numbers.view(like.shape)
    return shaped if like.is_floating_point() else shaped.to(like.dtype)
