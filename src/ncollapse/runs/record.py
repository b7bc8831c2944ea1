"""Run folders read back: what a run was, how far it came, and what it measured.

Whatever a folder holds, reading it gives a record: broken content becomes a note and a status, never an exception,
so that one damaged run does not hide the others of a sweep.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from ncollapse.runs.files import read_object

Status = Literal["finished", "running", "failed", "interrupted", "corrupt"]
MARKS = ("config.json", "summary.json", "history.jsonl", "history.jsonl.gz")


@dataclass(frozen=True)
class RunRecord:
    """One run folder: its configuration, its history, its summary and how it stands.

    `status` is "finished", "running" (its lock is held), "failed" (recorded with a traceback), "interrupted" (it can be
    resumed) or "corrupt" (a file that every run has cannot be read); `notes` say what was wrong.
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
        """A value of the configuration by its dotted name, such as "optim.batch_size"."""
        return get_nested(self.config, key, default)

    def final(self, key: str) -> float:
        """A number of the summary by its dotted name, such as "train.positive_score.mean"; NaN where there is none."""
        value = get_nested(self.summary or {}, key)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Epochs and values of a field over the history, such as "train.nc1"; epochs without it are left out."""
        points = [(row.get("epoch"), get_nested(row, key)) for row in self.history]
        kept = [(e, float(v)) for e, v in points if isinstance(e, int) and isinstance(v, (int, float))]
        return [e for e, _ in kept], [v for _, v in kept]

    def snapshot(self) -> dict[str, np.ndarray] | None:
        """The arrays behind the figures (class means, weights, histograms), None where the folder has none."""
        file = self.path / "snapshot.safetensors"
        if not file.is_file():
            return None
        from safetensors.numpy import load_file

        try:
            return dict(load_file(file))
        except Exception:
            return None


def read_run(path: str | Path) -> RunRecord:
    """Read one run folder; never raises on what the folder holds.

    >>> read_run("no/such/run").status
    'corrupt'
    """
    folder = Path(path)
    notes: list[str] = []
    config = read_object(folder / "config.json", notes, needed=True)
    env = read_object(folder / "env.json", notes)
    history = _read_lines(folder, notes)
    summary = read_object(folder / "summary.json", notes)
    status = _find_status(folder, config, summary, notes)
    return RunRecord(folder, folder.name, config or {}, env or {}, history, summary, status, tuple(notes))


def read_status(path: str | Path) -> Status:
    """The status of a run folder as `read_run` gives it, without reading the history."""
    folder = Path(path)
    notes: list[str] = []
    config, summary = (read_object(folder / name, notes) for name in ("config.json", "summary.json"))
    return _find_status(folder, config, summary, notes)


def _find_status(
    folder: Path, config: dict[str, Any] | None, summary: dict[str, Any] | None, notes: list[str]
) -> Status:
    said = (summary or {}).get("status")
    if config is None or (summary is None and (folder / "summary.json").exists()):
        return "corrupt"
    if said == "finished" or said == "failed":
        return cast(Status, said)
    if said not in (None, "interrupted", "running"):
        notes.append(f"summary.json: status {said!r} is not one of finished, failed, interrupted")
        return "corrupt"
    return "running" if is_locked(folder) else "interrupted"


def read_runs(folder: str | Path) -> list[RunRecord]:
    """Read every run of a folder, sorted by path: the folder itself if it is a run, else its children, two levels deep.

    A folder that does not exist raises FileNotFoundError; one without runs gives an empty list.
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
    for child in sorted(p for p in root.iterdir() if p.is_dir()):
        found += [child] if is_run(child) else [p for p in sorted(child.iterdir()) if p.is_dir() and is_run(p)]
    return found


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run (or the remains of one)."""
    return any((folder / mark).is_file() for mark in MARKS)


def is_locked(folder: Path) -> bool:
    """Whether a live process holds the run's lock."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover - no flock on this system
        return False
    try:
        handle = (folder / "lock").open("rb")
    except OSError:
        return False
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        fcntl.flock(handle, fcntl.LOCK_UN)
    return False


def get_nested(tree: Any, key: str, default: Any = None) -> Any:
    """A nested value by its dotted name.

    >>> get_nested({"train": {"nc1": 0.5}}, "train.nc1")
    0.5
    """
    for part in key.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return default
        tree = tree[part]
    return tree


def _read_lines(folder: Path, notes: list[str]) -> list[dict[str, Any]]:
    file = folder / "history.jsonl"
    packed = folder / "history.jsonl.gz"
    try:
        if file.is_file():
            lines = file.read_bytes().splitlines()
        elif packed.is_file():
            lines = gzip.decompress(packed.read_bytes()).splitlines()
        else:
            return []
    except (OSError, EOFError, ValueError, zlib.error) as error:
        notes.append(f"history: {error}")
        return []
    rows: list[dict[str, Any]] = []
    broken = 0
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            broken += 1
            continue
        if isinstance(row, dict):
            rows.append(row)
        else:
            broken += 1
    if broken:
        notes.append(f"history: {broken} of {len(lines)} lines cannot be read and are left out")
    return rows
