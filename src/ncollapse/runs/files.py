"""Files of a run folder: written whole or not at all, read with a bound on their size."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import stat
from pathlib import Path
from typing import Any

from ncollapse.console import clean

LARGEST_JSON = 64 << 20
"""No summary, configuration or environment comes near so many bytes."""
DRAFT = re.compile(r"\.(?P<name>.+)\.(?P<host>[0-9a-f]{8})-(?P<pid>\d+)\.part")


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, finds the old content or the new, never a part of either.

    Several processes may write the same file: each has its own draft, and the last to finish wins. Drafts that killed
    processes of this machine left behind are removed.
    """
    draft = path.with_name(f".{path.name}.{_host()}-{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise name_unwritten_file(error, path) from error
        raise
    remove_drafts(path.parent, path.name)


def remove_drafts(folder: Path, name: str | None = None) -> None:
    """Remove the drafts in a folder (of one file, if named) whose process on this machine is gone."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            match = DRAFT.fullmatch(entry.name)
            if match is None or name not in (None, match["name"]) or match["host"] != _host():
                continue
            if not _is_alive(int(match["pid"])):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, NaN and infinity as null."""
    write_atomic(path, (json.dumps(clean(value), indent=1, allow_nan=False) + "\n").encode())


def append_line(path: Path, value: Any) -> None:
    """Append one line of JSON. It outlives the process; after `sync_file` it outlives a crash of the machine too.

    If an earlier line was cut short, a new line is begun first. If the disk is full, the part written is removed.
    """
    line = (json.dumps(clean(value), allow_nan=False) + "\n").encode()
    try:
        with path.open("ab+") as file:
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                if file.read(1) != b"\n":
                    line = b"\n" + line
            try:
                file.write(line)
                file.flush()
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(end)
                raise
    except OSError as error:
        raise name_unwritten_file(error, path) from error


def sync_file(path: Path) -> None:
    """Wait until what was written to a file is on the disk; a file that is not there is none to wait for."""
    try:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    except FileNotFoundError:
        return
    except OSError as error:
        raise name_unwritten_file(error, path) from error


def read_bounded(path: Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes; a larger one, a pipe or a device raises ValueError."""
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise ValueError("expected a file, got a folder")
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("expected a regular file, got a pipe or a device")
    content = b""
    if found.st_size <= limit:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    if found.st_size > limit or len(content) > limit:
        raise ValueError(f"expected at most {limit} bytes, got {found.st_size}")
    return content


def parse_json(content: bytes) -> Any:
    """Parse JSON; whatever is wrong with it is a ValueError."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("expected less deeply nested JSON") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"expected UTF-8 ({error.reason} at byte {error.start})") from None


def read_object(path: Path, notes: list[str] | None = None, needed: bool = False) -> dict[str, Any] | None:
    """Read the JSON object of a file; None if there is none.

    What is wrong with the file is added to `notes`. Without `notes`, an error of the file system is raised.
    """
    problems: list[str] = [] if notes is None else notes
    try:
        value = parse_json(read_bounded(path, LARGEST_JSON))
    except (FileNotFoundError, NotADirectoryError):
        if needed:
            problems.append(f"{path.name}: missing")
        return None
    except (OSError, ValueError, MemoryError) as error:
        if notes is None and isinstance(error, OSError):
            raise
        said = error.strerror if isinstance(error, OSError) else str(error)
        problems.append(f"{path.name}: {said or type(error).__name__}")
        return None
    if not isinstance(value, dict):
        problems.append(f"{path.name}: expected an object, got a {type(value).__name__}")
        return None
    return value


def name_unwritten_file(error: OSError, path: Path) -> OSError:
    """Return the same error, naming the file that could not be written and what remains valid."""
    text = f"{error.strerror}; the files written before are complete, and the same run can be resumed. Not written"
    return OSError(error.errno, text, str(path))


def _host() -> str:
    return hashlib.blake2b(platform.node().encode(errors="replace"), digest_size=4).hexdigest()


def _is_alive(pid: int) -> bool:
    if pid == os.getpid():
        return True
    if os.name == "nt":  # there os.kill ends the process
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
