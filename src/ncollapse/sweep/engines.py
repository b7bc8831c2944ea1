"""The engines that carry out the runs of a sweep: local processes, threads on one GPU, a Ray cluster.

An engine is a function `engine(jobs, workers, emit)`. It carries out every job, passes the events of the runs to `emit`
and returns when all jobs have ended. Results are read from the run folders, so an engine returns nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from ncollapse.sweep.job import Job, execute

Emit = Callable[[dict[str, Any]], None]
Engine = Callable[[Sequence[Job], int | None, Emit], None]

ENGINES = ("local", "packed", "ray")

__all__ = ["ENGINES", "Emit", "Engine", "Job", "execute", "get"]


def get(name: str) -> Engine:
    """Return the engine of that name.

    >>> get("local").__name__
    'run'
    """
    if name not in ENGINES:
        raise ValueError(f"engine: expected one of {', '.join(ENGINES)}, got {name!r}")
    engine: Engine = import_module(f"ncollapse.sweep.{name}").run
    return engine
