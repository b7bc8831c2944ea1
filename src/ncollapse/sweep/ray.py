"""A Ray cluster: each run is a task with its own resources; the run of a lost node is resumed on another.

The run folders must lie on a file system that all nodes share, because a run is resumed from the checkpoint in its
folder.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ncollapse.processes import safe_path
from ncollapse.sweep.job import Job, execute, record_failure

ATTEMPTS = 5
"""How often a run is started before it counts as failed."""


def run(jobs: Sequence[Job], workers: int | None, emit: Callable[[dict[str, Any]], None]) -> None:
    """Carry out the jobs as Ray tasks: one CPU each, or one GPU where the cluster has some.

    `workers` bounds how many run at a time. The cluster is the one this process is connected to, else the one that
    RAY_ADDRESS names, else one started here. A task whose process dies, or that Ray ends because the node runs out of
    memory, is started again from its checkpoint, up to `ATTEMPTS` times in all.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError("the ray engine needs Ray: pip install 'ncollapse[ray]'") from error

    with _connect(ray):
        wanted = any(job.device != "cpu" for job in jobs)
        gpus = 1 if wanted and ray.cluster_resources().get("GPU") else 0
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=ATTEMPTS - 1)(carry_out)
        folder = os.getcwd()
        waiting = list(jobs)
        running: dict[Any, Job] = {}
        while waiting or running:
            while waiting and (workers is None or len(running) < workers):
                job = waiting.pop(0)
                running[task.remote(job, folder)] = job
                emit({"run_id": job.run_id, "status": "started"})
            done, _ = ray.wait(list(running), timeout=1.0)
            for reference in done:
                job = running.pop(reference)
                emit({"run_id": job.run_id, **_outcome(ray, reference, job)})


def carry_out(job: Job, folder: str) -> dict[str, Any]:
    """Carry out one job on the node that the task was given to; return how it ended, and why if it failed.

    Relative paths in the job refer to `folder`, the working folder of the sweep.
    """
    if os.path.isdir(folder):
        os.chdir(folder)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    last: dict[str, Any] = {}
    status = execute(job, last.update)
    return {"status": status, **({"reason": last["reason"]} if last.get("reason") else {})}


@contextmanager
def _connect(ray: Any) -> Iterator[None]:
    """Connect to a cluster unless there is a connection; what was started here ends here.

    Ray puts the folder in which a driver connects first on the module path of its workers, so the connection is made
    in an empty folder: a file of the user's that is named like a library must not be imported in its place.
    """
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    options = {} if address else {"include_dashboard": False}
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as empty:
        os.chdir(empty)
        try:
            with safe_path():
                # "local" starts a cluster; without an address Ray joins any that it finds on this machine
                ray.init(address=address or "local", log_to_driver=False, **options)
        finally:
            os.chdir(before)
        try:
            yield
        finally:
            ray.shutdown()


def _outcome(ray: Any, reference: Any, job: Job) -> dict[str, Any]:
    try:
        found: dict[str, Any] = ray.get(reference)
        return found
    except ray.exceptions.RayError as error:
        if isinstance(error, ray.exceptions.OutOfMemoryError):
            reason = f"Ray ended it {ATTEMPTS} times because its node ran out of memory; run fewer at a time (jobs)"
        else:
            reason = f"its process was lost {ATTEMPTS} times: {type(error).__name__}"
        record_failure(job, reason, str(error))
        return {"status": "failed", "reason": reason}
