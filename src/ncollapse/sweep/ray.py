"""A Ray cluster: each run a task with its own resources; what a lost node was doing is resumed elsewhere.

The run folders must lie on a file system that all nodes share, for a run is resumed from the checkpoint in its folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from ncollapse.sweep.job import Job, execute, record_failure

LIVES = 5


def run(jobs: Sequence[Job], workers: int | None, emit: Callable[[dict[str, Any]], None]) -> None:
    """Carry out the jobs as Ray tasks: one CPU each, or one GPU where the cluster has some.

    `workers` bounds how many run at a time. The cluster is the one this process is connected to, else the one that
    RAY_ADDRESS names, else one started here.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError("the ray engine needs Ray: pip install 'ncollapse[ray]'") from error

    started = not ray.is_initialized()
    if started:
        address = os.environ.get("RAY_ADDRESS")
        here = {} if address else {"include_dashboard": False}
        ray.init(address=address, log_to_driver=False, **here)
    try:
        wanted = any(job.device != "cpu" for job in jobs)
        gpus = 1 if wanted and ray.cluster_resources().get("GPU") else 0
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=LIVES - 1)(carry_out)
        waiting = list(jobs)
        running: dict[Any, Job] = {}
        while waiting or running:
            while waiting and (workers is None or len(running) < workers):
                job = waiting.pop(0)
                running[task.remote(job)] = job
                emit({"run_id": job.run_id, "status": "started"})
            done, _ = ray.wait(list(running), timeout=1.0)
            for reference in done:
                job = running.pop(reference)
                emit({"run_id": job.run_id, "status": _outcome(ray, reference, job)})
    finally:
        if started:
            ray.shutdown()


def carry_out(job: Job) -> str:
    """The task itself, on whatever node it lands."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return execute(job, lambda event: None)


def _outcome(ray: Any, reference: Any, job: Job) -> str:
    try:
        return str(ray.get(reference))
    except ray.exceptions.RayError as error:
        record_failure(job, f"lost {LIVES} times: {type(error).__name__}", str(error))
        return "failed"
