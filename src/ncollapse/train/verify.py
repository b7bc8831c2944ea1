"""Compare the fused GPU kernels with torch's own before a run relies on them.

The kernels are compiled for whatever GPU, driver and Triton are there. One forward and backward pass of the network on
a few samples of the run shows whether they work; where they do not, torch's own kernels are used and a warning says so.
"""

from __future__ import annotations

import copy
import logging
from contextlib import nullcontext

import torch
from torch import Tensor

from ncollapse.models import Network, norm
from ncollapse.train.objective import autocast
from ncollapse.train.step import CAPTURING

log = logging.getLogger("ncollapse.train")
SAMPLES = 16
LARGEST_ERROR = 0.1
"""Relative, of features and gradients; bfloat16 rounding alone reaches a few per cent in deep networks."""
_verified: set[tuple[str, torch.device, str]] = set()


def verify_kernels(name: str, model: Network, x: Tensor, precision: str) -> None:
    """Switch the fused kernels off if they fail or disagree on the first samples `x`; once per network and device."""
    key = name, x.device, precision
    with CAPTURING:  # not beside another run's capture, and once for the runs that share a GPU
        if not (x.is_cuda and norm.HAS_TRITON) or key in _verified:
            return
        fault = find_fault(model, x[:SAMPLES], precision)
        if fault is None:
            _verified.add(key)
            return
        norm.HAS_TRITON = False
    log.warning("model.name = %r: the fused kernels are not used on this GPU, torch's own are: %s", name, fault)


def find_fault(model: Network, x: Tensor, precision: str) -> str | None:
    """What is wrong with the fused kernels on these samples; None where nothing is."""
    try:
        wanted = differentiate_features(model, x, "fp32", fused=False)
        found = differentiate_features(model, x, precision, fused=True)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a compiler or a driver may fail in any way
        return f"{type(error).__name__}: {error}"
    for what, ours, theirs in zip(("features", "gradients"), found, wanted):
        distance = float((ours - theirs).norm() / theirs.norm())
        if not distance <= LARGEST_ERROR:
            return f"their {what} differ by {distance:.2g} of the norm"
    return None


def differentiate_features(model: Network, x: Tensor, precision: str, *, fused: bool) -> tuple[Tensor, Tensor]:
    """The features of a copy of the model in training mode, and the gradient of their mean square, as one vector."""
    twin = copy.deepcopy(model).train()
    with norm.fusing() if fused else nullcontext(), autocast(x.device, precision):
        features = twin.features(x).float()
        features.square().mean().backward()  # type: ignore[no-untyped-call]
    grads = [parameter.grad.float().flatten() for parameter in twin.trunk.parameters() if parameter.grad is not None]
    return features.detach(), torch.cat(grads)
