"""Checkpoint files: written whole or not at all, verified by a checksum when read, with the previous one kept.

A checkpoint is one safetensors file, `checkpoint/000012-<checksum>.safetensors`: the tensors of the model and the
optimiser, the weights of the best epoch so far, and plain values as JSON in its header. No random state is needed to
resume, because the order and the augmentation of every batch are functions of (seed, epoch, step).
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ncollapse.runs.files import write_atomic

KEPT = 2
NAME = re.compile(r"(\d{6})-([0-9a-f]{16})\.safetensors")
log = logging.getLogger("ncollapse.train")


@dataclass(frozen=True)
class Checkpoint:
    """The state at the end of an epoch."""

    epoch: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]


def pack(tensors: dict[str, Tensor], values: dict[str, Any] | None = None) -> bytes:
    """Return tensors and plain values as the bytes of a safetensors file; equal input gives equal bytes."""
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
        old.unlink(missing_ok=True)
    return path


def read_latest(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint that is whole, None if there is none."""
    return next(read_newest_first(folder), None)


def read_newest_first(folder: Path) -> Iterator[Checkpoint]:
    """Read the checkpoints of a folder, newest first; damaged ones are passed over with a warning."""
    for path in find(folder):
        try:
            content = path.read_bytes()
            match = NAME.fullmatch(path.name)
            if match is None or _digest(content) != match[2]:
                raise ValueError("its checksum differs")
            tensors, values = unpack(content)
            if not isinstance(values, dict) or values.get("epoch", int(match[1])) != int(match[1]):
                raise ValueError("its epoch is not the one in its name")
        except Exception as error:  # the library raises its own kinds
            log.warning("checkpoint %s is damaged (%s) and is passed over", path, error)
            continue
        yield Checkpoint(int(match[1]), tensors, values)


def find(folder: Path) -> list[Path]:
    """List the checkpoints of a folder, newest first."""
    if not folder.is_dir():
        return []
    paths = [path for path in folder.iterdir() if NAME.fullmatch(path.name)]

    def age(path: Path) -> tuple[str, int]:
        try:
            return path.name[:6], path.stat().st_mtime_ns
        except OSError:  # removed a moment ago
            return path.name[:6], 0

    return sorted(paths, key=age, reverse=True)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
