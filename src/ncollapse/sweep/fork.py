"""Fork worker processes from a process that has imported torch: they start at once and share its memory.

Only where that is safe: on Linux, without a GPU, from a process with one thread that has computed nothing yet. Imports
nothing that takes long.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO

from ncollapse.processes import importing

KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": 32 << 20, "MALLOC_TRIM_THRESHOLD_": 256 << 20}
"""Settings of the GNU C library: freed memory stays with the worker. Otherwise the system clears the memory for the
arrays of every measurement again, which takes a tenth of the time of a short run."""
NEEDED = ("ncollapse.train", "ncollapse.train.files", "ncollapse.sweep.worker", "scipy.optimize")
"""The modules that every worker needs."""
_MALLOPT = {"MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_TRIM_THRESHOLD_": -1}
"""The numbers of these settings in malloc.h."""


class ForkedProcess:
    """A forked worker, with the part of the interface of `subprocess.Popen` that a sweep uses.

    `siblings` are the workers forked before. The new one closes its copies of their pipes: a pipe ends when the last
    copy of its other end is closed, which tells a worker that its sweep is gone, and a sweep that its worker is.
    """

    def __init__(self, errors: IO[bytes], siblings: Sequence[ForkedProcess] = ()) -> None:
        jobs, self.stdin = _open_pipe()
        self.stdout, events = _open_pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                for process in (self, *siblings):
                    process.close_pipes()
                _serve(jobs, events, errors)
            finally:
                os._exit(1)
        jobs.close()
        events.close()

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""
        return self._await(os.WNOHANG)

    def wait(self) -> int | None:
        """Wait for the end of the process and return the exit code."""
        return self._await(0)

    def kill(self) -> None:
        """Kill the process unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def communicate(self) -> None:
        """Wait for the end of the process and close its pipes."""
        self.wait()
        self.close_pipes()

    def close_pipes(self) -> None:
        """Close this process's ends of the pipes."""
        for pipe in (self.stdin, self.stdout):
            with suppress(BrokenPipeError):
                pipe.close()

    def _await(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def may_fork(threads: int) -> bool:
    """Whether workers with so many threads can be forked from this process, once it has imported torch."""
    fresh = "torch" not in sys.modules and threading.active_count() == 1
    return sys.platform == "linux" and threads == 1 and fresh


def import_before_forking(threads: int) -> bool:
    """Import what every worker needs; False if that has started threads, which a forked process would be without."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    with importing():
        for name in NEEDED:
            import_module(name)
    return len(list(Path("/proc/self/task").iterdir())) == 1


def _open_pipe() -> tuple[IO[str], IO[str]]:
    """The reading and the writing end of a pipe."""
    reading, writing = os.pipe()
    return os.fdopen(reading, encoding="utf-8"), os.fdopen(writing, "w", encoding="utf-8")


def _serve(jobs: IO[str], events: IO[str], errors: IO[bytes]) -> None:
    """Be a worker process until the pipe of jobs closes."""
    os.setsid()  # an interrupt reaches the sweep alone, which then ends its workers
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream in (1, 2):  # whatever a library prints
        os.dup2(errors.fileno(), stream)
    try:
        _keep_memory()
        from ncollapse.sweep.worker import carry_out_jobs

        carry_out_jobs(jobs, events)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()


def _keep_memory() -> None:
    """Apply `KEEP_MEMORY`, unless the user has set these variables; other C libraries have no such settings."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for name, value in KEEP_MEMORY.items():
            if name not in os.environ:
                mallopt(_MALLOPT[name], value)
