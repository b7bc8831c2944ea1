"""Batch normalisation with the ReLU, and the residual, that follow it: one operation instead of three.

On a GPU with channels last it runs in fused kernels (`norm_ops`); torch's own composition everywhere else. Training
fuses only under `fusing()`, which the capture of a CUDA graph switches on, and in compiled networks: launched one by
one, the kernels of a training step cost more host time than they save on the device. The module stays an
`nn.BatchNorm2d`, so weights, running statistics and `SyncBatchNorm` conversion are what users expect.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HAS_TRITON = find_spec("triton") is not None
"""Triton comes with torch's CUDA builds. Without it, or where this is set to False, torch's own kernels run."""
Fork = tuple[Tensor, Tensor]
"""A map twice, for its two uses: their gradients are added in the kernel that needs the sum."""
_here = threading.local()


class Deferred(NamedTuple):
    """norm(x) of a norm in training mode that has only its statistics: the kernel that adds it to a map applies it."""

    norm: nn.BatchNorm2d
    x: Tensor
    stats: Tensor


def fusing() -> AbstractContextManager[None]:
    """Let this thread's training steps use the fused kernels too."""
    return _having("fusing")


def without_kernels() -> AbstractContextManager[None]:
    """Let this thread's networks use torch's own kernels alone."""
    return _having("plain")


@contextmanager
def _having(name: str) -> Iterator[None]:
    """Set what `_here` says of this thread for a while."""
    before = getattr(_here, name, False)
    setattr(_here, name, True)
    try:
        yield
    finally:
        setattr(_here, name, before)


def has_kernels() -> bool:
    """Whether this thread's networks may use the fused kernels, of any kind, at all."""
    return HAS_TRITON and (torch.compiler.is_compiling() or not getattr(_here, "plain", False))


def norm_relu(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | Deferred | None = None, relu: bool = True) -> Tensor:
    """relu(norm(x) + residual), each of the two left out on request.

    >>> import torch
    >>> norm_relu(nn.BatchNorm2d(2), torch.tensor([[[[1.0]], [[2.0]]], [[[3.0]], [[2.0]]]])).flatten().tolist()
    [0.0, 0.0, 0.9999949932098389, 0.0]
    """
    if isinstance(residual, Deferred):
        if relu and can_pair(norm, x, residual):
            return add_pair(norm, x, residual, fork=False)  # type: ignore[return-value]
        residual = apply_deferred(residual)
    if can_fuse(norm, x, residual):
        from ncollapse.models.norm_ops import infer_norm, train_norm

        if norm.training:
            return train_norm(norm, x, residual, relu)  # type: ignore[no-any-return]
        return infer_norm(norm, x, residual, relu)
    y = norm(x)
    if residual is not None:
        y = y + residual
    return F.relu(y) if relu else y


def fork_norm_relu(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | Deferred | None = None) -> Tensor | Fork:
    """`norm_relu` of a map that is used twice: a fork where the fused kernels train, else the map."""
    if isinstance(residual, Deferred):
        if can_pair(norm, x, residual):
            return add_pair(norm, x, residual, fork=True)
        residual = apply_deferred(residual)
    if norm.training and can_fuse(norm, x, residual):
        from ncollapse.models.norm_ops import train_norm

        return train_norm(norm, x, residual, relu=True, fork=True)  # type: ignore[no-any-return]
    return norm_relu(norm, x, residual)


def defer_norm(norm: nn.BatchNorm2d, x: Tensor) -> Tensor | Deferred:
    """norm(x), to be added to another norm's output: where the fused kernels train, only its statistics are taken."""
    if norm.training and x.shape[1] % 8 == 0 and can_fuse(norm, x, None):
        from ncollapse.models.norm_ops import take_statistics

        return Deferred(norm, x, take_statistics(norm, x))
    return norm_relu(norm, x, relu=False)


def apply_deferred(deferred: Deferred) -> Tensor:
    """The norm's output by itself."""
    from ncollapse.models.norm_ops import train_norm

    return train_norm(deferred.norm, deferred.x, None, relu=False, stats=deferred.stats)  # type: ignore[no-any-return]


def can_pair(norm: nn.BatchNorm2d, x: Tensor, deferred: Deferred) -> bool:
    """Whether one kernel can apply both norms."""
    return norm.training and can_fuse(norm, x, deferred.x)


def add_pair(norm: nn.BatchNorm2d, x: Tensor, deferred: Deferred, fork: bool) -> Tensor | Fork:
    """relu(norm(x) + the deferred norm's output), twice with `fork`."""
    from ncollapse.models.norm_ops import take_statistics
    from ncollapse.models.norm_pair import train_pair

    return train_pair((norm, x, take_statistics(norm, x)), deferred, fork=fork)  # type: ignore[no-any-return]


def norm_relu_pool(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """The means of relu(norm(x)) over 2 x 2 pixels.

    >>> norm_relu_pool(nn.BatchNorm2d(1).eval(), torch.ones(1, 1, 2, 2)).round(decimals=3).tolist()
    [[[[1.0]]]]
    """
    even = x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0
    if even and can_fuse(norm, x, None):
        from ncollapse.models.norm_ops import infer_norm, train_norm

        if norm.training:
            return train_norm(norm, x, None, relu=True, pool=True)  # type: ignore[no-any-return]
        return infer_norm(norm, x, None, relu=True, pool=True)
    return F.avg_pool2d(norm_relu(norm, x), 2)


def split_fork(x: Tensor | Fork) -> Fork:
    """The map for its two uses.

    >>> split_fork(torch.zeros(1))
    (tensor([0.]), tensor([0.]))
    """
    return x if isinstance(x, tuple) else (x, x)


def can_fuse(norm: nn.Module, x: Tensor, residual: Tensor | None) -> bool:
    """Whether the fused kernels know this case: a plain BatchNorm2d over a dense channels-last map on a GPU."""
    if not (has_kernels() and x.is_cuda and type(norm) is nn.BatchNorm2d):
        return False
    if norm.weight is None or norm.running_mean is None or norm.momentum is None or norm.weight.dtype != torch.float32:
        return False
    if norm.training and not (torch.compiler.is_compiling() or is_fusing()):
        return False
    if not norm.training and torch.is_grad_enabled() and (x.requires_grad or norm.weight.requires_grad):
        return False  # the kernels have no derivative for running statistics
    if norm._forward_hooks or norm._forward_pre_hooks or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return False  # who looks at the module wants to see it called
    if x.numel() <= x.shape[1]:
        return False  # one value a channel: torch says what is wrong with it
    if x.dtype not in (torch.bfloat16, torch.float32) or not x.is_contiguous(memory_format=torch.channels_last):
        return False
    if residual is None:
        return True
    return residual.dtype == x.dtype and residual.is_contiguous(memory_format=torch.channels_last)


def is_fusing() -> bool:
    """Whether this thread's training steps use the fused kernels."""
    return getattr(_here, "fusing", False)
