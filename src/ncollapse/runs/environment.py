"""Where a run took place: versions, hardware, command and time."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

PACKAGES = ("ncollapse", "torch", "numpy", "scipy", "scikit-learn", "safetensors")


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Return versions and hardware."""
    hardware: dict[str, Any] = {"device": str(device), "machine": platform.machine(), "cores": os.cpu_count()}
    hardware["threads"] = torch.get_num_threads()
    if device.type == "cuda":
        hardware["gpu"] = torch.cuda.get_device_name(device)
    versions: dict[str, Any] = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    versions["torch"] = torch.__version__
    return {"versions": versions, "hardware": hardware}


def describe_run(device: torch.device) -> dict[str, Any]:
    """Return the content of `env.json`: the machine, the command and the time of the start."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return {**describe_machine(device), "command": shlex.join(sys.argv), "started": started}
