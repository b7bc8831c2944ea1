"""What engines do with jobs, apart from the sweeps that use them."""

import threading
import time

import pytest
import torch

from ncollapse.runs.lock import FolderInUse
from ncollapse.runs.record import read_run
from ncollapse.sweep import packed
from ncollapse.sweep.job import Job, OutOfTime, execute


def test_runs_of_different_precision_take_turns(monkeypatch):
    active, seen, guard = set(), [], threading.Lock()

    def work(job, emit):
        with guard:
            active.add(job.run_id)
            seen.append({j[0] for j in active})
        time.sleep(0.02)
        with guard:
            active.remove(job.run_id)

    monkeypatch.setattr(packed, "execute", work)
    jobs = [Job(f"{p}{i}", {"precision": p}, "") for i in range(4) for p in ("bf16", "tf32")]
    packed.run(jobs, 3, lambda event: None)
    assert len(seen) == 8
    assert all(len(kinds) == 1 for kinds in seen)


def test_an_interrupt_stops_every_thread(monkeypatch):
    stopped = []

    def work(job, emit):
        try:
            for epoch in range(1000):
                emit({"run_id": job.run_id, "epoch": epoch})
                time.sleep(0.001)
        except OutOfTime:
            stopped.append(job.run_id)
            raise

    def interrupt(event):
        if event["epoch"] == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(packed, "execute", work)
    with pytest.raises(KeyboardInterrupt):
        packed.run([Job("a", {}, ""), Job("b", {}, ""), Job("c", {}, "")], 2, interrupt)
    assert sorted(stopped) == ["a", "b"]


def test_linear_algebra_is_loaded_before_the_threads_start(monkeypatch):
    """Torch loads its GPU routines with the first call, which no two threads may make at once."""
    calls, real = [], torch.eye
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "eye", lambda size, device: calls.append(device) or real(size))
    monkeypatch.setattr(packed, "execute", lambda job, emit: calls.append(job.run_id))
    packed.run([Job("a", {}, "", device="cpu")], 1, lambda event: None)
    packed.run([Job("b", {}, "")], 1, lambda event: None)
    packed.run([Job("c", {}, "", device="cuda:1")], 1, lambda event: None)
    assert calls == ["a", "cuda", "b", "cuda:1", "c"], "and no GPU is started for runs that do not want one"


def test_a_folder_in_use_is_left_alone(monkeypatch, tmp_path):
    def refuse(*args, **options):
        raise FolderInUse("busy")

    monkeypatch.setattr("ncollapse.train.run", refuse)
    events = []
    assert execute(Job("abc", {"name": "x"}, str(tmp_path)), events.append) == "interrupted"
    assert events[-1] == {"run_id": "abc", "status": "interrupted", "reason": "busy"}
    assert not (tmp_path / "abc").exists()


def test_a_recipe_nobody_can_read_is_a_recorded_failure(tmp_path):
    assert execute(Job("abc", {"nonsense": 1}, str(tmp_path)), lambda event: None) == "failed"
    record = read_run(tmp_path / "abc")
    assert record.status == "failed"
    assert "nonsense" in record.summary["reason"]
    assert "Traceback" in record.summary["traceback"]


def test_no_run_starts_after_the_deadline(tmp_path):
    assert execute(Job("abc", {}, str(tmp_path), deadline=time.time() - 1), lambda event: None) == "interrupted"
    assert not list(tmp_path.iterdir())
