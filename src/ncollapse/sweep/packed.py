"""Several small runs on one GPU at the same time: threads of one process, each run with its own CUDA stream.

A small network leaves most of a large GPU idle; several runs fill it. The threads share one process, and so one copy of
the libraries and one CUDA context. On a machine without a GPU they share the cores.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ncollapse.sweep.job import Job, OutOfTime, drain, execute, line_up

PACK = 4


def run(jobs: Sequence[Job], workers: int | None, emit: Callable[[dict[str, Any]], None]) -> None:
    """Carry out the jobs in threads, `workers` at a time (default 4).

    Precision is a setting of the whole process, so runs of different precision take turns.
    """
    for precision in dict.fromkeys(job.recipe.get("precision") for job in jobs):
        _run_side_by_side([job for job in jobs if job.recipe.get("precision") == precision], workers, emit)


def _run_side_by_side(jobs: Sequence[Job], workers: int | None, emit: Callable[[dict[str, Any]], None]) -> None:
    waiting = line_up(jobs)
    events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    stop = threading.Event()
    count = min(workers or PACK, len(jobs))
    _load_linear_algebra(jobs)
    threads = [threading.Thread(target=_work, args=(waiting, events.put, stop), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        drain(events, count, emit)
    finally:
        stop.set()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:  # again: the threads cannot be killed, but their runs have checkpoints
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(130)


def _load_linear_algebra(jobs: Sequence[Job]) -> None:
    """Have torch load its GPU routines for linear algebra now: if two threads do so at the same time, one fails."""
    import torch

    devices = [job.device or "cuda" for job in jobs]
    device = next((device for device in devices if device.startswith("cuda")), None)
    if device is not None and torch.cuda.is_available():
        torch.linalg.qr(torch.eye(2, device=device))


def _work(waiting: queue.SimpleQueue[Job], put: Callable[[dict[str, Any] | None], None], stop: threading.Event) -> None:
    def pass_on(event: dict[str, Any]) -> None:
        put(event)
        if stop.is_set():
            raise OutOfTime

    try:
        while not stop.is_set():
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            execute(job, pass_on)
    except OutOfTime:
        pass
    finally:
        put(None)
