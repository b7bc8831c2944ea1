"""The run folder: configuration, environment, history and summary, each written whole."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import sys
import traceback
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ncollapse.console import clean
from ncollapse.train.checkpoint import blame, find, write_atomic
from ncollapse.train.recipe import Recipe

PACKAGES = ("ncollapse", "torch", "numpy", "scipy", "scikit-learn", "safetensors")


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Versions and hardware."""
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


class RunFolder:
    """A run's folder and what may be written there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoint"

    def begin(self, recipe: Recipe, resume: bool, device: torch.device) -> dict[str, Any] | None:
        """Make the folder ready; a finished run's summary is returned and nothing is touched.

        A run that has trained and has not finished is refused unless `resume`; one that failed before may start again.
        """
        finished = self.read_finished(recipe)
        if finished is not None:
            return finished
        if (self.last_epoch() or find(self.checkpoints)) and not resume:
            raise ValueError(
                f"{self.path} holds a run that has not finished: pass --resume (resume=True) to continue it, "
                "or remove the folder to start again"
            )
        for part in self.path.rglob(".*.part"):
            part.unlink()  # of a process that was killed while it wrote
        (self.path / "summary.json").unlink(missing_ok=True)
        self.write_json("config.json", recipe.to_dict())
        self.write_json("env.json", self._describe(device))
        return None

    def read_finished(self, recipe: Recipe) -> dict[str, Any] | None:
        """The summary of a run that is finished, else None; a configuration that cannot be read is written anew."""
        summary = self.read_summary()
        if summary is None or summary.get("status") != "finished":
            return None
        with contextlib.suppress(OSError):  # where nothing can be written the summary counts all the same
            if self._read_object("config.json") is None:
                self.write_json("config.json", recipe.to_dict())
        return summary

    def read_summary(self) -> dict[str, Any] | None:
        return self._read_object("summary.json")

    def _read_object(self, name: str) -> dict[str, Any] | None:
        try:
            content = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
            return None
        return content if isinstance(content, dict) else None

    def write_json(self, name: str, value: Any) -> None:
        text = json.dumps(clean(value), indent=1, allow_nan=False) + "\n"
        write_atomic(self.path / name, text.encode())

    def append(self, record: dict[str, Any]) -> None:
        """One line of history, on the disk before anything else happens."""
        path = self.path / "history.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(clean(record), allow_nan=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise blame(error, path) from error

    def cut(self, epoch: int) -> None:
        """Drop the lines of history past an epoch, and a last one that was cut short."""
        path = self.path / "history.jsonl"
        if not path.exists():
            return
        kept = []
        for line in path.read_bytes().splitlines():
            try:
                if json.loads(line)["epoch"] > epoch:
                    break
            except (ValueError, KeyError, TypeError):
                break
            kept.append(line + b"\n")
        write_atomic(path, b"".join(kept))

    def fail(self, recipe: Recipe, error: BaseException) -> None:
        """Record a failure with its traceback; a disk too full for that must not hide the failure itself."""
        with contextlib.suppress(OSError):
            self.write_json(
                "summary.json",
                {
                    "status": "failed",
                    "run_id": recipe.run_id,
                    "epoch": self.last_epoch(),
                    "epochs": recipe.optim.epochs,
                    "reason": f"{type(error).__name__}: {error}",
                    "traceback": "".join(traceback.format_exception(error)),
                },
            )

    def withdraw(self, new: list[Path]) -> None:
        """Take away what `begin` wrote, and the folders that were made for it, innermost first.

        What cannot be taken away (something else is in there by now) must not hide why the run was refused.
        """
        with contextlib.suppress(OSError):
            for name in ("config.json", "env.json", "lock"):
                (self.path / name).unlink(missing_ok=True)
            for folder in new:
                folder.rmdir()

    def last_epoch(self) -> int:
        """The epoch of the last whole line of history, 0 without one."""
        last = 0
        with contextlib.suppress(OSError, ValueError, KeyError):
            for line in (self.path / "history.jsonl").read_bytes().splitlines():
                last = int(json.loads(line)["epoch"])
        return last

    def _describe(self, device: torch.device) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        env = {**describe_machine(device), "command": shlex.join(sys.argv), "started": now}
        with contextlib.suppress(OSError, ValueError):
            before = json.loads((self.path / "env.json").read_text(encoding="utf-8"))
            env["started"] = before["started"]
            env["resumed"] = [*before.get("resumed", []), now]
        return env
