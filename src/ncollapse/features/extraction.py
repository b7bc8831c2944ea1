"""Features and labels of a whole loader, taken where they enter the classifier."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ncollapse.features.batches import call, move, split_batch
from ncollapse.features.classifier import check_linear, find_classifier, tensors_of, tolerance, unwrap
from ncollapse.features.isolation import undisturbed
from ncollapse.heads import Head


@dataclass(frozen=True, eq=False)
class Extracted:
    """Features [N, d] in the precision the model gave them, labels [N], the classifier and its name in the model."""

    features: Tensor
    labels: Tensor
    head: Head
    layer: str | None


def extract(
    model: nn.Module | Callable[..., Any],
    batches: Iterable[Any],
    *,
    layer: str | None = None,
    head: Any = None,
    split: Callable[[Any], tuple[Any, Any]] = split_batch,
) -> Extracted:
    """Run a model over batches in eval mode and keep what enters its classifier.

    Args:
        model: any module that ends in a linear layer; DistributedDataParallel and torch.compile are looked through. Or,
            with `head`, a module or function that returns the features themselves.
        batches: (inputs, labels) pairs or dictionaries with labels; inputs are moved to the model's device.
        layer: the classifier's dotted name, where it cannot be found (see `find_classifier`).
        head: the classifier of what `model` returns: a torch.nn.Linear, LinearHead, ETFHead, Head or (weight, bias).
        split: a function from a batch to (inputs, labels), for other batches.

    Modes, weights, hooks, random numbers and gradients are as before when it returns or raises. What it returns is
    copied: the model may go on training.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> found = extract(model, [(torch.zeros(5, 4), torch.zeros(5, dtype=torch.long))])
    >>> found.features.shape, found.layer
    (torch.Size([5, 8]), '2')
    """
    if head is not None and layer is not None:
        raise ValueError("head: give either head, for a model that returns features, or layer, not both")
    inner = _find_module(model, head)
    used = [inner, *_find_used(model), *([head] if isinstance(head, nn.Module) else [])]
    features: list[Tensor] = []
    labels: list[Tensor] = []
    with undisturbed(nn.ModuleList(used), batches) as modes, contextlib.ExitStack() as stack:
        held = [] if head is None else [Head.of(head).weight]
        device = next((tensor.device for tensor in (*inner.parameters(), *inner.buffers(), *held)), torch.device("cpu"))
        calls: list[tuple[Tensor, Any]] = []
        for batch in batches:
            inputs, targets = split(batch)
            inputs = move(inputs, device)
            with modes.follow():
                if head is not None:
                    rows = _check_rows(call(inner if isinstance(model, nn.Module) else model, inputs))
                    if not features:
                        _check_head(head, rows)
                else:
                    if not features:
                        layer = find_classifier(inner, inputs, layer)
                        calls = stack.enter_context(_watch(inner.get_submodule(layer)))
                    output = call(inner, inputs)
                    rows = _read(calls, output, str(layer))
                    if not features:
                        check_linear(inner.get_submodule(str(layer)), *calls[0], f"layer: {layer!r}")
                    calls.clear()
            targets = torch.as_tensor(targets)
            if len(rows) != len(targets):
                raise ValueError(f"labels: {len(targets)} for {len(rows)} rows that enter the classifier {layer!r}")
            if features and rows.shape[1] != features[0].shape[1]:
                raise ValueError(f"features: width {rows.shape[1]} after batches of width {features[0].shape[1]}")
            features.append(rows)
            labels.append(targets.to(device, copy=True))
        if not features:
            raise ValueError("batches: empty, so there is nothing to measure")
        found = Head.of(head if layer is None else inner.get_submodule(layer))
        found = Head(found.weight.clone(), None if found.bias is None else found.bias.clone())
    if found.num_classes == 1:
        raise ValueError(
            f"model: its classifier {layer!r} has one output; two classes are measured by two, with the weights -w/2 "
            "and w/2 and the thresholds -b/2 and b/2 for a single logit w h - b"
        )
    return Extracted(torch.cat(features), torch.cat(labels), found, layer)


@contextlib.contextmanager
def tap(module: nn.Module) -> Iterator[list[Tensor]]:
    """A list to which a copy of every input of a module is added while the context lasts.

    >>> linear = nn.Linear(2, 1)
    >>> with tap(linear) as inputs:
    ...     _ = linear(torch.ones(3, 2))
    >>> inputs[0].shape
    torch.Size([3, 2])
    """
    taken: list[Tensor] = []

    def take(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        taken.append((args[0] if args else next(iter(kwargs.values()))).detach().clone())

    handle = module.register_forward_pre_hook(take, with_kwargs=True)
    try:
        yield taken
    finally:
        handle.remove()


@contextlib.contextmanager
def _watch(module: nn.Module) -> Iterator[list[tuple[Tensor, Any]]]:
    """A list to which copies of every input of a module and its output are added while the context lasts."""
    calls: list[tuple[Tensor, Any]] = []
    with tap(module) as taken:

        def finish(module: nn.Module, args: Any, output: Any) -> None:
            calls.append((taken.pop(), output.detach().clone() if isinstance(output, Tensor) else output))

        handle = module.register_forward_hook(finish)
        try:
            yield calls
        finally:
            handle.remove()


def _find_module(model: Any, head: Any) -> nn.Module:
    """The module that is run: the model, the owner of a bound method, or an empty one for a function."""
    if isinstance(model, nn.Module):
        return unwrap(model)
    if head is None or not callable(model):
        raise TypeError(
            f"model: expected a torch.nn.Module, got {type(model).__name__}; a function that returns features needs "
            "head=, their classifier"
        )
    while isinstance(model, functools.partial):
        model = model.func
    owner = model if isinstance(model, nn.Module) else getattr(model, "__self__", None)
    return owner if isinstance(owner, nn.Module) else nn.Module()


def _find_used(function: Any) -> list[nn.Module]:
    """The modules in what a function refers to: arguments of a partial, fields of its owner, variables around it."""
    if isinstance(function, nn.Module):
        return []
    if isinstance(function, functools.partial):
        given = [value for value in (*function.args, *function.keywords.values()) if isinstance(value, nn.Module)]
        return given + _find_used(function.func)
    plain = inspect.unwrap(function)
    values = list(getattr(getattr(plain, "__self__", plain), "__dict__", {}).values())
    if inspect.isfunction(plain):
        around = inspect.getclosurevars(plain)
        values += [*around.nonlocals.values(), *around.globals.values()]
    return [value for value in values if isinstance(value, nn.Module)]


def _check_rows(rows: Any) -> Tensor:
    if not isinstance(rows, Tensor) or rows.ndim != 2:
        got = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        raise ValueError(f"features: expected a matrix [B, d] from a model given with head=, got {got}")
    return rows.detach().clone()


def _check_head(head: Any, rows: Tensor) -> None:
    """Raise unless a layer given as head= is linear."""
    if isinstance(head, nn.Module) and rows.shape[1] == (weight := Head.of(head).weight).shape[1]:
        rows = rows.to(weight)
        check_linear(head, rows, head(rows), "head")


def _read(calls: list[tuple[Tensor, Any]], output: Any, layer: str) -> Tensor:
    """The [B, d] that entered the classifier in one forward pass."""
    if len(calls) != 1:
        raise ValueError(
            f"model: its classifier {layer!r} was called {len(calls)} times in one forward pass; features are defined "
            "for one call: measure a model that makes a single one"
        )
    rows, scores = calls[0]
    if rows.ndim == 3:
        rows = _pool(rows, scores, next(tensors_of(output), None), layer)
    if rows.ndim != 2:
        raise ValueError(f"features: {tuple(rows.shape)} enters the classifier {layer!r}; expected [B, d]")
    return rows


def _pool(tokens: Tensor, scores: Tensor, logits: Tensor | None, layer: str) -> Tensor:
    """Of tokens [B, T, d] that all went through the classifier, those whose logits [B, K] are returned, or their mean.

    The model returns the scores of one token as they are, or the mean of all, which is the score of the mean token.
    """
    if logits is None or logits.shape != (len(scores), scores.shape[2]):
        raise ValueError(
            f"features: {tuple(tokens.shape)} enters the classifier {layer!r}, one vector a token, and no one of them "
            "is the sample's; a model that classifies whole samples is needed"
        )
    same = (scores.to(logits.dtype) == logits[:, None]).all(2)
    if bool(same.any(1).all()):
        return tokens[torch.arange(len(tokens), device=tokens.device), same.int().argmax(1)]
    wide = torch.promote_types(tokens.dtype, torch.float32)
    error = (scores.mean(1, dtype=wide) - logits).abs().max()
    if not bool(error <= tolerance(scores, logits) * scores.abs().max()):
        raise ValueError(
            f"features: what the model returns is neither the output of the classifier {layer!r} for one token nor the "
            "mean over all tokens; give a model that returns the pooled features, with head=, their classifier"
        )
    return tokens.mean(1, dtype=wide)
