"""The outputs of named layers of a model, one vector a sample."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor, nn

from ncollapse.features.classifier import shorten_name
from ncollapse.features.tokens import TokenSelection

Pool: TypeAlias = str | Callable[[Tensor], Tensor] | None
POOLED_OVER = {3: (1,), 4: (2, 3), 5: (2, 3, 4)}
"""Dimensions that pool="mean" averages: tokens of [B, T, d], positions of [B, C, H, W] and [B, C, D, H, W]."""


class LayerTaps:
    """Named layers whose outputs are read in every forward pass.

    Args:
        layers: dotted names; `*` stands for one part of a name ("blocks.*", "layer?.*.conv1"). None: the direct
            children of the model that are called.
        pool: None flattens an output [B, ...] to [B, d]; "mean" averages over tokens or positions first; a function
            from the output to [B, d] is called.
    """

    def __init__(self, layers: str | Sequence[str] | None, pool: Pool = None) -> None:
        if isinstance(pool, str) and pool != "mean":
            raise ValueError(f"pool: expected None, 'mean' or a function, got {pool!r}")
        self.layers = [layers] if isinstance(layers, str) else layers
        for name in () if self.layers is None else self.layers:
            if not isinstance(name, str):
                raise TypeError(f"layers: expected dotted names such as 'layer1.0', got {name!r}")
        self.pool = pool
        self._outputs: dict[str, Tensor] = {}

    def attach(self, model: nn.Module, inputs: Any, stack: contextlib.ExitStack) -> None:
        """Watch the layers until the stack is closed."""
        for name, module in self._find(model).items():
            stack.callback(module.register_forward_hook(self._hook(name)).remove)

    def read(self, selection: TokenSelection | None) -> dict[str, Tensor]:
        """The vectors [N, d] of every layer in the last forward pass, in the order in which the layers ran."""
        outputs, self._outputs = self._outputs, {}
        missing = [] if self.layers is None else [name for name in self._names if name not in outputs]
        if missing or not outputs:
            raise ValueError(f"layers: {', '.join(missing) or 'none of the children'} did not run in the forward pass")
        return {name: self._to_rows(output, name, selection) for name, output in outputs.items()}

    def _find(self, model: nn.Module) -> dict[str, nn.Module]:
        known = {shorten_name(name): module for name, module in model.named_modules() if shorten_name(name)}
        if self.layers is None:
            found = {name: known[name] for name in known if "." not in name}
        else:
            found = {}
            for pattern in self.layers:
                names = [name for name in known if _fits(name, pattern)]
                if not names:
                    listed = ", ".join(list(known)[:8]) + (", ..." if len(known) > 8 else "")
                    raise ValueError(
                        f"layers: {pattern!r} names no module of {type(model).__name__}; its modules are {listed}"
                    )
                found |= {name: known[name] for name in names}
        self._names = list(found)
        return found

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def take(module: nn.Module, args: Any, output: Any) -> None:
            if name in self._outputs:
                raise ValueError(
                    f"layers: {name!r} was called twice in one forward pass, so that its output is not one vector a "
                    "sample; name another layer"
                )
            tensor = next(_tensors(output), None)
            if tensor is None:
                raise ValueError(f"layers: {name!r} returned no tensor but {type(output).__name__}; name another layer")
            self._outputs[name] = tensor.detach().clone()

        return take

    def _to_rows(self, output: Tensor, name: str, selection: TokenSelection | None) -> Tensor:
        if selection is not None:
            return selection.rows(output, f"the output of the layer {name!r}")
        if callable(self.pool):
            output = self.pool(output)
            if not isinstance(output, Tensor) or output.ndim != 2:
                got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
                raise ValueError(f"pool: expected a matrix [B, d] for the layer {name!r}, got {got}")
        elif self.pool == "mean" and output.ndim > 2:
            if output.ndim not in POOLED_OVER:
                raise ValueError(f"pool: 'mean' is not defined for {tuple(output.shape)} of {name!r}; pass a function")
            output = output.mean(POOLED_OVER[output.ndim])
        return output.flatten(1)


def _fits(name: str, pattern: str) -> bool:
    parts = (re.escape(part).replace(r"\*", "[^.]*").replace(r"\?", "[^.]") for part in pattern.split("."))
    return re.fullmatch(r"\.".join(parts), name) is not None


def _tensors(output: Any) -> Iterator[Tensor]:
    """The tensors in what a layer returns, in order: the first one is its output."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        yield from _tensors(list(output.values()))
    elif isinstance(output, tuple | list):
        for item in output:
            yield from _tensors(item)
