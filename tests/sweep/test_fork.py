"""Workers that are forked from a fresh process: they do what started ones do, and end with their sweep."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from ncollapse.runs.record import read_run
from ncollapse.sweep import fork, spawn
from ncollapse.train import recipes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone")
PREPARE = '''
import json, os, signal, sys, time
from ncollapse.sweep import fork, spawn
spawn.Path.glob = lambda self, pattern: iter(())  # no GPU
spawn.count_threads = lambda workers: 1


def run(count, emit):
    """Carry out the jobs; its imports include torch."""
    from ncollapse.sweep import local
    from ncollapse.sweep.job import Job

    local.run([Job(**job) for job in json.loads(sys.argv[1])], count, emit)
'''


def make_jobs(out, count, epochs=1):
    recipe = recipes.get("digits").override(model__name="mlp-16", data__samples_per_class=10, optim__epochs=epochs)
    made = [recipe.override(seed=seed) for seed in range(count)]
    return [{"run_id": r.run_id, "recipe": r.to_dict(), "out": str(out), "device": "cpu"} for r in made]


def start(script, jobs=()):
    """A fresh Python process that has imported no torch yet."""
    command = [sys.executable, "-c", PREPARE + textwrap.dedent(script), json.dumps(list(jobs))]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finish(process):
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return json.loads(printed)


def has_ended(pid):
    """Whether a process is gone, or waits for a parent that does not ask for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_forked_workers_carry_out_jobs_and_share_nothing_with_the_command(tmp_path):
    script = """
    with spawn.early_workers(2):
        early = [worker.process for worker in spawn._waiting[2]]
        spawn.subprocess.Popen = None  # none is started later
        run(2, lambda event: None)
    print(json.dumps({
        "forked": [isinstance(process, fork.ForkedProcess) for process in early],
        "codes": [process.poll() for process in early],
    }))
    """
    jobs = make_jobs(tmp_path, 3)
    told = finish(start(script, jobs))
    assert told["forked"] == [True, True]
    assert told["codes"] == [-signal.SIGKILL] * 2  # ended by the sweep, not by themselves
    records = [read_run(tmp_path / job["run_id"]) for job in jobs]
    assert [record.status for record in records] == ["finished"] * 3
    environment = json.loads((records[0].path / "env.json").read_text())
    assert environment["hardware"]["threads"] == 1


def test_a_forked_worker_that_dies_is_replaced(tmp_path):
    script = """
    events = []
    def see(event):
        events.append(event.get("status"))
        if event.get("status") == "started" and events.count("started") == 1:
            os.kill(early[0].pid, signal.SIGKILL)
    with spawn.early_workers(1):
        early = [worker.process for worker in spawn._waiting[1]]
        run(1, see)
    print(json.dumps(events))
    """
    (job,) = jobs = make_jobs(tmp_path, 1, epochs=40)
    events = finish(start(script, jobs))
    assert [event for event in events if event] == ["started", "lost", "started", "finished"]
    assert read_run(tmp_path / job["run_id"]).status == "finished"


def test_forked_workers_end_with_the_process_that_forked_them():
    script = """
    with spawn.early_workers(2):
        print(json.dumps([worker.process.pid for worker in spawn._waiting[2]]), flush=True)
        time.sleep(60)
    """
    process = start(script)
    pids = json.loads(process.stdout.readline())
    assert not any(has_ended(pid) for pid in pids)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while not all(has_ended(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(has_ended(pid) for pid in pids)


def test_an_exception_in_a_forked_worker_is_told_on_its_standard_error():
    script = """
    def fail():
        raise RuntimeError("no such luck")
    fork._keep_memory = fail
    with spawn.early_workers(1):
        (worker,) = spawn._waiting[1]
        code = worker.process.wait()
        worker.errors.seek(0)
        print(json.dumps([code, worker.errors.read().decode()]))
    """
    code, errors = finish(start(script))
    assert code == 1
    assert "RuntimeError: no such luck" in errors


def test_a_process_with_torch_or_threads_starts_its_workers_instead(monkeypatch):
    assert not fork.may_fork(1)  # this process has imported torch
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(fork.threading, "active_count", lambda: 1)
    assert fork.may_fork(1)
    assert not fork.may_fork(2)
    monkeypatch.setattr(fork.threading, "active_count", lambda: 2)
    assert not fork.may_fork(1)
    monkeypatch.setattr(fork.threading, "active_count", lambda: 1)
    monkeypatch.setattr(fork.sys, "platform", "darwin")
    assert not fork.may_fork(1)


def test_no_worker_is_forked_after_an_import_that_starts_threads(monkeypatch):
    started = []
    monkeypatch.setattr(spawn.Path, "glob", lambda self, pattern: iter(()))
    monkeypatch.setattr(spawn, "may_fork", lambda threads: True)
    monkeypatch.setattr(spawn, "import_before_forking", lambda threads: False)
    monkeypatch.setattr(spawn, "ForkedProcess", None)
    monkeypatch.setattr(spawn, "spawn", lambda count: started.append(count) or spawn.Worker(FakeProcess(), FakeFile()))
    with spawn.early_workers(3):
        assert started == [3, 3, 3]


class FakeProcess:
    def kill(self): ...

    def communicate(self): ...


class FakeFile:
    def close(self): ...
