"""A run's folder while it is written: configuration, environment, history, summary and the record of a failure."""

from __future__ import annotations

import contextlib
import json
import traceback
from pathlib import Path
from typing import Any

from ncollapse.runs import checkpoint
from ncollapse.runs.files import append_line, read_object, write_atomic, write_json

Config = dict[str, Any]


class RunFolder:
    """A run's folder and what may be written there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoint"

    @property
    def run_id(self) -> str:
        """The name of the folder."""
        return self.path.name

    def begin(self, config: Config, env: dict[str, Any], *, resume: bool) -> dict[str, Any] | None:
        """Prepare the folder for a run; a finished run's summary is returned and nothing is changed.

        A run that has trained and has not finished is refused unless `resume`. One that failed may start again.
        """
        finished = self.read_finished(config)
        if finished is not None:
            return finished
        if (self.last_epoch() or checkpoint.find(self.checkpoints)) and not resume:
            raise ValueError(
                f"{self.path} holds a run that has not finished: pass --resume (resume=True) to continue it, "
                "or remove the folder to start again"
            )
        for part in self.path.rglob(".*.part"):
            part.unlink()  # left by a process that was killed while it wrote
        (self.path / "summary.json").unlink(missing_ok=True)
        self.write_json("config.json", config)
        self.write_json("env.json", self._continue_env(env))
        return None

    def read_finished(self, config: Config) -> dict[str, Any] | None:
        """Return the summary of a finished run, else None; an unreadable configuration is written again."""
        summary = self.read_summary()
        if summary is None or summary.get("status") != "finished":
            return None
        with contextlib.suppress(OSError):  # the summary counts even where nothing can be written
            if read_object(self.path / "config.json") is None:
                self.write_json("config.json", config)
        return summary

    def read_summary(self) -> dict[str, Any] | None:
        """Return the summary, None where there is none that can be read."""
        return read_object(self.path / "summary.json")

    def write_json(self, name: str, value: Any) -> None:
        """Write one file of the folder atomically."""
        write_json(self.path / name, value)

    def append(self, row: dict[str, Any]) -> None:
        """Append one row to the history."""
        append_line(self.path / "history.jsonl", row)

    def truncate_history(self, epoch: int) -> None:
        """Drop the rows of the history past an epoch, and a last line that was cut short."""
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

    def fail(self, config: Config, error: BaseException | str, trace: str | None = None) -> None:
        """Record a failure with its traceback; a failure that is recorded already is kept.

        `error` is the exception, or the reason in words with a traceback in `trace`. A disk that is too full to record
        the failure must not hide the failure itself.
        """
        if isinstance(error, BaseException):
            reason, trace = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
        else:
            reason = error
        with contextlib.suppress(OSError):
            self.path.mkdir(parents=True, exist_ok=True)
            known = self.read_summary() or {}
            if known.get("status") == "failed" and known.get("traceback"):
                return
            if read_object(self.path / "config.json") is None:
                self.write_json("config.json", config)
            epochs = dict(config.get("optim", {})).get("epochs")
            summary = {"status": "failed", "run_id": self.run_id, "epoch": self.last_epoch(), "epochs": epochs}
            self.write_json("summary.json", {**summary, "reason": reason, "traceback": trace})

    def withdraw(self, created: list[Path]) -> None:
        """Remove what `begin` wrote, and the folders that were created for it, innermost first.

        What cannot be removed (because the folder holds other files by now) must not hide why the run was refused.
        """
        with contextlib.suppress(OSError):
            for name in ("config.json", "env.json", "lock"):
                (self.path / name).unlink(missing_ok=True)
            for folder in created:
                folder.rmdir()

    def last_epoch(self) -> int:
        """Return the epoch of the last whole row of the history, 0 without one."""
        last = 0
        with contextlib.suppress(OSError, ValueError, KeyError):
            for line in (self.path / "history.jsonl").read_bytes().splitlines():
                last = int(json.loads(line)["epoch"])
        return last

    def _continue_env(self, env: dict[str, Any]) -> dict[str, Any]:
        """Keep the time of the first start, and add this one to the times of resumption."""
        before = read_object(self.path / "env.json") or {}
        if "started" not in before:
            return env
        return {**env, "started": before["started"], "resumed": [*before.get("resumed", []), env["started"]]}
