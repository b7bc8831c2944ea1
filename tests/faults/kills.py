"""Train, compare, reproduce and write the page with a fault at every file operation: a kill, or an error of the system.

The work is done in a forked child. An audit hook counts its operations on files below one folder (opening, renaming,
removing, listing, making folders, and fsync) and, at a chosen one, kills the process or fails the operation. Afterwards
the same work is done again without a fault, and what it leaves must equal, bit for bit, what it leaves where nothing
happened.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from faults.campaign import MEMORY, SKIPPED, Family
from ncollapse import cli
from ncollapse.papers.catalogue import CATALOGUE
from ncollapse.papers.experiment import Experiment, Point
from ncollapse.report import write_report
from ncollapse.runs.epoch_snapshots import read_epochs
from ncollapse.runs.record import read_run, read_runs
from ncollapse.train import loop, recipes, run

Work = Callable[[Path], int]
EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.scandir", "os.listdir", "os.truncate")
ERRORS = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EMFILE, errno.EIO, errno.ENOMEM)
KILLED = -signal.SIGKILL
PATIENCE = 120
STRIDE = 7919
"""A prime, so that as many seeds as there are operations reach each of them once."""
WEIGHTS = ("final.safetensors", "best.safetensors", "snapshot.safetensors", "epochs.safetensors")
DATA = "gaussian:num_classes=3,dim=4,per_class=8,test_per_class=4"
RECIPE = recipes.get("digits").override(model__name="mlp-16", data__name=DATA, optim__batch_size=20, optim__epochs=2)


class Counter:
    """Counts the operations on files below a folder; at number `at`, calls `act`."""

    def __init__(self, folder: Path, at: int, act: Callable[[str], None]) -> None:
        self.folder, self.at, self.act, self.count = os.path.realpath(folder), at, act, 0
        self.inside = False

    def watch(self) -> None:
        real = os.fsync

        def fsync(descriptor: int) -> None:
            self.note(os.readlink(f"/proc/self/fd/{descriptor}"))
            real(descriptor)

        os.fsync = fsync
        sys.addaudithook(self.hear)

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event in EVENTS and args and not self.inside:
            paths = args[:2] if event == "os.rename" else args[:1]
            for path in paths:
                if isinstance(path, (str, bytes)):
                    self.note(os.fsdecode(path))
                    break

    def note(self, path: str) -> None:
        self.inside = True
        try:
            below = os.path.abspath(path).startswith(self.folder)
        finally:
            self.inside = False
        if below:
            self.count += 1
            if self.count == self.at:
                self.act(path)


def execute(work: Work, folder: Path, at: int = 0, error: int | None = None) -> tuple[int, str, int]:
    """Do the work in a child with a fault at operation `at` (0: none): its exit code, what it said, its operations.

    The exit code is that of the work, 70 for an exception, -9 for a kill and -14 where the child hung.
    """
    said, count = log_folder() / "said.txt", log_folder() / "count.txt"
    said.write_text("")
    count.write_text("0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of Python warn of forks
        child = os.fork()
    if not child:
        signal.alarm(PATIENCE)
        code = 70
        try:
            output = os.open(said, os.O_WRONLY | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115

            def act(path: str) -> None:
                if error is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError(error, os.strerror(error), path)

            loop.CHECKPOINT_SECONDS, loop.WRITES_SHARE = {"cpu": 0.0}, float("inf")  # one after every epoch
            counter = Counter(folder, at, act)
            counter.watch()
            code = work(folder)
            counter.inside = True
            count.write_text(str(counter.count))
        except BaseException:
            traceback.print_exc()
        finally:
            try:
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
            finally:
                os._exit(code)  # whatever happens, no child goes on as its parent
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code, said.read_text(errors="replace"), int(count.read_text() or 0)


@cache
def log_folder() -> Path:
    """Where a child says what it did, outside of what it works on."""
    folder = Path(tempfile.mkdtemp(prefix="faults-log-", dir=MEMORY))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def train(folder: Path) -> int:
    torch.set_num_threads(1)
    return 0 if run(RECIPE, folder, device="cpu", deterministic=True)["status"] == "finished" else 1


def compare(folder: Path) -> int:
    torch.set_num_threads(1)
    file = log_folder() / "recipe.json"
    file.write_text(RECIPE.to_json())
    options = ["--seeds", "1", "--engine", "packed", "--jobs", "1", "--device", "cpu", "--deterministic"]
    return cli.main(
        ["compare", "--recipe", str(file), "--losses", "ce", "bce", "--out", str(folder), "--data", DATA, *options]
    )


def reproduce(folder: Path) -> int:
    torch.set_num_threads(1)
    CATALOGUE["ncollapse/toy"] = Experiment("ncollapse/toy", "a toy", toy_grid, finals=("train.bias",))
    options = ["--engine", "packed", "--jobs", "1", "--device", "cpu", "--deterministic"]
    return cli.main(["reproduce", "ncollapse/toy", "--out", str(folder), *options])


def toy_grid() -> list[Point]:
    return [Point({"data": "gaussian", "loss": name}, RECIPE.override(loss__name=name)) for name in ("ce", "bce")]


def write_the_page(folder: Path) -> int:
    write_report(folder)
    return 0


WORKS: dict[str, Work] = {"train": train, "compare": compare, "reproduce": reproduce, "page": write_the_page}


@cache
def reference(name: str) -> tuple[dict[str, Any], int, Path]:
    """What a work leaves where nothing happens, how many operations it takes, and the folder."""
    warm_up(name)
    place = Path(tempfile.mkdtemp(prefix="faults-whole-", dir=MEMORY))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    folder = start_folder(name, place)
    for _ in range(2 if name == "page" else 1):  # a page is written over another
        code, said, count = execute(WORKS[name], folder)
    assert code == 0, said
    return describe(folder), count, folder


def warm_up(name: str) -> None:
    """Do the work once in this process: what libraries prepare on first use, children then find ready."""
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as place,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        WORKS[name](start_folder(name, Path(place)))


def start_folder(name: str, place: Path) -> Path:
    """The folder in which a work begins: empty, or with the runs that a page shows."""
    if name == "page":
        shutil.copytree(reference("compare")[2], place / "out")
    (place / "out").mkdir(exist_ok=True)
    return place / "out"


def describe(folder: Path) -> dict[str, Any]:
    """Everything in a folder of runs that must not depend on what happened; drafts and checkpoints must be gone."""
    found: dict[str, Any] = {"files": sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())}
    for record in read_runs(folder):
        summary = {key: value for key, value in (record.summary or {}).items() if key != "time"}
        rows = [{key: value for key, value in row.items() if key != "time"} for row in record.history]
        weights = {name: (record.path / name).read_bytes() for name in WEIGHTS if (record.path / name).exists()}
        found[record.run_id] = (record.status, summary, rows, weights, record.config)
    for page in sorted(folder.glob("*.html")):
        found[page.name] = has_whole_page(page)
    for text in sorted(folder.glob("*.md")):
        found[text.name] = text.read_text()
    return found


def has_whole_page(page: Path) -> bool:
    text = page.read_text(encoding="utf-8", errors="replace").strip()
    return text.startswith("<!doctype html>") and text.endswith("</html>")


def check_fault(name: str, kill: bool) -> Callable[[int, Path], str]:
    """A fault at one operation (the seed counts through all of them), then the work again."""

    def check(seed: int, place: Path) -> str:
        if not hasattr(os, "fork") or not os.path.isdir("/proc/self/fd"):
            return f"{SKIPPED}faults at file operations need fork and /proc"
        whole, count, _ = reference(name)
        draw = random.Random(seed)
        folder = start_folder(name, place)
        at = 1 + seed * STRIDE % count
        error = None if kill else ERRORS[(seed // count) % len(ERRORS)]
        code, said, _ = execute(WORKS[name], folder, at, error)
        if kill and code not in (0, KILLED):
            return f"operation {at}: ended with {code} instead of a kill: {said[-300:]}"
        if not kill and (problem := find_bad_refusal(code, said, name)):
            return f"operation {at}, {errno.errorcode[error or 0]}: {problem}"
        if problem := find_loss(folder, whole):
            return f"operation {at}: {problem}"
        if kill and seed >= count:  # killed once more, while it resumes
            execute(WORKS[name], folder, draw.randrange(1, count))
        if not kill and name in ("compare", "reproduce"):
            retry = WORKS[name]
            code, said, _ = execute(lambda out: with_retry(retry, out), folder)
        else:
            code, said, _ = execute(WORKS[name], folder)
        if code:
            return f"operation {at}: the second time ended with {code}: {said[-300:]}"
        return find_difference(describe(folder), whole, at)

    return check


def with_retry(work: Work, folder: Path) -> int:
    """Do the work with --retry: a run that an error of the system failed counts as failed until then."""
    main = cli.main
    cli.main = lambda arguments: main([*arguments, "--retry"])
    return work(folder)


def find_bad_refusal(code: int, said: str, name: str) -> str:
    """Whether a failed operation ended badly: with a signal, or, from the command line, with a traceback."""
    if code < 0:
        return f"ended by signal {-code}: {said[-300:]}"
    if code == 70 and name in ("compare", "reproduce"):
        return f"an exception came through the command line: {said[-300:]}"
    if code not in (0, 1, 2, 70):
        return f"exit code {code}"
    if code == 70 and not re.search(r"OSError|PermissionError|FileNotFoundError|MemoryError|ValueError", said):
        return f"an odd exception: {said[-300:]}"
    return ""


def find_loss(folder: Path, whole: dict[str, Any]) -> str:
    """Whether rows that were written are gone or wrong, or a page is torn, right after a fault."""
    for record in read_runs(folder):
        if record.run_id not in whole:
            return f"a folder {record.run_id} that nobody asked for"
        rows = [{key: value for key, value in row.items() if key != "time"} for row in record.history]
        if rows != whole[record.run_id][2][: len(rows)]:
            return f"the rows of {record.run_id} are not those of the whole run"
        if record.status == "corrupt" and (record.path / "config.json").exists():
            return f"{record.run_id} is corrupt: {record.notes}"
    torn = [page.name for page in folder.glob("*.html") if not has_whole_page(page)]
    return f"torn pages: {torn}" if torn else ""


def find_difference(found: dict[str, Any], whole: dict[str, Any], at: int) -> str:
    if found == whole:
        return ""
    extra = set(found["files"]) ^ set(whole["files"])
    if extra:
        return f"operation {at}: files differ: {sorted(extra)}"
    keys = [key for key in whole if found.get(key) != whole[key]]
    return f"operation {at}: differs in {keys}"


def check_two_at_once(seed: int, place: Path) -> str:
    """Several processes train the same run while its lock file is deleted: one trains, and its rows are whole."""
    if not hasattr(os, "fork") or not os.path.isdir("/proc/self/fd"):
        return f"{SKIPPED}faults at file operations need fork and /proc"
    whole, _, _ = reference("train")
    folder = start_folder("train", place)
    children = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            child = os.fork()
            if not child:
                signal.alarm(PATIENCE)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                code = 3
                try:
                    code = train(folder)
                except RuntimeError as error:
                    code = 4 if "is in use" in str(error) else 5
                finally:
                    os._exit(code)
            children.append(child)
    draw = random.Random(seed)
    codes = []
    while children:
        if draw.random() < 0.5:
            (folder / RECIPE.run_id / "lock").unlink(missing_ok=True)
        for child in list(children):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                children.remove(child)
                codes.append(os.waitstatus_to_exitcode(status))
        time.sleep(0.005)
    if 0 not in codes or set(codes) - {0, 4}:
        return f"exit codes {codes}"
    record = read_run(folder / RECIPE.run_id)
    rows = [{key: value for key, value in row.items() if key != "time"} for row in record.history]
    return "" if rows == whole[RECIPE.run_id][2] else f"{len(rows)} rows"


def check_lost_json(seed: int, place: Path) -> str:
    """One damaged file of a comparison: its page is written, and names the run."""
    from faults.files import damage_record

    draw = random.Random(seed)
    folder = start_folder("page", place)
    hurt = draw.choice(sorted(path for path in folder.iterdir() if path.is_dir()))
    name = draw.choice(
        ("config.json", "summary.json", "history.jsonl", "env.json", "snapshot.safetensors", "epochs.safetensors")
    )
    damaged = damage_record(name, (hurt / name).read_bytes(), draw)
    (hurt / name).write_bytes(damaged)
    record = read_run(hurt)
    text = write_report(folder).read_text(encoding="utf-8")
    if not text.strip().endswith("</html>"):
        return "the page is torn"
    problem = record.read_snapshot()[1] or read_epochs(hurt)[1]
    if (record.notes or problem) and hurt.name not in text:
        return "the page does not name the damaged run"
    json.dumps(record.notes)
    return ""


FAMILIES = [
    Family("kill/train", "resumed, it ends bit for bit as if nothing had happened", 156, 6, check_fault("train", True)),
    Family("kill/compare", "the same command ends as if nothing had happened", 130, 1, check_fault("compare", True)),
    Family(
        "kill/reproduce", "the same command ends as if nothing had happened", 132, 0, check_fault("reproduce", True)
    ),
    Family("kill/page", "the old page or the new one, and no drafts", 42, 1, check_fault("page", True)),
    Family("error/train", "an error of the system loses nothing", 312, 6, check_fault("train", False)),
    Family("error/compare", "an error of the system loses nothing", 130, 0, check_fault("compare", False)),
    Family("error/page", "an error of the system leaves the old page", 84, 1, check_fault("page", False)),
    Family("page/damaged", "one damaged file hides no page", 150, 2, check_lost_json),
    Family("two at once", "one trains, deleted locks or not", 40, 2, check_two_at_once),
]
