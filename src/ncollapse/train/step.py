"""One step of training: eager, L-BFGS, or captured whole in a CUDA graph. All three are called the same way."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ncollapse.models.norm import fusing
from ncollapse.train.optimiser import Optimiser
from ncollapse.train.recipe import OptimSpec

CAPTURING = threading.Lock()
"""Held while a graph is warmed up and captured: of several runs in threads, one at a time."""
OPEN = threading.Event()
"""Clear while one run searches for its fastest kernels: the others pause, or it would time them and not its own."""
OPEN.set()
WARM_UP = 3
_here = threading.local()


class Tally:
    """The mean loss of an epoch and the first step at which it was not finite, kept on the device until read."""

    def __init__(self, device: torch.device) -> None:
        self.sum = torch.zeros((), dtype=torch.float64, device=device)
        self.finite = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, loss: Tensor, samples: int) -> None:
        self.sum.add_(loss, alpha=samples)
        self.finite.add_(self.sum.isfinite())

    def reset(self) -> None:
        self.sum.zero_()
        self.finite.zero_()

    def read(self) -> tuple[float, int]:
        """(the sum of losses over samples, how many steps went by before it stopped being finite)."""
        total, finite = torch.stack([self.sum, self.finite]).tolist()
        return total, int(finite)


class EagerStep:
    """Forward, backward, clip, update; kernel by kernel."""

    def __init__(self, objective: nn.Module, optimiser: Optimiser, spec: OptimSpec, tally: Tally) -> None:
        self.objective, self.optimiser, self.spec, self.tally = objective, optimiser, spec, tally
        self.parameters: list[Tensor] = [p for group in optimiser.param_groups for p in group["params"]]

    def __call__(self, x: Tensor, y: Tensor, size: int) -> None:
        """Train on this process's share (x, y) of a batch of `size` samples."""
        self.work(x, y, size)

    def drop_gradients(self) -> None:
        """What `optimiser.zero_grad` does, without the bookkeeping that takes longer on a small network."""
        for p in self.parameters:
            p.grad = None

    def find_gradients(self, x: Tensor, y: Tensor, size: int) -> Tensor:
        """Set the gradient of every parameter, and return the mean loss."""
        self.drop_gradients()
        total, loss = self.objective(x, y, size)
        total.backward()
        return loss  # type: ignore[no-any-return]

    def work(self, x: Tensor, y: Tensor, size: int) -> None:
        loss = self.find_gradients(x, y, size)
        if self.spec.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.spec.clip_norm)
        self.optimiser.step()
        self.tally.add(loss, size)


class SearchStep(EagerStep):
    """L-BFGS: a line search that evaluates the objective several times on the same batch."""

    def work(self, x: Tensor, y: Tensor, size: int) -> None:
        losses: list[Tensor] = []

        def evaluate() -> Tensor:
            self.drop_gradients()
            total, loss = self.objective(x, y, size)
            total.backward()
            for p in self.parameters:  # torch's L-BFGS views gradients as vectors, which channels last does not allow
                if p.grad is not None:
                    p.grad = p.grad.contiguous()
            if self.spec.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(self.parameters, self.spec.clip_norm)
            losses.append(loss)
            return total  # type: ignore[no-any-return]

        self.optimiser.step(evaluate)  # type: ignore[arg-type, call-arg]
        self.tally.add(losses[0], size)


class GraphStep(EagerStep):
    """The whole step as one CUDA graph for each size of batch; a call is two copies and a replay.

    Capturing trains a few steps on what the buffers hold: put the state back (`state.restore`) afterwards.
    """

    def __init__(
        self,
        objective: nn.Module,
        optimiser: Optimiser,
        spec: OptimSpec,
        tally: Tally,
        examples: list[tuple[Tensor, Tensor]],
        pool: Any,
    ) -> None:
        super().__init__(objective, optimiser, spec, tally)
        most = max(len(x) for x, _ in examples)
        self.graphs: dict[int, Captured] = {}
        for x, y in examples:
            # one short batch an epoch does not repay a search for its fastest kernels
            self.graphs[len(x)] = Captured(
                lambda x, y: self.work(x, y, len(x)),
                (x.clone(), y.clone()),
                pool,
                kernels=("step", *(p.shape for p in self.parameters)),
                search=len(x) == most,
            )

    def __call__(self, x: Tensor, y: Tensor, size: int) -> None:
        self.graphs[size](x, y)


class Captured:
    """A function of fixed buffers as one CUDA graph, captured on the current stream (never the default one).

    Errors are confined to this thread and memory to the run's own pool, so that other threads go on meanwhile. They
    pause only for the first capture of its `kernels` and shapes in this thread, which searches for the fastest.
    """

    def __init__(
        self,
        work: Callable[..., Any],
        buffers: tuple[Tensor, ...],
        pool: Any,
        *,
        kernels: Hashable,
        search: bool = True,
    ) -> None:
        self.buffers = buffers
        stream = torch.cuda.current_stream()
        new = search and is_new((kernels, *((buffer.shape, buffer.dtype) for buffer in buffers)))
        with CAPTURING, quiet() if new else nullcontext(), fusing(), _searching(search):
            for _ in range(WARM_UP):
                work(*buffers)
            stream.synchronize()
            gc.collect()
            torch.cuda.empty_cache()  # while a graph is captured, nothing that earlier runs left can be taken back
            self.graph = torch.cuda.CUDAGraph()
            self.graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self.output = work(*buffers)
            finally:
                self.graph.capture_end()

    def __call__(self, *inputs: Tensor) -> Any:
        OPEN.wait()
        for buffer, value in zip(self.buffers, inputs):
            buffer[: len(value)].copy_(value)
        self.graph.replay()
        return self.output


def is_new(kernels: Hashable) -> bool:
    """Whether this thread meets these for the first time; what cuDNN found it keeps by thread."""
    known: set[Hashable] = _here.__dict__.setdefault("known", set())
    new = kernels not in known
    known.add(kernels)
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
def _searching(search: bool) -> Iterator[None]:
    """cuDNN's search for the fastest kernels, left as it is or switched off for a while."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before and search
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
