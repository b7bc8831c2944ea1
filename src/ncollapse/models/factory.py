"""Networks of the user's own, by the name of the function that makes them: package.module:factory."""

from __future__ import annotations

import inspect

import torch
from torch import nn

from ncollapse.plugins import import_plugin

VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def call_factory(name: str, num_classes: int) -> nn.Module:
    """Import package.module and call its factory, with `num_classes` if it takes that or any keyword."""
    factory = import_plugin(name, "model")
    if isinstance(factory, nn.Module) or not callable(factory):
        raise TypeError(f"model: {name} is a {type(factory).__name__}, not a function or class that makes a network")
    parameters = inspect.signature(factory).parameters.values()
    takes_classes = any(item.name == "num_classes" or item.kind == item.VAR_KEYWORD for item in parameters)
    needed = [item.name for item in parameters if item.default is item.empty and item.kind not in VARIADIC]
    if set(needed) - {"num_classes"}:
        raise TypeError(
            f"model: {name} needs {', '.join(needed)}; expected a function without arguments, or with num_classes"
        )
    try:
        made = factory(num_classes=num_classes) if takes_classes else factory()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ValueError(f"model: {name} made no network: {type(error).__name__}: {error}") from error
    if not isinstance(made, nn.Module):
        raise TypeError(f"model: {name} returned {type(made).__name__}, not a torch.nn.Module")
    return made
