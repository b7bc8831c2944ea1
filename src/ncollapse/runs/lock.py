"""One process at a time in a run folder: an advisory lock that ends with the process that holds it.

On Unix the lock is the kernel's (flock), taken on the folder itself and on the file `lock` in it: the folder's lock
stands when someone deletes the file, and the file's works on network file systems that cannot lock folders. Elsewhere
(Windows) the file is locked through the filelock library.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FILE = "lock"
PATIENCE = 0.5
"""Seconds to wait for the lock: processes that only look hold it for a moment."""


class FolderInUse(RuntimeError):
    """Another live process (or thread) trains in this folder."""


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; raise `FolderInUse` if another process or thread holds it.

    A killed process leaves no lock behind. The file says which process held it last.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.ExitStack() as stack:
            if _acquire(folder, stack):
                yield
                return
        if time.monotonic() > deadline:
            raise FolderInUse(f"{folder} is in use: process {_read_holder(folder)} trains there; wait for it")
        time.sleep(0.02)


def is_locked(folder: Path) -> bool:
    """Whether a live process holds the run's lock."""
    if fcntl is None:
        if not (folder / FILE).exists():
            return False
        with contextlib.ExitStack() as stack:
            try:
                return not _acquire_with_filelock(folder, stack)
            except OSError:
                return False
    for path in (folder, folder / FILE):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            continue
        finally:
            os.close(handle)
    return False


def _acquire(folder: Path, stack: contextlib.ExitStack) -> bool:
    """Take the lock until the stack closes; False if another holds it."""
    if fcntl is None:
        return _acquire_with_filelock(folder, stack)
    opened = os.open(folder, os.O_RDONLY)
    stack.callback(os.close, opened)  # which unlocks
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a network file system that locks no folders: the file's lock has to do
        pass
    file = stack.enter_context((folder / FILE).open("a+", encoding="utf-8"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    with contextlib.suppress(OSError):  # on a full disk the lock holds all the same
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
    return True


def _acquire_with_filelock(folder: Path, stack: contextlib.ExitStack) -> bool:
    from filelock import FileLock, Timeout

    lock = FileLock(folder / FILE, timeout=0)
    try:
        stack.enter_context(lock.acquire())
    except Timeout:
        return False
    return True


def _read_holder(folder: Path) -> str:
    try:
        words = (folder / FILE).read_text(encoding="utf-8", errors="replace")[:1000].split()
    except OSError:
        words = []
    return words[0] if words and words[0].isdecimal() else "unknown"
