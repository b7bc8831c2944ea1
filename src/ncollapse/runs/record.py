"""Run folders read back: what a run was, how far it came, and what it measured.

Reading a folder gives a record, whatever the folder holds: content that no run writes becomes a note and a status,
never an exception, so that one damaged run does not hide the others of a sweep.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from ncollapse.runs.files import read_object
from ncollapse.runs.history import KEPT_ROWS, PACKED, PLAIN, find_missing_epochs, read_history
from ncollapse.runs.identity import run_id as identify
from ncollapse.runs.lock import is_locked
from ncollapse.runs.schema import MOST_EPOCHS, check_config, check_env, check_snapshot, check_summary

Status = Literal["finished", "running", "failed", "interrupted", "corrupt"]
MARKS = ("config.json", "summary.json", PLAIN, PACKED)
SNAPSHOT = "snapshot.safetensors"
LARGEST_SNAPSHOT = 4 << 30
RUN_ID = re.compile("[0-9a-f]{12}")


@dataclass(frozen=True)
class RunRecord:
    """One run folder: its configuration, its history, its summary and its status.

    `status` is "finished", "running" (its lock is held), "failed" (recorded with a traceback), "interrupted" (it can be
    resumed) or "corrupt" (a file that every run has is damaged, or the configuration is not the one that names the
    folder); `notes` say what was wrong. What fails validation is left out of `config`, `env`, `history` and `summary`.
    """

    path: Path
    run_id: str
    config: dict[str, Any] = field(default_factory=dict)
    env: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] | None = None
    status: Status = "interrupted"
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the recipe, or the run's id."""
        return str(self.config.get("name") or self.run_id)

    @property
    def loss(self) -> str:
        """The name of the loss ("ce", "bce", ...), "" if unknown."""
        return str(self.get("loss.name", ""))

    @property
    def seed(self) -> int | None:
        """The seed, None if unknown."""
        seed = self.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def label(self) -> str:
        """A short line for people: data, model, loss, optimiser, seed."""
        parts = [self.get(key) for key in ("data.name", "model.name", "loss.name", "optim.name")]
        words = [str(part) for part in parts if part]
        return " ".join(words + ([] if self.seed is None else [f"seed {self.seed}"])) or self.run_id

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value of the configuration by its dotted name, such as "optim.batch_size"."""
        return get_nested(self.config, key, default)

    def final(self, key: str) -> float:
        """Return a number of the summary by its dotted name, such as "train.positive_score.mean"; NaN if missing."""
        value = get_nested(self.summary or {}, key)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Return epochs and values of a field over the history, such as "train.nc1", where it has a value."""
        points = [(row.get("epoch"), get_nested(row, key)) for row in self.history]
        kept = [(e, float(v)) for e, v in points if isinstance(e, int) and isinstance(v, (int, float))]
        return [e for e, _ in kept], [v for _, v in kept]

    def missing_epochs(self) -> list[range]:
        """Return the epochs that the run measured but its history has lost, as ranges; empty for a whole history.

        A history that was thinned to be kept beside the code (`history.jsonl.gz`) is whole by intent.
        """
        every, epochs = self.get("measure_every"), self.get("optim.epochs")
        if len(self.history) >= KEPT_ROWS and not (self.path / PLAIN).exists():
            return []
        reached = max((row["epoch"] for row in self.history if isinstance(row.get("epoch"), int)), default=0)
        if self.status == "finished":
            done = get_nested(self.summary or {}, "epoch")
            reached = max(reached, done if isinstance(done, int) else 0)
        rows = [row for row in self.history if isinstance(row.get("epoch"), int)]
        last = epochs if isinstance(epochs, int) else None
        return find_missing_epochs(rows, every if isinstance(every, int) and every > 0 else 1, last, reached)

    def snapshot(self) -> dict[str, np.ndarray] | None:
        """Return the arrays behind the figures (class means, weights, histograms); None if there are no valid ones."""
        return self.read_snapshot()[0]

    def read_snapshot(self) -> tuple[dict[str, np.ndarray] | None, str | None]:
        """Return the arrays behind the figures, and what is wrong with their file; each may be None."""
        file = self.path / SNAPSHOT
        try:
            if not file.is_file():
                return None, None
            if file.stat().st_size > LARGEST_SNAPSHOT:
                raise ValueError(f"expected at most {LARGEST_SNAPSHOT} bytes, got {file.stat().st_size}")
            from safetensors.numpy import load_file

            arrays = dict(load_file(file))
            check_snapshot(arrays)
        except Exception as error:  # the library raises its own kinds
            return None, f"{SNAPSHOT}: {error or type(error).__name__}"
        return arrays, None


def read_run(path: str | Path) -> RunRecord:
    """Read one run folder; never raises on what the folder holds.

    >>> read_run("no/such/run").status
    'corrupt'
    """
    folder = Path(path)
    notes: list[str] = []
    config, summary = _read_config_and_summary(folder, notes)
    env = _read_checked(folder / "env.json", check_env, notes)
    epochs = get_nested(config or {}, "optim.epochs")
    history = read_history(folder, notes, int(epochs) if isinstance(epochs, (int, float)) else MOST_EPOCHS)
    status = _find_status(folder, config, summary, notes)
    return RunRecord(folder, folder.name, config or {}, env or {}, history, summary, status, tuple(notes))


def read_status(path: str | Path) -> Status:
    """Return the status of a run folder as `read_run` gives it, without reading the history."""
    notes: list[str] = []
    config, summary = _read_config_and_summary(Path(path), notes)
    return _find_status(Path(path), config, summary, notes)


def _read_config_and_summary(folder: Path, notes: list[str]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    config = _read_checked(folder / "config.json", check_config, notes, needed=True)
    summary = _read_checked(folder / "summary.json", check_summary, notes)
    if config is not None and (mismatch := _find_mismatch(folder.name, config, summary)):
        notes.append(mismatch)
        config = None
    return config, summary


def _find_status(
    folder: Path, config: dict[str, Any] | None, summary: dict[str, Any] | None, notes: list[str]
) -> Status:
    said = (summary or {}).get("status")
    if config is None or (summary is None and os.path.lexists(folder / "summary.json")):
        return "corrupt"
    if said == "finished" or said == "failed":
        return cast(Status, said)
    if said not in (None, "interrupted", "running"):
        notes.append(f"summary.json: status: expected finished, failed or interrupted, got {said!r}")
        return "corrupt"
    return "running" if is_locked(folder) else "interrupted"


def read_runs(folder: str | Path) -> list[RunRecord]:
    """Read every run of a folder, sorted by path: the folder itself if it is a run, else its children, two levels deep.

    A folder that does not exist raises FileNotFoundError; one without runs gives an empty list. Children that may not
    be read (such as `lost+found`) are passed over: they hold no runs of this user.
    """
    return [read_run(path) for path in find_runs(folder)]


def find_runs(folder: str | Path) -> list[Path]:
    """The run folders that `read_runs` reads, in its order."""
    root = Path(folder)
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {str(root)!r} to read runs from")
    if is_run(root):
        return [root]
    found: list[Path] = []
    for child in _list_folders(root):
        if is_run(child):
            found.append(child)
        else:
            try:
                found += [grandchild for grandchild in _list_folders(child) if is_run(grandchild)]
            except OSError:
                continue
    return found


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run (or the remains of one)."""
    try:
        return any((folder / mark).is_file() for mark in MARKS)
    except OSError:
        return False


def get_nested(tree: Any, key: str, default: Any = None) -> Any:
    """Return a nested value by its dotted name.

    >>> get_nested({"train": {"nc1": 0.5}}, "train.nc1")
    0.5
    """
    for part in key.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return default
        tree = tree[part]
    return tree


def _list_folders(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return sorted(folder / entry.name for entry in entries if _is_folder(entry))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _read_checked(
    path: Path, check: Callable[[dict[str, Any]], None], notes: list[str], needed: bool = False
) -> dict[str, Any] | None:
    """Read an object and check it; None with a note if it is damaged."""
    content = read_object(path, notes, needed)
    try:
        if content is not None:
            check(content)
    except ValueError as error:
        notes.append(f"{path.name}: {error}")
        return None
    return content


def _find_mismatch(name: str, config: dict[str, Any], summary: dict[str, Any] | None) -> str | None:
    """Say so if the configuration is not the one whose hash names the folder, and the summary, of the run."""
    known = [word for word in (name, (summary or {}).get("run_id")) if isinstance(word, str) and RUN_ID.fullmatch(word)]
    own = identify(config)
    if not known or own in known[:1]:
        return None
    return f"config.json: expected the configuration of run {known[0]}, got that of {own}; it was changed afterwards"
