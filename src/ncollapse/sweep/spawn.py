"""Start worker processes, if wanted before their first job is known. Imports nothing that takes long."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from ncollapse.processes import SAFE_PATH, python_command
from ncollapse.sweep.fork import KEEP_MEMORY, ForkedProcess, import_before_forking, may_fork


class Worker(NamedTuple):
    """A worker process, and the file that its standard error goes to."""

    process: subprocess.Popen[str] | ForkedProcess
    errors: IO[bytes]

    def end(self) -> None:
        """End the process, wherever it is: its run keeps its last checkpoint."""
        self.process.kill()
        self.process.communicate()
        self.errors.close()


_waiting: dict[int, list[Worker]] = {}
"""Workers without a job, by the number of workers that they share the cores with."""


@contextmanager
def early_workers(count: int) -> Iterator[None]:
    """Start `count` workers for the sweeps in this block, by forking if possible: then torch is imported once.

    Others import torch while this process does. No worker is started early on a machine with an NVIDIA GPU, where each
    is told at its start which GPU it uses.
    """
    try:
        if count and not any(Path("/dev").glob("nvidia[0-9]*")):
            threads, early = count_threads(count), _waiting.setdefault(count, [])
            forks = may_fork(threads) and import_before_forking(threads)
            for _ in range(count):
                early.append(_fork(early) if forks else spawn(count))
        yield
    finally:
        end_early()


def take_early(count: int) -> Worker | None:
    """One of the workers started early, if there is one that shares the cores with as many as here."""
    waiting = _waiting.get(count)
    return waiting.pop() if waiting else None


def end_early() -> None:
    """End the workers that got no job."""
    for waiting in _waiting.values():
        while waiting:
            waiting.pop().end()


def _fork(siblings: list[Worker]) -> Worker:
    """Fork a worker from this process."""
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
    others = [worker.process for worker in siblings if isinstance(worker.process, ForkedProcess)]
    try:
        return Worker(ForkedProcess(errors, others), errors)
    except BaseException:
        errors.close()
        raise


def count_threads(workers: int) -> int:
    """How many threads each of so many workers computes with."""
    return max(1, (os.cpu_count() or 1) // max(1, workers))


def spawn(count: int, variables: dict[str, str] | None = None) -> Worker:
    """Start one of `count` workers, with these environment variables besides the user's."""
    environment = {**os.environ, SAFE_PATH: "1", "NCOLLAPSE_COMMAND": json.dumps(sys.argv), **(variables or {})}
    for name, value in {"OMP_NUM_THREADS": count_threads(count), **KEEP_MEMORY}.items():
        environment.setdefault(name, str(value))
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
    try:
        process = subprocess.Popen(
            python_command("ncollapse.sweep.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
            env=environment,
            start_new_session=True,  # an interrupt reaches the sweep alone, which then ends its workers
        )
    except BaseException:
        errors.close()
        raise
    return Worker(process, errors)
