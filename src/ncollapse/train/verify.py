"""Compare the fused GPU kernels with torch's own before a run relies on them.

The kernels are compiled for whatever GPU, driver and Triton are there. One forward and backward pass of the network on
a few samples of the run shows whether they work; where they do not, torch's own kernels are used and a warning says so.
A comparison that has passed is not repeated on the same GPU with the same versions (`verified`).
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module

import torch
from torch import Tensor

from ncollapse.models import Network, norm
from ncollapse.processes import importing
from ncollapse.runs.environment import find_version
from ncollapse.train.backend import switch_precision
from ncollapse.train.capture import CAPTURING
from ncollapse.train.last_layer import fuse_last_layer, knows_last_layer
from ncollapse.train.objective import Objective, autocast
from ncollapse.train.verified import remember_verified, was_verified

Found = Sequence[Tensor]
"""Features, or the objective and the loss; and gradients where there are any."""
log = logging.getLogger("ncollapse.train")
SAMPLES = 16
LARGEST_ERROR = 0.1
"""Relative, of features and gradients in float32. A deep network enlarges rounding, by a hundred times and more."""
LARGER, SLACK = 1.5, 0.02
"""In bfloat16 the kernels may be so many times as far from float32 as torch's own, and a little more. Rounding alone
changes the gradients of a ResNet50 by more than their norm, so that no fixed bound would do."""
LAST_LAYER_ERROR = 1e-3
_verified: set[tuple[object, ...]] = set()


@cache  # `importing` would exempt what an earlier run left from being collected
def import_kernels() -> None:
    """Import Triton and the kernels that most networks use; what is wrong with them is said where they are used."""
    if norm.HAS_TRITON:
        with suppress(Exception), importing():
            for name in ("fused_norm", "fused_stem", "fused_last_layer", "fused_fold", "fused_update"):
                import_module(f"ncollapse.models.{name}")


def verify_kernels(name: str, model: Network, x: Tensor, precision: str) -> None:
    """Switch the fused kernels off if they fail or disagree on the first samples `x`; once per network and device."""
    facts = name, precision, tuple(x.shape[1:])
    verify(f"model.name = {name!r}", facts, x.device, lambda: find_fault(model, x[:SAMPLES].float(), precision))


def verify_last_layer(objective: Objective, target: Tensor) -> None:
    """The same for the fused last layer, on random features."""
    head, loss = objective.model.head, objective.loss
    if knows_last_layer(head, loss):
        facts = "last layer", loss.name, tuple(head.weight.shape), head.bias is None, tuple(target.shape)
        verify(f"loss.name = {loss.name!r}", facts, target.device, lambda: find_last_layer_fault(objective, target))


def stop_kernels(what: str, fault: str) -> None:
    """Use none of the fused kernels from now on, and say why."""
    norm.HAS_TRITON = False
    log.warning("%s: the fused kernels are not used on this GPU, torch's own are: %s", what, fault)


def verify(
    what: str,
    facts: tuple[object, ...],
    device: torch.device,
    find: Callable[[], str | None],
    stop: Callable[[str, str], None] = stop_kernels,
) -> bool:
    """Whether kernels can be used on this device: `find` names no fault, or the same comparison has passed before.

    If it names one, `stop` is called with it.
    """
    key = (*facts, device)
    with CAPTURING:  # not beside another run's capture, and once for the runs that share a GPU
        if device.type != "cuda" or not norm.HAS_TRITON:
            return False
        if key in _verified:
            return True
        facts = (*facts, *describe_gpu(device))
        fault = None if was_verified(*facts) else find()
        if fault is not None:
            stop(what, fault)
            return False
        _verified.add(key)
        remember_verified(*facts)
        return True


def describe_gpu(device: torch.device) -> tuple[object, ...]:
    """What the kernels are compiled for, and by what."""
    driver = getattr(torch._C, "_cuda_getDriverVersion", lambda: None)()
    return torch.cuda.get_device_name(device), driver, torch.__version__, find_version("triton")


def find_fault(model: Network, x: Tensor, precision: str) -> str | None:
    """What is wrong with the fused kernels on these samples; None where nothing is."""
    return describe_errors(lambda: compare_networks(model, x, precision))


def find_last_layer_fault(objective: Objective, target: Tensor) -> str | None:
    """What is wrong with the fused last layer on random features and these targets; None where nothing is."""
    return describe_errors(lambda: compare_last_layers(objective, target))


def describe_errors(compare: Callable[[], str | None]) -> str | None:
    """The fault that a comparison finds, or the error that ends it; a lack of memory is no fault."""
    try:
        return compare()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a compiler or a driver may fail in any way
        return f"{type(error).__name__}: {error}"


def compare_networks(model: Network, x: Tensor, precision: str) -> str | None:
    """Features and gradients of the network, with the fused kernels and with torch's own."""
    with exact_convolutions():
        exact = differentiate_features(model, x, "fp32", fused=False)
        fault = name_fault(differentiate_features(model, x, "fp32", fused=True), exact, (LARGEST_ERROR,) * 2)
        if fault is not None or precision == "fp32":
            return fault
        plain = differentiate_features(model, x, precision, fused=False)
        limits = [LARGER * distance + SLACK for distance in measure_distances(plain, exact)]
        return name_fault(differentiate_features(model, x, precision, fused=True), exact, limits)


def compare_last_layers(objective: Objective, target: Tensor) -> str | None:
    """Objective, loss and gradients of the last layer, fused and by torch."""
    dim, generator = objective.model.num_features, torch.Generator().manual_seed(0)
    features = torch.randn(len(target), dim, generator=generator).to(target.device)
    fused, plain = (differentiate_last_layer(objective, features, target, fused=fused) for fused in (True, False))
    return name_fault(fused, plain, (LAST_LAYER_ERROR,) * 2, ("values", "gradients"))


def name_fault(
    found: Found, wanted: Found, limits: Sequence[float], names: Sequence[str] = ("features", "gradients")
) -> str | None:
    """Which of them is farther from what is wanted than the limits allow."""
    for what, distance, limit in zip(names, measure_distances(found, wanted), limits):
        if not distance <= limit:
            return f"their {what} differ by {distance:.2g} of the norm, and {limit:.2g} are allowed"
    return None


def measure_distances(found: Found, wanted: Found) -> list[float]:
    """The distance of each from what is wanted, relative to the norm of the latter."""
    return [float((ours - theirs).norm() / theirs.norm()) for ours, theirs in zip(found, wanted)]


@contextmanager
def exact_convolutions() -> Iterator[None]:
    """float32 convolutions and products as such, and no search for fast kernels, which takes longer than the passes."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        with switch_precision(matmul=False, conv=False):
            yield
    finally:
        torch.backends.cudnn.benchmark = before


def differentiate_features(model: Network, x: Tensor, precision: str, *, fused: bool) -> Found:
    """The features of a copy of the model in training mode, and the gradient of their squares' mean, as one vector.

    The squares have different weights: without, behind a layer norm, whatever came before had hardly any gradient.
    """
    twin = copy.deepcopy(model).train()
    with norm.fusing() if fused else norm.without_kernels(), autocast(x.device, precision):
        features = twin.features(x).float()
        weights = torch.linspace(0.5, 1.5, features.shape[1], device=x.device)
        (weights * features.square()).mean().backward()  # type: ignore[no-untyped-call]
    grads = [parameter.grad.float().flatten() for parameter in twin.trunk.parameters() if parameter.grad is not None]
    return features.detach(), torch.cat(grads)


def differentiate_last_layer(objective: Objective, features: Tensor, target: Tensor, *, fused: bool) -> Found:
    """Objective and mean loss of a copy of the head, and the gradients of features and head as one vector."""
    head, loss, leaf = copy.deepcopy(objective.model.head), objective.loss, features.clone().requires_grad_()
    if fused:
        total, value = fuse_last_layer(head, loss, objective.decays, leaf, target)  # type: ignore[arg-type]
    else:
        value = loss(head(leaf), target)
        total = value + objective.decay(leaf, head)
    total.backward()  # type: ignore[no-untyped-call]
    grads = [leaf.grad, *(parameter.grad for parameter in head.parameters())]
    return torch.stack([total.detach(), value.detach()]), torch.cat([g.flatten() for g in grads if g is not None])
