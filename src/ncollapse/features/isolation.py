"""Run a model without leaving a trace: modes, weights, random numbers, gradients and autocast stay as they were."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook


class Modes:
    """The modules that were put into eval mode, and what it takes to put them back."""

    def __init__(self) -> None:
        self.modules: dict[int, tuple[nn.Module, bool]] = {}
        self.weights: dict[int, tuple[Tensor, bool, Tensor]] = {}

    def still(self, model: nn.Module) -> None:
        """Put a module and its parts into eval mode, once."""
        if id(model) in self.modules:
            return
        fresh = [module for module in model.modules() if id(module) not in self.modules]
        self.modules |= {id(module): (module, module.training) for module in fresh}
        if not any(module.training for module in fresh):
            return
        for module in filter(may_rewrite, fresh):
            for tensor in (*module.parameters(), *module.buffers()):
                if id(tensor) not in self.weights:
                    copy = tensor.detach().to("cpu", copy=True)  # there is more room than on a GPU
                    self.weights[id(tensor)] = (tensor, tensor.requires_grad, copy)
        model.eval()

    @contextlib.contextmanager
    def follow(self) -> Iterator[None]:
        """Put every module that this thread calls into eval mode: also those that a plain function keeps to itself."""
        thread = threading.get_ident()

        def hook(module: nn.Module, args: Any) -> None:
            if threading.get_ident() == thread:
                self.still(module)

        handle = register_module_forward_pre_hook(hook)
        try:
            yield
        finally:
            handle.remove()

    def restore(self) -> None:
        """Put back the mode of every single module, and the weights bit by bit."""
        for module, training in self.modules.values():
            if has_own_train(module) and module.training != training:
                module.train(training)
        for module, training in self.modules.values():
            module.training = training
        for tensor, trainable, copy in self.weights.values():
            if tensor.requires_grad != trainable:
                tensor.requires_grad_(trainable)
            if not torch.equal(tensor.detach().cpu(), copy):
                tensor.data.copy_(copy)  # .data: a graph that waits for its backward pass must not see a change


@contextlib.contextmanager
def undisturbed(model: nn.Module, loader: Any = None) -> Iterator[Modes]:
    """Put a model into eval mode without gradients; afterwards everything is as before, also after an exception.

    Restored are the mode of every single submodule (a frozen batch norm stays frozen), torch's, CUDA's, NumPy's and
    Python's random numbers (a DataLoader draws from torch's as soon as it is iterated) and the loader's generators.
    """
    modes = Modes()
    generators = [(generator, generator.get_state()) for generator in find_generators(loader)]
    devices = {tensor.device for tensor in model.parameters() if tensor.is_cuda}
    plain, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002 - the global state is what users draw from
    try:
        with torch.random.fork_rng(devices), torch.no_grad(), uncached_autocast(), eager():
            modes.still(model)
            yield modes
    finally:
        modes.restore()
        for generator, state in generators:
            generator.set_state(state)
        random.setstate(plain)
        np.random.set_state(numbers)  # noqa: NPY002


def has_own_train(module: nn.Module) -> bool:
    """Whether a module does more than torch.nn.Module when its mode changes."""
    return getattr(module.train, "__func__", None) is not nn.Module.train


def may_rewrite(module: nn.Module) -> bool:
    """Whether changing its mode may change a module's weights (LoRA that is merged) or freeze them."""
    home: str = getattr(module.train, "__module__", "")
    return has_own_train(module) and not home.startswith("transformers.")  # all its models have one, which does not


def find_generators(loader: Any) -> list[torch.Generator]:
    """The generators a DataLoader and its samplers draw from."""
    parts = [loader]
    for name in ("batch_sampler", "sampler"):
        parts += [getattr(part, name, None) for part in parts]
    found = {id(held): held for part in parts if isinstance(held := getattr(part, "generator", None), torch.Generator)}
    return list(found.values())


@contextlib.contextmanager
def uncached_autocast() -> Iterator[None]:
    """Any autocast that is on, without its cache: weights cast here without gradients must not meet the next step."""
    enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Compiled parts run uncompiled: their graphs know nothing of our hooks, and must not be compiled again."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled, and importing it takes seconds
        yield
        return
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        # compiled modules say that a hook on all modules runs twice for them: ours may
        warnings.filterwarnings("ignore", r"Using `torch.compile\(module\)` when there are global hooks")
        yield
