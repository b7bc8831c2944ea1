"""Where a run took place: versions, hardware, command and time."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

import ncollapse

REQUIRED = (
    *("numpy", "scipy", "scikit-learn", "threadpoolctl", "filelock", "torchmetrics", "safetensors"),
    *("tyro", "cattrs", "rich", "jinja2", "plotly"),
)
"""What `pip install ncollapse` brings besides torch."""
OPTIONAL = (
    *("pillow", "torchvision", "timm", "lightning", "pytorch-lightning", "transformers", "accelerate"),
    *("ray", "tensorboard", "mlflow", "kaleido"),
)
"""What its extras bring."""
PACKAGES = ("ncollapse", "torch", "numpy", "scipy", "scikit-learn", "safetensors")


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Return versions and hardware."""
    hardware: dict[str, Any] = {"device": str(device), "machine": platform.machine(), "cores": os.cpu_count()}
    hardware["threads"] = torch.get_num_threads()
    if device.type == "cuda":
        hardware["gpu"] = torch.cuda.get_device_name(device)
    versions: dict[str, Any] = {"python": platform.python_version(), "cuda": torch.version.cuda}
    versions |= {package: found for package in PACKAGES if (found := find_version(package)) is not None}
    versions |= {"ncollapse": ncollapse.__version__, "torch": torch.__version__}
    return {"versions": versions, "hardware": hardware}


def find_version(package: str) -> str | None:
    """Return the version of an installed package, or None.

    >>> find_version("no-such-package")
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def describe_installation() -> dict[str, Any]:
    """Return what a bug report needs: versions of ncollapse and of all it uses, the system, and its GPUs."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "ncollapse": ncollapse.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpus": gpus,
        "packages": {package: find_version(package) for package in REQUIRED},
        "extras": {package: find_version(package) for package in OPTIONAL},
    }


def describe_run(device: torch.device) -> dict[str, Any]:
    """Return the content of `env.json`: the machine, the command and the time of the start."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return {**describe_machine(device), "command": shlex.join(sys.argv), "started": started}
