"""Run a model without leaving a trace: modes, random numbers, gradients and autocast stay as they were."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn


@contextlib.contextmanager
def undisturbed(model: nn.Module, loader: Any = None) -> Iterator[None]:
    """Put a model into eval mode without gradients; afterwards everything is as before, also after an exception.

    Restored are the mode of every single submodule (a frozen batch norm stays frozen), torch's, CUDA's, NumPy's and
    Python's random numbers (a DataLoader draws from torch's as soon as it is iterated) and the loader's generators.
    """
    modes = [(module, module.training) for module in model.modules()]
    generators = [(generator, generator.get_state()) for generator in find_generators(loader)]
    devices = {tensor.device for tensor in model.parameters() if tensor.is_cuda}
    plain, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002 - the global state is what users draw from
    try:
        with torch.random.fork_rng(devices), torch.no_grad(), uncached_autocast(model), eager(model):
            model.eval()
            yield
    finally:
        for module, training in modes:
            module.training = training
        for generator, state in generators:
            generator.set_state(state)
        random.setstate(plain)
        np.random.set_state(numbers)  # noqa: NPY002


def find_generators(loader: Any) -> list[torch.Generator]:
    """The generators a DataLoader and its samplers draw from."""
    parts = [loader]
    for name in ("batch_sampler", "sampler"):
        parts += [getattr(part, name, None) for part in parts]
    found = {id(held): held for part in parts if isinstance(held := getattr(part, "generator", None), torch.Generator)}
    return list(found.values())


@contextlib.contextmanager
def uncached_autocast(model: nn.Module) -> Iterator[None]:
    """The autocast that is on, without its cache: weights cast here without gradients must not meet the next step."""
    parameter = next(model.parameters(), None)
    kind = "cpu" if parameter is None else parameter.device.type
    if not torch.is_autocast_enabled(kind):
        yield
        return
    with torch.autocast(kind, torch.get_autocast_dtype(kind), cache_enabled=False):
        yield


@contextlib.contextmanager
def eager(model: nn.Module) -> Iterator[None]:
    """Compiled parts run uncompiled: their graphs know nothing of our hooks, and must not be compiled again."""
    if not any(module._compiled_call_impl is not None for module in model.modules()):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
