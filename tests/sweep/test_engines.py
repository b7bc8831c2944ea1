"""What engines do with jobs, apart from the sweeps that use them."""

import threading
import time

import pytest
import torch

from ncollapse.runs.lock import FolderInUse
from ncollapse.runs.record import read_run
from ncollapse.sweep import local, packed, spawn
from ncollapse.sweep.job import Job, OutOfTime, execute
from ncollapse.train import recipes


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


@pytest.fixture
def no_gpu(monkeypatch):
    """A machine without a GPU, whatever this one has."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(spawn.Path, "glob", lambda self, pattern: iter(()))


@pytest.mark.usefixtures("no_gpu")
def test_workers_that_were_started_early_get_the_jobs(tmp_path, monkeypatch):
    recipe = recipes.get("digits").override(model__name="mlp-16", data__samples_per_class=10, optim__epochs=1)
    jobs = [Job(r.run_id, r.to_dict(), str(tmp_path), device="cpu") for r in (recipe, recipe.override(seed=1))]
    with spawn.early_workers(2):
        early = [worker.process for worker in spawn._waiting[2]]
        monkeypatch.setattr(local, "spawn", None)  # none is started later
        local.run(jobs, 2, lambda event: None)
    assert all(read_run(tmp_path / job.run_id).status == "finished" for job in jobs)
    assert len(early) == 2
    assert all(process.poll() is not None for process in early)


@pytest.mark.usefixtures("no_gpu")
def test_workers_without_a_job_end():
    with spawn.early_workers(1):
        (worker,) = spawn._waiting[1]
    assert worker.process.poll() is not None
    assert spawn.take_early(1) is None


def test_with_a_gpu_no_worker_is_started_early(monkeypatch):
    monkeypatch.setattr(spawn.Path, "glob", lambda self, pattern: iter([self / "nvidia0"]))
    with spawn.early_workers(1):
        assert spawn.take_early(1) is None
