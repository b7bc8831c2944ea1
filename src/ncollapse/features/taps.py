"""Read what passes through a model: the vectors that enter its classifier, the outputs of its layers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from ncollapse.features.classifier import check_linear, find_classifier, part_of, shorten_name
from ncollapse.features.given_heads import copy_head
from ncollapse.features.tokens import TokenSelection, pool_tokens
from ncollapse.heads import Head

LARGEST_COPY = 1 << 24
"""Scores of tokens copied at most: those of a language model are many, and are needed for pooled models only."""


@contextlib.contextmanager
def tap(module: nn.Module) -> Iterator[list[Tensor]]:
    """A list to which a copy of every input of a module is added while the context lasts.

    >>> import torch
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


class ClassifierTap:
    """The classifier of a model: found by the first batch, its inputs read in every forward pass.

    Its weight is copied while it runs: a model sharded by FSDP has it whole at that moment only.
    """

    def __init__(self, layer: str | None = None) -> None:
        self.layer = layer
        self.head: Head | None = None
        self._calls: list[tuple[Tensor, Any]] = []

    def attach(self, model: nn.Module, inputs: Any, stack: contextlib.ExitStack) -> None:
        """Find the classifier by running the model once, and watch it until the stack is closed."""
        name = find_classifier(model, inputs, self.layer)
        self.layer = shorten_name(name)
        module = model.get_submodule(name)
        taken = stack.enter_context(tap(module))

        def finish(module: nn.Module, args: Any, output: Any) -> None:
            rows, scores = taken.pop(), output
            if self.head is None:
                self.head = copy_head(Head.of(module))
                if isinstance(output, Tensor):
                    kind = type(module).__name__
                    check_linear(self.head, part_of(rows), part_of(output), f"layer: {self.layer!r}", kind)
            if isinstance(output, Tensor) and rows.ndim == 3 and output.numel() <= LARGEST_COPY:
                scores = output.detach().clone()  # a model may go on writing into it
            self._calls.append((rows, scores))

        stack.callback(module.register_forward_hook(finish).remove)

    def read(self, output: Any, selection: TokenSelection | None) -> Tensor:
        """The vectors [N, d] that entered the classifier in the last forward pass, which returned `output`."""
        calls, self._calls = self._calls[:], []
        if len(calls) != 1:
            raise ValueError(
                f"model: its classifier {self.layer!r} was called {len(calls)} times in one forward pass; features are "
                "defined for one call: measure a model that makes a single one"
            )
        rows, scores = calls[0]
        if selection is not None:
            return selection.rows(rows, f"what enters the classifier {self.layer!r}")
        if rows.ndim == 3:
            rows = pool_tokens(rows, scores, output, str(self.layer))
        if rows.ndim != 2:
            raise ValueError(f"features: {tuple(rows.shape)} enters the classifier {self.layer!r}; expected [B, d]")
        return rows
