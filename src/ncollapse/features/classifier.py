"""Find a model's classifier: the linear layer whose output is the model's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ncollapse.features.batches import call
from ncollapse.heads import ETFHead, LinearHead

LINEAR = (nn.Linear, LinearHead, ETFHead)


class Call(NamedTuple):
    """One call of a linear layer during a forward pass."""

    name: str
    output: Tensor


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, DataParallel and torch.compile.

    >>> inner = nn.Linear(2, 2)
    >>> unwrap(nn.DataParallel(inner)) is inner
    True
    """
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def find_classifier(model: nn.Module, inputs: Any, layer: str | None = None) -> str:
    """The dotted name of the classifier in an unwrapped model; `inputs` are run through it once, as it stands.

    It is `layer` if given. Otherwise the linear layer (torch.nn.Linear, LinearHead or ETFHead) whose output the model
    returns, also among other things; for a token model the one whose output is pooled; or the last one called, if it is
    as wide as what the model returns (logits that are scaled or normalised). Where several fit, timm's `get_classifier`
    decides, else a ValueError lists them.
    """
    layers: dict[str, nn.Module] = {
        name: module for name, module in model.named_modules() if isinstance(module, LINEAR)
    }
    if layer is not None:
        known = dict(model.named_modules(remove_duplicate=False))  # a shared module goes by any of its names
        if not isinstance(known.get(layer), LINEAR):
            raise ValueError(f"layer: {layer!r} is no linear layer of {_describe(model)}; {_list(layers)}")
        return layer
    calls, output = _record(model, inputs, layers)
    results = list(tensors_of(output))
    returned = [made.name for made in calls if any(_same(made.output, result) for result in results)]
    width = results[0].shape[-1] if results and results[0].ndim else None
    wide = [made.name for made in calls if made.output.shape[-1] == width]
    if wide and wide[-1] != calls[-1].name:
        wide = []  # something came after it: not the last layer
    found = list(dict.fromkeys(returned or wide))
    if len(found) > 1:
        found = [name for name in found if layers[name] is _ask(model)] or found
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(
            f"model: {_describe(model)} has several classifiers: {', '.join(found)}; name one by layer={found[-1]!r}"
        )
    raise ValueError(f"model: {_describe(model)} returns the output of no linear layer; {_list(layers)}")


def _record(model: nn.Module, inputs: Any, layers: dict[str, nn.Module]) -> tuple[list[Call], Any]:
    calls: list[Call] = []

    def watch(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            calls.append(Call(name, output))

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in layers.items()]
    try:
        return calls, call(model, inputs)
    finally:
        for handle in handles:
            handle.remove()


def tensors_of(output: Any) -> Iterator[Tensor]:
    """The tensors in what a model returns; of a dictionary with logits, these alone."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        yield from tensors_of(output["logits"] if "logits" in output else list(output.values()))
    elif isinstance(output, (tuple, list)):
        for item in output:
            yield from tensors_of(item)


def _same(made: Tensor, result: Tensor) -> bool:
    if made.shape == result.shape:
        return made is result or bool(torch.equal(made.float(), result.float()))
    pooled = made.ndim == 3 and result.ndim == 2 and len(made) == len(result)
    return pooled and made.shape[-1] == result.shape[-1]


def _ask(model: nn.Module) -> Any:
    ask = getattr(model, "get_classifier", None)
    return ask() if callable(ask) else None


def _describe(model: nn.Module) -> str:
    return type(model).__name__


def _list(layers: dict[str, nn.Module]) -> str:
    if not layers:
        return "it has no linear layer at all, and without a linear classifier there is nothing to measure against"
    names = list(layers)
    shown = ", ".join(names[-8:])
    return f"name one of its {len(names)} linear layers by layer=: {'..., ' if len(names) > 8 else ''}{shown}"
