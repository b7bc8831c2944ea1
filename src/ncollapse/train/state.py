"""The state of a model and its optimiser as flat, named tensors and plain values, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ncollapse.train.optimiser import Optimiser


def tensors_of(model: torch.nn.Module, optimiser: Optimiser) -> dict[str, Tensor]:
    """Every tensor that training changes, by name; the tensors themselves, not copies."""
    found = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, state in _states(model, optimiser):
        for key, value in state.items():
            if isinstance(value, Tensor):
                found[f"optim.{name}.{key}"] = value
            elif _is_tensors(value):
                found |= {f"optim.{name}.{key}.{i}": item for i, item in enumerate(value)}
    return found


def values_of(model: torch.nn.Module, optimiser: Optimiser) -> dict[str, Any]:
    """The optimiser's plain values (L-BFGS counts and keeps its last loss), by parameter."""
    kept = {}
    for name, state in _states(model, optimiser):
        plain = {key: value for key, value in state.items() if isinstance(value, (bool, int, float))}
        lists = {key: {"length": len(value)} for key, value in state.items() if _is_tensors(value)}
        if plain or lists:
            kept[name] = plain | lists
    return kept


def restore(model: torch.nn.Module, optimiser: Optimiser, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Put a state back in place: tensors that exist keep their storage, which captured graphs rely on."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(tensors[f"model.{name}"])
        for name, parameter in model.named_parameters():
            state = optimiser.state[parameter] if parameter.requires_grad else {}
            prefix = f"optim.{name}."
            saved = {key[len(prefix) :]: item for key, item in tensors.items() if key.startswith(prefix)}
            for key, value in values.get(name, {}).items():
                if isinstance(value, dict):
                    items = [saved.pop(f"{key}.{i}") for i in range(value["length"])]
                    state[key] = [item.to(parameter.device, copy=True) for item in items]
                else:
                    state[key] = value
            for key, item in saved.items():
                if key in state:
                    state[key].copy_(item)
                else:
                    state[key] = item.to(parameter.device, copy=True)


def _is_tensors(value: Any) -> bool:
    """Whether it is a list of tensors: L-BFGS keeps its history in such, and scratch that may be None in another."""
    return isinstance(value, list) and all(isinstance(item, Tensor) for item in value)


def _states(model: torch.nn.Module, optimiser: Optimiser) -> list[tuple[str, dict[str, Any]]]:
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [(name, optimiser.state[p]) for name, p in named if optimiser.state.get(p)]
