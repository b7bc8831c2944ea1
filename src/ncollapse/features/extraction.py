"""Features and labels of a whole loader, taken where they enter the classifier."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ncollapse.features.batches import call, move, split_batch
from ncollapse.features.classifier import find_classifier, tensors_of, unwrap
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

    Modes, hooks, random numbers and gradients are as before when it returns or raises.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> found = extract(model, [(torch.zeros(5, 4), torch.zeros(5, dtype=torch.long))])
    >>> found.features.shape, found.layer
    (torch.Size([5, 8]), '2')
    """
    if head is not None and layer is not None:
        raise ValueError("head: give either head, for a model that returns features, or layer, not both")
    inner = _find_module(model, head)
    held = [] if head is None else [Head.of(head).weight]
    device = next((tensor.device for tensor in (*inner.parameters(), *inner.buffers(), *held)), torch.device("cpu"))
    features: list[Tensor] = []
    labels: list[Tensor] = []
    with undisturbed(inner, batches), contextlib.ExitStack() as stack:
        taken: list[Tensor] | None = None
        for batch in batches:
            inputs, targets = split(batch)
            inputs = move(inputs, device)
            if head is not None:
                rows = _check_rows(call(inner if isinstance(model, nn.Module) else model, inputs))
            else:
                if taken is None:
                    layer = find_classifier(inner, inputs, layer)
                    taken = stack.enter_context(tap(inner.get_submodule(layer)))
                output = call(inner, inputs)
                rows = _read(taken, output, inner.get_submodule(layer or ""), str(layer))
                taken.clear()
            targets = torch.as_tensor(targets)
            if len(rows) != len(targets):
                raise ValueError(f"labels: {len(targets)} for {len(rows)} rows that enter the classifier {layer!r}")
            if features and rows.shape[1] != features[0].shape[1]:
                raise ValueError(f"features: width {rows.shape[1]} after batches of width {features[0].shape[1]}")
            features.append(rows)
            labels.append(targets.to(device))
    if not features:
        raise ValueError("batches: empty, so there is nothing to measure")
    found = Head.of(head if layer is None else inner.get_submodule(layer))
    if found.num_classes == 1:
        raise ValueError(
            f"model: its classifier {layer!r} has one output; two classes are measured by two, with the weights -w/2 "
            "and w/2 and the thresholds -b/2 and b/2 for a single logit w h - b"
        )
    return Extracted(torch.cat(features), torch.cat(labels), found, layer)


@contextlib.contextmanager
def tap(module: nn.Module) -> Iterator[list[Tensor]]:
    """A list to which every input of a module is added while the context lasts.

    >>> linear = nn.Linear(2, 1)
    >>> with tap(linear) as inputs:
    ...     _ = linear(torch.ones(3, 2))
    >>> inputs[0].shape
    torch.Size([3, 2])
    """
    taken: list[Tensor] = []

    def take(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        taken.append((args[0] if args else next(iter(kwargs.values()))).detach())

    handle = module.register_forward_pre_hook(take, with_kwargs=True)
    try:
        yield taken
    finally:
        handle.remove()


def _find_module(model: Any, head: Any) -> nn.Module:
    """The module to put into eval mode: the model, the owner of a bound method, or an empty one for a function."""
    if isinstance(model, nn.Module):
        return unwrap(model)
    if head is None or not callable(model):
        raise TypeError(
            f"model: expected a torch.nn.Module, got {type(model).__name__}; a function that returns features needs "
            "head=, their classifier"
        )
    owner = getattr(model, "__self__", None)
    return owner if isinstance(owner, nn.Module) else nn.Module()


def _check_rows(rows: Any) -> Tensor:
    if not isinstance(rows, Tensor) or rows.ndim != 2:
        got = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        raise ValueError(f"features: expected a matrix [B, d] from a model given with head=, got {got}")
    return rows.detach()


def _read(taken: list[Tensor], output: Any, classifier: nn.Module, layer: str) -> Tensor:
    """The [B, d] that entered the classifier in one forward pass."""
    if len(taken) != 1:
        raise ValueError(
            f"model: its classifier {layer!r} was called {len(taken)} times in one forward pass; features are defined "
            "for one call: measure a model that makes a single one"
        )
    rows = taken[0]
    if rows.ndim == 3:
        rows = _pool(rows, next(tensors_of(output), None), classifier, layer)
    if rows.ndim != 2:
        raise ValueError(f"features: {tuple(rows.shape)} enters the classifier {layer!r}; expected [B, d]")
    return rows


def _pool(tokens: Tensor, logits: Tensor | None, classifier: nn.Module, layer: str) -> Tensor:
    """Of tokens [B, T, d] that all went through the classifier, those whose logits [B, K] the model returned."""
    if logits is None or logits.ndim != 2:
        raise ValueError(
            f"features: {tuple(tokens.shape)} enters the classifier {layer!r}, one vector a token, and no one of them "
            "is the sample's; a model that classifies whole samples is needed"
        )
    scores = Head.of(classifier).logits(tokens).float()
    distance = (scores - logits.float()[:, None]).abs().amax(2)
    nearest = distance.min(1)
    if float(nearest.values.max()) > 1e-2 * float(scores.abs().max()):
        raise ValueError(f"features: no token's output of the classifier {layer!r} is what the model returns")
    return tokens[torch.arange(len(tokens), device=tokens.device), nearest.indices]
