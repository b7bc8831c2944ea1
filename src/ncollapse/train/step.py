"""One step of training: eager, L-BFGS, or captured whole in a CUDA graph. All three are called the same way."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    every weight with it. Then the weights are put back and the step is taken without memory.
    """

    def work(self, x: Tensor, y: Tensor, size: int) -> None:
        losses: list[Tensor] = []
        before = [p.detach().clone() for p in self.parameters]

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
        if not torch.stack([p.isfinite().all() for p in self.parameters]).all():
            with torch.no_grad():
                for p, old in zip(self.parameters, before):
                    p.copy_(old)
            self.optimiser.state.clear()
            self.optimiser.step(evaluate)  # type: ignore[arg-type, call-arg]
        self.tally.add(losses[0], size)


class GraphStep(EagerStep):
    """The whole step as one CUDA graph for each size of batch; a call is two copies and a replay.

    Decays are constants of a graph. Where they change during training, `stages` are all decays of the run, and each has
    its graphs; `set_decays` chooses among them. Capturing trains a few steps on what the buffers hold: put the state
    back (`state.restore`) afterwards.
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
        self.stages: dict[DecaySpec, dict[int, Captured]] = {}
        for decays in stages:
            super().set_decays(decays)
            self.stages[decays] = self.capture(examples, pool)
        self.graphs = self.stages[decays] if stages else self.capture(examples, pool)

    def capture(self, examples: list[tuple[Tensor, Tensor]], pool: Any) -> dict[int, Captured]:
        """The graphs of steps as the objective is now, by the size of their batch."""
        most = max(len(x) for x, _ in examples)
        graphs: dict[int, Captured] = {}
        for x, y in examples:
            # one short batch an epoch does not repay a search for its fastest kernels
            graphs[len(x)] = Captured(
                lambda x, y: self.work(x, y, len(x)),
                (x.clone(), y.clone()),
                pool,
                kernels=("step", *(p.shape for p in self.parameters)),
                search=ALL if len(x) == most else None,
            )
        return graphs

    def set_decays(self, decays: DecaySpec) -> None:
        self.graphs = self.stages[decays]

    def begin_epoch(self) -> None:
        if self.updates is not None:
            self.updates.refresh()

    def __call__(self, x: Tensor, y: Tensor, size: int) -> None:
        if self.updates is not None:
            self.updates.refresh_changed()
        self.graphs[size](x, y)
