"""Every kind of file that is read: a good one, damaged, must be refused by name or read as what it says."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import pickle
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from faults.campaign import Family
from faults.mutations import damage_bytes, damage_json
from ncollapse.compare import compare_runs
from ncollapse.data.arrays import load_npz
from ncollapse.data.cifar import read_pickle
from ncollapse.data.idx import read_idx
from ncollapse.data.images import read_image
from ncollapse.metrics import ClassStatistics, measure
from ncollapse.metrics.files import read_arrays
from ncollapse.models.weights import read_weights
from ncollapse.runs import checkpoint
from ncollapse.runs.record import RunRecord, read_run
from ncollapse.train import Recipe, recipes
from reference.runs import write_run

REFUSALS = (ValueError, TypeError, FileNotFoundError, ImportError)
STATUSES = ("finished", "running", "failed", "interrupted", "corrupt")


@cache
def sample_run() -> dict[str, bytes]:
    """The files of a finished run."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = write_run(Path(folder), {"optim.epochs": 5}, per_class=3)
        files = {file.name: file.read_bytes() for file in path.iterdir()}
        return {**files, "name": path.name.encode()}


def check_record(name: str) -> Callable[[int, Path], str]:
    """Damage one file of a run; the record is sane, and what is wrong is noted."""

    def check(seed: int, folder: Path) -> str:
        draw = random.Random(seed)
        files = dict(sample_run())
        path = folder / files.pop("name").decode()
        path.mkdir()
        whole = files[name] if name in files else gzip.compress(files["history.jsonl"])
        if name == "history.jsonl.gz":
            del files["history.jsonl"]
        tries = draw.choice((1, 1, 2))
        damaged = whole
        for _ in range(tries):
            damaged = damage_record(name, damaged, draw)
        files[name] = damaged
        for file, content in files.items():
            (path / file).write_bytes(content)
        record = read_run(path)
        return find_insanity(record) or find_silence(record, name, whole, damaged)

    return check


def damage_record(name: str, content: bytes, draw: random.Random) -> bytes:
    if draw.random() < 0.5:
        return damage_bytes(content, draw)
    try:
        if name.endswith(".json"):
            return damage_json(content, draw)
        if name == "history.jsonl":
            lines = content.splitlines()
            at = draw.randrange(len(lines))
            lines[at] = damage_json(lines[at], draw)
            return b"\n".join(lines) + b"\n"
        if name == "history.jsonl.gz":
            bomb = b'{"epoch": 1}\n' * draw.choice((10, 10**4))
            return gzip.compress(damage_record("history.jsonl", gzip.decompress(content), draw) + bomb)
    except (ValueError, IndexError, TypeError, RecursionError, OSError, EOFError, zlib.error):  # damaged before
        pass
    return damage_bytes(content, draw)


def find_insanity(record: RunRecord) -> str:
    """What is wrong with a record as such: it can be averaged, compared and printed, whatever its files hold."""
    if record.status not in STATUSES:
        return f"status {record.status!r}"
    epochs = [row["epoch"] for row in record.history]
    if epochs != sorted(set(epochs)) or not all(isinstance(epoch, int) for epoch in epochs):
        return f"epochs {epochs}"
    for tree in (record.config, record.env, record.summary, *record.history):
        if (odd := find_odd_number(tree)) is not None:
            return f"the number {odd!r} came through"
    str(record.label).encode()
    record.missing_epochs()
    for finding in compare_runs([record]):
        finding.sentence.encode()
    for note in record.notes:
        note.encode()
    return ""


def find_odd_number(tree: Any) -> Any:
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list):
        return next((odd for item in tree if (odd := find_odd_number(item)) is not None), None)
    if isinstance(tree, (int, float)) and not isinstance(tree, bool):
        return tree if abs(tree) > 1e100 and not math.isinf(tree) else None
    return None


def find_silence(record: RunRecord, name: str, whole: bytes, damaged: bytes) -> str:
    """Whether damage that can be known passed without a word."""
    if damaged == whole or record.notes or record.status == "corrupt":
        return ""
    if name in ("config.json", "env.json", "summary.json"):
        try:
            before, after = json.loads(whole), json.loads(damaged)
        except (ValueError, RecursionError):
            return "what is no JSON passed"
        if not isinstance(after, dict):
            return "what is no object passed"
        if name == "config.json" and {**before, "name": 0} != {**after, "name": 0} and not _same_run(before, after):
            return "a changed configuration passed"
    if name == "snapshot.safetensors":
        arrays, problem = record.read_snapshot()
        if arrays is None and problem is None:
            return "a damaged snapshot passed"
    return ""


def _same_run(first: dict[str, Any], second: dict[str, Any]) -> bool:
    from ncollapse.runs.identity import run_id

    return run_id(first) == run_id(second)


def check_checkpoint(seed: int, folder: Path) -> str:
    """A damaged checkpoint gives way to the one before; no damage goes unnoticed."""
    draw = random.Random(seed)
    for epoch in (1, 2):
        tensors = {"model.w": torch.full((40,), float(epoch)), "best.w": torch.zeros(40)}
        checkpoint.write(folder, checkpoint.Checkpoint(epoch, tensors, {"epoch": epoch}))
    newest = checkpoint.find(folder)[0]
    whole = newest.read_bytes()
    damaged = damage_bytes(whole, draw)
    newest.write_bytes(damaged)
    if draw.random() < 0.3:  # with a checksum that fits
        newest.rename(folder / f"000002-{checkpoint._digest(damaged)}.safetensors")
    found = checkpoint.read_latest(folder)
    if found is None:
        return "the whole checkpoint was not found"
    if damaged != whole and found.epoch == 2 and checkpoint.find(folder)[0] == newest:
        return "a damaged checkpoint was read"
    return ""


def check_refusal(make: Callable[[], bytes], suffix: str, read: Callable[[Path], Any], sums: bool = False):
    """Damage a file; reading it gives something or an error that names the file.

    sums: the format has checksums, so that what is read must be what was written.
    """

    def check(seed: int, folder: Path) -> str:
        draw = random.Random(seed)
        path = folder / f"file{suffix}"
        whole = make()
        path.write_bytes(whole)
        expected = read(path)
        path.write_bytes(damage_bytes(whole, draw))
        try:
            found = read(path)
        except REFUSALS as error:
            return "" if path.name in str(error) else f"the error does not name the file: {error}"
        if sums and not is_equal(found, expected):
            return "damage that the checksum shows was read as numbers"
        return ""

    return check


def is_equal(first: Any, second: Any) -> bool:
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(is_equal(first[key], second[key]) for key in first)
    return np.array_equal(np.asarray(first), np.asarray(second))


@cache
def features_npz() -> bytes:
    draw, stream = np.random.default_rng(0), io.BytesIO()
    labels = np.arange(30) % 3
    np.savez(stream, features=draw.normal(size=(30, 4)), labels=labels, weight=draw.normal(size=(3, 4)))
    return stream.getvalue()


@cache
def features_safetensors() -> bytes:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 4, generator=generator)
    return save({"features": features, "labels": torch.arange(30) % 3, "weight": torch.randn(3, 4)})


@cache
def data_npz() -> bytes:
    draw, stream = np.random.default_rng(0), io.BytesIO()
    np.savez_compressed(
        stream, images=draw.integers(0, 256, (12, 8, 8)).astype(np.uint8), labels=np.arange(12, dtype=np.int64) % 3
    )
    return stream.getvalue()


@cache
def idx_file() -> bytes:
    return b"\x00\x00\x08\x03" + struct.pack(">3I", 5, 4, 4) + bytes(range(80))


@cache
def cifar_pickle() -> bytes:
    content = {b"data": np.arange(2 * 3072, dtype=np.int64).astype(np.uint8).reshape(2, 3072), b"labels": [1, 2]}
    return pickle.dumps(content, protocol=2)


@cache
def image_file(kind: str, mode: str) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    levels = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    image = Image.fromarray((levels[..., 0].astype(np.uint16) * 257) if mode == "I;16" else levels)
    image.save(stream, kind)
    return stream.getvalue()


@cache
def recipe_file(suffix: str) -> bytes:
    recipe = recipes.get("digits")
    return (recipe.to_json() if suffix == ".json" else recipe.to_toml()).encode()


@cache
def torch_weights() -> bytes:
    stream = io.BytesIO()
    torch.save({"layer.weight": torch.ones(4, 3), "layer.bias": torch.zeros(4)}, stream)
    return stream.getvalue()


@cache
def statistics_file() -> bytes:
    import tempfile

    statistics = ClassStatistics(3, 4)
    statistics.update(torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3)
    with tempfile.TemporaryDirectory() as folder:
        statistics.save(Path(folder) / "s.safetensors")
        return (Path(folder) / "s.safetensors").read_bytes()


def read_and_measure(path: Path) -> Any:
    """Features from a file, measured: the error of a measurement names the argument in place of the file."""
    arrays = read_arrays(path)
    try:
        measure(**arrays)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return {name: np.asarray(array) for name, array in arrays.items()}


class Exploit:
    """A pickle that would leave a mark."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.mark, "w"))


def check_code(seed: int, folder: Path) -> str:
    """Pickles with code in them, in every file that may hold one: nothing runs."""
    draw = random.Random(seed)
    mark = folder / "executed"
    hostile = pickle.dumps({b"data": Exploit(str(mark)), b"labels": []}, protocol=draw.choice((2, 3, 4, 5)))
    target = draw.choice(("cifar", "npz", "weights", "npy"))
    path = folder / {"cifar": "data_batch_1", "npz": "x.npz", "weights": "w.pt", "npy": "x.npz"}[target]
    if target == "cifar":
        path.write_bytes(hostile if draw.random() < 0.5 else damage_bytes(hostile, draw))
        read = read_pickle
    elif target == "weights":
        torch.save({"w": Exploit(str(mark))}, path)
        mark.unlink(missing_ok=True)
        read = read_weights
    else:
        array = np.array([Exploit(str(mark))], dtype=object)
        np.savez(path, features=array, labels=np.zeros(1, np.int64))
        mark.unlink(missing_ok=True)
        read = read_arrays if target == "npz" else (lambda file: load_npz(file, "train"))
    with contextlib.suppress(*REFUSALS):
        read(path)
    return "code was executed" if mark.exists() else ""


def check_zip_names(seed: int, folder: Path) -> str:
    """An archive with odd members: names with paths, twice the same, not arrays."""
    draw = random.Random(seed)
    path = folder / "file.npz"
    names = ["features.npy", "labels.npy", "../evil.npy", "features", "a" * 300, "labels.npy", "x/y.npy"]
    with zipfile.ZipFile(path, "w") as archive:
        for name in draw.sample(names, draw.randrange(1, len(names))):
            archive.writestr(name, draw.choice((b"", b"junk", features_npz()[:200], b"\x93NUMPY\x01\x00")))
    try:
        read_arrays(path)
    except REFUSALS as error:
        return "" if path.name in str(error) else f"the error does not name the file: {error}"
    return "odd members passed"


def read_recipe(path: Path) -> Any:
    """The content of a recipe file; what is wrong with a key is said of the recipe, not of its file."""
    try:
        return json.loads(Recipe.from_file(path).to_json())
    except ValueError as error:
        raise ValueError(str(error).replace("recipe:", f"{path}:", 1)) from error


FAMILIES = [
    *(
        Family(f"record/{name}", "damage is noted; the record can be shown", cases, 60, check_record(name))
        for name, cases in (
            ("config.json", 2500),
            ("env.json", 800),
            ("summary.json", 3000),
            ("history.jsonl", 2500),
            ("history.jsonl.gz", 1000),
            ("snapshot.safetensors", 1200),
        )
    ),
    Family("checkpoint", "no damaged checkpoint is read; the one before is", 1500, 60, check_checkpoint),
    Family(
        "features/npz",
        "read as written or refused",
        900,
        40,
        check_refusal(features_npz, ".npz", read_and_measure, sums=True),
    ),
    Family(
        "features/safetensors",
        "numbers or a refusal that names the file",
        900,
        40,
        check_refusal(features_safetensors, ".safetensors", read_and_measure),
    ),
    Family(
        "data/npz",
        "read as written or refused",
        700,
        30,
        check_refusal(data_npz, ".npz", lambda path: load_npz(path, "train").images, sums=True),
    ),
    Family("data/idx", "numbers or a refusal that names the file", 600, 30, check_refusal(idx_file, "", read_idx)),
    Family(
        "data/idx.gz",
        "read as written or refused",
        600,
        30,
        check_refusal(lambda: gzip.compress(idx_file(), mtime=0), ".gz", read_idx, sums=True),
    ),
    Family("data/cifar", "refused by name, nothing run", 1200, 40, check_refusal(cifar_pickle, "", read_pickle)),
    *(
        Family(
            f"image/{kind.lower()}",
            "pixels or a refusal that names the file",
            250,
            8,
            check_refusal(
                lambda kind=kind, mode=mode: image_file(kind, mode), "", lambda path: np.asarray(read_image(str(path)))
            ),
        )
        for kind, mode in (
            ("PNG", "RGB"),
            ("PNG", "I;16"),
            ("JPEG", "RGB"),
            ("BMP", "RGB"),
            ("TIFF", "I;16"),
            ("PPM", "RGB"),
        )
    ),
    *(
        Family(
            f"recipe/{suffix[1:]}",
            "a recipe or a refusal that names the file or the key",
            500,
            20,
            check_refusal(lambda suffix=suffix: recipe_file(suffix), suffix, read_recipe),
        )
        for suffix in (".toml", ".json")
    ),
    Family("weights/torch", "refused by name, nothing run", 500, 20, check_refusal(torch_weights, ".pt", read_weights)),
    Family(
        "statistics",
        "sums or a refusal that names the file",
        500,
        20,
        check_refusal(statistics_file, ".safetensors", lambda path: ClassStatistics.load(path).counts),
    ),
    Family("archive/members", "odd members are refused by name", 300, 10, check_zip_names),
    Family("code", "no file executes code", 400, 20, check_code),
]
