"""Local worker processes: one per GPU, or one per core, each taking one run after the other.

A worker reads jobs as JSON lines on its standard input and writes events as JSON lines on its standard output. It ends
when its standard input closes, so it cannot outlive the process that started it, however that one ends. A worker that
dies in a run is replaced, and the run resumed from its checkpoint, up to `ATTEMPTS` times.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from ncollapse.sweep.job import Job, drain, line_up, record_failure
from ncollapse.sweep.spawn import Worker, end_early, spawn, take_early

ATTEMPTS = 5
"""How often a run is started before it counts as failed."""


def run(jobs: Sequence[Job], workers: int | None, emit: Callable[[dict[str, Any]], None]) -> None:
    """Carry out the jobs in worker processes, `workers` at a time.

    By default one per GPU, one on a GPU that is named, or else one per core.
    """
    gpus = _count_gpus(jobs)
    alone = any(str(job.device).startswith("cuda:") for job in jobs)  # one GPU, named
    count = min(workers or gpus or (1 if alone else os.cpu_count() or 1), len(jobs))
    waiting = line_up(jobs)
    events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    stop = threading.Event()
    supervisors = [_Supervisor(i, count, gpus, waiting, events.put, stop) for i in range(count)]
    for supervisor in supervisors:
        supervisor.start()
    try:
        drain(events, count, emit)
    finally:
        stop.set()
        for supervisor in supervisors:
            supervisor.end()
        end_early()


class _Supervisor(threading.Thread):
    """A thread with one worker process, which it restarts if it dies."""

    def __init__(
        self,
        number: int,
        count: int,
        gpus: int,
        waiting: queue.SimpleQueue[Job],
        put: Callable[[dict[str, Any] | None], None],
        stop: threading.Event,
    ) -> None:
        super().__init__(daemon=True)
        self.number, self.count, self.gpus = number, count, gpus
        self.waiting, self.put, self.stop = waiting, put, stop
        self.worker: Worker | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                try:
                    job = self.waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    self._carry_out(job)
                except Exception as error:  # no process, no descriptors: the other runs may have better luck
                    reason = f"{type(error).__name__}: {error}"
                    record_failure(job, reason, traceback.format_exc())
                    self.put({"run_id": job.run_id, "status": "failed", "reason": reason})
        finally:
            self.end()
            self.put(None)

    def _carry_out(self, job: Job) -> None:
        for attempt in range(ATTEMPTS):
            if self.stop.is_set():
                return
            ended = self._attempt(job)
            if ended or self.stop.is_set():
                return
            code = self.worker.process.wait() if self.worker else None
            trace = self._tail()
            reason = f"worker ended with code {code}"
            self.put({"run_id": job.run_id, "status": "lost", "reason": reason, "attempt": attempt})
        reason = f"its worker process died {ATTEMPTS} times, last with code {code}"
        record_failure(job, reason, trace)
        self.put({"run_id": job.run_id, "status": "failed", "reason": reason})

    def _attempt(self, job: Job) -> bool:
        """Hand the job to the worker and pass its events on; False if the worker died before the end."""
        if self.worker is None or self.worker.process.poll() is not None:
            self._start()
        process = None if self.worker is None else self.worker.process
        if process is None or process.stdin is None or process.stdout is None:
            return False
        try:
            process.stdin.write(job.to_json() + "\n")
            process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return False
        for line in process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            self.put(event)
            if event.get("status") in ("finished", "failed", "interrupted"):
                return True
        return False

    def _start(self) -> None:
        self.end()
        if not self.gpus:
            self.worker = take_early(self.count) or spawn(self.count)
            return
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = seen.split(",") if seen else [str(i) for i in range(self.gpus)]
        self.worker = spawn(self.count, {"CUDA_VISIBLE_DEVICES": names[self.number % len(names)]})

    def _tail(self) -> str:
        if self.worker is None:
            return ""
        self.worker.errors.seek(0)
        return self.worker.errors.read()[-4000:].decode(errors="replace")

    def end(self) -> None:
        """End the worker."""
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.end()


def _count_gpus(jobs: Sequence[Job]) -> int:
    """Return how many GPUs the workers share: all of them, unless the jobs name the CPU or one device."""
    named = {job.device for job in jobs}
    if named - {None, "cuda"}:
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
