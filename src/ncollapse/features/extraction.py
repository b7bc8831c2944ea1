"""Run a model over batches in eval mode and take the features where they enter the classifier."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ncollapse.features.batches import call, move, split_batch
from ncollapse.features.classifier import unwrap
from ncollapse.features.given_heads import HeadSource, check_given, read_head
from ncollapse.features.isolation import undisturbed
from ncollapse.features.layers import LayerTaps
from ncollapse.features.taps import ClassifierTap
from ncollapse.features.tokens import TokenRule, TokenSelection
from ncollapse.heads import TWO_OUTPUTS, Head

Model: TypeAlias = nn.Module | Callable[..., Any]
Split: TypeAlias = Callable[[Any], tuple[Any, Any]]


@dataclass(frozen=True, eq=False)
class Extracted:
    """Features [N, d] in the precision the model gave them, labels [N], the classifier and its name in the model."""

    features: Tensor
    labels: Tensor
    head: Head
    layer: str | None


@dataclass(frozen=True, eq=False)
class Taken:
    """What one batch gave: the features, their labels, and the outputs of the layers that were asked for."""

    features: Tensor | None
    labels: Tensor
    outputs: dict[str, Tensor]


def extract(
    model: Model,
    batches: Iterable[Any],
    *,
    layer: str | None = None,
    head: HeadSource | None = None,
    split: Split = split_batch,
    tokens: TokenRule | None = None,
) -> Extracted:
    """Run a model over batches in eval mode and keep what enters its classifier.

    Args:
        model: any module that ends in a linear layer, also inside DistributedDataParallel, FSDP and torch.compile. Or,
            with `head`, a module or function that returns the features themselves.
        batches: (inputs, labels) pairs or dictionaries with labels; inputs are moved to the model's device.
        layer: the classifier's dotted name, where it cannot be found (see `find_classifier`).
        head: the classifier of what `model` returns: a torch.nn.Linear, LinearHead, ETFHead, Head, (weight, threshold),
            or a function that returns one of these.
        split: a function from a batch to (inputs, labels), for other batches.
        tokens: how labels [B, T] of a model that classifies tokens are read.

    Modes, weights, hooks, random numbers and gradients are as before when it returns or raises. What it returns is
    copied: the model may go on training.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> found = extract(model, [(torch.zeros(5, 4), torch.zeros(5, dtype=torch.long))])
    >>> found.features.shape, found.layer
    (torch.Size([5, 8]), '2')
    """
    features: list[Tensor] = []
    labels: list[Tensor] = []

    def receive(taken: Taken) -> None:
        assert taken.features is not None
        if features and taken.features.shape[1] != features[0].shape[1]:
            raise ValueError(f"features: width {taken.features.shape[1]} after batches of width {features[0].shape[1]}")
        features.append(taken.features)
        labels.append(taken.labels)

    found, name = run_model(model, batches, receive, layer=layer, head=head, split=split, tokens=tokens)
    assert found is not None
    if not features:
        raise ValueError(f"labels: all are {(tokens or TokenRule()).ignore_index} (ignore_index); nothing is measured")
    return Extracted(torch.cat(features), torch.cat(labels), found, name)


def run_model(
    model: Model,
    batches: Iterable[Any],
    receive: Callable[[Taken], None],
    *,
    layer: str | None = None,
    head: HeadSource | None = None,
    split: Split = split_batch,
    tokens: TokenRule | None = None,
    limit: int | None = None,
    taps: LayerTaps | None = None,
    classify: bool = True,
) -> tuple[Head | None, str | None]:
    """Run a model over batches and hand each batch's features and labels on; returns the classifier and its name.

    See `extract` for the arguments. limit: samples to hand on; further ones are run and dropped. taps: layers whose
    outputs are handed on too. classify: False where no classifier is wanted.
    """
    if head is not None and layer is not None:
        raise ValueError("head: give either head, for a model that returns features, or layer, not both")
    inner = _find_module(model, head, classify)
    rule = tokens or TokenRule()
    shift = rule.shifts(inner)
    used = [inner, *_find_used(model), *_find_used(head), *([head] if isinstance(head, nn.Module) else [])]
    with undisturbed(nn.ModuleList(used), batches) as modes, contextlib.ExitStack() as stack:
        source = ClassifierTap(layer) if head is None else GivenHead(head)
        readers: list[ClassifierTap | GivenHead | LayerTaps] = [source] if classify else []
        readers += [] if taps is None else [taps]
        device = _find_device(inner, source.head)
        seen = 0
        for batch in batches:
            inputs, targets = split(batch)
            inputs, labels = move(inputs, device), _copy_labels(targets, device)
            if seen == 0 and not len(labels):
                continue  # the classifier cannot be found by a batch without samples
            if limit is not None:
                labels[max(limit - seen, 0) :] = rule.ignore_index
            selection = TokenSelection(labels, inputs, shift, rule.ignore_index) if labels.ndim == 2 else None
            with modes.follow():
                for reader in readers if seen == 0 else ():
                    reader.attach(inner, inputs, stack)
                output = call(inner if isinstance(model, nn.Module) else model, inputs)
                rows = source.read(output, selection) if classify else None
                outputs = {} if taps is None else taps.read(selection)
            seen += len(labels)
            taken = Taken(rows, labels if selection is None else selection.labels, outputs)
            taken = _drop_ignored(_check_lengths(taken, source.layer), rule.ignore_index)
            if len(taken.labels):
                receive(taken)
    if not seen:
        raise ValueError("batches: empty, so there is nothing to measure")
    return (_refuse_single(source.head, source.layer), source.layer) if classify else (None, None)


class GivenHead:
    """The classifier that a user gave for a model that returns features, read once a pass."""

    layer = None

    def __init__(self, source: HeadSource) -> None:
        self.source = source
        self.head = read_head(source)
        self._checked = False

    def attach(self, model: nn.Module, inputs: Any, stack: contextlib.ExitStack) -> None:
        """There is nothing to watch."""

    def read(self, output: Any, selection: TokenSelection | None) -> Tensor:
        """The features [N, d], which the model returned."""
        rows = output
        if isinstance(rows, Tensor) and selection is not None:
            rows = selection.rows(rows, "what the model returns")
        if not isinstance(rows, Tensor) or rows.ndim != 2:
            got = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise ValueError(f"features: expected a matrix [B, d] from a model given with head=, got {got}")
        rows = rows.detach().clone()
        if not self._checked:
            check_given(self.source, rows)
            self._checked = True
        return rows


def _copy_labels(targets: Any, device: torch.device) -> Tensor:
    """Labels on a device, integers as int64: ignore_index has to fit."""
    try:
        labels = torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"labels: expected integers, one a sample, got {type(targets).__name__}") from None
    if labels.ndim == 0:
        raise ValueError("labels: expected one integer a sample, shape [B], got a single number")
    whole = not labels.is_floating_point() and not labels.is_complex() and labels.dtype != torch.bool
    return labels.to(device, torch.int64 if whole else labels.dtype, copy=True)


def _find_device(model: nn.Module, head: Head | None) -> torch.device:
    held = [] if head is None else [head.weight]
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers(), *held)), torch.device("cpu"))


def _check_lengths(taken: Taken, layer: str | None) -> Taken:
    """What a batch gave, refused unless there is one row a label."""
    names = {f"that enter the classifier {layer!r}": taken.features}
    names |= {f"of the layer {name!r}": rows for name, rows in taken.outputs.items()}
    for name, rows in names.items():
        if rows is not None and len(rows) != len(taken.labels):
            raise ValueError(f"labels: {len(taken.labels)} for {len(rows)} rows {name}")
    return taken


def _drop_ignored(taken: Taken, ignore_index: int) -> Taken:
    kept = taken.labels != ignore_index
    if bool(kept.all()):
        return taken
    rows = None if taken.features is None else taken.features[kept]
    return Taken(rows, taken.labels[kept], {name: value[kept] for name, value in taken.outputs.items()})


def _refuse_single(head: Head | None, layer: str | None) -> Head | None:
    if head is not None and head.num_classes == 1:
        raise ValueError(f"model: its classifier {layer!r} has one output; {TWO_OUTPUTS}")
    return head


def _find_module(model: Any, head: Any, classify: bool) -> nn.Module:
    """The module that is run: the model, the owner of a bound method, or an empty one for a function."""
    if isinstance(model, nn.Module):
        return unwrap(model)
    if (head is None and classify) or not callable(model):
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
    if isinstance(function, nn.Module) or not callable(function):
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
