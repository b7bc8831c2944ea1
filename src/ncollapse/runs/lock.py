"""One process at a time in a run folder: an advisory lock that ends with the process that holds it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 0.5


class FolderInUse(RuntimeError):
    """Another live process (or thread) trains in this folder."""


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; refuse at once where another one holds it, however it will end.

    The lock is the kernel's (flock): a killed process leaves none behind. The file says who held it last.
    """
    with (folder / "lock").open("a+", encoding="utf-8") as file:
        deadline = time.monotonic() + PATIENCE  # those who only look hold it for a moment
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    file.seek(0)
                    holder = file.read().strip() or "unknown"
                    raise FolderInUse(f"{folder} is in use: process {holder} trains there; wait for it") from None
                time.sleep(0.02)
        with contextlib.suppress(OSError):  # on a full disk the lock holds all the same
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
