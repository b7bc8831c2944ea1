"""Torch's process-wide switches, set while runs are active, and a CUDA stream for each thread of runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

_guard = threading.Lock()
_active: list[tuple[bool, str]] = []
_before: dict[str, Any] = {}
_here = threading.local()


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
            _save(device)
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
def own_modes(device: torch.device) -> Iterator[None]:
    """Gradients on and autocast off in this thread, whatever the caller's code has set: the recipe alone counts."""
    autocast = torch.is_autocast_enabled(device.type)
    off = torch.autocast(device.type, enabled=False) if autocast else nullcontext()
    with torch.inference_mode(False), torch.enable_grad(), off:
        yield


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """A CUDA stream for this thread's runs alone: nothing of them waits for the default stream, or for other threads.

    A thread keeps its stream from run to run: torch has 32 of them and then begins anew, with one that may be in use.
    It comes before the streams that are used beside it (`models.overlap`), which have the lowest priority.
    """
    if device.type != "cuda":
        yield
        return
    streams = _here.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(streams[device]):
        yield
        streams[device].synchronize()


@contextmanager
def use_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Launch on this stream, from any thread: cuBLAS warns where a thread has no context of the GPU yet."""
    torch.cuda.set_device(stream.device)
    with torch.cuda.stream(stream):
        yield


def _read_determinism() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _save(device: torch.device) -> None:
    _before["deterministic"] = _read_determinism()
    _before["benchmark"] = torch.backends.cudnn.benchmark
    _before["precision"] = _read_precision() if device.type == "cuda" else None


def _set(device: torch.device, precision: str, deterministic: bool) -> None:
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = not deterministic
        _write_precision(matmul=_name_precision(precision == "tf32"), conv=_name_precision(precision != "fp32"))


HAS_PRECISION_NAMES = hasattr(torch.backends.cudnn, "conv")
"""Whether torch names the precision of float32 products ("tf32", "ieee"), as it does from 2.9 on, or has a switch."""


def _name_precision(tf32: bool) -> str | bool:
    return ("tf32" if tf32 else "ieee") if HAS_PRECISION_NAMES else tf32


def _read_precision() -> dict[str, Any]:
    """The precision of float32 products and convolutions on a GPU.

    Where torch has names for it they are used: its older switches raise once someone has used the newer names.
    """
    if HAS_PRECISION_NAMES:
        conv: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
        return {"matmul": torch.backends.cuda.matmul.fp32_precision, "conv": conv.fp32_precision}
    return {"matmul": torch.backends.cuda.matmul.allow_tf32, "conv": torch.backends.cudnn.allow_tf32}


def _write_precision(matmul: Any, conv: Any) -> None:
    if HAS_PRECISION_NAMES:
        torch.backends.cuda.matmul.fp32_precision = matmul
        torch.backends.cudnn.conv.fp32_precision = conv  # type: ignore[attr-defined]
    else:
        torch.backends.cuda.matmul.allow_tf32 = matmul
        torch.backends.cudnn.allow_tf32 = conv


@contextmanager
def switch_precision(*, matmul: bool, conv: bool) -> Iterator[None]:
    """Let float32 products and convolutions on a GPU use TensorFloat-32, or not, for a while."""
    before = _read_precision()
    _write_precision(matmul=_name_precision(matmul), conv=_name_precision(conv))
    try:
        yield
    finally:
        _write_precision(**before)


def _put_back() -> None:
    if _read_determinism() != _before["deterministic"]:  # the call imports torch's compiler, which takes 1.5 s
        enabled, warns = _before["deterministic"]
        torch.use_deterministic_algorithms(enabled, warn_only=warns)
    torch.backends.cudnn.benchmark = _before["benchmark"]
    if _before["precision"] is not None:
        _write_precision(**_before["precision"])
