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
    """Features [N, d] in the precision the model gave them, labels [N], the classifier and its name."""

    features: Tensor
    labels: Tensor
    head: Head
    layer: str


def extract(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    layer: str | None = None,
    split: Callable[[Any], tuple[Any, Any]] = split_batch,
) -> Extracted:
    """Run a model over batches in eval mode and keep what enters its classifier.

    Args:
        model: any module that ends in a linear layer; DistributedDataParallel and torch.compile are looked through.
        batches: (inputs, labels) pairs or dictionaries with labels; inputs are moved to the model's device.
        layer: the classifier's dotted name, where it cannot be found (see `find_classifier`).
        split: a function from a batch to (inputs, labels), for other batches.

    Modes, hooks, random numbers and gradients are as before when it returns or raises.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> found = extract(model, [(torch.zeros(5, 4), torch.zeros(5, dtype=torch.long))])
    >>> found.features.shape, found.layer
    (torch.Size([5, 8]), '2')
    """
    inner = unwrap(model)
    device = next((tensor.device for tensor in (*inner.parameters(), *inner.buffers())), torch.device("cpu"))
    features: list[Tensor] = []
    labels: list[Tensor] = []
    with undisturbed(inner, batches), contextlib.ExitStack() as stack:
        taken: list[Tensor] | None = None
        for batch in batches:
            inputs, targets = split(batch)
            inputs = move(inputs, device)
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
    if layer is None or not features:
        raise ValueError("batches: empty, so there is nothing to measure")
    return Extracted(torch.cat(features), torch.cat(labels), Head.of(inner.get_submodule(layer)), layer)


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
