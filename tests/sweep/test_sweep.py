"""Sweeps: finished runs skipped, failures kept, shares, time limits, and kills of drivers and workers survived."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import pytest

from ncollapse.runs.lock import hold
from ncollapse.runs.record import read_run, read_runs
from ncollapse.sweep.sweep import sweep, take_share
from ncollapse.train import recipes

DRIVER = """
import json, sys
from ncollapse.sweep.sweep import sweep
from ncollapse.train import Recipe
recipes = [Recipe.from_dict(item) for item in json.load(open(sys.argv[1]))]
sweep(recipes, sys.argv[2], jobs=2, device="cpu", deterministic=True)
"""


def tiny(count, epochs=2, **changes):
    """Digit runs of a second: a narrow network on 10 samples a class."""
    base = recipes.get("digits").override(model__name="mlp-16", data__samples_per_class=10, optim__batch_size=20)
    base = base.override(optim__epochs=epochs, **changes)
    return [base.override(seed=seed // 2, loss__name=("ce", "bce")[seed % 2]) for seed in range(count)]


def outcome(folder):
    """What a run gave, without wall-clock figures."""
    summary = json.loads((folder / "summary.json").read_text())
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    for part in (summary, *history):
        part.pop("time")
    return summary, history, (folder / "final.safetensors").read_bytes()


def test_finished_runs_are_skipped_and_order_is_kept(tmp_path):
    runs = tiny(3)
    events = []
    first = sweep(runs[1:2], tmp_path, engine="packed", device="cpu")
    stamp = (first[0].path / "summary.json").stat().st_mtime_ns
    records = sweep([*runs, runs[0]], tmp_path, engine="packed", jobs=2, device="cpu", progress=events.append)
    assert [r.run_id for r in records] == [r.run_id for r in runs]
    assert {r.status for r in records} == {"finished"}
    assert (first[0].path / "summary.json").stat().st_mtime_ns == stamp
    assert {"run_id": runs[1].run_id, "status": "skipped", "reason": "finished"} in events
    epochs = [e["epoch"] for e in events if e["run_id"] == runs[0].run_id and "nc1" in e]
    assert epochs == [1, 2]


def test_a_failure_is_kept_and_retried_on_request(tmp_path):
    (bad,) = tiny(1, data__name=f"npz:{tmp_path / 'later.npz'}", data__samples_per_class=None)
    (record,) = sweep([bad], tmp_path / "out", engine="packed", device="cpu")
    assert record.status == "failed"
    assert "later.npz" in record.summary["reason"]
    assert "Traceback" in record.summary["traceback"]
    events = []
    sweep([bad], tmp_path / "out", engine="packed", device="cpu", progress=events.append)
    assert events == [{"run_id": bad.run_id, "status": "skipped", "reason": "failed"}]

    import numpy as np

    rng = np.random.default_rng(0)
    arrays = {"images": rng.normal(size=(60, 8)), "labels": np.arange(60) % 3}
    np.savez(tmp_path / "later.npz", **arrays, **{f"test_{k}": v for k, v in arrays.items()})
    (record,) = sweep([bad], tmp_path / "out", engine="packed", device="cpu", retry=True)
    assert record.status == "finished"


def test_a_finished_run_without_a_configuration_counts_again(tmp_path, monkeypatch):
    (run,) = tiny(1)
    (first,) = sweep([run], tmp_path, engine="packed", device="cpu")
    (first.path / "config.json").write_text("")
    assert read_run(first.path).status == "corrupt"
    monkeypatch.setattr("ncollapse.sweep.packed.run", lambda *_: pytest.fail("run again"))
    monkeypatch.setattr("ncollapse.sweep.sweep.make_folder", lambda *_: pytest.fail("written to"))
    events = []
    (record,) = sweep([run], tmp_path, engine="packed", device="cpu", progress=events.append)
    assert record == first
    assert events == [{"run_id": run.run_id, "status": "skipped", "reason": "finished"}]


def test_a_run_that_is_let_go_in_time_is_done(tmp_path, monkeypatch):
    """A worker whose sweep was killed lives on for a moment; one that lives longer keeps its run."""
    first, second = tiny(2)
    (tmp_path / first.run_id).mkdir()
    (tmp_path / first.run_id / "config.json").write_text(first.to_json())
    events = []
    with ExitStack() as stack:
        stack.enter_context(hold(tmp_path / first.run_id))
        assert read_run(tmp_path / first.run_id).status == "running"
        monkeypatch.setattr("ncollapse.sweep.sweep.PATIENCE", 0.2)
        records = sweep([first, second], tmp_path, engine="packed", device="cpu", progress=events.append)
        assert [r.status for r in records] == ["running", "finished"]
        assert events[-1] == {"run_id": first.run_id, "status": "skipped", "reason": "running"}
        monkeypatch.setattr("ncollapse.sweep.sweep.PATIENCE", 60.0)
        threading.Timer(0.5, stack.close).start()
        records = sweep([first, second], tmp_path, engine="packed", device="cpu")
    assert [r.status for r in records] == ["finished", "finished"]


@pytest.mark.parametrize("engine", ["local", "packed"])
@pytest.mark.parametrize("obstacle", ["file", "full"])
def test_a_run_that_cannot_be_written_stops_no_other(tmp_path, engine, obstacle):
    """A file where the run's folder should be, or a folder in which nothing can be written."""
    first, second = tiny(2, epochs=1)
    place = tmp_path / first.run_id
    if obstacle == "file":
        place.write_text("in the way")
    else:
        place.mkdir()
        (place / "config.json").mkdir()  # which no file can replace
        (place / "summary.json").mkdir()
    events = []
    records = sweep([first, second], tmp_path, engine=engine, jobs=1, device="cpu", progress=events.append)
    assert [record.status for record in records] == ["failed", "finished"]
    assert str(place) in records[0].summary["reason"]
    (failed,) = [event for event in events if event.get("status") == "failed"]
    assert failed["run_id"] == first.run_id
    assert not list(tmp_path.rglob(".*.part"))


def test_a_file_is_no_folder_of_runs(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match=r"^--out \S+/file: is a file, not a folder$"):
        sweep(tiny(1), tmp_path / "file", engine="packed", device="cpu")


def test_the_time_limit_leaves_runs_to_resume(tmp_path):
    runs = tiny(2, epochs=400)
    records = sweep(runs, tmp_path, engine="packed", jobs=1, device="cpu", time_limit=1.0)
    assert [r.status for r in records] == ["interrupted", "interrupted"]
    epoch = records[0].history[-1]["epoch"]
    assert 0 < epoch < 400
    assert records[1].notes == ("not started",)
    assert any((records[0].path / "checkpoint").iterdir())
    later = sweep(runs[:1], tmp_path, engine="packed", device="cpu", time_limit=1.0)
    assert later[0].history[-1]["epoch"] > epoch
    assert [row["epoch"] for row in later[0].history] == list(range(1, later[0].history[-1]["epoch"] + 1))


@pytest.mark.parametrize("limit", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_time_limit_is_a_number_of_seconds(tmp_path, limit):
    with pytest.raises(ValueError, match=r"^time_limit: expected a finite number of seconds above 0"):
        sweep(tiny(1), tmp_path, engine="packed", time_limit=limit)


def test_shares_cover_everything_once():
    shares = [take_share(range(10), (i, 3)) for i in (1, 2, 3)]
    assert sorted(x for share in shares for x in share) == list(range(10))
    with pytest.raises(ValueError, match=r"index: .* got 4/3"):
        take_share(range(10), (4, 3))


def test_unknown_engines_and_numbers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="local, packed, ray"):
        sweep(tiny(1), tmp_path, engine="slurm")
    for engine in ("local", "packed"):
        with pytest.raises(ValueError, match="jobs: expected at least 1"):
            sweep(tiny(1), tmp_path, engine=engine, jobs=0)


def test_a_worker_that_keeps_dying_is_a_failed_run(tmp_path, monkeypatch):
    monkeypatch.setattr("ncollapse.sweep.local.ATTEMPTS", 2)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    events = []
    (record,) = sweep(tiny(1), tmp_path, engine="local", device="cpu", progress=events.append)
    assert record.status == "failed"
    assert "died 2 times" in record.summary["reason"]
    assert [e["status"] for e in events] == ["lost", "lost", "failed"]


def test_a_worker_that_cannot_be_started_fails_its_run_alone(tmp_path, monkeypatch):
    """No process, or no file descriptors, at that moment."""
    real, calls = subprocess.Popen, []

    def start(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError(11, "Resource temporarily unavailable")
        return real(*arguments, **options)

    monkeypatch.setattr("ncollapse.sweep.spawn.subprocess.Popen", start)
    records = sweep(tiny(2, epochs=1), tmp_path, engine="local", jobs=1, device="cpu")
    assert [record.status for record in records] == ["failed", "finished"]
    assert "Resource temporarily unavailable" in records[0].summary["reason"]


@pytest.mark.slow
def test_twelve_runs_survive_five_kills(tmp_path):
    """Three workers and two drivers killed with SIGKILL at random moments; the results are those of a quiet sweep."""
    runs, rng = tiny(12, epochs=3), random.Random(4)
    listing, out = tmp_path / "runs.json", tmp_path / "broken"
    listing.write_text(json.dumps([run.to_dict() for run in runs]))
    quiet = sweep(runs, tmp_path / "quiet", engine="packed", jobs=1, device="cpu", deterministic=True)

    driver = start(listing, out)
    deadline = time.monotonic() + 480
    for kill_driver in (False, True, False, True, False):
        assert wait_for_progress(driver, out, deadline), "the sweep ended or hung before the last kill"
        time.sleep(0.3 * rng.random())
        workers = children(driver.pid)
        if kill_driver:
            driver.kill()
            driver.wait()
            wait_until(lambda pids=workers: not any(alive(pid) for pid in pids), deadline)
            driver = start(listing, out)
        elif workers:
            os.kill(rng.choice(workers), signal.SIGKILL)
    assert driver.wait(timeout=max(1, deadline - time.monotonic())) == 0

    assert {record.run_id for record in read_runs(out)} == {run.run_id for run in runs}
    assert len(read_runs(out)) == 12
    for record in quiet:
        found = read_run(out / record.run_id)
        assert found.status == "finished", found.summary
        assert outcome(out / record.run_id) == outcome(record.path)


def start(listing, out):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", DRIVER, str(listing), str(out)], env=environment)


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            direct = [int(word) for word in file.read().split()]
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                direct += [int(word) for word in file.read().split()]
    except FileNotFoundError:
        return []
    return sorted(set(direct))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, deadline):
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def wait_for_progress(driver, out, deadline):
    """Wait until an epoch more is written than when called; False if the sweep ended or time ran out."""

    def lines():
        return sum(len(file.read_bytes().splitlines()) for file in out.glob("*/history.jsonl"))

    before = lines()
    wait_until(lambda: lines() > before or driver.poll() is not None, deadline)
    return driver.poll() is None and time.monotonic() < deadline
