"""Small records of runs: what the tables and figures need, without weights, to be kept beside the code.

A record is a run folder with `config.json`, `env.json`, `summary.json`, `history.jsonl.gz` (thinned, the fields of the
figures), `snapshot.safetensors` (thinned, where the run has one), `epochs.safetensors` (as the run has it) and, where
there are few classes, `gram.json` (cosines between class means). `read_runs` reads it like any other run.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import shlex
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from ncollapse.papers.snapshots import thin_snapshot
from ncollapse.runs.epoch_snapshots import FILE as EPOCHS_FILE
from ncollapse.runs.record import RunRecord, read_runs

ROWS = 200
RUN_VERBS = ("train", "compare", "reproduce")
"""The verbs of the command line that train."""
FIELDS: dict[str, tuple[str, ...]] = {
    "train": (
        *("nc1", "nc2", "nc3", "nc2_uncentred", "nc3_centred", "nc2_relu", "nc3_relu", "nc4", "accuracy"),
        *("uniform_accuracy", "compactness", "distinctiveness", "weight_energy", "feature_energy", "numerical_rank"),
        *("mean_orthogonality", "cosine_margin", "positive_score", "negative_score", "bias"),
    ),
    "test": (
        *("nc1", "nc4", "accuracy", "uniform_accuracy", "compactness", "compactness_uncentred", "distinctiveness"),
        *("positive_score", "negative_score"),
    ),
    "validation": ("accuracy", "uniform_accuracy"),
    "certificate": ("gap", "relative_gap"),
    "time": ("epoch_s", "measure_s", "elapsed_s"),
}


def collect(source: str | Path, target: str | Path) -> list[str]:
    """Write the records of every finished run under `source` to `target`: a folder, or one .tar.gz file.

    Returns the ids of the runs. An archive is made to be unpacked where the records are kept.
    """
    runs = [record for record in read_runs(source) if record.status == "finished"]
    target = Path(target)
    if target.name.endswith((".tar.gz", ".tgz")):
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        with tarfile.open(part, "w:gz") as archive:
            for name, content in _files(runs):
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        part.replace(target)
    else:
        for name, content in _files(runs):
            file = target / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    return [record.run_id for record in runs]


def find_records(*folders: Path) -> list[RunRecord]:
    """The runs under the folders that exist, and the records kept beside the source (results/runs), each once."""
    beside = Path(__file__).parents[3] / "results" / "runs"  # not part of an installed package
    found: dict[str, RunRecord] = {}
    for folder in (*folders, Path("results", "runs"), beside):
        for record in read_runs(folder) if folder.is_dir() else ():
            known = found.get(record.run_id)
            if known is None or known.status != "finished":
                found[record.run_id] = record
    return list(found.values())


def unpack(archive: str | Path, target: str | Path) -> None:
    """Unpack an archive of records into a folder."""
    with tarfile.open(archive, "r:gz") as file:
        file.extractall(target, filter="data")


def thin(history: list[dict[str, Any]], rows: int = ROWS) -> list[dict[str, Any]]:
    """The epochs that were measured, at most `rows` of them (first, last and evenly spaced in between), few fields."""
    measured = [row for row in history if row.get("train")] or history
    if len(measured) > rows:
        chosen = sorted({round(i * (len(measured) - 1) / (rows - 1)) for i in range(rows)})
        measured = [measured[i] for i in chosen]
    return [_slim(row) for row in measured]


def _slim(row: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {key: _round(row[key]) for key in ("epoch", "step", "lr", "loss") if key in row}
    for group, names in FIELDS.items():
        content = row.get(group)
        if isinstance(content, dict):
            kept[group] = {name: _shrink(content[name]) for name in names if content.get(name) is not None}
    return kept


def _shrink(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _round(value[key]) for key in ("mean", "std", "min", "max") if key in value}
    return _round(value)


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def _files(runs: Iterable[RunRecord]) -> Iterable[tuple[str, bytes]]:
    for record in runs:
        yield f"{record.run_id}/config.json", _dump(record.config)
        yield f"{record.run_id}/env.json", _dump(_scrub(record.env))
        yield f"{record.run_id}/summary.json", _dump(record.summary)
        lines = "".join(json.dumps(row) + "\n" for row in thin(record.history)).encode()
        yield f"{record.run_id}/history.jsonl.gz", gzip.compress(lines, mtime=0)
        gram = find_gram(record)
        if gram is not None:
            yield f"{record.run_id}/gram.json", _dump(gram)
        arrays = record.snapshot()
        if arrays is not None:
            yield f"{record.run_id}/snapshot.safetensors", save(thin_snapshot(arrays))
        for name in (EPOCHS_FILE, "rebalanced.json"):
            if (record.path / name).is_file():
                yield f"{record.run_id}/{name}", (record.path / name).read_bytes()


def _scrub(env: dict[str, Any]) -> dict[str, Any]:
    """The environment without the machine's own paths: of each absolute path in the command, the last part.

    Whatever file started the command line, the command to repeat is `ncollapse`.
    """
    words = shlex.split(str(env.get("command", "")))
    words = [Path(word).name if word.startswith("/") else word for word in words]
    if len(words) > 1 and words[1] in RUN_VERBS:
        words[0] = "ncollapse"
    return {**env, "command": shlex.join(words)}


def find_gram(record: RunRecord, limit: int = 20) -> dict[str, Any] | None:
    """Cosines between the class means of the training set, and their norms: as kept, or from the run's snapshot.

    None where there is neither, or where there are too many classes to keep.
    """
    kept = record.path / "gram.json"
    if kept.is_file():
        return dict(json.loads(kept.read_text(encoding="utf-8")))
    arrays = record.snapshot()
    means = None if arrays is None else arrays.get("train.class_means")
    if means is None or len(means) > limit:
        return None
    norms = np.linalg.norm(means, axis=1)
    unit = means / np.maximum(norms, 1e-300)[:, None]
    return {"cosines": np.round(unit @ unit.T, 5).tolist(), "norms": [float(f"{n:.6g}") for n in norms]}


def _dump(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def gpu_minutes(record: RunRecord) -> float:
    """How long a run on a GPU took, to its end or, where that is not recorded, to its last measurement; 0 on a CPU."""
    if not record.env.get("hardware", {}).get("gpu"):
        return 0.0
    seconds = [*record.series("time.elapsed_s")[1], record.final("time.wall_s")]
    return max(filter(math.isfinite, seconds), default=0.0) / 60


def index_records(records: Iterable[RunRecord], used: Mapping[str, Sequence[str]]) -> str:
    """The index of a folder of records as Markdown: what each run trained, and which experiments rest on it."""
    by_run: dict[str, list[str]] = {}
    for name, runs in used.items():
        for run_id in runs:
            by_run.setdefault(run_id, []).append(name)
    head = ("run", "recipe", "data", "network", "loss", "optimiser", "batch", "epochs", "seed", "GPU min", "behind")
    rows = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    keys = ("data.name", "model.name", "loss.name", "optim.name", "optim.batch_size", "optim.epochs")
    for record in sorted(records, key=lambda r: (r.name, *(str(r.get(key)) for key in keys), r.run_id)):
        cells = [f"[{record.run_id}](runs/{record.run_id})", record.name, *(str(record.get(key)) for key in keys)]
        behind = ", ".join(by_run.get(record.run_id, ())) or "nothing judged"
        cells += [str(record.seed), f"{gpu_minutes(record):.1f}", behind]
        rows.append("| " + " | ".join(cells) + " |")
    intro = "What each folder under `runs/` holds. Generated by `python scripts/reproduction.py`; see README.md."
    return "\n".join(["# Index of the records", "", intro, "", *rows, ""])
