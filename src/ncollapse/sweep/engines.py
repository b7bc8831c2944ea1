"""Where the runs of a sweep are carried out: local processes, threads on one GPU, a Ray cluster.

An engine is a function `engine(jobs, workers, emit)`: it carries out every job, passes the events of the runs to `emit`
and returns when nothing is left to do. What a run left behind is read from its folder, so an engine returns nothing.
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
    """The engine of that name.

    >>> get("local").__name__
    'run'
    """
    if name not in ENGINES:
        raise ValueError(f"engine={name!r}: there are {', '.join(ENGINES)}")
    engine: Engine = import_module(f"ncollapse.sweep.{name}").run
    return engine
