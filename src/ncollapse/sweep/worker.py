"""The worker process of the local engine: jobs come in and events go out as JSON lines.

A worker that is started as a program reads jobs from standard input and writes events to standard output. A worker that
is forked (`sweep.spawn`) has a pipe for each.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from importlib import import_module
from typing import IO, Any

from ncollapse.processes import claim_process, importing
from ncollapse.sweep.job import Job, execute


def main() -> None:
    """Carry out jobs from standard input."""
    claim_process()
    sys.argv[:] = json.loads(os.environ.get("NCOLLAPSE_COMMAND", "null")) or sys.argv  # runs record what the user ran
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not mix with the events
    carry_out_jobs(sys.stdin, out)


def carry_out_jobs(jobs: IO[str], out: IO[str]) -> None:
    """Carry out jobs until `jobs` closes, even in the middle of a run: then the sweep is gone."""
    waiting: queue.SimpleQueue[Job | None] = queue.SimpleQueue()

    def listen() -> None:
        for line in jobs:
            waiting.put(Job(**json.loads(line)))
        os._exit(0)

    def emit(event: dict[str, Any]) -> None:
        from ncollapse.console import clean

        try:
            out.write(json.dumps(clean(event), allow_nan=False) + "\n")
            out.flush()
        except BrokenPipeError:
            os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    with importing():
        import_module("ncollapse.train")  # what every job needs, while there is perhaps none yet
    while (job := waiting.get()) is not None:
        execute(job, emit)


if __name__ == "__main__":
    main()
