"""One step of training: eager, L-BFGS, or captured in a CUDA graph. All of them are called the same way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ncollapse.train.capture import ALL, Captured
from ncollapse.train.casting import CastFeatures
from ncollapse.train.optimiser import Optimiser
from ncollapse.train.recipe import DecaySpec, OptimSpec


class Tally:
    """The mean loss of an epoch and the first step at which it was not finite, kept on the device until read."""

    def __init__(self, device: torch.device) -> None:
        both = torch.zeros(2, dtype=torch.float64, device=device)
        self.sum, self.finite = both[0], both[1]
        self.numbers = both.numpy() if device.type == "cpu" else None
        """The same two on a CPU, where adding to numbers takes a tenth of the time of adding to tensors."""

    def add(self, loss: Tensor, samples: int) -> None:
        if self.numbers is None:
            self.sum.add_(loss, alpha=samples)
            self.finite.add_(self.sum.isfinite())
        else:
            self.numbers[0] += loss.item() * samples
            self.numbers[1] += math.isfinite(self.numbers[0])

    def reset(self) -> None:
        self.sum.zero_()
        self.finite.zero_()

    def read(self) -> tuple[float, int]:
        """(the sum of losses over samples, how many steps went by before it stopped being finite)."""
        total, finite = torch.stack([self.sum, self.finite]).tolist()
        return total, int(finite)


class EagerStep:
    """Forward, backward, clip, update; kernel by kernel."""

    graphs: Graphs | None = None
    """Where the step, or a part of it, is captured."""

    def __init__(self, objective: nn.Module, optimiser: Optimiser, spec: OptimSpec, tally: Tally) -> None:
        self.objective, self.optimiser, self.spec, self.tally = objective, optimiser, spec, tally
        self.parameters: list[Tensor] = [p for group in optimiser.param_groups for p in group["params"]]

    def __call__(self, x: Tensor, y: Tensor, size: int) -> None:
        """Train on this process's share (x, y) of a batch of `size` samples."""
        self.work(x, y, size)

    def begin_epoch(self) -> None:
        """Call before the first step of an epoch: others may have changed the weights since the last step."""

    def set_decays(self, decays: DecaySpec) -> None:
        """Take the steps from now on with these decays."""
        if self.graphs is not None:
            self.graphs.stage = decays
            return
        shared = isinstance(self.objective, nn.parallel.DistributedDataParallel)
        objective = self.objective.module if shared else self.objective
        objective.set_decays(decays)  # type: ignore[operator, union-attr]

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
    """L-BFGS: a line search that evaluates the objective several times on the same batch.

    Its memory of earlier batches can send the search so far that the interpolation between its points overflows, and
    every weight with it, or that the objective overflows at the weights where it ends. Then the weights are put back
    to where that step began, and the step is taken without memory, or left out if that does not help either.
    """

    def __init__(self, objective: nn.Module, optimiser: Optimiser, spec: OptimSpec, tally: Tally) -> None:
        super().__init__(objective, optimiser, spec, tally)
        self.tensors = [*self.parameters, *objective.buffers()]
        """The weights, and the running statistics of norms, which a search moves too."""
        self.last: list[Tensor] | None = None
        """The tensors before the last step."""

    def work(self, x: Tensor, y: Tensor, size: int) -> None:
        before = [tensor.detach().clone() for tensor in self.tensors]
        loss = self.search(x, y, size)
        if self.last is not None and not loss.isfinite():
            before = self.last
            self.go_back(before)
            loss = self.search(x, y, size)
        if not self.is_finite():
            self.go_back(before)
            loss = self.search(x, y, size)
            if not self.is_finite():
                self.go_back(before)
        self.last = before
        self.tally.add(loss, size)

    def search(self, x: Tensor, y: Tensor, size: int) -> Tensor:
        """Take a step, and return the mean loss before it."""
        losses: list[Tensor] = []

        def evaluate() -> Tensor:
            total, loss = self.evaluate(x, y, size)
            losses.append(loss)
            return total

        self.optimiser.step(evaluate)  # type: ignore[arg-type, call-arg]
        return losses[0]

    def is_finite(self) -> bool:
        """Whether all weights and running statistics are."""
        return bool(torch.stack([tensor.isfinite().all() for tensor in self.tensors]).all())

    @torch.no_grad()
    def go_back(self, tensors: list[Tensor]) -> None:
        """Put the weights and running statistics back, and forget earlier batches."""
        for tensor, old in zip(self.tensors, tensors):
            tensor.copy_(old)
        self.optimiser.state.clear()

    def evaluate(self, x: Tensor, y: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """(objective, mean loss) of a batch; sets the gradient of every parameter."""
        self.drop_gradients()
        total, loss = self.objective(x, y, size)
        total.backward()
        for p in self.parameters:  # torch's L-BFGS views gradients as vectors, which channels last does not allow
            if p.grad is not None:
                p.grad = p.grad.contiguous()
        if self.spec.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.spec.clip_norm)
        return total.detach(), loss


class Graphs:
    """The CUDA graphs of a step, one for each size of batch.

    Decays are constants of a graph. Where they change during training, `stages` are all decays of the run, and each has
    its graphs. Capturing changes what the work changes: put the state back (`state.restore`) afterwards.
    """

    def __init__(
        self,
        step: EagerStep,
        work: Callable[[Tensor, Tensor], Any],
        examples: list[tuple[Tensor, Tensor]],
        pool: Any,
        stages: Sequence[DecaySpec],
    ) -> None:
        most = max(len(x) for x, _ in examples)
        kernels = type(step), *(p.shape for p in step.parameters)

        def capture(x: Tensor, y: Tensor) -> Captured:
            # one short batch an epoch does not repay a search for its fastest kernels
            search = ALL if len(x) == most else None
            return Captured(work, (x.clone(), y.clone()), pool, kernels=kernels, search=search)

        self.stages: dict[DecaySpec | None, dict[int, Captured]] = {}
        for decays in stages or (None,):
            if decays is not None:
                step.set_decays(decays)  # of the objective: the step has no graphs yet
            self.stages[decays] = {len(x): capture(x, y) for x, y in examples}
        self.stage: DecaySpec | None = stages[-1] if stages else None

    def __call__(self, x: Tensor, y: Tensor, size: int) -> Any:
        return self.stages[self.stage][size](x, y)


class CapturedStep(EagerStep):
    """A step of which `captured` is a CUDA graph for each size of the batches in `examples`.

    `pool` is the memory that the graphs share; `stages` are all decays of the run, where they change during training.
    """

    def __init__(
        self,
        objective: nn.Module,
        optimiser: Optimiser,
        spec: OptimSpec,
        tally: Tally,
        examples: list[tuple[Tensor, Tensor]],
        pool: Any,
        stages: Sequence[DecaySpec] = (),
    ) -> None:
        super().__init__(objective, optimiser, spec, tally)
        features = getattr(objective, "features", None)
        self.updates = features.updates if isinstance(features, CastFeatures) else None
        if self.updates is not None and spec.clip_norm is not None:
            raise ValueError(f"clip_norm: expected None with updates in the backward pass, got {spec.clip_norm}")
        self.graphs: Graphs = Graphs(self, self.captured, examples, pool, stages)

    def captured(self, x: Tensor, y: Tensor) -> Any:
        """The work of one graph; what it returns is written anew at each replay."""
        raise NotImplementedError


class GraphSearchStep(CapturedStep, SearchStep):
    """L-BFGS with each evaluation as one CUDA graph; the search between them runs on the host."""

    def captured(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        return *super().evaluate(x, y, len(x)), [p.grad for p in self.parameters]

    def evaluate(self, x: Tensor, y: Tensor, size: int) -> tuple[Tensor, Tensor]:
        total, loss, grads = self.graphs(x, y, size)
        for p, grad in zip(self.parameters, grads):
            p.grad = grad
        return total, loss.clone()  # the next evaluation writes to the same place


class GraphStep(CapturedStep):
    """The whole step as one CUDA graph; a call is two copies and a replay. Capturing it trains a few steps."""

    def captured(self, x: Tensor, y: Tensor) -> None:
        self.work(x, y, len(x))

    def begin_epoch(self) -> None:
        if self.updates is not None:
            self.updates.refresh()

    def __call__(self, x: Tensor, y: Tensor, size: int) -> None:
        if self.updates is not None:
            self.updates.refresh_changed()
        self.graphs(x, y, size)
