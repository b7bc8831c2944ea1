"""Checkpoints that survive a kill: written whole or not at all, checked when read, the one before kept.

One safetensors file an epoch, `checkpoint/000012-<checksum>.safetensors`: the model's and the optimiser's tensors, the
weights of the best epoch so far, and the plain values as JSON in its header. Nothing else is needed to go on: the order
and the augmentation of every batch are functions of (seed, epoch, step), so no random state is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

KEPT = 2
NAME = re.compile(r"(\d{6})-([0-9a-f]{16})\.safetensors")
log = logging.getLogger("ncollapse.train")


@dataclass(frozen=True)
class Checkpoint:
    """The state at the end of an epoch."""

    epoch: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, finds the old content or the new, never a part."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise blame(error, path) from error
        raise


def blame(error: OSError, path: Path) -> OSError:
    """The same error, naming the file that could not be written and what is left."""
    text = f"{error.strerror}; what was written before is kept, and --resume goes on from it. Not written"
    return OSError(error.errno, text, str(path))


def pack(tensors: dict[str, Tensor], values: dict[str, Any] | None = None) -> bytes:
    """Tensors, and plain values, as the bytes of a safetensors file; equal input gives equal bytes."""
    from safetensors.torch import save

    host = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    metadata = None if values is None else {"values": json.dumps(values, sort_keys=True)}
    return bytes(save(host, metadata))


def unpack(content: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The inverse of `pack`."""
    from safetensors.torch import load

    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + size]).get("__metadata__", {})
    return load(content), json.loads(metadata.get("values", "{}"))


def write(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint, then remove those before the last `KEPT`."""
    folder.mkdir(exist_ok=True)
    content = pack(checkpoint.tensors, checkpoint.values)
    path = folder / f"{checkpoint.epoch:06d}-{_digest(content)}.safetensors"
    write_atomic(path, content)
    for old in find(folder)[KEPT:]:
        old.unlink()
    return path


def read_latest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; damaged ones are passed over with a message. None: there is none."""
    found = find(folder)
    for path in found:
        content = path.read_bytes()
        match = NAME.fullmatch(path.name)
        if match is None or _digest(content) != match[2]:
            back = "starting from the beginning" if path == found[-1] else "going back to the one before"
            log.warning("checkpoint %s is damaged; %s", path, back)
            continue
        tensors, values = unpack(content)
        return Checkpoint(int(match[1]), tensors, values)
    return None


def find(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first."""
    if not folder.is_dir():
        return []
    paths = [path for path in folder.iterdir() if NAME.fullmatch(path.name)]
    return sorted(paths, key=lambda path: (path.name[:6], path.stat().st_mtime_ns), reverse=True)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


# The state of a model and its optimiser as flat, named tensors -----------------------------------------------------


def tensors_of(model: torch.nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every tensor that training changes, by name; the tensors themselves, not copies."""
    found = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, state in _states(model, optimiser):
        for key, value in state.items():
            if isinstance(value, Tensor):
                found[f"optim.{name}.{key}"] = value
            elif _is_tensors(value):
                found |= {f"optim.{name}.{key}.{i}": item for i, item in enumerate(value)}
    return found


def values_of(model: torch.nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimiser's plain values (L-BFGS counts and keeps its last loss), by parameter."""
    kept = {}
    for name, state in _states(model, optimiser):
        plain = {key: value for key, value in state.items() if isinstance(value, (bool, int, float))}
        lists = {key: {"length": len(value)} for key, value in state.items() if _is_tensors(value)}
        if plain or lists:
            kept[name] = plain | lists
    return kept


def restore(
    model: torch.nn.Module, optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor], values: dict[str, Any]
) -> None:
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


def _states(model: torch.nn.Module, optimiser: torch.optim.Optimizer) -> list[tuple[str, dict[str, Any]]]:
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [(name, optimiser.state[p]) for name, p in named if optimiser.state.get(p)]
