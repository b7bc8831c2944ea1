"""A run's folder while it is written: configuration, environment, history, summary and the record of a failure."""

from __future__ import annotations

import contextlib
import logging
import traceback
from pathlib import Path
from typing import Any

from ncollapse.runs import checkpoint
from ncollapse.runs.files import append_line, read_object, sync_file, write_json
from ncollapse.runs.history import PLAIN, cut_history, read_history
from ncollapse.runs.identity import run_id
from ncollapse.runs.lock import is_locked
from ncollapse.runs.schema import MOST_EPOCHS, check_env, check_summary

Config = dict[str, Any]
log = logging.getLogger("ncollapse.runs")


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
        """Prepare the folder for a run; if the run is finished, return its summary and change nothing.

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
        for draft in self.path.rglob(".*.part"):
            draft.unlink(missing_ok=True)  # left by a process that was killed while it wrote
        (self.path / "summary.json").unlink(missing_ok=True)
        self.write_json("config.json", config)
        self.write_json("env.json", self._continue_env(env))
        return None

    def read_finished(self, config: Config) -> dict[str, Any] | None:
        """Return the summary of a finished run, else None.

        A configuration that is damaged, or not the one whose hash names the folder, is written again. What a process
        that was killed at its very end left behind is removed.
        """
        summary = self.read_summary()
        if summary is None or summary.get("status") != "finished":
            return None
        with contextlib.suppress(OSError):  # the summary counts even where nothing can be written
            found = read_object(self.path / "config.json", [])
            if found is None or run_id(found) != run_id(config):
                log.warning("%s: its config.json was damaged and is written again", self.path)
                self.write_json("config.json", config)
            self._remove_leftovers()
        return summary

    def read_summary(self) -> dict[str, Any] | None:
        """Return the summary; None if there is no valid one."""
        found = read_object(self.path / "summary.json", [])
        try:
            if found is not None:
                check_summary(found)
        except ValueError:
            return None
        return found

    def write_json(self, name: str, value: Any) -> None:
        """Write one file of the folder atomically."""
        write_json(self.path / name, value)

    def append(self, row: dict[str, Any]) -> None:
        """Append one row to the history."""
        append_line(self.path / PLAIN, row)

    def sync_history(self) -> None:
        """Wait until the history is on the disk: a checkpoint must not be ahead of it."""
        sync_file(self.path / PLAIN)

    def cut_history(self, epoch: int) -> None:
        """Drop the rows of the history past an epoch; the readable ones before it are kept, damaged ones named."""
        for problem in cut_history(self.path / PLAIN, epoch):
            log.warning("%s: %s is damaged and left out: %s", self.path, PLAIN, problem)

    def fail(self, config: Config, error: BaseException | str, trace: str | None = None) -> None:
        """Record a failure with its traceback; a failure that is recorded already is kept.

        `error` is the exception, or the reason in words with a traceback in `trace`. A folder in which the failure
        cannot be recorded must not hide the failure itself.
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
            if read_object(self.path / "config.json", []) is None:
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

    def last_row(self, epochs: int = MOST_EPOCHS) -> dict[str, Any] | None:
        """Return the last readable row of the history."""
        rows = read_history(self.path, [], epochs)
        return rows[-1] if rows else None

    def last_epoch(self) -> int:
        """Return the epoch of the last readable row of the history, 0 without one."""
        row = self.last_row()
        return 0 if row is None else int(row["epoch"])

    def _remove_leftovers(self) -> None:
        """Remove the checkpoints and drafts of a finished run; its process does so unless it is killed before."""
        drafts = list(self.path.glob(".*.part"))
        left = [*checkpoint.find(self.checkpoints), *self.checkpoints.glob(".*.part"), *drafts]
        if left and not is_locked(self.path):
            for path in left:
                path.unlink(missing_ok=True)

    def _continue_env(self, env: dict[str, Any]) -> dict[str, Any]:
        """Keep the time of the first start, and add this one to the times of resumption."""
        before = read_object(self.path / "env.json", []) or {}
        try:
            check_env(before)
        except ValueError:
            return env
        if "started" not in before:
            return env
        return {**env, "started": before["started"], "resumed": [*before.get("resumed", []), env["started"]]}
