"""Find a model's classifier: the linear layer whose output is the model's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ncollapse.features.batches import call
from ncollapse.heads import ETFHead, Head, LinearHead

LINEAR = (nn.Linear, LinearHead, ETFHead)
ROWS = 16
WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")
"""What FSDP, activation checkpointing and torch.compile add to the names of the modules inside."""


class Call(NamedTuple):
    """One call of a linear layer during a forward pass: the shape of its output, and a copy of a part of it."""

    name: str
    shape: torch.Size
    rows: Tensor


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

    It is `layer` if given; what wrappers add to names may be left out. Otherwise the linear layer (torch.nn.Linear,
    LinearHead or ETFHead) whose output the model returns, also among other things; for a token model the one whose
    output is pooled; or the one whose output it returns scaled, or normalised by softmax, log-softmax or sigmoid. Where
    several fit, timm's `get_classifier` decides, else a ValueError lists them.
    """
    layers: dict[str, nn.Module] = {
        name: module for name, module in model.named_modules() if isinstance(module, LINEAR)
    }
    if layer is not None:
        name = find_name(model, layer)
        if name is None or not isinstance(model.get_submodule(name), LINEAR):
            raise ValueError(f"layer: {layer!r} is no linear layer of {_describe(model)}; {_list(layers)}")
        return name
    calls, output = _record(model, inputs, layers)
    results = list(tensors_of(output))
    returned = [made.name for made in calls if any(_same(made, result) for result in results)]
    if not returned and results:
        returned = [made.name for made in calls if _follows(made, results[0])] or _find_averaged(calls, results[0])
    found = list(dict.fromkeys(returned))
    if len(found) > 1:
        found = [name for name in found if layers[name] is _ask(model)] or found
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(
            f"model: {_describe(model)} has several classifiers: {', '.join(found)}; name one by layer={found[-1]!r}"
        )
    raise ValueError(
        f"model: {_describe(model)} returns the output of no linear layer, plain, scaled or normalised; "
        f"{_list(layers)}. For a cosine classifier, or LoRA on the classifier, give a function that returns the "
        "features and, as head=, one that returns the pair (weight, threshold): docs/monitor.md shows how"
    )


def find_name(model: nn.Module, name: str) -> str | None:
    """The name of a submodule as `get_submodule` takes it, given with or without what wrappers add; None if unknown."""
    known = dict(model.named_modules(remove_duplicate=False))  # a shared module goes by any of its names
    return name if name in known else next((full for full in known if shorten_name(full) == name), None)


def shorten_name(name: str) -> str:
    """A module's name without what wrappers add to it.

    >>> shorten_name("_orig_mod.layer._fsdp_wrapped_module.fc")
    'layer.fc'
    """
    for part in WRAPPERS:
        name = name.replace(part, "")
    return name


def check_linear(head: Head, inputs: Tensor, output: Any, name: str, kind: str) -> None:
    """Raise unless what a layer of some kind made of its inputs is W h - b, with its own weight and bias."""
    expected = head.logits(inputs.to(head.weight.dtype))
    if isinstance(output, Tensor) and output.shape == expected.shape:
        size = head.weight.float().norm(dim=1) * inputs.float().norm(dim=-1, keepdim=True) + expected.abs()
        allowed = tolerance(inputs, head.weight, output, expected) * size
        wrong = (output - expected).abs() > allowed  # NaN is for `measure` to report
        if not bool(wrong.any()):
            return
    raise ValueError(
        f"{name}, a {kind}, does not return W h - b of its own weight and bias; measured as if it did, the numbers "
        "would not be the model's. Name the linear layer by layer=; or give a function that returns the features and, "
        "as head=, a function that returns the pair (weight, threshold) acting on them (docs/monitor.md shows both for "
        "a cosine classifier)"
    )


def tolerance(*values: Tensor) -> float:
    """What rounding may change in numbers of the coarsest of these precisions, relative to their size."""
    return float(max(torch.finfo(value.dtype).eps for value in values) ** 0.75)


def part_of(output: Tensor) -> Tensor:
    """The first rows, and of these the first tokens: the logits of a language model are too large to copy."""
    return output[:ROWS, :ROWS] if output.ndim == 3 else output[:ROWS]


def _record(model: nn.Module, inputs: Any, layers: dict[str, nn.Module]) -> tuple[list[Call], Any]:
    calls: list[Call] = []

    def watch(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                calls.append(Call(name, output.shape, part_of(output).detach().clone()))

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


def _same(made: Call, result: Tensor) -> bool:
    if made.shape == result.shape:
        return bool(torch.allclose(*_widen(made, result), rtol=0, atol=0, equal_nan=True))
    pooled = len(made.shape) == 3 and result.ndim == 2 and made.shape[0] == len(result)
    return pooled and made.shape[-1] == result.shape[-1]


def _follows(made: Call, result: Tensor) -> bool:
    """Whether a result is a layer's output scaled, shifted by rows (log-softmax), or its softmax or sigmoid."""
    if made.shape != result.shape or not result.is_floating_point():
        return False
    z, out = _widen(made, result)
    allowed = tolerance(made.rows, result)
    if any(bool((image - out).abs().max() <= allowed) for image in (z.softmax(-1), z.sigmoid())):
        return True
    centred, moved = z - z.mean(-1, keepdim=True), out - out.mean(-1, keepdim=True)
    varies = bool(centred.any())
    scale = float((centred * moved).sum() / centred.square().sum()) if varies else 0.0
    size = max(float(out.abs().max()), abs(scale) * float(z.abs().max()))
    return (scale > 0.0 or not varies) and bool((moved - scale * centred).abs().max() <= allowed * size)


def _find_averaged(calls: list[Call], result: Tensor) -> list[str]:
    """The names of several layers whose mean is the result, as of DeiT's two heads."""
    wide = [made for made in calls if made.shape == result.shape]
    if len(wide) < 2:
        return []
    mean = torch.stack([made.rows for made in wide]).mean(0)
    close = torch.allclose(mean, part_of(result), rtol=0, atol=tolerance(mean, result) * float(mean.abs().max()))
    return [made.name for made in wide] if close else []


def _widen(made: Call, result: Tensor) -> tuple[Tensor, Tensor]:
    """The same part of both in float64."""
    return made.rows.cpu().double(), part_of(result).detach().cpu().double()


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
