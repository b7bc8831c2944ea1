"""The update of a trunk weight in one kernel that reads its bfloat16 gradient and writes its bfloat16 copy too.

A step would otherwise cast all weights before the forward pass and all gradients after the backward pass. The kernel
of a weight can run as soon as nothing reads its copy any more: beside the rest of the backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ncollapse.models.norm import has_kernels
from ncollapse.train.optimiser import BETAS, EPS, Optimiser, PlainAdam, PlainAdamW, PlainOptimiser, PlainSGD

MOST_VALUES = 2**31
"""The kernels count in 32 bits."""
LANES = 4
"""Streams for updates that are left at the end: small kernels one after another would wait for each other's launch."""


class WeightUpdates:
    """Weights of an optimiser that are updated in the backward pass, and their copies in bfloat16.

    The optimiser's state stays where it is. Its own `step` passes over these weights, which get no gradient.
    """

    def __init__(self, optimiser: PlainOptimiser, weights: list[Tensor], *, spread: bool = False) -> None:
        self.optimiser, self.weights, self.spread = optimiser, weights, spread
        self.lanes: list[torch.cuda.Stream] = []
        self.copies = [torch.empty_like(weight, dtype=torch.bfloat16) for weight in weights]
        self.places = {copy.data_ptr(): i for i, copy in enumerate(self.copies)}
        self.done: dict[int, Tensor] = {}
        """Gradients of the weights that this backward pass has updated; kept, as kernels on other streams read them."""
        self.versions: list[int] = []
        """Of the weights that the copies were made of. torch counts every change but those of kernels like ours."""

    @torch.no_grad()
    def refresh(self) -> None:
        """Make the copies anew."""
        torch._foreach_copy_(self.copies, self.weights)
        self.versions = [weight._version for weight in self.weights]

    def refresh_changed(self) -> None:
        """Make the copies anew if something else than these updates has written the weights since."""
        if self.versions != [weight._version for weight in self.weights]:
            self.refresh()

    def lend(self) -> tuple[Tensor, ...]:
        """The copies as new tensors that share their memory, for one forward pass."""
        self.done.clear()
        return tuple(copy.detach() for copy in self.copies)

    def update_early(self, copy: Tensor, grad: Tensor) -> None:
        """Update the weight that a copy is of, by its whole gradient; nothing may read the copy afterwards.

        Any other tensor than a lent copy is passed over.
        """
        i = self.places.get(copy.data_ptr())
        if i is None or copy.shape != self.copies[i].shape:
            return
        if i in self.done:
            raise RuntimeError("a weight that is updated in the backward pass must be used once in the forward pass")
        self.done[i] = grad
        self.update(i, grad)

    def finish(self, grads: tuple[Tensor, ...]) -> None:
        """Update the weights that are left, by the gradients of all copies, and count the step."""
        for i, early in self.done.items():
            if early.data_ptr() != grads[i].data_ptr():  # the sum of several gradients
                raise RuntimeError("a weight that is updated in the backward pass was used more than once")
        left = [(i, grad) for i, grad in enumerate(grads) if i not in self.done]
        if self.spread and len(left) > 1:
            self.update_side_by_side(left)
        else:
            for i, grad in left:
                self.update(i, grad)
        self.done.clear()
        if isinstance(self.optimiser, PlainAdam):
            torch._foreach_add_(self.optimiser.read_state(self.weights, "step"), 1)

    def update_side_by_side(self, left: list[tuple[int, Tensor]]) -> None:
        """Update these weights on several streams, after and before everything on the current one."""
        current = torch.cuda.current_stream()
        if not self.lanes:
            self.lanes = [torch.cuda.Stream(current.device) for _ in range(LANES)]  # type: ignore[no-untyped-call]
        lanes = self.lanes[: len(left)]
        for lane in lanes:
            lane.wait_stream(current)
        for turn, (i, grad) in enumerate(left):
            with torch.cuda.stream(lanes[turn % len(lanes)]):
                self.update(i, grad)
        for lane in lanes:
            current.wait_stream(lane)

    @torch.no_grad()
    def update(self, i: int, grad: Tensor) -> None:
        """One weight's step, its state's and its copy's."""
        weight = self.weights[i]
        if not are_alike(grad, weight):
            grad = torch.empty_like(weight, dtype=grad.dtype).copy_(grad)
        apply_update(self.optimiser, grad, weight, self.copies[i])


def make_updates(optimiser: Optimiser, weights: list[Tensor], *, spread: bool) -> WeightUpdates | None:
    """The updates of these weights, where the kernels know the optimiser and all of the tensors.

    With `spread` those at the end of the backward pass run on several streams.
    """
    if not can_update(optimiser, weights):
        return None
    return WeightUpdates(optimiser, weights, spread=spread)  # type: ignore[arg-type]


def can_update(optimiser: Optimiser, weights: list[Tensor]) -> bool:
    """Whether the kernels know them: a plain optimiser of dense float32 weights on a GPU, each of them there once."""
    if not has_kernels() or type(optimiser) not in (PlainSGD, PlainAdam, PlainAdamW):
        return False
    trained = {id(p) for p in optimiser.param_groups[0]["params"]}
    if not {id(weight) for weight in weights} <= trained or len({id(weight) for weight in weights}) < len(weights):
        return False
    rate = optimiser.param_groups[0]["lr"]
    return isinstance(rate, Tensor) and rate.is_cuda and all(is_dense(weight) and weight.is_cuda for weight in weights)


def is_dense(weight: Tensor) -> bool:
    """Whether the values fill one piece of memory, in whatever order, and the kernels can count them."""
    return 0 < weight.numel() < MOST_VALUES and are_alike(torch.empty_like(weight, device="meta"), weight)


def are_alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape, the second of them dense, have the same order in memory.

    >>> are_alike(torch.zeros(2, 3), torch.zeros(3, 2).t()), are_alike(torch.zeros(1, 3), torch.zeros(3, 1).t())
    (False, True)
    """
    return all(size == 1 or a == b for size, a, b in zip(other.shape, one.stride(), other.stride()))


def apply_update(optimiser: PlainOptimiser, grad: Tensor, weight: Tensor, copy: Tensor) -> None:
    """Launch the kernel of this optimiser."""
    from ncollapse.models import fused_update

    group, state = optimiser.param_groups[0], optimiser.state[weight]
    rate, decay = group["lr"], group["weight_decay"]
    with torch.cuda.device_of(weight):  # type: ignore[no-untyped-call]  # Triton launches on the current one
        if isinstance(optimiser, PlainSGD):
            momentum = group["momentum"]
            averages = state["momentum_buffer"] if momentum else None
            fused_update.update_sgd(grad, weight, copy, averages, rate, momentum, decay)
            return
        averages, squares, steps = (state[name] for name in ("exp_avg", "exp_avg_sq", "step"))
        decoupled = isinstance(optimiser, PlainAdamW)
        fused_update.update_adam(grad, weight, copy, averages, squares, steps, rate, decay, BETAS, EPS, decoupled)
