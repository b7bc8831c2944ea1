"""Work captured in CUDA graphs, all of it by one thread of the process.

cuDNN keeps what its search for the fastest kernels found by thread. Where several runs share a GPU, each in a thread of
its own, one thread that captures for all of them searches once for all runs of the same network.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from ncollapse.early_gpu import wait_for_gpu
from ncollapse.models.norm import fusing
from ncollapse.train.backend import use_stream

T = TypeVar("T")
CAPTURING = threading.Lock()
"""Held while a graph is warmed up and captured, or kernels are verified: of several runs in threads, one at a time."""
OPEN = threading.Event()
"""Clear while one run searches for its fastest kernels: the others pause, or it would time them and not its own."""
OPEN.set()
WARM_UP = 3
ALL = 0
"""Try all of cuDNN's kernels, and not only the first ten: 2 % on ResNet18 and ResNet50."""
_known: set[Hashable] = set()


class Captured:
    """A function of fixed buffers as one CUDA graph, captured on the current stream (never the default one).

    Errors are confined to the capturing thread and memory to the run's own pool, so that other threads go on meanwhile.
    They pause only for the first capture of its `kernels` and shapes, which tries that many of cuDNN's convolutions for
    the fastest as `search` says: `ALL`, some, or with None the one that cuDNN thinks best.
    """

    def __init__(
        self,
        work: Callable[..., Any],
        buffers: tuple[Tensor, ...],
        pool: Any,
        *,
        kernels: Hashable,
        search: int | None = ALL,
    ) -> None:
        self.buffers = buffers
        stream, grad = torch.cuda.current_stream(), torch.is_grad_enabled()
        key = kernels, *((buffer.shape, buffer.dtype) for buffer in buffers)

        def capture() -> tuple[torch.cuda.CUDAGraph, Any]:
            with use_stream(stream), torch.set_grad_enabled(grad), fusing(), _searching(search):
                return _capture(work, buffers, pool)

        wait_for_gpu()  # a search must have the GPU alone
        with CAPTURING, quiet() if search is not None and is_new(key) else nullcontext():
            self.graph, self.output = run_in_capturing_thread(capture)

    def __call__(self, *inputs: Tensor) -> Any:
        OPEN.wait()
        for buffer, value in zip(self.buffers, inputs):
            buffer[: len(value)].copy_(value)
        self.graph.replay()
        return self.output


def _capture(work: Callable[..., Any], buffers: tuple[Tensor, ...], pool: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    """The graph of `work` on the current stream, and its result."""
    for _ in range(WARM_UP):
        work(*buffers)
    torch.cuda.current_stream().synchronize()
    gc.collect()
    torch.cuda.empty_cache()  # while a graph is captured, nothing that earlier runs left can be taken back
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        output = work(*buffers)
    finally:
        graph.capture_end()
    return graph, output


def run_in_capturing_thread(work: Callable[[], T]) -> T:
    """The result of `work`, called in the one thread of this process that captures graphs."""
    return _make_thread().submit(work).result()


@cache
def _make_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="capture")


def is_new(kernels: Hashable) -> bool:
    """Whether this process meets these for the first time; call it with `CAPTURING` held."""
    new = kernels not in _known
    _known.add(kernels)
    return new


@contextmanager
def quiet() -> Iterator[None]:
    """Have the GPU alone: runs in other threads pause before their next step, and what they launched is waited for.

    A search beside three other runs took a hundred seconds on an H200, and kept later runs from starting.
    """
    OPEN.clear()
    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        yield
    finally:
        OPEN.set()


@contextmanager
def _searching(kernels: int | None) -> Iterator[None]:
    """Let cuDNN try so many kernels for a while; no more than before if its search was off."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.benchmark_limit
    cudnn.benchmark = before[0] and kernels is not None
    cudnn.benchmark_limit = before[1] if kernels is None else kernels
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.benchmark_limit = before
