"""torch's process-wide switches for the time of a run, and a stream of the run's own."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_guard = threading.Lock()
_active: list[tuple[bool, str]] = []
_before: dict[str, object] = {}


@contextmanager
def switches(device: torch.device, precision: str, deterministic: bool) -> Iterator[None]:
    """Set precision and determinism; the first run in sets them, the last one out puts the old values back.

    They belong to the process, so runs side by side in threads must agree on them.
    """
    wanted = (deterministic, precision if device.type == "cuda" else "any")
    with _guard:
        if _active and _active[0] != wanted:
            raise ValueError(
                f"runs side by side in one process must share precision and deterministic: {_active[0]} is active, "
                f"{wanted} was asked for"
            )
        if not _active:
            _save()
            _set(device, precision, deterministic)
        _active.append(wanted)
    try:
        yield
    finally:
        with _guard:
            _active.remove(wanted)
            if not _active:
                _put_back()


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """A CUDA stream for this run alone: nothing of it waits for the default stream, or for other runs."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        yield
        stream.synchronize()


def _save() -> None:
    _before["deterministic"] = torch.are_deterministic_algorithms_enabled()
    _before["benchmark"] = torch.backends.cudnn.benchmark
    _before["matmul"] = torch.get_float32_matmul_precision()


def _set(device: torch.device, precision: str, deterministic: bool) -> None:
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = not deterministic
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        if precision == "fp32":
            _before["conv"] = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
            torch.backends.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]


def _put_back() -> None:
    torch.use_deterministic_algorithms(bool(_before["deterministic"]))
    torch.backends.cudnn.benchmark = bool(_before["benchmark"])
    torch.set_float32_matmul_precision(str(_before["matmul"]))
    with contextlib.suppress(KeyError):
        torch.backends.cudnn.conv.fp32_precision = _before.pop("conv")  # type: ignore[attr-defined]
